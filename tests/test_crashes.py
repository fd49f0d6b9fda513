"""Killed and failing at every single statement: the database stays whole and goes on."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.facts import a_key
from tests.support.jobs import ROOT, finish, start_job, wait_until_stepping
from tests.test_many_processes import runs_in
from tuner import load_cache, store_cache
from tuner.errors import DatabaseError
from tuner.store import database as engine
from tuner.store import sqlite

VALUE = {"chunk_size": 4, "per_candidate_ms": {"None": 10.0, "4": 9.0, "8": 9.5}}

STORING = """
import os, signal, sqlite3, sys
from pathlib import Path
from tests.support.facts import a_key
from tests.test_crashes import VALUE
from tuner import store_cache
from tuner.store import database as engine, sqlite

left = int(sys.argv[2])

def die_in_time(statement):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)

def open_for_writing(database):
    connection = sqlite.open_for_writing(database)
    connection.set_trace_callback(die_in_time)
    connection.execute("PRAGMA cache_size = 2")  # so that pages reach the file before the commit
    return connection

engine.open_for_writing = open_for_writing
store_cache(Path(sys.argv[1]), a_key(), VALUE)
"""


def store_and_die(database: Path, statement: int) -> int:
    """Store an answer in a process that kills itself at its n-th statement."""
    return subprocess.run(
        [sys.executable, "-c", STORING, str(database), str(statement)], cwd=ROOT, check=False
    ).returncode


@pytest.mark.parametrize("state", ["new", "filled"])
def test_a_process_killed_at_any_statement_leaves_all_or_nothing(
    database: Path, state: str
) -> None:
    before = {}
    if state == "filled":
        store_cache(database, "old", VALUE)
        before = {"old": VALUE}
    statement, survived, killed = 1, False, 0
    # Every statement of a short store; of the long making of a database every seventh.
    step = 7 if state == "new" else 2
    while not survived:
        survived = store_and_die(database, statement) == 0
        killed += not survived
        after = load_cache(database)
        assert after in (before, before | {a_key(): VALUE})
        if database.exists() and database.stat().st_size:
            runs_in(database) if after else None
        statement += step
        if state == "new" and not survived:
            for file in database.parent.glob(f"{database.name}*"):
                file.unlink()
    assert killed >= 5
    assert load_cache(database) == before | {a_key(): VALUE}


class Failing(sqlite3.Connection):
    """A connection whose n-th statement fails, as on a full disk, or is interrupted."""

    left = 0
    error: BaseException

    def _count(self) -> None:
        Failing.left -= 1
        if Failing.left == 0:
            raise Failing.error

    def cursor(self, *_: Any, **__: Any) -> Any:
        return super().cursor(FailingCursor)


class FailingCursor(sqlite3.Cursor):
    connection: Failing

    def execute(self, *arguments: Any) -> Any:
        self.connection._count()
        return super().execute(*arguments)

    def executemany(self, *arguments: Any) -> Any:
        self.connection._count()
        return super().executemany(*arguments)


def open_to_fail(file: Path) -> sqlite3.Connection:
    """Open a file as the store does, on a connection that fails when it is told to."""
    connection = sqlite3.connect(file, isolation_level=None, factory=Failing)
    connection.execute("PRAGMA foreign_keys = ON")
    return connection


@pytest.mark.parametrize("state", ["new", "filled"])
def test_ctrl_c_at_any_statement_is_passed_on_and_leaves_all_or_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    monkeypatch.setattr(engine, "open_for_writing", open_to_fail)
    Failing.error = KeyboardInterrupt()
    interrupted = 0
    for statement in range(1, 2000, 7 if state == "new" else 2):
        database = tmp_path / f"{statement}.db"
        Failing.left = 0
        if state == "filled":
            store_cache(database, "old", VALUE)
        Failing.left = statement
        try:
            store_cache(database, a_key(), VALUE)
            break
        except KeyboardInterrupt:
            interrupted += 1
        Failing.left = 0
        store_cache(database, "next", VALUE)
        assert load_cache(database).keys() - {"old"} == {"next"}
    assert interrupted >= 5


@pytest.mark.parametrize("error", ["disk I/O error", "database or disk is full"])
def test_a_fault_at_any_statement_leaves_all_or_nothing(
    database: Path, monkeypatch: pytest.MonkeyPatch, error: str
) -> None:
    store_cache(database, "old", VALUE)
    monkeypatch.setattr(engine, "open_for_writing", open_to_fail)
    Failing.error = sqlite3.OperationalError(error)
    faults: list[str] = []
    for statement in range(1, 200):
        Failing.left = statement
        try:
            store_cache(database, a_key(), VALUE)
            break
        except DatabaseError as failure:
            faults.append(str(failure))
        assert load_cache(database) == {"old": VALUE}
        runs_in(database)
    assert len(faults) >= 8
    assert all(str(database) in fault for fault in faults)
    assert load_cache(database) == {"old": VALUE, a_key(): VALUE}


def test_a_full_disk_gives_one_clear_error_and_loses_nothing(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_cache(database, "old", VALUE)
    real = sqlite.open_for_writing

    def open_for_writing(file: Path) -> sqlite3.Connection:
        connection = real(file)
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages}")
        return connection

    monkeypatch.setattr(engine, "open_for_writing", open_for_writing)
    many = {"chunk_size": 4, "per_candidate_ms": {str(n): 1.0 for n in range(1, 2000)}}
    with pytest.raises(DatabaseError, match=r"full.*SQLITE_FULL"):
        store_cache(database, "new", many)
    assert load_cache(database) == {"old": VALUE}
    runs_in(database)


def test_what_a_killed_writer_left_half_way_is_rolled_back_by_the_next_reader(
    database: Path,
) -> None:
    store_cache(database, "old", VALUE)
    program = """
import os, signal, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("PRAGMA cache_size = 1")
connection.execute("BEGIN IMMEDIATE")
connection.execute("UPDATE verdict SET chunk_size = 99")
connection.executemany(
    "INSERT INTO model (digest) VALUES (?)", [(f"{n:0500}",) for n in range(500)]
)
os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", program, str(database)], check=False)
    journal = database.with_name(database.name + "-journal")
    assert journal.stat().st_size > 0
    assert load_cache(database) == {"old": VALUE}
    assert not journal.exists() or journal.stat().st_size == 0
    runs_in(database)


def test_jobs_killed_at_random_moments_lose_no_stored_run(database: Path) -> None:
    stored = 0
    for delay in (0.0, 0.05, 0.2, 0.4):
        job = start_job(database, num_envs=64 + 64 * stored, budget_s=0.3)
        wait_until_stepping(job)
        try:
            job.wait(timeout=delay)
        except subprocess.TimeoutExpired:
            os.kill(job.pid, signal.SIGKILL)
        job.communicate()
        now = len(runs_in(database)) if load_cache(database) or database.exists() else 0
        assert now >= stored
        stored = now
    assert finish(start_job(database, num_envs=6400, budget_s=0.3))["steps"] > 0
    assert len(runs_in(database)) == stored + 1
