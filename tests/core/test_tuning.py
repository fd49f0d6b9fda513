"""What a measurement does around its race."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mujoco  # noqa: F401 - its version is a part of the environment
import numpy as np
import pytest

from tests.support.facts import ClockworkPool
from tests.support.resolving import NTHREAD, NUM_ENVS, its_key, resolve
from tests.support.stored import rows_of
from tuner.environment import environment_of
from tuner.lock import measuring_turn
from tuner.tuning import Request, StepInputs, answer_key


def clockwork(seconds: float) -> ClockworkPool:
    return ClockworkPool(NUM_ENVS, NTHREAD, seconds)


def test_a_budget_too_short_for_a_timing_stores_nothing(
    database: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pool = clockwork(2e-3)
    assert resolve(pool, database, time_budget_s=1e-3, clock=pool.clock) is None
    [record] = caplog.records
    assert "a time budget of 0.001 s is too short for a timing" in record.getMessage()
    assert rows_of(database, "SELECT * FROM run") == []


def test_a_step_longer_than_the_budget_is_told(
    database: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pool = clockwork(0.5)
    caplog.set_level("INFO", logger="tuner")
    assert resolve(pool, database, time_budget_s=0.2, clock=pool.clock) is None
    assert len(pool.chunks) == 1
    assert "one step takes 0.5 s, longer than the time budget of 0.2 s" in caplog.text


def test_what_is_timed_is_prepared_before_the_turn_to_measure(database: Path) -> None:
    pool = clockwork(2e-3)

    @contextmanager
    def prepare() -> Iterator[StepInputs]:
        with measuring_turn(0.0, unless=lambda: False):  # nobody holds it
            pass
        yield StepInputs(pool, np.zeros((NUM_ENVS, 3)), None, "a test's")

    options: dict[str, Any] = {"time_budget_s": 1.0, "clock": pool.clock}
    request = Request(its_key(), database, environment_of(pool), prepare, **options)
    assert answer_key(request).source == "measured"
    assert answer_key(request._replace(trigger="forced")).source == "measured"
