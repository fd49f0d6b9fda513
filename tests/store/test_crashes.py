"""Killed and failing at every single statement: the database stays whole and goes on."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.crashes import VALUE, Failing, open_to_fail, store_and_die
from tests.support.facts import a_key
from tests.support.jobs import finish, start_job, wait_until_stepping
from tests.support.processes import runs_in
from tuner import load_cache, store_cache
from tuner.errors import DatabaseError
from tuner.store import database as engine
from tuner.store import sqlite


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
