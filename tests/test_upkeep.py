"""What is done to a database by hand: it does what it says, all of it, and nothing else."""

from __future__ import annotations

import errno
import filecmp
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tuner.store.counting import SUFFIX, note_lookup

from tests.support.facts import DEVICE, MODEL_SIGNATURE, SleepingPool, a_key
from tests.support.jobs import ROOT
from tests.support.stored import ALIKE, FASTER, HERE, NOON, Shell, a_run, contents, rows_of, store
from tests.support.processes import WITHOUT_PRIVILEGE
from tests.test_cli import tuner
from tests.support.processes import runs_in
from tests.test_resolve import NTHREAD, NUM_ENVS, its_key, resolve
from tuner import load_cache, store_cache
from tuner.environment import Environment
from tuner.errors import ArgumentError, DatabaseError
from tuner.formatting import counted
from tuner.racing.meta_analysis import judge_runs
from tuner.records import Answer, Candidate, Miss, Run
from tuner.store import backup, migrate
from tuner.store import maintenance as upkeep
from tuner.store.backup import back_up, check
from tuner.store.lookup import find_answer
from tuner.store.migrate import upgrade
from tuner.store.runs import recompute

GOLDEN = Path(__file__).parent / "golden" / "0001.db"
KEY = a_key()
OTHER = a_key(num_envs=2048)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a database of two keys with a choice, one model and one device, to be copied."""
    file = tmp_path_factory.mktemp("template") / "filled.db"
    store(file, KEY, a_run(1), a_run(2))
    store(file, OTHER, a_run(3))
    return file


@pytest.fixture
def filled(database: Path, template: Path) -> Path:
    """Name a database of two keys with a choice."""
    shutil.copyfile(template, database)
    return database


def choice_of(database: Path, key: str = KEY, here: Environment = HERE) -> int | None:
    """Look a key up that has an answer."""
    found = find_answer(database, key, 1024, here)
    assert isinstance(found, Answer), found
    return found.chunk_size


# --- pins -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "chunk"), [("32", 32), ("default", None), ("1024", 1024)])
def test_a_pinned_key_answers_the_pin_everywhere_whatever_is_measured(
    filled: Path, shell: Shell, text: str, chunk: int | None
) -> None:
    told = shell("pin", KEY[:20], text, "--reason", " its node\n is shared ", "--database", filled)
    assert (told.code, told.err) == (0, "")
    for number in (5, 6):
        answer = find_answer(filled, KEY, 1024, HERE)
        assert isinstance(answer, Answer)
        assert (answer.chunk_size, answer.decided) == (chunk, True)
        assert answer.pinned_because == "its node is shared"
        assert load_cache(filled)[KEY]["chunk_size"] == chunk
        [row] = [
            row
            for row in json.loads(shell("list", "--json", "--database", filled).out)
            if row["tuning_key"] == KEY
        ]
        assert (row["chunk_size"], row["pinned_because"]) == (chunk, "its node is shared")
        assert "pinned" in shell("list", "--database", filled).out
        shown = shell("show", KEY, "--database", filled).out
        assert "its node is shared" in shown
        assert re.search(rf"^choice +{text}$", shown, re.M)
        store(filled, KEY, a_run(number, ALIKE))
        recompute(filled)
    assert choice_of(filled, OTHER) == 4
    assert check(filled) == []


def test_a_job_is_answered_with_the_pin_and_told_why(
    database: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    store_cache(database, its_key(), {"chunk_size": 7})
    upkeep.pin(database, its_key(), 3, "a test says so")
    pool = SleepingPool(NUM_ENVS, NTHREAD)
    assert resolve(pool, database) == 3
    assert pool.chunks == []
    upkeep.pin(database, its_key(), None, "another test says so")
    assert resolve(pool, database) is None
    assert upkeep.unpin(database, its_key())
    assert resolve(pool, database) == 7
    assert pool.chunks == []


def test_pinning_again_replaces_the_pin_and_unpinning_ends_it(filled: Path, shell: Shell) -> None:
    for chunk in (8, 16):
        shell("pin", KEY, chunk, "--reason", "so", "--database", filled)
        assert choice_of(filled) == chunk
    told = shell("unpin", KEY[3:12], "--database", filled)
    assert (told.code, choice_of(filled)) == (0, 4)
    assert "not pinned" in shell.refused("unpin", KEY, "--database", filled)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("1025", 1),
        (str(2**63 - 1), 1),
        ("0", 2),
        (str(2**63), 2),
        ("9" * 5000, 2),
        ("4.0", 2),
        ("٤", 2),
        ("None", 2),
        ("", 2),
        (" 4", 2),
    ],
)
def test_a_pin_that_no_pool_could_take_is_refused(
    filled: Path, shell: Shell, text: str, code: int
) -> None:
    before = filled.read_bytes()
    shell.refused("pin", KEY, text, "--reason", "so", "--database", filled, code=code)
    assert filled.read_bytes() == before


@pytest.mark.parametrize("chunk", [0, -1, True, 1.5, 1025])
def test_a_program_cannot_pin_what_no_pool_could_take_either(filled: Path, chunk: Any) -> None:
    with pytest.raises(ArgumentError, match="chunk_size"):
        upkeep.pin(filled, KEY, chunk, "so")
    with pytest.raises(ArgumentError, match="no key"):
        upkeep.pin(filled, "k1_gone", 4, "so")
    assert rows_of(filled, "SELECT * FROM pin") == []


def test_a_pin_needs_a_reason_and_a_key(filled: Path, shell: Shell) -> None:
    shell.refused("pin", KEY, "4", "--reason", " \n", "--database", filled, code=2)
    shell.refused("pin", KEY, "4", "--database", filled, code=2)
    assert "no key" in shell.refused("pin", "zz", "4", "--reason", "so", "--database", filled)
    assert "2 keys" in shell.refused("pin", "k1_", "4", "--reason", "so", "--database", filled)
    assert "2 keys" in shell.refused("unpin", "k1_", "--database", filled)


def test_any_reason_is_kept_and_none_moves_the_cursor(filled: Path, shell: Shell) -> None:
    upkeep.pin(filled, KEY, 8, "\udcff \x1b[31m \0 ü")
    assert check(filled) == []
    shown = shell("show", KEY, "--database", filled).out
    assert "ü" in shown
    assert "\x1b" not in shown
    assert "\0" not in shown


def test_a_pinned_key_without_any_verdict_answers_everywhere_too(
    database: Path, shell: Shell
) -> None:
    store(database, KEY, a_run(1, state="failed", samples=()))
    assert load_cache(database) == {}
    upkeep.pin(database, KEY, 16, "so")
    assert choice_of(database) == 16
    assert load_cache(database) == {KEY: {"chunk_size": 16}}
    assert "16" in shell("list", "--database", database).out
    assert shell("show", KEY, "--database", database).code == 0


def test_a_pin_that_turns_out_too_large_gives_way(database: Path) -> None:
    digest = str(its_key())
    store_cache(database, digest, {"chunk_size": 5000})
    upkeep.pin(database, digest, 5000, "nobody knew how large the pool is")
    store_cache(database, its_key(), {"chunk_size": 7})  # now its facts are known
    assert rows_of(database, "SELECT * FROM pin") == []
    assert resolve(None, database) == 7


def test_a_pin_that_somebody_wrote_wrong_by_hand_does_not_make_every_job_measure(
    database: Path,
) -> None:
    store_cache(database, its_key(), {"chunk_size": 7})
    rows_of(database, "INSERT INTO pin SELECT digest, 5000, 'x', '2026-01-31T12:00:00Z' "
            "FROM tuning_key")  # fmt: skip
    assert resolve(None, database) == 7
    rows_of(database, "DELETE FROM verdict")
    found = find_answer(database, its_key(), NUM_ENVS)
    assert isinstance(found, Miss)
    assert "pinned chunk_size 5000" in found.reason


# --- forgetting -----------------------------------------------------------------------------


def everything(database: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Read all rows of all tables."""
    tables = rows_of(database, "SELECT name FROM sqlite_master WHERE type = 'table'")
    return {name: sorted(rows_of(database, f"SELECT * FROM {name}"), key=repr)
            for (name,) in tables}  # fmt: skip


def test_forgetting_takes_out_all_of_a_key_and_nothing_else(database: Path, shell: Shell) -> None:
    store(database, KEY, a_run(1))
    note_lookup(database, KEY, "hit")
    upkeep.vacuum(database)  # which adds look-ups up
    before = everything(database)
    theirs = a_key(model_sig=MODEL_SIGNATURE | {"nq": 7}, device=DEVICE | {"rack": "north"})
    mixed = a_key(num_envs=64)  # of KEY's model and device
    for number, key in enumerate((theirs, mixed)):
        store(database, key, a_run(2 + number, state="failed"), a_run(4 + number))
        upkeep.pin(database, key, 4, "so")
        note_lookup(database, key, "hit")
    note_lookup(database, KEY, "miss")
    told = shell("forget", theirs, mixed, theirs[:20], "--yes", "--database", database)
    assert told.code == 0
    assert "quadruped.xml, 2 runs, " in told.err
    after = everything(database)
    assert len(after["lookup"]) == len(before["lookup"]) + 1  # KEY's miss was waiting
    assert {row[0] for row in after["lookup"]} == {KEY}
    assert after | {"lookup": []} == before | {"lookup": []}
    assert check(database) == []
    assert (database.parent / f"{database.name}{SUFFIX}").stat().st_size == 0


def test_forgetting_the_last_key_leaves_a_sound_and_empty_database(
    filled: Path, shell: Shell
) -> None:
    assert shell("forget", KEY, OTHER, "--yes", "--database", filled).code == 0
    left = {name: len(rows) for name, rows in everything(filled).items() if rows}
    assert left == {"alembic_version": 1, "validator": 4}
    assert check(filled) == []
    assert shell("list", "--database", filled).code == 0
    store(filled, KEY, a_run(1))
    assert choice_of(filled) == 4


def test_without_a_terminal_and_yes_nothing_is_forgotten(filled: Path) -> None:
    before = filled.read_bytes()
    told = subprocess.run(
        [sys.executable, "-m", "tuner", "forget", KEY, "--database", str(filled)],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert told.returncode == 1
    assert told.stdout == ""
    assert "Aborted" in told.stderr
    assert "Traceback" not in told.stderr
    assert filled.read_bytes() == before


@pytest.mark.parametrize(("answer", "left"), [("y\n", 1), ("n\n", 2), ("\n", 2), ("", 2)])
def test_forgetting_asks_before(
    filled: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch, answer: str, left: int
) -> None:
    words = iter([answer])
    monkeypatch.setattr("click.termui.visible_prompt_func", lambda _: _said(next(words)))
    told = shell("forget", KEY, "--database", filled)
    assert told.code == (0 if left == 1 else 1)
    assert rows_of(filled, "SELECT count(*) FROM tuning_key") == [(left,)]


def _said(text: str) -> str:
    if not text:
        raise EOFError
    return text.strip()


@pytest.mark.parametrize(
    "command",
    [("forget", "", "--yes"), ("pin", "", "4", "--reason", "so"), ("unpin", ""), ("show", "")],
)
def test_an_unset_variable_of_a_shell_is_not_the_only_key(
    database: Path, shell: Shell, command: tuple[str, ...]
) -> None:
    store(database, KEY, a_run(1))
    before = database.read_bytes()
    assert "empty" in shell.refused(*command, "--database", database)
    assert database.read_bytes() == before


def test_one_unknown_key_among_several_and_none_is_forgotten(filled: Path, shell: Shell) -> None:
    before = filled.read_bytes()
    shell.refused("forget", KEY, "k1_zz", "--yes", "--database", filled)
    shell.refused("forget", "--yes", "--database", filled, code=2)
    assert filled.read_bytes() == before


# --- pruning --------------------------------------------------------------------------------


def recent(number: int, **changes: Any) -> Run:
    """Make a run of a few days ago, the higher its number the newer."""
    return a_run(number, **{"finished": datetime.now(UTC) - timedelta(days=100 - number)} | changes)


@pytest.fixture
def aged(database: Path) -> Path:
    """Make a database with runs of 90 to 10 days ago."""
    store(database, KEY, *(recent(number) for number in (10, 50, 80)))
    store(database, KEY, *(recent(n, state="failed", samples=()) for n in (20, 60, 90)))
    store(database, OTHER, recent(15), recent(16))
    return database


def uids(database: Path) -> list[int]:
    """List the numbers of the runs that are there."""
    return sorted(int(uid, 16) for (uid,) in rows_of(database, "SELECT uid FROM run"))


@pytest.mark.parametrize(
    ("options", "left", "keys"),
    [
        (("--older-than", "60"), [50, 60, 80, 90], 1),
        (("--older-than", "45.5"), [60, 80, 90], 1),
        (("--older-than", "0"), [], 0),
        (("--keep-runs", "1"), [16, 80, 90], 2),
        (("--keep-runs", "2"), [15, 16, 50, 60, 80, 90], 2),
        (("--older-than", "60", "--keep-runs", "1"), [80, 90], 1),
        (("--max-size", "0"), [], 0),
    ],
)
def test_pruning_says_what_goes_and_takes_it_out_with_yes(
    aged: Path, shell: Shell, options: tuple[str, ...], left: list[int], keys: int
) -> None:
    before = contents(aged.parent)
    plan = shell("db", "prune", *options, "--database", aged)
    assert plan.code == 0
    assert f"would remove {counted(8 - len(left), 'run')} " in plan.out
    assert f"{counted(2 - keys, 'key')} would be forgotten" in plan.out
    assert "--yes" in plan.out
    told = json.loads(shell("db", "prune", *options, "--json", "--database", aged).out)
    assert contents(aged.parent) == before
    done = json.loads(shell("db", "prune", *options, "--json", "--yes", "--database", aged).out)
    assert done == told | {"done": True}
    assert uids(aged) == left
    assert rows_of(aged, "SELECT count(*) FROM tuning_key") == [(keys,)]
    assert check(aged) == []
    assert aged.stat().st_size <= len(before[aged.name])
    again = shell("db", "prune", *options, "--yes", "--database", aged)
    assert again.code == 0
    assert "removed 0 runs with 0 samples of 0 keys; 0 keys" in again.out


def test_the_verdicts_after_a_pruning_are_those_of_the_runs_that_are_left(
    database: Path, tmp_path: Path
) -> None:
    old, new = a_run(1, FASTER), recent(90, costs=ALIKE)
    fresh = tmp_path / "fresh.db"
    store(fresh, KEY, new)
    store(database, KEY, old, new)
    assert choice_of(database) != choice_of(fresh) or verdicts(database) != verdicts(fresh)
    upkeep.prune(database, upkeep.plan_pruning(database, older_than=timedelta(days=50)))
    assert verdicts(database) == verdicts(fresh)


def test_a_pinned_key_stays_and_answers_when_all_of_its_runs_are_pruned(aged: Path) -> None:
    upkeep.pin(aged, OTHER, 8, "so")
    pruning = upkeep.plan_pruning(aged, older_than=timedelta(days=60))
    assert pruning.keys == tuple(sorted((KEY, OTHER)))
    assert pruning.gone == ()
    upkeep.prune(aged, pruning)
    assert choice_of(aged, OTHER) == 8
    assert load_cache(aged)[OTHER] == {"chunk_size": 8}
    assert rows_of(aged, "SELECT * FROM verdict WHERE key_digest = ?", OTHER) == []
    assert check(aged) == []


def test_what_came_between_plan_and_deed_is_not_pruned(aged: Path) -> None:
    pruning = upkeep.plan_pruning(aged, older_than=timedelta(days=0))
    assert pruning.gone == tuple(sorted((KEY, OTHER)))
    store(aged, KEY, recent(99))
    upkeep.pin(aged, OTHER, 8, "so")
    upkeep.prune(aged, pruning)
    assert uids(aged) == [99]
    assert choice_of(aged) == 4
    assert choice_of(aged, OTHER) == 8
    upkeep.forget(aged, [KEY, OTHER])
    upkeep.prune(aged, pruning)  # what is gone already does no harm
    assert check(aged) == []


def test_look_ups_that_wait_do_not_bring_a_pruned_key_back(aged: Path) -> None:
    note_lookup(aged, OTHER, "hit")
    upkeep.prune(aged, upkeep.plan_pruning(aged, older_than=timedelta(days=60)))
    assert rows_of(aged, "SELECT * FROM lookup") == []


def test_free_pages_are_given_back_before_a_run_is_pruned_for_its_size(database: Path) -> None:
    store(database, KEY, a_run(1))
    small = database.stat().st_size
    for number in range(20):
        store(database, OTHER, a_run(100 + number, pairs=300, state="failed"))
    upkeep.forget(database, [OTHER])
    assert database.stat().st_size > 2 * small
    assert upkeep.plan_pruning(database, most_bytes=small + 4096).run_ids == ()


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_pruning_by_size_ends_near_that_size(database: Path, share: float) -> None:
    for number in range(40):  # failed, because these need no verdict
        pairs = 300 if number % 2 else 20
        store(database, KEY, a_run(number, pairs=pairs, state="failed"))
    upkeep.vacuum(database)
    empty = 110_000
    most = round(empty + share * (database.stat().st_size - empty))
    pruning = upkeep.plan_pruning(database, most_bytes=most)
    numbers = uids(database)
    upkeep.prune(database, pruning)
    assert 0.85 * most <= database.stat().st_size <= 1.1 * most
    assert uids(database) == numbers[len(pruning.run_ids) :]  # the oldest went


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--yes",),
        ("--older-than", "-1"),
        ("--older-than", "nan"),
        ("--older-than", "inf"),
        ("--keep-runs", "0"),
        ("--keep-runs", "many"),
        ("--max-size", "-1"),
        ("--max-size", "nan"),
        ("--max-size", "inf"),
    ],
)
def test_a_wrong_call_prunes_nothing(aged: Path, shell: Shell, options: tuple[str, ...]) -> None:
    before = contents(aged.parent)
    shell.refused("db", "prune", *options, "--database", aged, code=2)
    assert contents(aged.parent) == before


@pytest.mark.parametrize("options", [("--older-than", "1e300"), ("--keep-runs", "9" * 30)])
def test_nothing_is_older_than_the_calendar(
    aged: Path, shell: Shell, options: tuple[str, ...]
) -> None:
    before = contents(aged.parent)
    told = shell("db", "prune", *options, "--yes", "--database", aged)
    assert "removed 0 runs" in told.out
    assert contents(aged.parent) == before


def test_a_pruning_that_cannot_give_the_space_back_says_that_the_runs_are_gone(
    aged: Path, monkeypatch: pytest.MonkeyPatch, shell: Shell
) -> None:
    def no_room(*_: object) -> None:
        raise DatabaseError("database or disk is full")

    monkeypatch.setattr(upkeep, "vacuum", no_room)
    line = shell.refused("db", "prune", "--older-than", "0", "--yes", "--database", aged)
    assert "the runs are removed" in line
    assert "tuner db vacuum" in line
    assert uids(aged) == []


# --- vacuum ---------------------------------------------------------------------------------


def test_a_vacuum_gives_the_space_back_and_changes_no_row(database: Path, shell: Shell) -> None:
    store(database, KEY, a_run(1))
    store(database, OTHER, a_run(2, pairs=3000, state="failed"))
    upkeep.forget(database, [OTHER])
    rows, before = everything(database), database.stat().st_size
    told = shell("db", "vacuum", "--database", database)
    assert told.code == 0
    now = database.stat().st_size
    assert now < before
    assert f"{before:,} -> {now:,} bytes" in told.out
    assert everything(database) == rows
    assert check(database) == []


def foreign(database: Path) -> None:
    rows_of(database, "CREATE TABLE invoices (total)")
    rows_of(database, "DROP TABLE IF EXISTS x")


def future(database: Path) -> None:
    upgrade(database)
    rows_of(database, "UPDATE alembic_version SET version_num = '9999'")


def damaged(database: Path) -> None:
    database.write_bytes(b"SQLite format 3\0" + bytes(range(256)) * 200)


UPKEEP = [
    ("pin", "k", "4", "--reason", "so"),
    ("unpin", "k"),
    ("forget", "k", "--yes"),
    ("verify",),
    ("db", "prune", "--older-than", "0", "--yes"),
    ("db", "vacuum"),
    ("db", "recompute"),
    ("db", "stats"),
    ("db", "policy"),
    ("db", "policy", "pool", "ignore"),
]


@pytest.mark.parametrize("spoil", [foreign, future, damaged])
@pytest.mark.parametrize("command", UPKEEP)
def test_what_is_not_ours_is_refused_in_one_line_and_never_touched(
    database: Path, shell: Shell, spoil: Callable[[Path], None], command: tuple[str, ...]
) -> None:
    spoil(database)
    (database.parent / f"{database.name}{SUFFIX}").write_text(f"2026-01-31 hit {KEY}\n")
    before = contents(database.parent)
    assert str(database) in shell.refused(*command, "--database", database)
    assert contents(database.parent) == before


@pytest.mark.parametrize("command", [*UPKEEP, ("db", "backup", "copy.db")])
def test_where_there_is_no_database_none_is_made(
    database: Path, shell: Shell, command: tuple[str, ...]
) -> None:
    assert "no tuning" in shell.refused(*command, "--database", database)
    assert contents(database.parent) == {}


@pytest.mark.parametrize("command", [c for c in UPKEEP if c[0] in ("pin", "db") and len(c) > 2]
                         + [("db", "vacuum"), ("db", "recompute")])  # fmt: skip
def test_a_file_that_another_process_holds_stays_as_it_is(
    filled: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    from tuner.store import database as engine
    from tuner.store import sqlite

    def impatient(file: Path, seconds: float = 0.05) -> sqlite3.Connection:
        return sqlite.open_for_writing(file, min(seconds, 0.05))

    for room in (engine, upkeep):
        monkeypatch.setattr(room, "open_for_writing", impatient)
    holder = sqlite3.connect(filled, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    words = [KEY if word == "k" else word for word in command]
    if command[1:2] == ("prune",):
        words[2:] = ["--keep-runs", "1", "--yes"]
    before = filled.read_bytes()
    line = shell.refused(*words, "--database", filled)
    holder.execute("ROLLBACK")
    holder.close()
    assert "another process holds it; nothing was changed" in line
    assert filled.read_bytes() == before


# --- backup ---------------------------------------------------------------------------------

WRITING = """
import sys
from pathlib import Path
from tests.support.facts import a_key
from tests.support.stored import a_run, store
number = int(sys.argv[2])
print("writing", flush=True)
while True:
    store(Path(sys.argv[1]), a_key(num_envs=64 + number), a_run(number, pairs=60))
    number += 2
"""


def test_a_backup_among_writers_is_one_moment_of_the_database(filled: Path) -> None:
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITING, str(filled), str(number)],
            cwd=ROOT, stdout=subprocess.PIPE, text=True,
        )
        for number in (100, 101)
    ]  # fmt: skip
    try:
        for writer in writers:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "writing\n"
        counts: list[int] = []
        for number in range(6):
            while number and len(uids(filled)) <= counts[-1]:
                time.sleep(0.01)
            copy = filled.with_name(f"copy-{number}.db")
            back_up(filled, copy)
            assert check(copy) == []
            counts.append(len(runs_in(copy)))
            verdicts_of_copy = rows_of(copy, "SELECT sum(runs) FROM verdict")
            assert verdicts_of_copy == [(counts[-1],)]
    finally:
        for writer in writers:
            writer.kill()
            writer.communicate()
    assert counts == sorted(counts)
    assert counts[-1] > counts[0]
    assert check(filled) == []


@pytest.mark.parametrize("there", ["file", "folder", "link", "dangling link", "itself"])
def test_a_backup_overwrites_nothing(filled: Path, shell: Shell, there: str) -> None:
    copy = filled.with_name("copy.db")
    match there:
        case "file":
            copy.write_text("dear")
        case "folder":
            copy.mkdir()
        case "link":
            copy.symlink_to(filled)
        case "dangling link":
            copy.symlink_to("nowhere")
        case "itself":
            copy = filled
    before, names = contents(filled.parent), sorted(os.listdir(filled.parent))
    line = shell.refused("db", "backup", copy, "--database", filled)
    assert f"{copy} is there already" in line
    assert contents(filled.parent) == before
    assert sorted(os.listdir(filled.parent)) == names


@pytest.mark.parametrize("copy", ["", "/", "missing/copy.db", "x" * 300, "tuning.db/copy.db"])
def test_a_backup_that_cannot_be_written_is_one_clear_line(
    filled: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch, copy: str
) -> None:
    monkeypatch.chdir(filled.parent)
    before = contents(filled.parent)
    line = shell.refused("db", "backup", copy, "--database", filled)
    assert (copy or "copy to") in line
    assert "doctor" not in line  # the database is well
    assert contents(filled.parent) == before


def unprivileged(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a command in a process for which permissions count."""
    if WITHOUT_PRIVILEGE and shutil.which("setpriv") is None:
        pytest.skip("as root, permissions can only be tested with setpriv (util-linux)")
    command = [*WITHOUT_PRIVILEGE, sys.executable, "-m", "tuner", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)


def test_a_backup_into_a_folder_that_may_not_be_written_is_one_clear_line(
    filled: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "locked"
    folder.mkdir(mode=0o555)
    told = unprivileged("db", "backup", folder / "c.db", "--database", filled)
    assert (told.returncode, told.stdout, told.stderr.count("\n")) == (1, "", 1)
    assert f"cannot write {folder / 'c.db'}: Permission denied" in told.stderr
    assert list(folder.iterdir()) == []


class Full(sqlite3.Connection):
    """A connection that fails as on a full disk, the copy half written."""

    def execute(self, statement: str, *parameters: Any) -> sqlite3.Cursor:
        if statement.startswith("VACUUM"):
            [[uri]] = parameters
            Path(uri.removeprefix("file:")).write_bytes(b"half")
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorname = "SQLITE_FULL"
            raise error
        return super().execute(statement, *parameters)


def test_a_full_disk_leaves_no_part_of_a_backup(
    filled: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = contents(filled.parent)
    full = sqlite3.connect(filled, factory=Full)
    with monkeypatch.context() as patch:
        patch.setattr(backup, "open_for_reading", lambda _: full)
        line = shell.refused("db", "backup", filled.with_name("c.db"), "--database", filled)
    assert "disk is full" in line
    assert "c.db" in line
    assert "the database is as it was" in line

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for deed in ("fsync", "chmod"):
        with monkeypatch.context() as patch:
            patch.setattr(os, deed, fail)
            line = shell.refused("db", "backup", filled.with_name("c.db"), "--database", filled)
        assert "No space left" in line
    assert contents(filled.parent) == before


def test_a_file_system_without_second_names_and_modes_does_for_a_backup(
    filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)
    monkeypatch.setattr(os, "chmod", refuse)
    copy = filled.with_name("copy.db")
    back_up(filled, copy)
    assert load_cache(copy) == load_cache(filled)
    with pytest.raises(DatabaseError, match="there already"):
        back_up(filled, copy)
    assert sorted(os.listdir(filled.parent)) == ["copy.db", filled.name]


def refuse_second_names(monkeypatch: pytest.MonkeyPatch, *, renaming: bool) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)
    if not renaming:
        monkeypatch.setattr(backup, "_rename_without_replacing", lambda *_: False)


@pytest.mark.parametrize("renaming", [True, False])
def test_without_second_names_a_backup_overwrites_nothing_that_came_meanwhile(
    filled: Path, monkeypatch: pytest.MonkeyPatch, renaming: bool
) -> None:
    refuse_second_names(monkeypatch, renaming=renaming)
    copy = filled.with_name("copy.db")
    synchronise = backup._synchronise

    def come_meanwhile(path: Path) -> None:
        synchronise(path)
        copy.write_text("somebody else's")

    with monkeypatch.context() as patch:
        patch.setattr(backup, "_synchronise", come_meanwhile)
        with pytest.raises(DatabaseError, match="there already"):
            back_up(filled, copy)
    assert copy.read_text() == "somebody else's"
    copy.unlink()
    back_up(filled, copy)
    assert load_cache(copy) == load_cache(filled)
    assert sorted(os.listdir(filled.parent)) == ["copy.db", filled.name]


def test_a_name_as_long_as_names_may_be_does_for_a_backup(filled: Path) -> None:
    for name in ("x" * 255, "\u6570" * 85):
        back_up(filled, filled.with_name(name))
        assert check(filled.with_name(name)) == []


@pytest.mark.parametrize(
    "name", ["file:copy.db?mode=memory", ":memory:", "a b%3f?#.db", os.fsdecode(b"\xff\xc3\xa9")]
)
def test_any_name_does_for_a_backup(
    filled: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(filled.parent)
    filled.chmod(0o600)
    assert shell("db", "backup", name, "--database", filled).code == 0
    assert check(filled.parent / name) == []
    assert sorted(os.listdir()) == sorted([name, filled.name])
    assert os.stat(name).st_mode & 0o777 == 0o600


def test_two_backups_to_one_name_at_once_and_one_of_them_is_there(filled: Path) -> None:
    told: list[str] = []

    def run() -> None:
        try:
            back_up(filled, filled.with_name("c.db"))
            told.append("done")
        except DatabaseError as error:
            told.append(str(error))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert told.count("done") == 1
    assert sum("there already" in line for line in told) == 3
    assert sorted(os.listdir(filled.parent)) == ["c.db", filled.name]


def test_a_damaged_database_is_not_backed_up(database: Path, shell: Shell) -> None:
    damaged(database)
    line = shell.refused("db", "backup", database.with_name("c.db"), "--database", database)
    assert "tuner db check" in line
    assert os.listdir(database.parent) == [database.name]


# --- upgrades -------------------------------------------------------------------------------


def copies(database: Path) -> list[Path]:
    """List the copies that upgrades have made."""
    return sorted(database.parent.glob(f"{database.name}.schema-0001-*"))


def test_an_upgrade_keeps_a_copy_of_what_was_there(database: Path, shell: Shell) -> None:
    shutil.copyfile(GOLDEN, database)
    before = everything(database)
    told = shell("db", "upgrade", "--database", database)
    assert (told.code, told.out) == (0, f"{database}: schema 0001 -> 0002\n")
    [copy] = copies(database)
    assert everything(copy) == before
    assert check(database) == []
    assert shell("db", "upgrade", "--database", database).code == 0
    assert copies(database) == [copy]


def test_an_upgrade_that_fails_half_way_leaves_the_file_and_one_copy(
    database: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copyfile(GOLDEN, database)
    before = everything(database)
    real = migrate._run_alembic

    def fail(connection: Any) -> None:
        real(connection)  # it did all of it, and is not committed
        raise sqlite3.OperationalError("disk I/O error")

    with monkeypatch.context() as patch:
        patch.setattr(migrate, "_run_alembic", fail)
        for _ in range(3):  # each job that comes along tries it
            assert "I/O" in shell.refused("db", "upgrade", "--database", database)
            assert everything(database) == before
            [copy] = copies(database)
            assert everything(copy) == before
    assert shell("db", "upgrade", "--database", database).code == 0
    assert copies(database) == [copy]
    assert sorted(os.listdir(database.parent)) == sorted([copy.name, database.name])


def test_without_room_for_the_copy_nothing_is_upgraded(
    database: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copyfile(GOLDEN, database)

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        assert "No space" in shell.refused("db", "upgrade", "--database", database)
    assert filecmp.cmp(GOLDEN, database, shallow=False)
    assert os.listdir(database.parent) == [database.name]


def test_a_file_that_may_only_be_read_is_not_copied_by_each_job(database: Path) -> None:
    shutil.copyfile(GOLDEN, database)
    database.chmod(0o444)
    told = unprivileged("db", "upgrade", "--database", database)
    assert (told.returncode, told.stderr.count("\n")) == (1, 1)
    assert "readonly" in told.stderr
    assert os.listdir(database.parent) == [database.name]


# --- statistics -----------------------------------------------------------------------------


def test_statistics_count_what_is_stored_and_what_was_looked_up(
    database: Path, shell: Shell
) -> None:
    runs = [a_run(1, pool_seconds=4.0), a_run(2, pool_seconds=6.0)]
    store(database, KEY, *runs, a_run(3, pool_seconds=100.0, trigger="verify"))
    store(database, OTHER, a_run(4, state="failed", samples=(), pool_seconds=None))
    store_cache(database, "stated", {"chunk_size": 4})
    store(database, "from elsewhere", a_run(5, pairs=0, origin="other.db", pool_seconds=0.0))
    for kind in ("hit", "hit", "pinned", "near", "miss", "resumed"):
        note_lookup(database, KEY, kind)
    upkeep.vacuum(database)  # adds them up
    note_lookup(database, KEY, "hit")
    note_lookup(database, OTHER, "hit")  # of which nobody knows what it saves
    before = contents(database.parent)
    stats = json.loads(shell("db", "stats", "--json", "--database", database).out)
    assert contents(database.parent) == before
    assert stats["lookups"] == {"hit": 4, "pinned": 1, "near": 1, "miss": 1, "resumed": 1}
    assert stats["hit_rate"] == 5 / 8
    assert stats["saved_seconds"] == 4 * 5.0
    assert stats["tuning_seconds"] == 110.0
    assert (stats["keys"], stats["runs"], stats["failed_runs"], stats["imported_runs"]) == (
        4, 6, 1, 2,
    )  # fmt: skip
    assert stats["samples"] == sum(len(run.samples) for run in runs) * 3 / 2 + 5
    assert stats["bytes"] == len(before[database.name])
    shown = shell("db", "stats", "--database", database).out
    assert "62.5 %" in shown
    assert "20.0 s" in shown
    assert "lookups: resumed     1\n" in shown


def test_statistics_of_nothing_divide_by_nothing(database: Path, shell: Shell) -> None:
    upgrade(database)
    shell("db", "stats", "--json", "--database", database)
    store(database, KEY, a_run(1, state="failed", samples=(), pool_seconds=None))
    stats = json.loads(shell("db", "stats", "--json", "--database", database).out)
    assert stats["hit_rate"] is None
    assert stats["bytes_per_sample"] is None
    assert stats["saved_seconds"] == 0
    assert "none yet" in shell("db", "stats", "--database", database).out


# --- policies -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "answered"),
    [
        ("exact", {"4.0.0"}),
        ("same minor", {"4.0.0", "4.0.9"}),
        ("ignore", {"4.0.0", "4.0.9", "4.1.0", "5.0.0"}),
    ],
)
def test_a_policy_changes_who_is_answered(
    filled: Path, shell: Shell, policy: str, answered: set[str]
) -> None:
    told = shell("db", "policy", "mujoco_version", policy, "--json", "--database", filled)
    assert json.loads(told.out)["mujoco_version"] == policy
    assert f"mujoco_version  {policy}\n" in shell("db", "policy", "--database", filled).out
    found = {
        version
        for version in ("4.0.0", "4.0.9", "4.1.0", "5.0.0")
        if isinstance(find_answer(filled, KEY, 1024, HERE._replace(mujoco_version=version)), Answer)
    }
    assert found == answered


def test_a_policy_changes_which_runs_a_verdict_counts(database: Path, shell: Shell) -> None:
    for number, version in enumerate(["4.0.0", "4.0.9", "4.1.0"]):
        store(database, KEY, a_run(number, environment=HERE._replace(mujoco_version=version)))
    counted = "SELECT mujoco_version, runs FROM verdict ORDER BY mujoco_version"
    for policy, runs in (
        ("same minor", [2, 2, 1]),
        ("exact", [1, 1, 1]),
        ("ignore", [3, 3, 3]),
        ("same minor", [2, 2, 1]),
    ):
        shell("db", "policy", "mujoco_version", policy, "--database", database)
        assert [row[1] for row in rows_of(database, counted)] == runs
        before = verdicts(database)
        recompute(database)
        assert verdicts(database) == before
    assert check(database) == []


def test_a_policy_that_somebody_deleted_can_be_set_again(filled: Path, shell: Shell) -> None:
    rows_of(filled, "DELETE FROM validator")
    shell("db", "policy", "pool", "ignore", "--database", filled)
    assert rows_of(filled, "SELECT * FROM validator") == [("pool", "ignore")]


@pytest.mark.parametrize("words", [("pool",), ("pool", "lax"), ("colour", "exact")])
def test_a_policy_that_is_none_is_refused(
    filled: Path, shell: Shell, words: tuple[str, ...]
) -> None:
    before = filled.read_bytes()
    shell.refused("db", "policy", *words, "--database", filled, code=2)
    assert filled.read_bytes() == before


def test_showing_the_policies_changes_nothing(filled: Path, shell: Shell) -> None:
    before = contents(filled.parent)
    assert shell("db", "policy", "--database", filled).out.count("\n") == 5
    assert contents(filled.parent) == before


# --- recomputing ----------------------------------------------------------------------------


def verdicts(database: Path) -> list[tuple[Any, ...]]:
    """Read the verdicts, bit for bit, the latest run by its own name instead of a row number."""
    columns = [name for _, name, *_ in rows_of(database, "PRAGMA table_info(verdict)")]
    columns.remove("latest_run_id")
    told = ", ".join(f"typeof(verdict.{name}), verdict.{name}" for name in columns)
    rows = rows_of(
        database,
        f"SELECT {told}, run.uid FROM verdict JOIN run ON run.run_id = verdict.latest_run_id "
        "ORDER BY key_digest, stack",
    )
    return [tuple(map(repr, row)) for row in rows]


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make an empty database, to be copied: making one takes longer than filling it."""
    file = tmp_path_factory.mktemp("fresh") / "fresh.db"
    upgrade(file)
    return file


@st.composite
def some_runs(draw: st.DrawFn) -> list[tuple[str, Run]]:
    """Draw runs of two keys: of several stacks, some at the same moment, some without timings."""
    found: list[tuple[str, Run]] = []
    for number in range(draw(st.integers(1, 5))):
        state = draw(st.sampled_from(["complete", "complete", "cut short", "failed", "imported"]))
        costs = draw(st.sampled_from([FASTER, ALIKE, {None: 8.0, 4: 8.02, 16: 8.01}]))
        run = a_run(
            number,
            costs,
            pairs=draw(st.integers(0, 14)),
            state=state,
            finished=NOON
            + timedelta(microseconds=draw(st.sampled_from([0, 1, 10**6, 86_400 * 10**6]))),
            pool_seconds=draw(st.none() | st.floats(0, 100)),
            choice=draw(st.sampled_from([None, Candidate(None), Candidate(8)])),
            failed=draw(st.sampled_from([(), (Candidate(8),)])),
            origin=draw(st.sampled_from([None, "other.db"])),
            environment=draw(
                st.sampled_from(
                    [HERE, HERE._replace(mujoco_version="4.0.9"), Environment(), Environment("5")]
                )
            ),
        )
        if draw(st.booleans()) and state == "imported":
            run = Run(state="imported", finished=run.finished, uid=run.uid, choice=Candidate(8))
        found.append((draw(st.sampled_from([KEY, OTHER])), run))
    return found


@settings(max_examples=20)
@given(runs=some_runs(), data=st.data())
def test_recomputing_finds_the_verdicts_as_they_are_in_whatever_order_the_runs_came(
    fresh: Path, runs: list[tuple[str, Run]], data: st.DataObject
) -> None:
    told = []
    for number, order in enumerate((runs, data.draw(st.permutations(runs)))):
        database = fresh.with_name(f"{number}.db")
        shutil.copyfile(fresh, database)
        for key, run in order:
            store(database, key, run)
        stored = verdicts(database)
        numbers = rows_of(database, "SELECT latest_run_id FROM verdict")
        for _ in range(2):
            recompute(database)
            assert verdicts(database) == stored
            assert rows_of(database, "SELECT latest_run_id FROM verdict") == numbers
        told.append(stored)
    assert told[0] == told[1]


def test_recomputing_mends_what_was_changed_by_hand(filled: Path, shell: Shell) -> None:
    before = verdicts(filled)
    rows_of(filled, "UPDATE verdict SET chunk_size = 900, gain = gain_high, samples = 1")
    rows_of(filled, "DELETE FROM verdict WHERE key_digest = ?", OTHER)
    told = shell("db", "recompute", "--database", filled)
    assert (told.code, told.out) == (0, f"{filled}: the verdicts of 2 keys are made anew\n")
    assert verdicts(filled) == before


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("failed_chunk_sizes", "[" * 100_000),
        ("failed_chunk_sizes", "7"),
        ("failed_chunk_sizes", '["x"]'),
        ("failed_chunk_sizes", "[[1]]"),
        ("finished_utc", "9999-99-99T99:99:99.000000Z"),
        ("started_utc", "no---no-noTno:no:no Z"),
    ],
)
def test_a_run_that_no_tuner_wrote_spoils_no_other_runs_verdict(
    filled: Path, column: str, value: str
) -> None:
    rows_of(filled, f"UPDATE run SET {column} = ? WHERE run_id = 1", value)
    recompute(filled)
    assert rows_of(filled, "SELECT runs FROM verdict WHERE key_digest = ?", KEY) == [(1,)]
    verdict = store(filled, KEY, a_run(9))
    assert verdict is not None
    assert verdict.chunk_size == 4


def test_a_key_that_is_forgotten_while_verdicts_are_made_anew_is_left_out(filled: Path) -> None:
    def forgetting(keys: Sequence[str]) -> Iterator[str]:
        upkeep.forget(filled, [KEY])
        yield from keys

    before = verdicts(filled)
    assert recompute(filled, forgetting) == 2
    assert verdicts(filled) == [row for row in before if repr(str(KEY)) not in row]
    assert check(filled) == []


def test_an_upgraded_database_is_recomputed_like_any_other(database: Path) -> None:
    shutil.copyfile(GOLDEN, database)
    upgrade(database)
    recompute(database)
    once = verdicts(database)
    recompute(database)
    assert verdicts(database) == once
    assert check(database) == []


def test_the_commands_are_there_for_a_user_too(filled: Path) -> None:
    copy = filled.with_name("copy.db")
    assert tuner("db", "backup", str(copy), "--database", str(filled)).returncode == 0
    refused = tuner("db", "backup", str(copy), "--database", str(filled))
    assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (1, "", 1)


@pytest.mark.parametrize(
    "command",
    ["why", "verify", "pin", "unpin", "forget", "db backup", "db prune", "db vacuum",
     "db recompute", "db policy", "db stats"],
)  # fmt: skip
def test_each_of_these_commands_has_help_with_an_example(shell: Shell, command: str) -> None:
    told = shell(*command.split(), "--help")
    assert (told.code, told.err) == (0, "")
    assert f"Example:\n    tuner {command}" in told.out


@pytest.mark.parametrize(
    "failed", ["[1e999]", "[-1]", "[true]", "[null, 4.5]", f"[{10**30}]", "[[1]]", "{}", "7", "x"]
)
def test_what_an_odd_row_says_of_failures_keeps_no_run_from_being_stored(
    database: Path, failed: str
) -> None:
    store(database, a_key(), a_run(1))
    rows_of(database, "UPDATE run SET failed_chunk_sizes = ?", failed)
    assert store(database, a_key(), a_run(2)) is not None
    assert len(runs_in(database)) == 2


@pytest.mark.parametrize(
    "stacks",
    [
        (HERE, HERE._replace(pool_version=None), HERE._replace(pool_version="")),
        (HERE._replace(pool="a b", pool_version="c"), HERE._replace(pool="a", pool_version="b c")),
        (HERE._replace(method="race\udcff"), HERE._replace(method="race\\udcff")),
        (HERE._replace(method="\0"), HERE._replace(method="\\x00")),
    ],
)
def test_stacks_that_read_alike_lose_no_run(database: Path, stacks: Sequence[Environment]) -> None:
    for number, stack in enumerate([*stacks, *stacks]):
        assert store(database, a_key(), a_run(number, environment=stack)) is not None
    assert len(runs_in(database)) == 2 * len(stacks)
    before = rows_of(database, "SELECT * FROM verdict")
    recompute(database)
    assert rows_of(database, "SELECT * FROM verdict") == before


def test_a_choice_that_was_stated_too_large_does_not_make_every_job_measure(
    database: Path,
) -> None:
    stated = Run(state="imported", finished=NOON, choice=Candidate(5000), environment=HERE)
    key = a_key(num_envs=64, nthread=2)
    store(database, str(key), stated)
    store(database, key, a_run(1, ALIKE, pairs=1, state="cut short"))
    assert isinstance(find_answer(database, key, 64, HERE), Answer)
