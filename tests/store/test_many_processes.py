"""Many processes at once: one measures for all, one at a time, and nobody waits for ever."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.support.facts import a_key
from tests.support.jobs import ROOT, finish, start_job, wait_until_stepping
from tests.support.processes import runs_in
from tuner import load_cache, store_cache
from tuner.store.migrate import upgrade
from tuner.store.sqlite import REVISION


def test_of_sixteen_processes_one_measures_and_all_get_its_answer(database: Path) -> None:
    jobs = [start_job(database, wait_s=60) for _ in range(16)]
    told = [finish(job) for job in jobs]
    assert sum(job["steps"] > 0 for job in told) == 1
    assert len({job["choice"] for job in told}) == 1
    assert len(runs_in(database)) == 1
    for job in told:
        assert job["stderr"].count("\n") == (2 if job["steps"] else 1)
        assert ("measured: " if job["steps"] else "hit: ") in job["stderr"]


def test_a_killed_holder_is_replaced_by_one_that_waits(database: Path) -> None:
    holder = start_job(database, step_s=0.2, budget_s=600)
    wait_until_stepping(holder)
    waiters = [start_job(database, wait_s=60) for _ in range(3)]
    holder.kill()
    holder.communicate()
    told = [finish(waiter) for waiter in waiters]
    assert sum(job["steps"] > 0 for job in told) == 1
    assert len({job["choice"] for job in told}) == 1
    assert len(runs_in(database)) == 1


def test_a_stopped_holder_delays_nobody_for_ever_and_its_late_result_is_kept(
    database: Path,
) -> None:
    holder = start_job(database, step_s=0.01, budget_s=1.0)
    wait_until_stepping(holder)
    os.kill(holder.pid, signal.SIGSTOP)
    try:
        waiter = finish(start_job(database, wait_s=0.5))
        assert waiter["choice"] is None
        assert waiter["steps"] == 0
        assert "using the native default" in waiter["stderr"]
        assert "another process" in waiter["stderr"]
        assert runs_in(database) == []
    finally:
        os.kill(holder.pid, signal.SIGCONT)
    late = finish(holder)
    assert late["steps"] > 0
    assert len(runs_in(database)) == 1
    assert finish(start_job(database))["choice"] == late["choice"]


@pytest.mark.parametrize("what", ["another key", "another database"])
def test_two_processes_never_time_their_pools_at_the_same_moment(tmp_path: Path, what: str) -> None:
    first = start_job(tmp_path / "a.db", step_s=5e-3, budget_s=1.0)
    wait_until_stepping(first)
    other = tmp_path / "a.db" if what == "another key" else tmp_path / "b.db"
    second = start_job(other, num_envs=128 if what == "another key" else 64, wait_s=60)
    wait_until_stepping(second)
    # The second steps: so the first has let go of its turn, after storing its run.
    assert [samples > 0 for _, samples in runs_in(tmp_path / "a.db")] == [True]
    finish(first)
    assert finish(second)["steps"] > 0


def test_a_lock_that_cannot_be_used_gives_the_default_and_one_line(
    tmp_path: Path, database: Path
) -> None:
    told = finish(start_job(database, folder=tmp_path / "no such folder"))
    assert (told["choice"], told["steps"]) == (None, 0)
    assert told["stderr"].count("\n") == 1
    assert "TUNER_LOCK_FOLDER" in told["stderr"]
    (tmp_path / "tuner-measuring.lock").symlink_to(tmp_path / "victim")
    told = finish(start_job(database, folder=tmp_path))
    assert (told["choice"], told["steps"]) == (None, 0)
    assert not (tmp_path / "victim").exists()


@pytest.mark.parametrize("filled", [False, True])
def test_a_storm_of_first_opens_makes_one_schema(database: Path, filled: bool) -> None:
    program = (
        "import sys; from pathlib import Path; from tuner.store.migrate import upgrade; "
        "sys.stdin.readline(); upgrade(Path(sys.argv[1]))"
    )
    if filled:
        store_cache(database, a_key(), {"chunk_size": 4})
    openers = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(database)],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        for _ in range(16)
    ]
    for opener in openers:  # all have started by now: let them go together
        assert opener.stdin is not None
        opener.stdin.write("\n")
        opener.stdin.flush()
    errors = [opener.communicate(timeout=120)[1] for opener in openers]
    assert errors == [""] * 16
    assert [opener.returncode for opener in openers] == [0] * 16
    connection = sqlite3.connect(database)
    versions = connection.execute("SELECT version_num FROM alembic_version").fetchall()
    connection.close()
    assert versions == [(REVISION,)]
    assert load_cache(database) == ({a_key(): {"chunk_size": 4}} if filled else {})


def test_threads_of_one_process_can_open_store_and_read_at_once(database: Path) -> None:
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            upgrade(database)
            store_cache(database, f"key {number}", {"chunk_size": number + 1})
            assert load_cache(database)[f"key {number}"] == {"chunk_size": number + 1}
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(load_cache(database)) == 8


def test_who_looks_while_another_makes_the_database_sees_none_or_one(tmp_path: Path) -> None:
    program = """
import sys
from pathlib import Path
from tuner.store.lookup import Miss
from tuner.store.lookup import find_answer, read_answers
print("looking", flush=True)
while not Path(sys.argv[1]).with_suffix(".done").exists():
    assert isinstance(find_answer(sys.argv[1], "key", 8), Miss)
    assert read_answers(sys.argv[1]) == {}
"""
    for number in range(4):
        database = tmp_path / f"{number}.db"
        looker = subprocess.Popen(
            [sys.executable, "-c", program, str(database)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        assert looker.stdout is not None
        assert looker.stdout.readline() == "looking\n"
        upgrade(database)
        database.with_suffix(".done").touch()
        assert looker.communicate(timeout=60)[1] == ""


def test_a_child_of_a_fork_within_a_lock_closes_nothing_of_its_own(tmp_path: Path) -> None:
    program = """
import os, sys
from tuner.lock import file_lock
with file_lock(sys.argv[1]):
    child = os.fork()
    if child == 0:
        mine = open(os.devnull)
if child == 0:
    os.fstat(mine.fileno())
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "lock")],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert (done.returncode, done.stderr) == (0, "")


FORKING = """
import os, sys, threading
from pathlib import Path
from tuner import load_cache, store_cache
from tuner.lock import file_lock

database = Path(sys.argv[1])
store_cache(database, "before", {"chunk_size": 1})
with file_lock(database.with_suffix(".lock")):
    child = os.fork()
    if child == 0:
        store_cache(database, "child", {"chunk_size": 2})
        assert set(load_cache(database)) >= {"before", "child"}
        sys.stdin.readline()  # lives on after the parent has let go of its lock
        os._exit(0)
store_cache(database, "parent", {"chunk_size": 3})
with file_lock(database.with_suffix(".lock"), timeout_s=30):
    print("the lock is free", flush=True)
assert os.waitpid(child, 0)[1] == 0
assert set(load_cache(database)) == {"before", "child", "parent"}
"""


def test_after_a_fork_both_processes_go_on_and_the_child_holds_no_lock(database: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKING, str(database)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert parent.stdout is not None
    assert parent.stdout.readline() == "the lock is free\n"
    parent.communicate("\n", timeout=60)
    assert parent.returncode == 0
