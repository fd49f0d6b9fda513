"""Other programs read the same numbers from the file and do not change it."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import WITHOUT_PRIVILEGE
from tests.support.programs import SEARCHED, needs, prepare
from tests.support.stored import contents

VIEWS = (
    "candidate_timing",
    "choice_quality",
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
DUCKDB = """
import json, sys
from importlib.util import find_spec
from pathlib import Path
import duckdb
# Its reader for SQLite comes as a package: nothing is fetched.
[folder] = find_spec("duckdb_extension_sqlite_scanner").submodule_search_locations
[reader] = Path(folder).glob("extensions/*/sqlite_scanner.duckdb_extension")
database = duckdb.connect()
database.execute(f"LOAD '{reader}'")
database.execute(f"ATTACH '{sys.argv[1]}' AS tuning (TYPE sqlite, READ_ONLY)")
found = database.execute(f"SELECT * FROM tuning.{sys.argv[2]}")
names = [column[0] for column in found.description]
print(json.dumps([dict(zip(names, row)) for row in found.fetchall()]))
"""
FACTS = (
    "count(*), count(DISTINCT tuning_key), sum(nanoseconds), max(nanoseconds), "
    "count(chunk_size), sum(CASE WHEN cpu_count = 8 THEN nanoseconds ELSE 0 END)"
)
"""What is asked of an export, by a program of its own and of ours."""
READ_BY_DUCKDB = """
import json, sys
import duckdb
print(json.dumps(duckdb.sql(f"SELECT {sys.argv[2]} FROM '{sys.argv[1]}'").fetchone(), default=int))
"""
READ_BY_PANDAS = """
import json, sys
import pandas as pd
file = sys.argv[1]
if file.endswith(".csv"):
    frame = pd.read_csv(file)
else:
    frame = pd.read_parquet(file)
print(json.dumps([
    len(frame),
    int(frame.tuning_key.nunique()),
    int(frame.nanoseconds.sum()),
    int(frame.nanoseconds.max()),
    int(frame.chunk_size.count()),
    int(frame.nanoseconds[frame.cpu_count == 8].sum()),
]))
"""
NAMING = ("tuning_key", "stack", "run_id", "chunk_size")
"""The columns by which a view's rows are told apart."""
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
    "duckdb": lambda file, view: [sys.executable, "-c", DUCKDB, file, view],
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
    with closing(sqlite3.connect(shelf / "tuning.db")) as connection:
        connection.row_factory = sqlite3.Row
        ours = [dict(row) for row in connection.execute(f"SELECT * FROM {view}")]
    assert ours
    before = contents(shelf)
    theirs = ask(program, shelf / "tuning.db", view, ordinary())
    assert contents(shelf) == before
    assert [list(row) for row in theirs] == [list(row) for row in ours]

    def place(row: dict[str, Any]) -> list[str]:  # a view has no order of its own
        return [str(row.get(name)) for name in NAMING]

    for their, our in zip(sorted(theirs, key=place), sorted(ours, key=place), strict=True):
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


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize(
    ("program", "reader"), [("duckdb", READ_BY_DUCKDB), ("pandas", READ_BY_PANDAS)]
)
def test_an_export_gives_a_program_the_databases_numbers(
    program: str, reader: str, suffix: str, tmp_path: Path
) -> None:
    needs(program)
    prepare(tmp_path)
    database, export = tmp_path / "tuning.db", tmp_path / f"samples.{suffix}"
    command = [sys.executable, "-m", "tuner", "export", "--database", str(database)]
    subprocess.run([*command, "-o", str(export)], check=True, capture_output=True)
    with closing(sqlite3.connect(database)) as connection:
        ours = connection.execute(
            "SELECT count(*), count(DISTINCT tuning_key.digest), sum(nanoseconds), "
            "max(nanoseconds), count(sample.chunk_size), "
            "sum(CASE WHEN cpu_count = 8 THEN nanoseconds ELSE 0 END) "
            "FROM run JOIN tuning_key USING (key_id) LEFT JOIN sample USING (run_id) "
            "LEFT JOIN device USING (device_id)"
        ).fetchone()
    done = subprocess.run(
        [sys.executable, "-c", reader, str(export), FACTS],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == list(ours)
