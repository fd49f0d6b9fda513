"""What a training job calls: the chunk_size to use, from the database or from a measurement.

The way of a hit is all here and imports little; a miss goes on in `tuning`. Whatever goes wrong
on either, the job gets the native default and one line that says why, never an exception.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner import notice
from tuner.candidates import native_chunk_size, whole_number
from tuner.device import device_fingerprint
from tuner.keys import CacheKey, make_cache_key
from tuner.paths import cache_path
from tuner.records import Answer
from tuner.store.lookup import find_answer
from tuner.workload import model_signature

if TYPE_CHECKING:
    from tuner.pools import Pool

TIME_BUDGET_S = 10.0
"""Seconds that one measurement may take of the pool's time."""


def resolve_chunk_size(
    *,
    pool: Pool,
    state: Any,
    model: Any,
    n_variants: int,
    num_envs: int,
    nthread: int,
    dtype: Any,
    post_step_forward_sensor: bool,
    bench_nsteps: int,
    manual_chunk_size: int | None,
    adaptive: bool,
    backend_type: str = "mujoco",
    model_file: str | None = None,
    control: Any = None,
    time_budget_s: float = TIME_BUDGET_S,
    seed: int | None = None,
    clock: Callable[[], float] = time.perf_counter,
    database: str | os.PathLike[str] | None = None,
) -> int | None:
    """Say which chunk_size a pool should be stepped with; None is the native default.

    A manual value always wins. Otherwise an answer in the database is used, and what is not
    there is measured once and stored. Tells in one line what happened.

    Args:
        pool: What steps the environments; used only where something must be measured.
        state: (num_envs, nstate) float64, the states to time from; the pool gets a copy.
        model: The MjModel behind the pool, for its signature.
        n_variants: Different models in the pool.
        num_envs: Environments stepped by one call.
        nthread: Threads of the pool.
        dtype: The environments' scalar type.
        post_step_forward_sensor: Whether a step ends with a forward pass for its sensors.
        bench_nsteps: Physics steps inside one timed step.
        manual_chunk_size: The user's own choice; None leaves it to the tuner.
        adaptive: False turns the tuner off: the native default.
        backend_type: Name of what steps the environments; a part of the key.
        model_file: The model's file, kept with the run for people to read.
        control: (num_envs, bench_nsteps, nu) float64, controls like those of the job; zeros if
            it is None.
        time_budget_s: Seconds of the pool's time that measuring may take.
        seed: What the order of the timings is drawn from; None draws it afresh.
        clock: Seconds, monotonic; what the pool is timed by.
        database: A path or URL; by default that of `cache_path()`.

    Raises:
        ArgumentError: (a ValueError) if manual_chunk_size is not a whole number of 1 or more.
    """
    if manual_chunk_size is not None:
        return whole_number(manual_chunk_size, "manual_chunk_size")
    if not adaptive:
        return None
    try:
        if num_envs <= nthread:
            return None
        key = make_cache_key(
            backend_type=backend_type,
            model_sig=model_signature(model, n_variants),
            device=device_fingerprint(),
            num_envs=num_envs,
            nthread=nthread,
            dtype=dtype,
            post_step_forward_sensor=post_step_forward_sensor,
            bench_nsteps=bench_nsteps,
        )
        file = cache_path(database)
        answer = find_answer(file, key, num_envs)
        if answer is not None:
            notice.inform(describe("hit", answer, key, file))
            return answer.chunk_size

        from tuner.tuning import Work, tune_key  # the cold path, with all that it imports

        work = Work.of_caller(pool, state, control, model, bench_nsteps)
        outcome = tune_key(
            key,
            file,
            lambda: work,
            time_budget_s=time_budget_s,
            seed=seed,
            clock=clock,
            model_file=model_file,
        )
    except Exception as error:
        notice.warn(f"using the native default, not tuned: {error or type(error).__name__}")
        return None
    notice.inform(describe(outcome.source, outcome.answer, key, file))
    return outcome.answer.chunk_size


def describe(source: str, answer: Answer, key: CacheKey, database: Path) -> str:
    """Put an answer in one line: where from, the choice, the native rule, the timings."""
    native = native_chunk_size(key.facts.num_envs, key.facts.nthread)
    chunk_size = answer.chunk_size
    chosen = "the native default" if chunk_size is None else f"chunk_size {chunk_size}"
    timings = ", ".join(
        f"{'default' if name == 'None' else name} {ms:.4g}"
        for name, ms in answer.per_candidate_ms.items()
    )
    return (
        f"{source}: {chosen} (the native default is chunk_size {native})"
        + (f"; ms per step: {timings}" if timings else "")
        + f"; key {key[:11]} in {database}"
    )
