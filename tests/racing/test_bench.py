"""The fixed plan of the API: interleaved rounds, reduced by minimum."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from tests.support.facts import SleepingPool
from tuner import benchmark_chunk_sizes
from tuner.errors import MeasuringError


class Steps:
    """A clock that a pool moves: a step takes as long as it is told, nothing else takes time."""

    def __init__(self, costs: dict[int | None, list[float]]) -> None:
        self.now = 0.0
        self.costs = costs
        self.chunks: list[int | None] = []

    def __call__(self) -> float:
        return self.now

    def step(self, state: Any, *, chunk_size: int | None = None, **_: Any) -> Any:
        costs = self.costs[chunk_size]
        self.now += costs[min(self.chunks.count(chunk_size), len(costs) - 1)]
        self.chunks.append(chunk_size)
        return state


def bench(pool: Any, candidates: list[int | None], **options: Any) -> dict[int | None, float]:
    return benchmark_chunk_sizes(
        pool,
        np.zeros((64, 3)),
        4,
        candidates,
        control=None,
        post_step_forward_sensor=False,
        **options,
    )


def test_each_candidate_and_the_default_has_its_repetitions() -> None:
    pool = SleepingPool(64, 2, seconds=0)
    timings = bench(pool, [1, 4], warmup=1, reps=3)
    assert set(timings) == {None, 1, 4}
    assert Counter(pool.chunks) == {None: 4, 1: 4, 4: 4}


def test_it_goes_round_the_candidates_instead_of_one_after_another() -> None:
    pool = SleepingPool(64, 2, seconds=0)
    bench(pool, [1, 4, 8], warmup=1, reps=2)
    assert pool.chunks == [None, 1, 4, 8] * 3


def test_the_minimum_counts_and_the_warm_up_does_not() -> None:
    clock = Steps({None: [0.5, 9.0, 2.0, 3.0], 4: [0.1, 1.0, 4.0, 1.5]})
    timings = bench(clock, [4], warmup=1, reps=3, clock=clock, time_budget_s=1e9)
    assert timings == pytest.approx({None: 2.0, 4: 1.0})


def test_a_spent_budget_leaves_fewer_repetitions_of_all() -> None:
    chunks = [1, 2, 4, 8]
    clock = Steps({chunk: [1.0] for chunk in (None, *chunks)})
    timings = bench(clock, list(chunks), warmup=1, reps=20, clock=clock, time_budget_s=12.5)
    counts = Counter(clock.chunks)
    assert set(timings) == {None, *chunks}
    assert max(counts.values()) - min(counts.values()) <= 1
    assert sum(counts.values()) == 13


def test_a_budget_of_nothing_still_times_the_default_and_not_everything() -> None:
    clock = Steps({chunk: [1.0] for chunk in (None, 1, 2, 4)})
    timings = bench(clock, [1, 2, 4], clock=clock, time_budget_s=0)
    assert timings == {None: 1.0}


def test_the_pool_never_gets_the_callers_own_state() -> None:
    pool = SleepingPool(64, 2, seconds=0)
    state = np.ones((64, 3))
    benchmark_chunk_sizes(pool, state, 4, [2], control=None, post_step_forward_sensor=False, reps=2)
    assert (state == 1).all()
    assert all(given is not state for given in pool.states)


@pytest.mark.parametrize("candidate", [0, -1, True, 65, 1.5])
def test_a_candidate_that_would_hurt_native_code_never_reaches_the_pool(candidate: Any) -> None:
    pool = SleepingPool(64, 2)
    with pytest.raises(ValueError, match="chunk_size"):
        bench(pool, [4, candidate])
    assert pool.chunks == []


def test_a_clock_that_stands_still_is_an_error_not_a_time_of_zero() -> None:
    with pytest.raises(MeasuringError, match="stands still"):
        bench(SleepingPool(64, 2, seconds=0), [4], clock=lambda: 1.0)


def test_a_clock_that_goes_back_leaves_no_negative_time() -> None:
    clock = Steps({None: [1.0], 4: [-1.0, -1.0, 2.0]})
    assert bench(clock, [4], warmup=0, reps=3, clock=clock) == {None: 1.0, 4: 2.0}
