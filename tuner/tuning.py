"""The cold path, once it is this process's turn: time, decide, save.

Raises what goes wrong; `resolve` turns that into the native default, the command line into a
line and an exit code.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tuner import log
from tuner.budget import RESUME_SHARE, can_resume
from tuner.candidates import filter_candidates, make_candidates
from tuner.device import run_metadata
from tuner.environment import Environment, environment_of
from tuner.errors import ArgumentError, DatabaseError
from tuner.formatting import counted
from tuner.pools import Pool
from tuner.racing.meta_analysis import VERIFY
from tuner.racing.race import Progress, race_chunk_sizes
from tuner.records import (
    LARGEST_INTEGER,
    NATIVE_DEFAULT,
    Miss,
    Outcome,
    Race,
    Run,
    SimilarKey,
    Trigger,
    Verdict,
)
from tuner.store.database import check_writable
from tuner.store.lookup import find_answer
from tuner.store.migrate import upgrade
from tuner.store.queries import nearest, policies_of, read_runs, read_snapshot, valid_runs
from tuner.store.runs import save_run
from tuner.workload import CacheKey

PLAN = "race"

INTERRUPTED = "interrupted"
"""The message of a run that somebody stopped with Ctrl-C."""


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
    """Time a key's candidates, store the run, and say what all runs of the key mean now.

    An undecided verdict is taken up where it stopped; a near relative's winner is looked at
    first, and a row from before a field was known is confirmed by a short duel. What was timed
    when somebody interrupts it is kept, if it is worth going on with.

    The caller holds the machine's turn to measure.

    Args:
        key: The key, with its facts.
        database: The file; made or upgraded before anything is timed, so that a measurement
            that could not be kept is not made.
        work: The work to be timed.
        miss: Why it has to be measured.
        time_budget_s: Seconds of the pool's time; a share of it where an undecided verdict is
            taken up, or what an interrupted run had left.
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
            f"state has {counted(len(work.state), 'row')} and num_envs is {facts.num_envs}: "
            "give one row per environment"
        )
    _check_finite("state", work.state)
    _check_finite("control", work.control)
    seed = int.from_bytes(os.urandom(6)) if seed is None else int(seed)
    here = environment_of(work.pool)
    history = _history(file, key, here, miss)
    budget_s = history.budget_of(time_budget_s)
    around = run_metadata()
    started = datetime.now(UTC)

    def run(**outcome: Any) -> Run:
        return Run(
            started=started,
            finished=datetime.now(UTC),
            strategy=VERIFY if history.trigger == "verify" else PLAN,
            work=work.description,
            environment=here,
            trigger=history.trigger,
            warm_start_key=history.near.key if history.near else None,
            seed=seed,
            time_budget_seconds=budget_s if math.isfinite(budget_s) else None,
            model_file=None if model_file is None else os.fspath(model_file),
            metadata=around,
            **outcome,
        )

    def timed(race: Race, message: str | None) -> Run:
        return run(
            state=_state(race.verdict),
            samples=race.samples,
            # A run that only went on from others has no choice of its own.
            choice=None if history.trigger == "resumed" else race.verdict.candidate,
            pool_seconds=race.pool_seconds,
            message=message,
            failed=tuple(race.failures),
        )

    def keep(race: Race) -> None:
        if history.trigger == "verify":
            fate = "not kept: a check by halves is none"
        elif _is_worth_keeping(race, time_budget_s):
            save_run(file, key, timed(race, INTERRUPTED))
            fate = "kept, whoever asks next goes on from there"
        else:
            fate = "not kept: too few, or of too long steps, for anybody to go on from"
        log.inform(f"interrupted: {counted(len(race.samples), 'timing')} {fate}")

    chunks = filter_candidates(make_candidates(facts.num_envs, facts.nthread), facts.num_envs)
    if history.trigger == "verify":
        chunks = _choice_of(file, key, here)
    try:
        race = race_chunk_sizes(
            work.pool,
            work.state,
            facts.bench_nsteps,
            chunks,
            control=work.control,
            post_step_forward_sensor=facts.post_step_forward_sensor,
            time_budget_s=budget_s,
            clock=clock,
            seed=seed,
            nthread=facts.nthread,
            progress=progress,
            stopped=keep,
            **history.shortcuts(key, chunks),
        )
    except Exception as error:
        save_run(file, key, run(state="failed", message=str(error)))
        raise
    verdict = save_run(file, key, timed(race, _failures(race)))
    answer = find_answer(file, key, facts.num_envs, here)
    if isinstance(answer, Miss):
        raise DatabaseError(
            f"the verdict that was just stored in {file} is no answer: {answer.reason}; "
            "`tuner db check` looks closer"
        )
    return Outcome("measured", answer, miss, race, verdict, history.near)


@dataclass(frozen=True, slots=True)
class _History:
    """What is known before a measurement."""

    trigger: Trigger
    near: SimilarKey | None = None
    earlier: tuple[Run, ...] = ()

    def budget_of(self, time_budget_s: float) -> float:
        """Say how many seconds of the pool's time this measurement may take."""
        if self.trigger != "resumed":
            return time_budget_s
        return max(RESUME_SHARE * time_budget_s, min(time_budget_s, self._left_by_an_interrupt))

    @property
    def _left_by_an_interrupt(self) -> float:
        last = max(self.earlier, key=lambda run: run.finished, default=None)
        if last is None or last.message != INTERRUPTED:
            return 0.0
        return (last.time_budget_seconds or 0.0) - (last.pool_seconds or 0.0)

    def shortcuts(self, key: CacheKey, chunks: Sequence[int]) -> dict[str, Any]:
        """Say what of it a race can use: earlier runs, or the candidate that probably wins."""
        if self.near is None:
            return {"earlier": self.earlier}
        scaled = self.near.scaled_to(key.facts.num_envs, key.facts.nthread)
        if scaled is None:
            return {"prior": [None]}
        winner = min(chunks, key=lambda chunk: (abs(math.log(chunk / scaled)), chunk))
        likely = {"confirm": winner} if self.trigger == "adopted" else {"prior": [winner]}
        return likely | {"prior_gain": self.near.gain}


def _history(file: Path, key: CacheKey, here: Environment, miss: Miss) -> _History:
    """Look for what can shorten a measurement: earlier runs of the key, or a relative's winner."""
    if miss.trigger == "resumed":
        with read_snapshot(file) as rows:
            runs = valid_runs(read_runs(rows, key), policies_of(rows), here)
        return _History("resumed", earlier=tuple(runs.values()))
    if miss.trigger in ("forced", "verify"):
        return _History(miss.trigger)
    near = nearest(file, key, here)
    return _History("new") if near is None else _History(near.trigger_for(key), near)


def _check_finite(name: str, values: Any) -> None:
    """Refuse what no job steps from: a simulation that has diverged costs something else.

    Raises:
        ArgumentError: if there is NaN or infinity among the values.
    """
    values = np.asarray(values)
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise ArgumentError(
            f"{name} holds NaN or infinity: give that of a simulation that has not diverged"
        )


def _choice_of(file: Path, key: CacheKey, here: Environment) -> list[int]:
    """List the one candidate that a check times beside the default."""
    answer = find_answer(file, key, key.facts.num_envs, here)
    if isinstance(answer, Miss) or answer.chunk_size is None:
        why = answer.reason if isinstance(answer, Miss) else "its choice is the default itself"
        raise ArgumentError(f"there is nothing to verify: {why}; `tuner tune` measures")
    return [answer.chunk_size]


def _is_worth_keeping(race: Race, time_budget_s: float) -> bool:
    """Tell whether a later process would go on with it: a verdict that nobody does would stay."""
    default = [e.milliseconds for e in race.verdict.estimates if e.candidate == NATIVE_DEFAULT]
    return bool(default) and can_resume(default[0], time_budget_s)


def _state(verdict: Verdict) -> Literal["complete", "cut short"]:
    return "cut short" if verdict.reason == "budget" else "complete"


def _failures(race: Race) -> str | None:
    failures = [f"chunk {candidate}: {text}" for candidate, text in race.failures.items()]
    return "; ".join(failures) or None
