"""Runs and verdicts: stored, judged and recomputed alike in any order."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.facts import a_key
from tests.support.stored import (
    ALIKE,
    FASTER,
    HERE,
    NOON,
    Shell,
    a_run,
    rows_of,
    store,
    verdicts_of,
)
from tuner.environment import Environment
from tuner.records import Candidate, Run
from tuner.store.lookup import Answer, find_answer
from tuner.store.maintenance import check
from tuner.store.migrate import upgrade
from tuner.store.runs import (
    delete,
    plan_deletion,
    recompute,
)

GOLDEN = Path(__file__).parents[1] / "golden"
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
        stored = verdicts_of(database)
        numbers = rows_of(database, "SELECT latest_run_id FROM verdict")
        for _ in range(2):
            recompute(database)
            assert verdicts_of(database) == stored
            assert rows_of(database, "SELECT latest_run_id FROM verdict") == numbers
        told.append(stored)
    assert told[0] == told[1]


def test_recomputing_mends_what_was_changed_by_hand(filled: Path, shell: Shell) -> None:
    before = verdicts_of(filled)
    rows_of(filled, "UPDATE verdict SET chunk_size = 900, gain = gain_high, samples = 1")
    rows_of(filled, "DELETE FROM verdict WHERE key_digest = ?", OTHER)
    told = shell("db", "recompute", "--database", filled)
    assert (told.code, told.out) == (0, f"{filled}: recomputed the verdicts of 2 keys\n")
    assert verdicts_of(filled) == before


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
        delete(filled, plan_deletion(filled, keys=[KEY]))
        yield from keys

    before = verdicts_of(filled)
    assert recompute(filled, forgetting) == 2
    assert verdicts_of(filled) == [row for row in before if repr(str(KEY)) not in row]
    assert check(filled) == []


def test_an_upgraded_database_is_recomputed_like_any_other(database: Path) -> None:
    shutil.copyfile((GOLDEN / "0001.db"), database)
    upgrade(database)
    recompute(database)
    once = verdicts_of(database)
    recompute(database)
    assert verdicts_of(database) == once
    assert check(database) == []


@pytest.mark.parametrize(
    "failed", ["[1e999]", "[-1]", "[true]", "[null, 4.5]", f"[{10**30}]", "[[1]]", "{}", "7", "x"]
)
def test_what_an_odd_row_says_of_failures_keeps_no_run_from_being_stored(
    database: Path, failed: str
) -> None:
    store(database, a_key(), a_run(1))
    rows_of(database, "UPDATE run SET failed_chunk_sizes = ?", failed)
    assert store(database, a_key(), a_run(2)) is not None
    assert len(rows_of(database, "SELECT * FROM run")) == 2


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
    assert len(rows_of(database, "SELECT * FROM run")) == 2 * len(stacks)
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
