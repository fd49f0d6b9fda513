"""The package imports nothing by itself, and migrations import nothing of it."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import tuner

VERSIONS = Path(__file__).parents[2] / "migrations" / "versions"


def test_importing_the_package_imports_nothing_else() -> None:
    program = (
        "import sys, importlib, typing; before = set(sys.modules); import tuner; "
        "print(sorted(set(sys.modules) - before))"
    )
    printed = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert printed.stdout.strip() == "['__future__', 'tuner']"


@pytest.mark.parametrize("name", tuner.__all__)
def test_every_public_name_can_be_imported(name: str) -> None:
    assert getattr(tuner, name) is not None


@pytest.mark.parametrize("file", sorted(VERSIONS.glob("*.py")), ids=lambda file: file.stem)
def test_a_migration_imports_nothing_of_the_package(file: Path) -> None:
    roots = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            roots |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            roots.add((node.module or "").partition(".")[0])
    assert roots <= {"sqlalchemy", "alembic", "typing"}
