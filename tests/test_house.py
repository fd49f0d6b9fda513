"""The house stands as docs/design.md draws it: imports run one way, and each in its room."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "tuner"

FLOORS = [
    {
        "budget",
        "errors",
        "notice",
        "texts",
        "processors",
        "filesystem",
        "validators",
        "store.filters",
    },
    {"records"},
    {"answers", "store.fields"},
    {"paths", "candidates", "device", "workload", "circumstances"},
    {"keys"},
    {"curve", "pools", "model_file", "store.sqlite", "store.schema", "store.runs"},
    {"evidence", "transfer", "motion", "bench", "store.lock", "store.diagnosis"},
    {"selection", "store.counting"},
    {"history"},
    {"plan"},
    {"race", "store.lookup", "store.views"},
    {
        "store.engine",
        "store.relatives",
        "store.backup",
        "store.overview",
        "store.asking",
        "store.alike",
    },
    {"store.migrate"},
    {"store.ledger", "store.check"},
    {"store.repair", "store.upkeep", "store.exporting"},
    {"store.importing", "store.foreign"},
    {"cache", "tuning", "doctor", "study", "exchange.rows"},
    {"plots", "exchange.writers", "exchange.spool"},
    {"report", "exchange.readers", "exchange.export"},
    {"exchange.parquet", "exchange.cache_file"},
    {"exchange.intake"},
    {"resolve"},
    {"explain"},
    {"cli.tables"},
    {"cli.options"},
    {"cli.filters"},
    {"cli.progress", "cli.listing", "cli.sql", "cli.doctor", "cli.work"},
    {"cli.tune", "cli.why", "cli.keys", "cli.database", "cli.show", "cli.compare", "cli.exchange"},
    {"cli.pictures"},
    {"cli"},
    {"__main__"},
]
"""From the ground up. A module imports from lower floors only, or from the package's face."""

OUTSIDERS = {
    "sqlalchemy": ("store.",),
    "alembic": ("store.",),
    "sqlite3": ("store.", "doctor"),
    "mujoco": ("pools", "model_file", "motion"),
    "mujoco_uni": ("pools",),
    "click": ("cli",),
    "matplotlib": ("plots",),
    "fontTools": ("plots",),
    "plotly": ("report",),
    "pyarrow": ("exchange.",),
}
"""Which rooms may use which package."""


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


def test_every_module_has_a_floor() -> None:
    named = [name for floor in FLOORS for name in floor]
    assert sorted(named) == sorted(modules())


def test_imports_run_from_higher_floors_to_lower_ones() -> None:
    floor_of = {name: height for height, floor in enumerate(FLOORS) for name in floor}
    upwards = []
    for name, tree in modules().items():
        for target in imports_of(tree):
            inside = target.removeprefix("tuner.")
            if target != inside and inside in floor_of and floor_of[inside] >= floor_of[name]:
                upwards.append(f"{name} -> {inside}")
    assert upwards == []


def test_timing_and_storing_never_see_each_other() -> None:
    for name, tree in modules().items():
        targets = {target.removeprefix("tuner.").partition(".")[0] for target in imports_of(tree)}
        if name.startswith("store."):
            assert not targets & {
                "bench",
                "race",
                "plan",
                "selection",
                "evidence",
                "history",
                "pools",
                "motion",
            }
        timing = {"bench", "race", "plan", "history", "selection", "evidence", "curve", "pools"}
        if name in timing | {"motion"}:
            assert not targets & {"store", "cache", "tuning", "resolve"}


def test_packages_are_used_where_they_belong() -> None:
    astray = []
    for name, tree in modules().items():
        for target in imports_of(tree):
            rooms = OUTSIDERS.get(target.partition(".")[0])
            if rooms and not name.startswith(rooms):
                astray.append(f"{name} -> {target}")
    assert astray == []


def test_only_the_command_line_and_the_notice_print() -> None:
    printing = set()
    for name, tree in modules().items():
        calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
        if any(isinstance(call.func, ast.Name) and call.func.id == "print" for call in calls):
            printing.add(name)
    assert printing == {"notice"}


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
