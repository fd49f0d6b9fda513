"""Races on simulated pools, and runs made of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

from benchmarks.simulation import SimulatedPool, quiet
from tuner.racing.race import race_chunk_sizes
from tuner.records import Race, Run


def quiet_pool(costs: dict[int | None, float], seed: int = 0) -> SimulatedPool:
    return SimulatedPool(costs, quiet(np.random.default_rng(seed), 0.01), seed)


def run(pool: Any, candidates: Iterable[Any], *, num_envs: int = 1024, **options: Any) -> Race:
    options.setdefault("clock", getattr(pool, "clock", None))
    options.setdefault("seed", 0)
    options.setdefault("nthread", 8)
    state = np.zeros((num_envs, 3))
    return race_chunk_sizes(
        pool, state, 5, candidates, control=None, post_step_forward_sensor=False, **options
    )


COSTS = {None: 0.01, 1: 0.025, 4: 0.0092, 9: 0.0097, 12: 0.01, 20: 0.011, 64: 0.014}


class Wrapped:
    """A pool with something between it and the race."""

    nthread = 8

    def __init__(
        self, pool: SimulatedPool, before: Callable[[Any], object] = lambda _arguments: None
    ) -> None:
        self.pool, self.before = pool, before
        self.seen: list[tuple[Any, dict[str, Any]]] = []

    def step(self, state: Any, **arguments: Any) -> None:
        self.seen.append((state, arguments))
        self.before(arguments)
        self.pool.step(state, **arguments)


def stored(race: Race, hour: int = 0, **fields: Any) -> Run:
    fields.setdefault("state", "cut short" if race.verdict.reason == "budget" else "complete")
    finished = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(hours=hour)
    return Run(finished=finished, samples=race.samples, failed=tuple(race.failures), **fields)
