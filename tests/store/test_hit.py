"""A hit is cheap: what it loads, how its row is found, and what is computed once."""

from __future__ import annotations

import platform
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.facts import SleepingPool, a_key
from tests.support.jobs import ROOT
from tests.support.resolving import its_key
from tuner import device, race_chunk_sizes, store_cache
from tuner.environment import Environment
from tuner.errors import DatabaseError
from tuner.store import lookup, sqlite
from tuner.store.lookup import Answer, Miss
from tuner.store.sqlite import OUR_TABLES, REVISION

HIT_MODULES = {
    "tuner",
    "tuner.budget",
    "tuner.candidates",
    "tuner.device",
    "tuner.errors",
    "tuner.workload",
    "tuner.log",
    "tuner.paths",
    "tuner.api",
    "tuner.store",
    "tuner.store.sqlite",
    "tuner.store.lookup",
    "tuner.environment",
    "tuner.formatting",
    "tuner.tuning",
    "tuner.model_facts",
}
"""The modules of this package that a hit loads."""


def test_a_hit_loads_few_modules_and_nothing_heavy(database: Path) -> None:
    store_cache(database, its_key(), {"chunk_size": 4, "per_candidate_ms": {"None": 2, "4": 1}})
    program = f"""
import sys, numpy as np
from types import SimpleNamespace
from tests.support.facts import MODEL
for name in [name for name in sys.modules if name.startswith("tuner")]:
    del sys.modules[name]
before = set(sys.modules)
import tuner
answer = tuner.resolve_chunk_size(
    pool=None, state=None, model=MODEL, n_variants=1, num_envs=64, nthread=2, dtype=np.float32,
    post_step_forward_sensor=False, bench_nsteps=4, manual_chunk_size=None, adaptive=True,
    database={str(database)!r},
)
assert answer == 4
print(*sorted(set(sys.modules) - before))
"""
    printed = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )
    loaded = set(printed.stdout.split())
    assert {name for name in loaded if name.partition(".")[0] == "tuner"} == HIT_MODULES
    heavy = {"sqlalchemy", "alembic", "mujoco", "click", "rich"}
    assert not {name.partition(".")[0] for name in loaded} & heavy


def plan_of(database: Path, statement: str, parameters: Any = ()) -> list[str]:
    """Ask SQLite how it would carry a statement out."""
    connection = sqlite3.connect(database)
    rows = connection.execute(f"EXPLAIN QUERY PLAN {statement}", parameters).fetchall()
    connection.close()
    return [row[3] for row in rows]


TABLES = (*OUR_TABLES, "alembic_version", "latest", "newest")


def scanned(plan: list[str]) -> list[str]:
    """List the tables that a plan reads from one end to the other."""
    return [step for step in plan if step.startswith("SCAN") and step.split()[1] in TABLES]


@pytest.fixture
def filled(database: Path) -> Path:
    """Make a database with an answer."""
    store_cache(database, a_key(), {"chunk_size": 4, "per_candidate_ms": {"None": 2, "4": 1}})
    return database


def test_a_hits_row_is_found_by_one_index_search_in_each_table(filled: Path) -> None:
    plan = plan_of(filled, lookup.ONE_ANSWER, {"key": a_key(), "revision": REVISION})
    steps = [step for step in plan if step.startswith(("SEARCH", "SCAN"))]
    assert len(steps) == 3 + len(Environment._fields)  # what is known, pin, verdict; the policies
    assert all(step.startswith("SEARCH") and "=?" in step for step in steps)


@pytest.mark.parametrize(
    "view",
    ["tuning_overview", "candidate_timing", "run_history", "choice_quality", "winner_flips"],
)
def test_asking_a_view_for_one_key_reads_no_table_through(filled: Path, view: str) -> None:
    plan = plan_of(filled, f"SELECT * FROM {view} WHERE tuning_key = ?", (a_key(),))
    assert any(step.startswith(("SEARCH tuning_key", "SEARCH verdict")) for step in plan)
    assert scanned(plan) == []


def test_listing_all_keys_reads_the_keys_through_and_searches_the_rest(filled: Path) -> None:
    plan = plan_of(filled, "SELECT * FROM tuning_overview ORDER BY last_measured_utc DESC")
    assert scanned(plan) == ["SCAN tuning_key"]


def chosen(database: Path) -> int | None:
    """Look the one key of these tests up."""
    found = lookup.find_answer(database, a_key(), 1024)
    assert isinstance(found, Answer)
    return found.chunk_size


def test_a_later_hit_sees_what_was_stored_since(filled: Path) -> None:
    for chunk_size in (4, 8, None, 16):
        store_cache(filled, a_key(), {"chunk_size": chunk_size})
        assert chosen(filled) == chunk_size


def test_a_later_hit_sees_that_the_file_is_another_one(filled: Path, tmp_path: Path) -> None:
    assert chosen(filled) == 4
    other = tmp_path / "other.db"
    store_cache(other, a_key(), {"chunk_size": 8})
    assert [chosen(other), chosen(filled)] == [8, 4]
    other.replace(filled)
    assert chosen(filled) == 8
    filled.unlink()
    assert isinstance(lookup.find_answer(filled, a_key(), 1024), Miss)


def test_a_later_hit_says_what_became_of_a_file_that_was_overwritten(filled: Path) -> None:
    assert chosen(filled) == 4
    filled.write_bytes(b"not a database, and long enough to be looked at" * 100)
    with pytest.raises(DatabaseError, match="not a SQLite database"):
        chosen(filled)


def test_a_held_database_is_waited_for_once(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "READ_BUSY_SECONDS", 0.01)
    holder = sqlite3.connect(filled, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")

    opened: list[object] = []
    real = sqlite._open

    def counted(file: Path, mode: str, seconds: float) -> sqlite3.Connection:
        opened.append(file)
        return real(file, mode, seconds)

    monkeypatch.setattr(sqlite, "_open", counted)
    with pytest.raises(DatabaseError, match="another process holds it"):
        chosen(filled)
    assert len(opened) == 1
    holder.close()


def test_threads_that_hit_at_once_each_get_the_answer(filled: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(chosen, [filled] * 200)) == {4}


def test_the_fingerprint_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    before = device.device_fingerprint()

    def fail() -> str:
        raise AssertionError("computed again")

    monkeypatch.setattr(platform, "system", fail)
    again = device.device_fingerprint()
    assert again == before
    again["cpu_count"] = -1
    assert device.device_fingerprint() == before


def test_a_race_copies_the_state_once_and_the_controls_never() -> None:
    given: list[tuple[int, int]] = []

    class Watching(SleepingPool):
        def step(self, state: Any, *, control: Any = None, **options: Any) -> Any:
            given.append((id(state), id(control)))
            return super().step(state, control=control, **options)

    state, control = np.zeros((64, 3)), np.zeros((64, 4, 2))
    race_chunk_sizes(
        Watching(64, 2, 1e-3),
        state,
        4,
        [1, 8, 16, 32],
        control=control,
        post_step_forward_sensor=False,
        time_budget_s=0.2,
    )
    assert {controls for _, controls in given} == {id(control)}
    assert len({states for states, _ in given}) == 1
    assert given[0][0] != id(state)
