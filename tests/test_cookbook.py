"""docs/sql.md, example by example: what it shows is what comes out, to the letter.

    python -m tests.test_cookbook

writes the outputs anew, for whoever has changed one on purpose and will look at the difference.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.golden.make import FOLDER
from tests.support.facts import a_key
from tuner.store.sqlite import REVISION

PAGE = Path(__file__).parents[1] / "docs" / "sql.md"
EXAMPLE = re.compile(
    r"```console\n\$ (?P<command>[^\n]+)\n(?P<output>.*?)```"
    r"|```(?P<language>sql|python)\n(?P<program>.*?)```\n\n```text\n(?P<printed>.*?)```",
    re.S,
)
SEARCHED = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
"""Where programs are: beside this Python, then wherever else they are."""
LOOKUPS = (
    (a_key(), "2026-01-31", "hit", 40),
    (a_key(num_envs=4096), "2026-01-31", "miss", 1),
    (a_key(), "2026-02-01", "hit", 62),
    (a_key(num_envs=4096), "2026-02-01", "resumed", 2),
    (a_key(), "2026-02-02", "hit", 31),
)


def examples() -> list[re.Match[str]]:
    """Find the page's examples."""
    return list(EXAMPLE.finditer(PAGE.read_text()))


def prepare(folder: Path) -> None:
    """Make the database that the page speaks of."""
    file = Path(shutil.copy(FOLDER / f"{REVISION}.db", folder / "tuning.db"))
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.executemany("INSERT INTO lookup VALUES (?, ?, ?, ?)", LOOKUPS)


def carry_out(example: re.Match[str], folder: Path) -> str:
    """Run an example as its reader would; what it prints."""
    command = {
        None: ["bash", "-c", example["command"] or ""],
        "sql": ["tuner", "sql", example["program"] or ""],
        "python": [sys.executable, "-c", example["program"] or ""],
    }[example["language"]]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=folder,
        env=os.environ
        | {
            "PATH": SEARCHED,
            "TUNER_DATABASE": "tuning.db",
            "PYTHONWARNINGS": "error",
        },
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


PACKAGES = {"pandas": ("pandas",), "duckdb": ("duckdb", "duckdb_extension_sqlite_scanner")}
"""Of what is no program of its own."""


def needs(program: str) -> None:
    """Skip a test where a program or a package, pandas say, is not installed."""
    if program in PACKAGES:
        found = all(importlib.util.find_spec(package) for package in PACKAGES[program])
    else:
        found = shutil.which(program, path=SEARCHED) is not None
    if found and program == "sqlite3":
        told = subprocess.run(["sqlite3", "--version"], capture_output=True, text=True, check=True)
        found = tuple(map(int, told.stdout.split()[0].split("."))) >= (3, 37)  # knows STRICT
    if not found:
        pytest.skip(f"{program} is not installed")


@pytest.mark.parametrize("example", examples(), ids=lambda e: e.start())
def test_an_example_gives_what_it_shows(example: re.Match[str], tmp_path: Path) -> None:
    needs(
        "pandas" if example["language"] == "python" else (example["command"] or "tuner").split()[0]
    )
    prepare(tmp_path)
    before = (tmp_path / "tuning.db").read_bytes()
    assert carry_out(example, tmp_path) == (example["output"] or example["printed"])
    assert (tmp_path / "tuning.db").read_bytes() == before


def test_every_block_of_the_page_is_an_example_and_every_view_has_one() -> None:
    text = PAGE.read_text()
    assert len(examples()) == len(re.findall(r"^```(?:console|sql|python)$", text, re.M)) > 15
    with closing(sqlite3.connect(FOLDER / f"{REVISION}.db")) as connection:
        views = connection.execute("SELECT name FROM sqlite_master WHERE type = 'view'").fetchall()
    for (view,) in views:
        assert re.search(rf"^### {view}: .*?from {view}\b", text, re.M | re.S), view


def _anew(folder: Path) -> Callable[[re.Match[str]], str]:
    def with_output(example: re.Match[str]) -> str:
        if example["command"]:
            return f"```console\n$ {example['command']}\n{carry_out(example, folder)}```"
        shown = carry_out(example, folder)
        return f"```{example['language']}\n{example['program']}```\n\n```text\n{shown}```"

    return with_output


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        prepare(Path(name))
        PAGE.write_text(EXAMPLE.sub(_anew(Path(name)), PAGE.read_text()))
