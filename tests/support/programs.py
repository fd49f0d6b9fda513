"""Programs that read the database, and the copy of a golden file that they read."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.golden.make import FOLDER
from tuner.store.sqlite import REVISION

SEARCHED = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
"""The folders to find programs in: this Python's first, then those of PATH."""
PACKAGES = {"pandas": ("pandas",), "duckdb": ("duckdb", "duckdb_extension_sqlite_scanner")}
"""The packages of programs that are not executables."""


def prepare(folder: Path) -> None:
    """Copy the golden database of this revision to tuning.db."""
    shutil.copy(FOLDER / f"{REVISION}.db", folder / "tuning.db")


def needs(program: str) -> None:
    """Skip a test if a program or a package is not installed."""
    if program in PACKAGES:
        found = all(importlib.util.find_spec(package) for package in PACKAGES[program])
    else:
        found = shutil.which(program, path=SEARCHED) is not None
    if found and program == "sqlite3":
        told = subprocess.run(["sqlite3", "--version"], capture_output=True, text=True, check=True)
        found = tuple(map(int, told.stdout.split()[0].split("."))) >= (3, 37)  # knows STRICT
    if not found:
        pytest.skip(f"{program} is not installed")
