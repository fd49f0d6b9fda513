"""Look-ups are counted beside the database: no hit is hurt by that, whatever lies there."""

from __future__ import annotations

import fcntl
import os
import random
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.facts import ClockworkPool, a_key
from tests.jobs import ROOT
from tests.stored import a_run, contents, rows_of, store
from tests.test_bad_places import WITHOUT_PRIVILEGE
from tests.test_resolve import NTHREAD, NUM_ENVS, its_key, resolve
from tuner import store_cache
from tuner.store import counting, sqlite, upkeep
from tuner.store.check import check
from tuner.store.counting import MOST_BYTES, SUFFIX, add_up, note_lookup, pending
from tuner.store.migrate import upgrade

KEY = a_key()
LINE = f"2026-01-31 hit {KEY}\n".encode()


def beside(database: Path) -> Path:
    """Name the file that look-ups are noted in."""
    return database.with_name(database.name + SUFFIX)


def counted(database: Path) -> dict[str, int]:
    """Count the look-ups that are in the database, by kind."""
    return dict(rows_of(database, "SELECT kind, sum(lookups) FROM lookup GROUP BY kind"))


def noted(database: Path) -> dict[str, int]:
    """Count those that wait beside it, by kind."""
    found: dict[str, int] = {}
    for (_, _, kind), count in pending(database).items():
        found[kind] = found.get(kind, 0) + count
    return found


@pytest.fixture
def answered(database: Path) -> Path:
    """Make a database that answers the job of `resolve` with 4."""
    store_cache(database, its_key(), {"chunk_size": 4})
    return database


# --- what is counted ------------------------------------------------------------------------


def test_a_job_counts_as_what_it_got(database: Path) -> None:
    pool = ClockworkPool(NUM_ENVS, NTHREAD)
    resolve(pool, database, clock=pool.clock, time_budget_s=10.0)
    # A key's first look-up is a miss and waits for the next writer.
    assert noted(database) == {"miss": 1}
    rows_of(database, "UPDATE verdict SET decided = 1, reason = NULL")
    for _ in range(3):
        resolve(pool, database, clock=pool.clock)
    assert noted(database) == {"miss": 1, "hit": 3}
    upkeep.pin(database, its_key(), 3, "so")
    resolve(pool, database, clock=pool.clock)
    upkeep.unpin(database, its_key())
    rows_of(database, "UPDATE verdict SET decided = 0, reason = 'noise'")
    resolve(pool, database, clock=pool.clock, time_budget_s=10.0)  # measured: that adds them up
    assert counted(database) == {"miss": 1, "hit": 3, "pinned": 1}
    assert noted(database) == {"resumed": 1}
    assert {key for (key,) in rows_of(database, "SELECT key_digest FROM lookup")} == {its_key()}


HITTING = """
import sys
from pathlib import Path
from tests.test_resolve import *
input()
for _ in range(int(sys.argv[2])):
    assert resolve(None, Path(sys.argv[1])) == 4
"""


def hitting(database: Path, times: int, *prefix: str) -> subprocess.Popen[str]:
    """Start a process that hits so many times once it is told to go."""
    return subprocess.Popen(
        [*prefix, sys.executable, "-c", HITTING, str(database), str(times)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip


def go(jobs: list[subprocess.Popen[str]]) -> list[str]:
    """Let processes go at once and wait for them; what they said on stderr."""
    for job in jobs:
        assert job.stdin is not None
        job.stdin.write("\n")
        job.stdin.flush()
    said = [job.communicate(timeout=120)[1] for job in jobs]
    assert [job.returncode for job in jobs] == [0] * len(jobs), said
    return said


def test_processes_that_hit_at_once_are_all_counted(answered: Path) -> None:
    said = go([hitting(answered, 50) for _ in range(6)])
    assert all(text.count("\n") == text.count("hit: chunk_size 4") == 50 for text in said)
    assert noted(answered) == {"hit": 300}
    assert counted(answered) == {}
    add_up(answered)
    assert (noted(answered), counted(answered)) == ({}, {"hit": 300})
    assert check(answered) == []


def test_between_those_who_note_and_one_who_adds_up_nothing_counts_twice(answered: Path) -> None:
    jobs = [hitting(answered, 60) for _ in range(4)]
    for job in jobs:
        assert job.stdin is not None
        job.stdin.write("\n")
        job.stdin.flush()
    before = 0
    while any(job.poll() is None for job in jobs):
        add_up(answered)
        now = counted(answered).get("hit", 0)
        assert now >= before
        before = now
    for job in jobs:
        job.communicate()
    add_up(answered)
    # Whoever cannot have the file at once is not counted; who is, is counted once.
    assert 0 < counted(answered)["hit"] <= 240
    assert noted(answered) == {}


def test_who_cannot_have_the_file_at_once_goes_on_uncounted(answered: Path) -> None:
    note_lookup(answered, KEY, "hit")
    with beside(answered).open("rb") as adder:
        fcntl.flock(adder, fcntl.LOCK_EX)
        note_lookup(answered, KEY, "hit")
        add_up(answered)
    assert noted(answered) == {"hit": 1}
    with beside(answered).open("rb") as noter:
        fcntl.flock(noter, fcntl.LOCK_SH)
        add_up(answered)
        assert counted(answered) == {}
        note_lookup(answered, KEY, "hit")
    add_up(answered)
    assert counted(answered) == {"hit": 2}


ADDING = """
import os, signal, sqlite3, sys
from tuner.store import counting, sqlite

left = int(sys.argv[2])

def die_in_time(statement):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)

def open_for_writing(*arguments):
    connection = sqlite.open_for_writing(*arguments)
    connection.set_trace_callback(die_in_time)
    return connection

counting.open_for_writing = open_for_writing
counting.add_up(sys.argv[1])
"""


def test_an_adder_killed_before_its_commit_loses_nothing(answered: Path) -> None:
    beside(answered).write_bytes(LINE * 7)
    statement, survived = 1, False
    while not survived:
        survived = not subprocess.run(
            [sys.executable, "-c", ADDING, str(answered), str(statement)], cwd=ROOT, check=False
        ).returncode
        total = counted(answered).get("hit", 0) + noted(answered).get("hit", 0)
        assert total == 7
        assert check(answered) == []
        statement += 1
    assert statement > 4
    assert counted(answered) == {"hit": 7}


# --- what may lie there ---------------------------------------------------------------------


def binary(file: Path) -> None:
    file.write_bytes(random.Random(1).randbytes(5000))


def huge(file: Path) -> None:
    with file.open("wb") as stream:
        stream.write(LINE)
        stream.truncate(1 << 40)  # sparse: nobody can read that into memory


def full_of_zeros(file: Path) -> None:
    file.write_bytes(bytes(MOST_BYTES))


def a_link(file: Path) -> None:
    target = file.with_name("dear.txt")
    target.write_text("dear")
    file.symlink_to(target)


def a_link_to_nowhere(file: Path) -> None:
    file.symlink_to(file.with_name("new.txt"))


def a_link_to_the_database(file: Path) -> None:
    file.symlink_to(file.with_name("tuning.db"))


def a_second_name(file: Path) -> None:
    target = file.with_name("dear.txt")
    target.write_text("dear")
    os.link(target, file)


def a_second_name_of_the_database(file: Path) -> None:
    os.link(file.with_name("tuning.db"), file)


def a_pipe(file: Path) -> None:
    os.mkfifo(file)


def a_folder(file: Path) -> None:
    file.mkdir()


NOT_OURS = [
    a_link,
    a_link_to_nowhere,
    a_link_to_the_database,
    a_second_name,
    a_second_name_of_the_database,
    a_pipe,
    a_folder,
]


@pytest.mark.parametrize("spoil", [binary, huge, full_of_zeros, *NOT_OURS])
def test_whatever_lies_there_a_hit_is_a_hit_and_the_database_sound(
    answered: Path, capfd: pytest.CaptureFixture[str], spoil: Callable[[Path], None]
) -> None:
    spoil(beside(answered))
    before = answered.read_bytes()
    dear = contents(answered.parent) if spoil in NOT_OURS else {}
    [said] = go([hitting(answered, 2)])
    assert said.count("\n") == said.count("hit: ") == 2
    if spoil in NOT_OURS:
        assert pending(answered) == {}
        assert contents(answered.parent) == dear
        add_up(answered)
        assert contents(answered.parent) == dear
    else:
        assert set(noted(answered).values()) <= {1, 2}
    store(answered, KEY, a_run(1))
    assert upkeep.read_stats(answered)["lookups"]["hit"] in (0, 1, 2, 3)
    upkeep.vacuum(answered)
    assert check(answered) == []
    assert answered.read_bytes() != before
    assert not answered.with_name("new.txt").exists()
    for name in dear.keys() - {answered.name, beside(answered).name}:
        assert (answered.parent / name).read_text() == "dear"
    assert capfd.readouterr().err == ""


WRONG = [
    b"\0",
    b"2026-01-31 hit \0" + KEY.encode(),
    b"2026-01-31 hit " + KEY.encode() + b"\0",
    b"2026-01-31 hit",
    b"2026-01-31 hit ",
    b"2026-01-31 hits " + KEY.encode(),
    b"2026-1-31 hit " + KEY.encode(),
    b" 2026-01-31 hit " + KEY.encode(),
    "२०२६-01-31 hit ".encode() + KEY.encode(),
    b"2026-01-31  hit " + KEY.encode(),
    b"2026-01-31 hit " + KEY.encode()[:-1],
    b"2026-01-31 hit " + KEY.encode() * 2,
    b"2026-01-31 hit " + b"x" * 100_000,
    b"2026-01-31 hit " + KEY.encode() + b"\r",
    b"\xff\xfe",
    b"'); DROP TABLE lookup; --",
]


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_line_is_left_out_and_keeps_no_other_from_being_added(
    answered: Path, wrong: bytes
) -> None:
    beside(answered).write_bytes(LINE + wrong + b"\n" + LINE + b"2026-01-31 hit " + KEY.encode())
    assert noted(answered) == {"hit": 2}  # the last line has no end: somebody is half-way
    add_up(answered)
    assert counted(answered) == {"hit": 2}
    assert beside(answered).read_bytes() == b""
    assert check(answered) == []


def test_a_full_file_is_added_up_by_whoever_notices(answered: Path) -> None:
    lines = MOST_BYTES // len(LINE) + 1
    beside(answered).write_bytes(LINE * lines)
    assert resolve(None, answered) == 4  # itself it is not counted
    assert counted(answered) == {"hit": lines}
    assert beside(answered).stat().st_size == 0
    assert resolve(None, answered) == 4
    assert noted(answered) == {"hit": 1}


def test_with_a_full_file_and_a_held_database_a_hit_does_not_wait(
    answered: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    real = sqlite.open_for_writing

    def open_for_writing(database: Any, busy_seconds: float = 30.0) -> sqlite3.Connection:
        waits.append(busy_seconds)
        return real(database, 0.0)

    monkeypatch.setattr(counting, "open_for_writing", open_for_writing)
    read: list[int] = []

    def content(descriptor: int) -> bytes:
        read.append(descriptor)
        return b""

    monkeypatch.setattr(counting, "_content", content)
    beside(answered).write_bytes(LINE * (MOST_BYTES // len(LINE) + 1))
    before = beside(answered).read_bytes()
    with closing(sqlite3.connect(answered, isolation_level=None)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        assert resolve(None, answered) == 4
    assert waits == [0.0]
    assert read == []  # nor is a megabyte read in vain
    assert beside(answered).read_bytes() == before


@pytest.mark.parametrize("folder_mode", [0o555, 0o755])
@pytest.mark.parametrize("size", [0, MOST_BYTES])
def test_where_nothing_may_be_written_a_hit_is_a_hit(
    answered: Path, folder_mode: int, size: int
) -> None:
    if WITHOUT_PRIVILEGE and shutil.which("setpriv") is None:
        pytest.skip("as root, permissions can only be tested with setpriv (util-linux)")
    beside(answered).write_bytes(LINE * (size // len(LINE)))
    before = contents(answered.parent)
    answered.chmod(0o444)
    beside(answered).chmod(0o444)
    answered.parent.chmod(folder_mode)
    [said] = go([hitting(answered, 1, *WITHOUT_PRIVILEGE)])
    answered.parent.chmod(0o755)
    assert said.count("\n") == said.count("hit: ") == 1
    assert contents(answered.parent) == before


def test_a_full_file_beside_a_database_that_may_only_be_read_stays_full(answered: Path) -> None:
    if WITHOUT_PRIVILEGE and shutil.which("setpriv") is None:
        pytest.skip("as root, permissions can only be tested with setpriv (util-linux)")
    beside(answered).write_bytes(LINE * (MOST_BYTES // len(LINE) + 1))
    before = contents(answered.parent)
    answered.chmod(0o444)
    [said] = go([hitting(answered, 1, *WITHOUT_PRIVILEGE)])
    assert said.count("\n") == said.count("hit: ") == 1
    assert contents(answered.parent) == before


# --- what is not ours to write --------------------------------------------------------------


def test_adding_up_makes_no_database_and_writes_only_its_own(database: Path) -> None:
    beside(database).write_bytes(LINE)
    add_up(database)
    assert not database.exists()
    database.touch()
    add_up(database)
    assert database.stat().st_size == 0
    rows_of(database, "CREATE TABLE lookup (key_digest, day_utc, kind, lookups, "
            "UNIQUE (key_digest, day_utc, kind))")  # fmt: skip
    before = contents(database.parent)
    add_up(database)
    database.unlink()
    upgrade(database)
    rows_of(database, "UPDATE alembic_version SET version_num = '9999'")
    before[database.name] = database.read_bytes()
    add_up(database)
    assert contents(database.parent) == before
    rows_of(database, "UPDATE alembic_version SET version_num = '0002'")
    add_up(database)
    assert counted(database) == {"hit": 1}


def test_the_file_is_the_owners_to_write_and_outlives_a_missing_one(database: Path) -> None:
    note_lookup(database, KEY, "miss")
    assert beside(database).stat().st_mode & 0o077 & ~0o044 == 0
    beside(database).unlink()
    add_up(database)
    assert pending(database) == {}
    note_lookup(database / "no folder", KEY, "hit")
    assert list(database.parent.iterdir()) == []
