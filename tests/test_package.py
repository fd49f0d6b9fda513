"""The package as a whole: what prints, what migrations import, what importing it costs."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "tuner"


def modules() -> dict[str, ast.Module]:
    """Parse every module, named as seen from inside the package."""
    parsed = {}
    for file in PACKAGE.rglob("*.py"):
        name = ".".join(file.relative_to(PACKAGE).with_suffix("").parts)
        name = name.removesuffix(".__init__")
        if name not in ("__init__", "store", "exchange"):
            parsed[name] = ast.parse(file.read_text())
    return parsed


def imports_of(tree: ast.Module) -> set[str]:
    """List what a module imports, wherever the import stands in it."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def test_only_the_log_prints() -> None:
    printing = set()
    for name, tree in modules().items():
        calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
        if any(isinstance(call.func, ast.Name) and call.func.id == "print" for call in calls):
            printing.add(name)
    assert printing == {"log"}


def test_migrations_import_nothing_of_ours() -> None:
    for file in (PACKAGE.parent / "migrations" / "versions").glob("*.py"):
        roots = {target.partition(".")[0] for target in imports_of(ast.parse(file.read_text()))}
        assert roots <= {"sqlalchemy", "alembic", "typing"}


def test_importing_the_package_imports_nothing_else() -> None:
    program = (
        "import sys, importlib, typing; before = set(sys.modules); import tuner; "
        "print(sorted(set(sys.modules) - before))"
    )
    printed = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert printed.stdout.strip() == "['__future__', 'tuner']"


def test_every_public_name_can_be_imported() -> None:
    import tuner

    for name in tuner.__all__:
        assert getattr(tuner, name) is not None
    assert set(tuner._HOMES) == set(tuner.__all__) - {"__version__"}
