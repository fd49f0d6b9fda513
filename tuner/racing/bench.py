"""Times candidates on a pool by the fixed plan of the API. Reads no database, decides nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from tuner.candidates import checked_chunk_size
from tuner.errors import MeasuringError

if TYPE_CHECKING:
    from tuner.pools import Pool

Timings = dict[int | None, float]


def benchmark_chunk_sizes(
    pool: Pool,
    state: Any,
    nstep: int,
    candidates: Iterable[int | None],
    *,
    control: Any,
    post_step_forward_sensor: bool,
    warmup: int = 2,
    reps: int = 20,
    time_budget_s: float = 25.0,
    clock: Callable[[], float] = time.perf_counter,
) -> Timings:
    """Time a representative `pool.step` for each candidate, reduced by minimum.

    The native default (None) is always timed, and first. It goes round the candidates, one
    timing of each, so that a spent budget leaves fewer repetitions of all rather than none of
    some. The budget is looked at before every timing; the native default's first is taken
    whatever the budget.

    Args:
        pool: What steps the environments.
        state: (num_envs, nstate) float64; the pool gets a copy, never this array.
        nstep: Physics steps inside one timed step.
        candidates: Chunk sizes to time, 1 to num_envs each.
        control: (num_envs, nstep, nu) float64, or None.
        post_step_forward_sensor: Whether a step ends with a forward pass for its sensors.
        warmup: Rounds that are not counted, in front, except for a candidate that the budget
            leaves with nothing else.
        reps: Rounds that count.
        time_budget_s: Seconds after which no further timing starts.
        clock: Seconds, monotonic.

    Returns:
        Seconds of one step by candidate; a candidate that was never timed is not in it.

    Raises:
        ArgumentError: for a candidate that a pool cannot use.
        MeasuringError: if no timing of the native default came out above 0.
    """
    work = np.array(state)
    checked = (checked_chunk_size(c, len(work)) for c in candidates if c is not None)
    chunks: list[int | None] = [None, *dict.fromkeys(checked)]
    warm: Timings = {}
    counted: Timings = {}
    started = clock()
    for round_number in range(max(0, warmup) + max(1, reps)):
        fastest = warm if round_number < warmup else counted
        for chunk in chunks:
            first = round_number == 0 and chunk is None
            if clock() - started >= time_budget_s and not first:
                return _anchored(warm | counted)
            np.copyto(work, state)
            before = clock()
            pool.step(
                work,
                nstep=nstep,
                control=control,
                chunk_size=chunk,
                return_sensor=post_step_forward_sensor,
                post_step_forward_sensor=post_step_forward_sensor,
            )
            seconds = clock() - before
            if seconds > 0:
                fastest[chunk] = min(seconds, fastest.get(chunk, seconds))
    return _anchored(warm | counted)


def _anchored(timings: Timings) -> Timings:
    if None not in timings:
        raise MeasuringError(
            "no timing of the native default came out above 0 seconds: the clock stands still"
        )
    return timings
