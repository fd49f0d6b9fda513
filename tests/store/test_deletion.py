"""Deletion: removes what was planned, all of it, and nothing else."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support.facts import DEVICE, MODEL_SIGNATURE, a_key
from tests.support.stored import (
    ALIKE,
    FASTER,
    HERE,
    a_run,
    contents,
    everything_in,
    rows_of,
    store,
    verdicts_of,
)
from tuner import load_cache
from tuner.environment import Environment
from tuner.errors import ArgumentError, DatabaseError
from tuner.records import Run
from tuner.store import runs as store_runs
from tuner.store.lookup import Answer, find_answer
from tuner.store.maintenance import check
from tuner.store.queries import EVERYTHING, Selection
from tuner.store.runs import (
    delete,
    pin,
    plan_deletion,
    utc_text,
)

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


def older_than(days: float, **filters: Any) -> Selection:
    """Choose runs that ended so many days ago or earlier."""
    return Selection(until=utc_text(datetime.now(UTC) - timedelta(days=days)), **filters)


def uids(database: Path) -> list[int]:
    """List the numbers of the stored runs."""
    return sorted(int(uid, 16) for (uid,) in rows_of(database, "SELECT uid FROM run"))


def test_deleting_keys_removes_all_of_them_and_nothing_else(database: Path) -> None:
    store(database, KEY, a_run(1))
    before = everything_in(database)
    theirs = a_key(model_sig=MODEL_SIGNATURE | {"nq": 7}, device=DEVICE | {"rack": "north"})
    mixed = a_key(num_envs=64)  # of KEY's model and device
    for number, key in enumerate((theirs, mixed)):
        store(database, key, a_run(2 + number, state="failed"), a_run(4 + number))
        pin(database, key, 4, "so")
    unchanged = contents(database.parent)
    deletion = plan_deletion(database, keys=[theirs, mixed])
    assert contents(database.parent) == unchanged
    assert len(deletion.run_ids) == 4
    assert deletion.keys == deletion.gone == tuple(sorted((theirs, mixed)))
    delete(database, deletion)
    assert everything_in(database) == before
    assert check(database) == []


def test_deleting_by_a_filter_of_keys_keeps_pinned_keys(filled: Path) -> None:
    pin(filled, OTHER, 8, "so")
    before = len(uids(filled))
    deletion = plan_deletion(filled, Selection(num_envs=2048))
    assert deletion.gone == ()
    delete(filled, deletion)
    assert set(rows_of(filled, "SELECT digest FROM tuning_key")) == {(KEY,), (OTHER,)}
    assert rows_of(filled, "SELECT count(*) FROM pin") == [(1,)]
    assert len(uids(filled)) < before
    assert check(filled) == []


def test_a_key_without_runs_can_be_deleted(database: Path) -> None:
    store(database, KEY, a_run(1))
    rows_of(database, "DELETE FROM run")
    assert plan_deletion(database, keys=[KEY]).gone == (KEY,)
    delete(database, plan_deletion(database, keys=[KEY]))
    assert rows_of(database, "SELECT * FROM tuning_key") == []


def test_deleting_the_last_key_leaves_a_sound_and_empty_database(filled: Path) -> None:
    delete(filled, plan_deletion(filled, keys=[KEY, OTHER]))
    left = {name: len(rows) for name, rows in everything_in(filled).items() if rows}
    assert left == {"alembic_version": 1, "validator": 4}
    assert check(filled) == []
    store(filled, KEY, a_run(1))
    assert choice_of(filled) == 4


def test_nothing_is_deleted_without_a_filter_or_keys(filled: Path) -> None:
    with pytest.raises(ArgumentError, match="give keys, or a filter"):
        plan_deletion(filled, EVERYTHING)


@pytest.mark.parametrize(
    ("selection", "left", "keys"),
    [
        (older_than(60), [50, 60, 80, 90], 1),
        (older_than(45.5), [60, 80, 90], 1),
        (older_than(0), [], 0),
        (older_than(60, num_envs=2048), [10, 20, 50, 60, 80, 90], 1),
        (older_than(60, num_envs=1024), [15, 16, 50, 60, 80, 90], 2),
        (older_than(36500), [10, 15, 16, 20, 50, 60, 80, 90], 2),
    ],
)
def test_a_filter_of_time_deletes_the_runs_that_it_chooses(
    aged: Path, selection: Selection, left: list[int], keys: int
) -> None:
    before = contents(aged.parent)
    deletion = plan_deletion(aged, selection)
    assert contents(aged.parent) == before
    assert len(deletion.run_ids) == 8 - len(left)
    assert len(deletion.gone) == 2 - keys
    delete(aged, deletion)
    assert uids(aged) == left
    assert rows_of(aged, "SELECT count(*) FROM tuning_key") == [(keys,)]
    assert check(aged) == []
    again = plan_deletion(aged, selection)
    assert (again.run_ids, again.keys, again.gone) == ((), (), ())


def test_the_verdicts_after_a_deletion_are_those_of_the_runs_that_are_left(
    database: Path, tmp_path: Path
) -> None:
    old, new = a_run(1, FASTER), recent(90, costs=ALIKE)
    fresh = tmp_path / "fresh.db"
    store(fresh, KEY, new)
    store(database, KEY, old, new)
    assert verdicts_of(database) != verdicts_of(fresh)
    delete(database, plan_deletion(database, older_than(50)))
    assert verdicts_of(database) == verdicts_of(fresh)


def test_a_pinned_key_stays_and_answers_when_all_of_its_runs_are_deleted(aged: Path) -> None:
    pin(aged, OTHER, 8, "so")
    deletion = plan_deletion(aged, older_than(60))
    assert deletion.keys == tuple(sorted((KEY, OTHER)))
    assert deletion.gone == ()
    delete(aged, deletion)
    assert choice_of(aged, OTHER) == 8
    assert load_cache(aged)[OTHER] == {"chunk_size": 8}
    assert rows_of(aged, "SELECT * FROM verdict WHERE key_digest = ?", OTHER) == []
    assert check(aged) == []


def test_what_came_after_the_plan_is_not_deleted(aged: Path) -> None:
    deletion = plan_deletion(aged, older_than(0))
    assert deletion.gone == tuple(sorted((KEY, OTHER)))
    store(aged, KEY, recent(99))
    pin(aged, OTHER, 8, "so")
    delete(aged, deletion)
    assert uids(aged) == [99]
    assert choice_of(aged) == 4
    assert choice_of(aged, OTHER) == 8
    delete(aged, plan_deletion(aged, keys=[KEY, OTHER]))
    delete(aged, deletion)  # what is gone already does no harm
    assert check(aged) == []


def test_a_deletion_gives_the_space_back(database: Path) -> None:
    store(database, KEY, a_run(1))
    store(database, OTHER, a_run(2, pairs=3000, state="failed"))
    before = database.stat().st_size
    freed = delete(database, plan_deletion(database, keys=[OTHER]))
    assert freed > 0
    assert database.stat().st_size == before - freed


def test_a_deletion_that_cannot_give_the_space_back_says_that_the_runs_are_gone(
    aged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*_: object) -> int:
        raise DatabaseError("database or disk is full")

    monkeypatch.setattr(store_runs, "vacuum", no_room)
    with pytest.raises(DatabaseError, match=r"the runs are deleted.*`tuner delete` frees it"):
        delete(aged, plan_deletion(aged, older_than(0)))
    assert uids(aged) == []
