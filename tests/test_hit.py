"""A hit costs nothing: what it loads, how its row is found, and what is computed once."""

from __future__ import annotations

import platform
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.facts import SleepingPool, a_key
from tests.test_resolve import its_key
from tuner import device, race_chunk_sizes, store_cache
from tuner.store import lookup

ROOT = Path(__file__).parents[1]

HIT_ROOMS = {
    "tuner",
    "tuner.answers",
    "tuner.candidates",
    "tuner.device",
    "tuner.errors",
    "tuner.keys",
    "tuner.notice",
    "tuner.paths",
    "tuner.resolve",
    "tuner.store",
    "tuner.store.diagnosis",
    "tuner.store.lookup",
    "tuner.store.sqlite",
    "tuner.workload",
}
"""All that a hit loads of this package."""


def test_a_hit_loads_its_own_few_rooms_and_nothing_heavy(database: Path) -> None:
    store_cache(database, its_key(), {"chunk_size": 4, "per_candidate_ms": {"None": 2, "4": 1}})
    program = f"""
import sys, numpy as np
from types import SimpleNamespace
from tests.facts import MODEL
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
    assert {name for name in loaded if name.partition(".")[0] == "tuner"} == HIT_ROOMS
    heavy = {"sqlalchemy", "alembic", "mujoco", "click", "platformdirs", "pathlib", "hashlib"}
    assert not {name.partition(".")[0] for name in loaded} & heavy


def plan_of(database: Path, statement: str, *parameters: object) -> list[str]:
    """Ask SQLite how it would carry a statement out."""
    connection = sqlite3.connect(database)
    rows = connection.execute(f"EXPLAIN QUERY PLAN {statement}", parameters).fetchall()
    connection.close()
    return [row[3] for row in rows]


TABLES = ("model", "device", "tuning_key", "run", "sample", "verdict", "alembic_version", "latest")


def scanned(plan: list[str]) -> list[str]:
    """List the tables that a plan reads from one end to the other."""
    return [step for step in plan if step.startswith("SCAN") and step.split()[1] in TABLES]


@pytest.fixture
def filled(database: Path) -> Path:
    """Make a database with an answer."""
    store_cache(database, a_key(), {"chunk_size": 4, "per_candidate_ms": {"None": 2, "4": 1}})
    return database


def test_a_hits_row_is_found_by_one_index_search_in_each_table(filled: Path) -> None:
    plan = plan_of(filled, lookup.ONE_ANSWER, a_key(), "0001")
    assert len(plan) == 2
    assert all(step.startswith("SEARCH") and "(" in step for step in plan)


@pytest.mark.parametrize("view", ["tuning_overview", "candidate_timing", "run_history"])
def test_asking_a_view_for_one_key_reads_no_table_through(filled: Path, view: str) -> None:
    plan = plan_of(filled, f"SELECT * FROM {view} WHERE tuning_key = ?", a_key())
    assert any(step.startswith("SEARCH tuning_key") for step in plan)
    assert scanned(plan) == []


def test_listing_all_keys_reads_the_keys_through_and_searches_the_rest(filled: Path) -> None:
    plan = plan_of(filled, "SELECT * FROM tuning_overview ORDER BY last_measured_utc DESC")
    assert scanned(plan) == ["SCAN tuning_key"]


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
