"""Programs that are not ours open the file, get our numbers, and leave it as it is."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.stored import contents
from tests.test_bad_places import WITHOUT_PRIVILEGE
from tests.test_cookbook import SEARCHED, needs, prepare

VIEWS = (
    "candidate_timing",
    "choice_quality",
    "hit_rate",
    "run_history",
    "tuning_overview",
    "winner_flips",
)
AS_NOBODY = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"]
PANDAS = """
import sqlite3, sys
import pandas as pd
connection = sqlite3.connect(f"file:{sys.argv[1]}?mode=ro", uri=True)
frame = pd.read_sql_query(f"SELECT * FROM {sys.argv[2]}", connection, dtype=object)
print(frame.to_json(orient="records", double_precision=15))
connection.close()
"""
Command = Callable[[str, str], list[str]]
"""Of a file and a view; prints its rows as JSON."""
PROGRAMS: dict[str, Command] = {
    "tuner": lambda file, view: [
        "tuner", "sql", f"select * from {view}", "--json", "--database", file
    ],
    "sqlite3": lambda file, view: ["sqlite3", "-json", file, f"select * from {view}"],
    "datasette": lambda file, view: [
        "datasette", file, "--get", f"/tuning/{view}.json?_shape=array&_size=max"
    ],
    "sqlite-utils": lambda file, view: ["sqlite-utils", "rows", file, view],
    "pandas": lambda file, view: [sys.executable, "-c", PANDAS, file, view],
}  # fmt: skip


def ordinary() -> list[str]:
    """Say how to run a program as a user whom permissions hold; an ordinary one's are his own."""
    if os.geteuid() != 0:
        return []
    if shutil.which("setpriv") is None:
        pytest.skip("as root, permissions can only be tested with setpriv (util-linux)")
    tried = [*AS_NOBODY, sys.executable, "-c", "import tuner"]
    reachable = subprocess.run(tried, cwd="/", capture_output=True, check=False).returncode == 0
    return AS_NOBODY if reachable else WITHOUT_PRIVILEGE


@pytest.fixture
def shelf() -> Iterator[Path]:
    """Make a folder that anybody can reach and nobody can write to, with the golden database."""
    folder = Path(tempfile.mkdtemp())
    prepare(folder)
    (folder / "tuning.db").chmod(0o444)
    folder.chmod(0o555)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


def ask(program: str, file: Path, view: str, before: list[str]) -> Any:
    """Read a view with a program; its rows."""
    needs(program)
    done = subprocess.run(
        [*before, *PROGRAMS[program](str(file), view)],
        capture_output=True,
        text=True,
        cwd="/",
        env=os.environ | {"PATH": SEARCHED, "HOME": str(file.parent)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout or "[]")


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_gets_the_numbers_and_writes_nothing(
    program: str, view: str, shelf: Path
) -> None:
    from tuner.store.views import one_moment

    with one_moment(shelf / "tuning.db") as rows:
        ours = rows(f"SELECT * FROM {view}")
    assert ours
    before = contents(shelf)
    theirs = ask(program, shelf / "tuning.db", view, ordinary())
    assert contents(shelf) == before
    assert [list(row) for row in theirs] == [list(row) for row in ours]
    for their, our in zip(theirs, ours, strict=True):
        for name, value in our.items():
            # "sqlite3" prints 15 digits, and newer ones add up more exactly
            number = isinstance(value, float)
            assert their[name] == (pytest.approx(value, rel=1e-12) if number else value), name


@pytest.mark.parametrize("program", PROGRAMS)
def test_where_writing_is_allowed_nothing_is_written_either(program: str, tmp_path: Path) -> None:
    prepare(tmp_path)
    before = contents(tmp_path)
    assert len(ask(program, tmp_path / "tuning.db", "run_history", [])) == 7
    assert contents(tmp_path) == before
    assert [file.name for file in tmp_path.iterdir()] == ["tuning.db"]
