"""What a training job calls: the chunk_size to use, from the database or from a measurement.

The way of a hit is all here and imports little; what times and stores comes from `tuning`, once
it is this process's turn. Whatever goes wrong on either way, the job gets the native default
and one line that says why, never an exception.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from tuner import log
from tuner.budget import GRACE_S, TIME_BUDGET_S, can_resume
from tuner.candidates import native_chunk_size, whole_number
from tuner.device import device_fingerprint
from tuner.environment import environment_of
from tuner.errors import LockError, OlderSchemaError
from tuner.model_facts import model_signature
from tuner.paths import cache_path
from tuner.records import Answer, Miss, Outcome
from tuner.store.lookup import find_answer
from tuner.workload import CacheKey, make_cache_key

if TYPE_CHECKING:
    from collections.abc import Callable

    from tuner.environment import Environment
    from tuner.pools import Pool


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
    wait_s: float | None = None,
    seed: int | None = None,
    clock: Callable[[], float] = time.perf_counter,
    database: str | os.PathLike[str] | None = None,
) -> int | None:
    """Say which chunk_size a pool should be stepped with; None is the native default.

    A manual value always wins. Otherwise an answer in the database is used, and what is not
    there is measured once, by one process of this machine, and stored. Tells in one line what
    happened.

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
        time_budget_s: Seconds of the pool's time that measuring may take; a tenth of it where
            an undecided verdict is taken up again, or what an interrupted run had left.
        wait_s: Seconds to wait for another process that is measuring, before the native
            default is used instead; by default time_budget_s and 5 more.
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
        here = environment_of(pool)

        def measure(miss: Miss) -> Outcome:
            from tuner.tuning import Work, measure_and_save

            return measure_and_save(
                key,
                file,
                Work.of_caller(pool, state, control, model, bench_nsteps),
                miss=miss,
                time_budget_s=time_budget_s,
                seed=seed,
                clock=clock,
                model_file=model_file,
            )

        outcome = answer_key(
            key,
            file,
            measure,
            here=here,
            time_budget_s=time_budget_s,
            wait_s=time_budget_s + GRACE_S if wait_s is None else wait_s,
        )
    except Exception as error:
        log.warn(f"using the native default, not tuned: {error or type(error).__name__}")
        return None
    log.inform(describe(outcome, key, file))
    return outcome.answer.chunk_size


def answer_key(
    key: CacheKey,
    database: str | os.PathLike[str],
    measure: Callable[[Miss], Outcome],
    *,
    here: Environment,
    time_budget_s: float,
    wait_s: float,
    force: bool = False,
) -> Outcome:
    """Answer a key from the database; where it cannot, let this process or another measure.

    Args:
        key: The key, with its facts.
        database: The file.
        measure: Measures and stores; called only if nobody else has, and only while no other
            process of this machine measures.
        here: The software stack that asks.
        time_budget_s: Seconds of the pool's time that a measurement may take.
        wait_s: Seconds to wait for another process's measurement.
        force: Measure even if there is an answer.

    Raises:
        TunerError: whatever went wrong, with the next step.
    """
    watch = _Watch(database, key, here)
    found = Miss("a new measurement was asked for", "forced") if force else watch.first_look()
    if isinstance(found, Answer):
        if is_open(found, time_budget_s):
            return _go_on(found, watch, measure)
        return Outcome("hit", found)

    from tuner.lock import measuring_turn  # not on the way of a hit

    if force:
        with measuring_turn(wait_s, unless=lambda: False):
            return measure(found)
    with measuring_turn(wait_s, unless=watch.answered):
        # Whether the turn came or the wait ended: somebody may have stored it in the meantime.
        found = watch.look()
        return Outcome("hit", found) if isinstance(found, Answer) else measure(found)


def is_open(answer: Answer, time_budget_s: float) -> bool:
    """Tell whether an answer is undecided, and steps are short enough to go on with it."""
    default_ms = answer.per_candidate_ms.get("None", 0.0)
    return not answer.decided and can_resume(default_ms, time_budget_s)


def _go_on(answer: Answer, watch: _Watch, measure: Callable[[Miss], Outcome]) -> Outcome:
    """Spend a little on an undecided verdict, if nobody is measuring; the answer will do if not."""
    from tuner.lock import measuring_turn

    try:
        with measuring_turn(0.0, unless=lambda: False):
            found = watch.look()  # whoever had the turn may have been at the same key
            if isinstance(found, Answer) and found.decided:
                return Outcome("hit", found)
            return measure(Miss(f"its verdict is undecided ({answer.reason})", "resumed"))
    except LockError:
        return Outcome("hit", answer)
    except Exception as error:
        reason = error or type(error).__name__
        log.warn(f"the stored answer stands, and was not taken further: {reason}")
        return Outcome("hit", answer)


class _Watch:
    """Looks for a key's answer; while waiting, only when the file has changed.

    A look costs a connection, and dozens of processes that make some every second would
    disturb the one that measures.
    """

    def __init__(self, database: str | os.PathLike[str], key: CacheKey, here: Environment) -> None:
        self._database = database
        self._key = key
        self._here = here
        self._seen: object = None

    def look(self) -> Answer | Miss:
        """Look in the database."""
        return find_answer(self._database, self._key, self._key.facts.num_envs, self._here)

    def first_look(self) -> Answer | Miss:
        """Look in the database, and bring it to this version's schema if it is an older one."""
        try:
            return self.look()
        except OlderSchemaError:
            from pathlib import Path

            from tuner.store.migrate import upgrade  # once in a file's life

            upgrade(Path(self._database))
            return self.look()

    def answered(self) -> bool:
        """Tell whether there is an answer by now."""
        try:
            stat = os.stat(self._database)
        except OSError:
            return False
        now = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
        if now == self._seen:
            return False
        self._seen = now
        return isinstance(self.look(), Answer)


def describe(outcome: Outcome, key: CacheKey, database: str | os.PathLike[str]) -> str:
    """Put an outcome in one line: where from, the choice, the native rule, the timings."""
    native = native_chunk_size(key.facts.num_envs, key.facts.nthread)
    answer = outcome.answer
    chosen = "native default" if answer.chunk_size is None else f"chunk_size {answer.chunk_size}"
    timings = ", ".join(
        f"{'default' if name == 'None' else name} {ms:.4g}"
        for name, ms in answer.per_candidate_ms.items()
    )
    return (
        f"{outcome.source}: {chosen} (the native default is chunk_size {native})"
        + (f"; ms per step: {timings}" if timings else "")
        + (f"; pinned: {answer.pinned_because}" if answer.pinned_because is not None else "")
        + (f"; measured because {outcome.miss.reason}" if outcome.miss else "")
        + (f"; shortened by key {outcome.near.key[:11]}" if outcome.near else "")
        + f"; key {key[:11]} in {database}"
    )
