"""The cold path, once it is this process's turn: time, decide, save.

Raises what goes wrong; `resolve` turns that into the native default, the command line into a
line and an exit code.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tuner.answers import Answer, Miss, Outcome
from tuner.candidates import filter_candidates, make_candidates
from tuner.circumstances import circumstances
from tuner.errors import ArgumentError
from tuner.keys import CacheKey
from tuner.pools import Pool, pool_identity
from tuner.race import Progress, race_chunk_sizes
from tuner.records import LARGEST_INTEGER, Race, Run, Verdict
from tuner.store.engine import check_writable
from tuner.store.ledger import save_run
from tuner.store.migrate import upgrade

PLAN = "race"


@dataclass(frozen=True, slots=True)
class Work:
    """The work to be timed: a pool, and what one step of it is given."""

    pool: Pool
    state: Any
    """(num_envs, nstate) float64."""
    control: Any
    """(num_envs, nstep, nu) float64, or None."""
    description: str
    """Which work this is, in words, for the run's row."""

    @classmethod
    def of_caller(cls, pool: Pool, state: Any, control: Any, model: Any, nstep: int) -> Work:
        """Time the caller's own state, with its controls or zeros in their place.

        Zeros and not None: copying controls into the workers is a part of every real step.
        """
        if control is not None:
            return cls(pool, state, control, "the caller's state and controls")
        zeros = np.zeros((len(state), nstep, int(model.nu)))
        return cls(pool, state, zeros, "the caller's state, zero controls")


def measure_and_save(
    key: CacheKey,
    database: str | os.PathLike[str],
    work: Work,
    *,
    miss: Miss,
    time_budget_s: float,
    seed: int | None = None,
    clock: Callable[[], float] = time.perf_counter,
    model_file: str | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Outcome:
    """Time a key's candidates once, decide, and store the run with its verdict.

    The caller holds the machine's turn to measure.

    Args:
        key: The key, with its facts.
        database: The file; made or upgraded before anything is timed, so that a measurement
            that could not be kept is not made.
        work: The work to be timed.
        miss: Why it has to be measured.
        time_budget_s: Seconds of the pool's time.
        seed: What the order of the timings is drawn from; None draws it afresh.
        clock: Seconds, monotonic.
        model_file: The model's file, for people to read.
        progress: Told about the race once per block.

    Raises:
        TunerError: whatever went wrong, with the next step. If it is the pool, the run is
            stored as failed.
    """
    file = Path(database)
    upgrade(file)
    check_writable(file)
    facts = key.facts
    time_budget_s = float(time_budget_s)
    if seed is not None and not 0 <= seed <= LARGEST_INTEGER:
        raise ArgumentError(f"seed must be a whole number from 0 to {LARGEST_INTEGER}, got {seed}")
    if len(work.state) != facts.num_envs:
        raise ArgumentError(
            f"state has {len(work.state)} rows and num_envs is {facts.num_envs}: "
            "give one row per environment"
        )
    seed = int.from_bytes(os.urandom(6)) if seed is None else int(seed)
    pool_name, pool_version = pool_identity(work.pool)
    around = circumstances()
    started = datetime.now(UTC)

    def run(**outcome: Any) -> Run:
        return Run(
            started=started,
            finished=datetime.now(UTC),
            plan=PLAN,
            work=work.description,
            pool=pool_name,
            pool_version=pool_version,
            seed=seed,
            time_budget_seconds=time_budget_s if math.isfinite(time_budget_s) else None,
            model_file=None if model_file is None else os.fspath(model_file),
            circumstances=around,
            **outcome,
        )

    chunks = make_candidates(facts.num_envs, facts.nthread)
    try:
        race = race_chunk_sizes(
            work.pool,
            work.state,
            facts.bench_nsteps,
            filter_candidates(chunks, facts.num_envs),
            control=work.control,
            post_step_forward_sensor=facts.post_step_forward_sensor,
            time_budget_s=time_budget_s,
            clock=clock,
            seed=seed,
            nthread=facts.nthread,
            progress=progress,
        )
    except Exception as error:
        save_run(file, key, run(state="failed", message=str(error)), None, {})
        raise
    finished = run(
        state=_state(race.verdict),
        samples=race.samples,
        pool_seconds=race.pool_seconds,
        message=_failures(race),
        failed=tuple(race.failures),
    )
    timings = {str(e.candidate.chunk_size): e.milliseconds for e in race.verdict.estimates}
    save_run(file, key, finished, race.verdict, timings)
    return Outcome("measured", _answer(race, timings), miss, race)


def _answer(race: Race, timings: dict[str, float]) -> Answer:
    verdict = race.verdict
    return Answer(
        verdict.chunk_size,
        verdict.decided,
        verdict.reason,
        verdict.gain,
        verdict.gain_low,
        verdict.gain_high,
        timings,
        len(race.samples),
    )


def _state(verdict: Verdict) -> Literal["complete", "cut short"]:
    return "cut short" if verdict.reason == "budget" else "complete"


def _failures(race: Race) -> str | None:
    failures = [f"chunk {candidate}: {text}" for candidate, text in race.failures.items()]
    return "; ".join(failures) or None
