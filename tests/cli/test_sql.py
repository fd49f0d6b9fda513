"""`tuner sql`: any question, no change, and a quiet end."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.jobs import ROOT
from tests.support.programs import prepare
from tests.support.stored import Shell, contents, rows_of

ENDLESS = "with recursive n(i) as (select 1 union all select i + 1 from n)"


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """Copy the golden database."""
    prepare(tmp_path)
    return tmp_path / "tuning.db"


Started = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def started() -> Iterator[Started]:
    """Start `tuner sql` in processes of their own, output in a pipe; none outlives its test."""
    processes = []

    def start(database: Path, *arguments: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-m", "tuner", "sql", *arguments, "--database", str(database)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=ROOT,
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    "statement",
    [
        "delete from sample",
        "update verdict set gain = 1",
        "insert into pin values ('k', 1, 'so', '2026-01-31T12:00:00.000000Z')",
        "drop view hit_rate",
        "create table t (a)",
        "create temp table t (a)",
        "pragma user_version = 7",
        "pragma journal_mode = wal",
        "vacuum",
        "reindex",
        "analyze",
    ],
)
def test_sqlite_refuses_whatever_would_change_the_file(
    database: Path, shell: Shell, statement: str
) -> None:
    before = contents(database.parent)
    for words in (statement, f"/* select */ {statement}", f"  {statement.upper()}  ;"):
        shell.refused("sql", words, "--database", database)
    assert contents(database.parent) == before


@pytest.mark.parametrize("query_only", ["pragma query_only = 0", "pragma writable_schema = 1"])
def test_no_setting_lets_a_statement_write(database: Path, shell: Shell, query_only: str) -> None:
    before = contents(database.parent)
    shell.refused("sql", query_only, "--database", database)
    assert contents(database.parent) == before


def test_no_other_file_is_made_or_opened(database: Path, shell: Shell) -> None:
    other = database.parent / "other.db"
    for statement in (f"vacuum into '{other}'", f"attach '{other}' as o", f"commit; {other}"):
        shell.refused("sql", statement, "--database", database)
    assert list(contents(database.parent)) == [database.name]
    with closing(sqlite3.connect(other)) as connection, connection:
        connection.execute("CREATE TABLE secret (a)")
    assert "not authorized" in shell.refused(
        "sql", f"attach '{other}' as o", "--database", database
    )


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("selec 1", "syntax error"),
        ("select nowhere from run", "no such column: nowhere"),
        ("select * from runs", "no such table: runs"),
        ("select 1; select 2", "one statement"),
        ("", "no rows"),
        ("/* nothing */", "no rows"),
        ("begin", "transaction"),
        ("select 'a\nb' from \n\n nowhere", "nowhere"),
        ("select '\udcff'", "surrogates"),
        ("select json('{')", "malformed JSON"),
        ("select ?", "bind"),
    ],
)
def test_a_statement_that_fails_is_one_clear_line(
    database: Path, shell: Shell, statement: str, words: str
) -> None:
    assert words in shell.refused("sql", statement, "--database", database)


def test_a_failure_after_the_first_rows_is_one_clear_line_too(database: Path, shell: Shell) -> None:
    told = shell(
        "sql", f"{ENDLESS} select json(iif(i < 9000, i, '{{')) from n", "--format", "csv",
        "--database", database,
    )  # fmt: skip
    assert told.code == 1
    assert told.err.startswith("tuner: the statement failed: malformed JSON")
    assert told.err.count("\n") == 1


def test_a_database_that_is_none_or_older_says_so(database: Path, shell: Shell) -> None:
    older = shutil.copy(ROOT / "tests" / "golden" / "0001.db", database.parent / "older.db")
    assert "db upgrade" in shell.refused("sql", "select 1", "--database", older)
    assert "tuner tune" in shell.refused("sql", "select 1", "--database", "none.db")
    assert "tuner tune" in shell.refused("sql", "--database", "none.db")
    noise = database.parent / "noise.db"
    noise.write_bytes(b"not a database at all" * 100)
    shell.refused("sql", "select 1", "--database", noise)


def test_a_damaged_page_is_told_as_damage(database: Path, shell: Shell) -> None:
    (root,) = rows_of(database, "SELECT rootpage FROM sqlite_master WHERE name = 'sample'")
    content = bytearray(database.read_bytes())
    content[(root[0] - 1) * 4096 : root[0] * 4096] = b"\xff" * 4096
    database.write_bytes(content)
    told = shell("sql", "select * from sample", "--database", database)
    assert told.code == 1
    assert "db check" in told.err


VALUES = """
    select 1 as whole, 0.1 + 0.2 as share, null as unknown, x'00ff' as bytes,
           'a,"b"' || char(10) || char(27) || 'ü' as text, 1 as whole, 9e999 as endless
"""


def test_json_holds_every_value(database: Path, shell: Shell) -> None:
    for options in (("--format", "json"), ("--json",)):
        told = shell("sql", VALUES, *options, "--database", database)
        assert json.loads(told.out) == [
            {
                "whole": 1, "share": 0.1 + 0.2, "unknown": None, "bytes": "00ff",
                "text": 'a,"b"\n\x1bü', "whole:1": 1, "endless": "inf",
            }
        ]  # fmt: skip
        assert "\x1b" not in told.out
    assert shell("sql", "select 1 where 0", "--json", "--database", database).out == "[]\n"


def test_csv_is_read_back_as_it_was(database: Path, shell: Shell) -> None:
    told = shell("sql", VALUES, "--format", "csv", "--database", database)
    heading, row = csv.reader(io.StringIO(told.out))
    assert heading == ["whole", "share", "unknown", "bytes", "text", "whole:1", "endless"]
    assert row == ["1", repr(0.1 + 0.2), "", "00ff", 'a,"b"\n\x1bü', "1", "inf"]
    told = shell("sql", "select 1 as a where 0", "--format", "csv", "--database", database)
    assert told.out == "a\n"


def test_a_table_sets_numbers_to_the_right_and_what_is_too_wide_line_by_line(
    database: Path, shell: Shell
) -> None:
    told = shell("sql", VALUES, "--database", database)
    assert told.out.splitlines() == [
        "whole  share  unknown  bytes  text      whole:1  endless",
        '    1    0.3           00ff   a,"b"??ü        1      inf',
    ]
    told = shell("sql", "select * from tuning_overview", "--database", database)
    assert told.out.startswith("tuning_key                k1_")
    assert told.out.count("\n\n") == 4
    assert shell("sql", "select 1 as a where 0", "--database", database).out == "a\n"


def test_rows_beyond_the_measured_ones_are_whole(database: Path, shell: Shell) -> None:
    statement = f"{ENDLESS} select i, iif(i > 600, 'longer', 'b') as b from n limit 700"
    lines = shell("sql", statement, "--database", database).out.splitlines()
    assert len(lines) == 701
    assert lines[500:502] == ["500  b", "501  b"]
    assert lines[700] == "700  longer"


def test_without_a_statement_it_tells_how_to_open_the_file(database: Path, shell: Shell) -> None:
    spaced = database.rename(database.parent / "my tunings.db")
    told = shell("sql", "--database", spaced).out
    assert f"sqlite3 -readonly '{spaced}'" in told
    assert f"datasette '{spaced}'" in told
    for view in ("tuning_overview", "hit_rate", "winner_flips"):
        assert view in told


def test_endless_rows_are_refused_in_one_line(database: Path, shell: Shell) -> None:
    told = shell.refused("sql", f"{ENDLESS} select i from n", "--database", database)
    assert "add a LIMIT" in told


@pytest.mark.parametrize("form", ["table", "csv", "json"])
def test_many_rows_are_printed_and_a_closed_pipe_ends_them_quietly(
    started: Started, database: Path, form: str
) -> None:
    process = started(database, f"{ENDLESS} select i from n limit 400000", "--format", form)
    assert process.stdout is not None
    assert process.stderr is not None
    assert len(process.stdout.read(300_000)) == 300_000
    process.stdout.close()
    assert process.wait(60) == 1
    assert process.stderr.read() == b""
    process.stderr.close()


@pytest.mark.parametrize(
    "command", [("list", "--json"), ("show", "k1_a69", "--json"), ("sql", "select * from sample")]
)
def test_a_pipe_that_is_closed_at_once_ends_any_command_quietly(
    database: Path, command: tuple[str, ...]
) -> None:
    inside, outside = os.pipe()
    os.close(inside)
    done = subprocess.run(
        [sys.executable, "-m", "tuner", *command, "--database", str(database)],
        stdout=outside,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        check=False,
    )
    os.close(outside)
    assert (done.returncode, done.stderr) == (1, b"")


def test_ctrl_c_ends_it_quietly(started: Started, database: Path) -> None:
    process = started(database, f"{ENDLESS} select count(*) from n")
    time.sleep(1.5)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert (process.returncode, told) == (130, b"")


def test_a_reader_that_does_not_read_keeps_nobody_from_storing(
    started: Started, database: Path
) -> None:
    statement = f"{ENDLESS} select i, 'some text to fill a pipe with' as t from n limit 50000"
    process = started(database, statement, "--format", "csv")
    assert process.stdout is not None
    assert os.read(process.stdout.fileno(), 4) == b"i,t\n"  # it is at work
    with closing(sqlite3.connect(database, timeout=30)) as connection, connection:
        connection.execute("DELETE FROM lookup")  # waits for all who read
    out, err = process.communicate(timeout=60)
    assert out.count(b"\n") == 50_000
    assert out.endswith(b"50000,some text to fill a pipe with\n")
    assert (process.returncode, err) == (0, b"" if err is None else err)
