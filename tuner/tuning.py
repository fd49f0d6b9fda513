"""Answers a key: look up, wait for the machine's turn, race, save, one `Outcome`.

The look-up imports little; what times and stores is imported by `_measure_and_save`. Errors are
raised: `api` turns them into the native default, the command line into a line and an exit code.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from tuner import log
from tuner.budget import GRACE_S, RESUME_SHARE, TIME_BUDGET_S, can_resume
from tuner.candidates import filter_candidates, make_candidates
from tuner.environment import Environment, environment_of
from tuner.errors import ArgumentError, DatabaseError, LockError, OlderSchemaError
from tuner.formatting import counted
from tuner.store.lookup import Answer, Miss, find_answer

if TYPE_CHECKING:
    from tuner.pools import Pool
    from tuner.racing.race import Progress
    from tuner.records import Race, Run, Trigger, Verdict
    from tuner.store.queries import SimilarKey
    from tuner.workload import CacheKey

STRATEGY = "race"

INTERRUPTED = "interrupted"
"""The message of a run that somebody stopped with Ctrl-C."""


class Outcome(NamedTuple):
    """What came of asking for a key."""

    source: Literal["hit", "measured"]
    answer: Answer
    miss: Miss | None = None
    """Why it was measured, where it was."""
    race: Race | None = None
    """The measurement, where there was one."""
    verdict: Verdict | None = None
    """What all runs of the key say with this one, where there was a measurement."""
    near: SimilarKey | None = None
    """The stored key whose history shortened it."""


class StepInputs(NamedTuple):
    """What a race times: a pool, and the arguments of one step of it."""

    pool: Pool
    state: Any
    """(num_envs, nstate) float64."""
    control: Any
    """(num_envs, nstep, nu) float64, or None."""
    description: str
    """What the state and control are, for the run's row."""
    progress: Callable[[Progress], None] | None = None
    """Called once per block of the race."""
    timestep: float | None = None
    """Simulated seconds of a physics step, where they are known."""


class Request(NamedTuple):
    """One question for a key's answer, and how it may be measured."""

    key: CacheKey
    database: Path
    environment: Environment
    """The software that asks."""
    prepare: Callable[[], AbstractContextManager[StepInputs]]
    """Makes what a race times, before the turn to measure; not called on a hit."""
    trigger: Literal["forced", "verify"] | None = None
    """Measure even if there is an answer: "forced" all candidates, "verify" only the choice."""
    time_budget_s: float = TIME_BUDGET_S
    """Seconds of the pool's time that a measurement may take."""
    wait_s: float | None = None
    """Seconds to wait for another process's measurement; by default time_budget_s and 5 more."""
    deadline: float = math.inf
    """When waiting and measuring end, by `time.monotonic`."""
    seed: int | None = None
    """Of the order of the timings; None draws one."""
    clock: Callable[[], float] = time.perf_counter
    model_file: str | None = None
    """Stored with the run, for people to read."""


def answer_key(request: Request) -> Outcome:
    """Answer a key from the database; measure where the database has no answer.

    Only one process of a machine measures at a time; the others wait for its answer.

    Raises:
        TunerError: with the next step.
    """
    watch = _Watch(request)
    wait_s = request.time_budget_s + GRACE_S if request.wait_s is None else request.wait_s
    wait_s = min(wait_s, max(0.0, request.deadline - time.monotonic()))
    if request.trigger:
        from tuner.lock import measuring_turn  # a hit needs no lock

        with request.prepare() as inputs, measuring_turn(wait_s, unless=lambda: False):
            what = "a check" if request.trigger == "verify" else "a new measurement"
            miss = Miss(f"{what} was asked for", request.trigger)
            return _measure_and_save(request, inputs, miss)
    found = watch.first_look()
    if isinstance(found, Answer):
        if is_open(found, request.time_budget_s):
            return _resume(request, found, watch)
        return Outcome("hit", found)

    from tuner.lock import measuring_turn

    with request.prepare() as inputs, measuring_turn(wait_s, unless=watch.answered):
        found = watch.look()  # another process may have stored it in the meantime
        if isinstance(found, Answer):
            return Outcome("hit", found)
        return _measure_and_save(request, inputs, found)


def is_open(answer: Answer, time_budget_s: float) -> bool:
    """Tell whether an answer is undecided, and steps are short enough to measure further."""
    default_ms = answer.per_candidate_ms.get("None", 0.0)
    return not answer.decided and can_resume(default_ms, time_budget_s)


def _resume(request: Request, answer: Answer, watch: _Watch) -> Outcome:
    """Measure an undecided verdict further, unless another process is measuring."""
    from tuner.lock import measuring_turn

    try:
        with request.prepare() as inputs, measuring_turn(0.0, unless=lambda: False):
            found = watch.look()  # the last process to measure may have decided this key
            if isinstance(found, Answer) and found.decided:
                return Outcome("hit", found)
            reason = f"its verdict is undecided ({answer.reason})"
            return _measure_and_save(request, inputs, Miss(reason, "resumed"))
    except LockError:
        return Outcome("hit", answer)
    except Exception as error:
        log.warn(
            f"cannot measure further, using the stored answer: {error or type(error).__name__}"
        )
        return Outcome("hit", answer)


class _Watch:
    """Looks for a key's answer; while waiting, only when the file has changed.

    A look opens a connection, and dozens of waiting processes would disturb the measurement.
    """

    def __init__(self, request: Request) -> None:
        self._request = request
        self._seen: object = None

    def look(self) -> Answer | Miss:
        """Look in the database."""
        request = self._request
        key = request.key
        return find_answer(request.database, key, key.workload.num_envs, request.environment)

    def first_look(self) -> Answer | Miss:
        """Look in the database, after upgrading an older schema."""
        try:
            return self.look()
        except OlderSchemaError:
            from tuner.store.migrate import upgrade

            upgrade(self._request.database)
            return self.look()

    def answered(self) -> bool:
        """Tell whether there is an answer by now."""
        try:
            stat = os.stat(self._request.database)
        except OSError:
            return False
        now = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
        if now == self._seen:
            return False
        self._seen = now
        return isinstance(self.look(), Answer)


def _measure_and_save(request: Request, inputs: StepInputs, miss: Miss) -> Outcome:
    """Race a key's candidates, store the run, and return the key's new answer.

    The file is made or upgraded before anything is timed. If the pool raises, the run is stored
    as failed. An interrupted race is stored if a later process could resume it.
    """
    from tuner.device import run_metadata
    from tuner.errors import DivergedError, MeasuringError
    from tuner.racing.meta_analysis import VERIFY
    from tuner.racing.race import race_chunk_sizes
    from tuner.records import Run
    from tuner.store.database import check_writable
    from tuner.store.migrate import upgrade
    from tuner.store.runs import save_run

    key, file, workload = request.key, request.database, request.key.workload
    upgrade(file)
    check_writable(file)
    seed, time_budget_s = _checked(request, inputs)
    here = environment_of(inputs.pool)
    history = _history(file, key, here, miss)
    left_s = max(0.0, request.deadline - time.monotonic())
    budget_s = min(history.budget_of(time_budget_s), left_s)
    verifying = history.trigger == "verify"
    around = run_metadata()
    started = datetime.now(UTC)

    def run(**outcome: Any) -> Run:
        return Run(
            started=started,
            finished=datetime.now(UTC),
            strategy=VERIFY if verifying else STRATEGY,
            work=inputs.description,
            environment=here,
            trigger=history.trigger,
            warm_start_key=history.near.key if history.near else None,
            seed=seed,
            time_budget_seconds=budget_s if math.isfinite(budget_s) else None,
            model_file=None if request.model_file is None else os.fspath(request.model_file),
            metadata=around,
            **outcome,
        )

    def timed(race: Race, message: str | None) -> Run:
        return run(
            state=_state(race.verdict),
            samples=race.samples,
            # A resumed run has no choice of its own.
            choice=None if history.trigger == "resumed" else race.verdict.candidate,
            pool_seconds=race.pool_seconds,
            message=message,
            failed=tuple(race.failures),
        )

    def keep(race: Race) -> None:
        if verifying:
            fate = "not stored: an incomplete check proves nothing"
        elif _is_worth_keeping(race, time_budget_s):
            save_run(file, key, timed(race, INTERRUPTED))
            fate = "stored, the next job resumes the measurement"
        else:
            fate = "not stored: too few, or of too long steps, to resume from"
        log.inform(f"interrupted: {counted(len(race.samples), 'timing')} {fate}")

    sizes = make_candidates(workload.num_envs, workload.nthread)
    chunks = filter_candidates(sizes, workload.num_envs)
    if verifying:
        chunks = _choice_of(file, key, here)
    try:
        race = race_chunk_sizes(
            inputs.pool,
            inputs.state,
            workload.bench_nsteps,
            chunks,
            control=inputs.control,
            post_step_forward_sensor=workload.post_step_forward_sensor,
            time_budget_s=budget_s,
            clock=request.clock,
            seed=seed,
            nthread=workload.nthread,
            progress=inputs.progress,
            timestep=inputs.timestep,
            stopped=keep,
            **history.shortcuts(key, chunks),
        )
    except DivergedError:
        raise
    except Exception as error:
        save_run(file, key, run(state="failed", message=str(error)))
        raise
    if all(sample.warm_up for sample in race.samples):
        raise MeasuringError(
            f"a time budget of {budget_s:g} s is too short for a timing after the warm-up"
        )
    first_s = race.samples[0].nanoseconds / 1e9
    if first_s > budget_s:
        log.inform(
            f"one step takes {first_s:.1f} s, longer than the time budget of {budget_s:g} s: "
            "nothing could be compared"
        )
    verdict = save_run(file, key, timed(race, _failures(race)))
    answer = find_answer(file, key, workload.num_envs, here)
    if isinstance(answer, Miss):
        raise DatabaseError(
            f"the verdict just stored in {file} cannot be read back: {answer.reason}; "
            "run `tuner db check`"
        )
    return Outcome("measured", answer, miss, race, verdict, history.near)


def _checked(request: Request, inputs: StepInputs) -> tuple[int, float]:
    """Check what is timed and return the seed and the time budget.

    Raises:
        ArgumentError: a value cannot be timed or stored.
    """
    num_envs, seed = request.key.workload.num_envs, request.seed
    from tuner.records import LARGEST_INTEGER

    if seed is not None and not 0 <= seed <= LARGEST_INTEGER:
        raise ArgumentError(f"seed must be a whole number from 0 to {LARGEST_INTEGER}, got {seed}")
    if len(inputs.state) != num_envs:
        raise ArgumentError(
            f"state has {counted(len(inputs.state), 'row')} and num_envs is {num_envs}: "
            "give one row per environment"
        )
    _check_finite("state", inputs.state)
    _check_finite("control", inputs.control)
    return int.from_bytes(os.urandom(6)) if seed is None else int(seed), float(
        request.time_budget_s
    )


class _History(NamedTuple):
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
        """Arguments of the race: earlier runs, or the candidate that probably wins."""
        if self.near is None:
            return {"earlier": self.earlier}
        scaled = self.near.scaled_to(key.workload.num_envs, key.workload.nthread)
        if scaled is None:
            return {"prior": [None]}
        winner = min(chunks, key=lambda chunk: (abs(math.log(chunk / scaled)), chunk))
        likely = {"confirm": winner} if self.trigger == "adopted" else {"prior": [winner]}
        return likely | {"prior_gain": self.near.gain}


def _history(file: Path, key: CacheKey, here: Environment, miss: Miss) -> _History:
    """Look for what can shorten a measurement: earlier runs, or the choice of a similar key."""
    from tuner.store.database import reading
    from tuner.store.queries import find_similar, policies_of, read_runs, valid_runs

    if miss.trigger == "resumed":
        with reading(file) as connection:
            runs = valid_runs(read_runs(connection, key), policies_of(connection), here)
        return _History("resumed", earlier=tuple(runs.values()))
    if miss.trigger in ("forced", "verify"):
        return _History(miss.trigger)
    near = find_similar(file, key, here)
    return _History("new") if near is None else _History(near.trigger_for(key), near)


def _check_finite(name: str, values: Any) -> None:
    """Refuse values of a diverged simulation, whose steps cost something else.

    Raises:
        ArgumentError: if there is NaN or infinity among the values.
    """
    import numpy as np

    values = np.asarray(values)
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise ArgumentError(
            f"{name} holds NaN or infinity: give that of a simulation that has not diverged"
        )


def _choice_of(file: Path, key: CacheKey, here: Environment) -> list[int]:
    """List the one candidate that a check compares with the default."""
    answer = find_answer(file, key, key.workload.num_envs, here)
    if isinstance(answer, Miss) or answer.chunk_size is None:
        why = answer.reason if isinstance(answer, Miss) else "its choice is the default itself"
        raise ArgumentError(f"there is nothing to verify: {why}; `tuner tune` measures")
    return [answer.chunk_size]


def _is_worth_keeping(race: Race, time_budget_s: float) -> bool:
    """Tell whether a later process could resume this race."""
    from tuner.records import NATIVE_DEFAULT

    default = [e.milliseconds for e in race.verdict.estimates if e.candidate == NATIVE_DEFAULT]
    return bool(default) and can_resume(default[0], time_budget_s)


def _state(verdict: Verdict) -> Literal["complete", "cut short"]:
    return "cut short" if verdict.reason == "budget" else "complete"


def _failures(race: Race) -> str | None:
    failures = [f"chunk {candidate}: {text}" for candidate, text in race.failures.items()]
    return "; ".join(failures) or None
