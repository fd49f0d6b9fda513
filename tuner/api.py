"""What a training job calls: the chunk_size to use, from the database or from a measurement.

A hit imports little; `tuning` imports what times and stores. Whatever goes wrong, the job gets
the native default and one line that says why.
"""

from __future__ import annotations

import os
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

from tuner import log
from tuner.budget import TIME_BUDGET_S
from tuner.candidates import whole_number
from tuner.device import device_fingerprint
from tuner.environment import Environment, environment_of
from tuner.formatting import (
    candidate_name,
    counted,
    describe_answer,
    describe_choice,
    percent,
    printable,
)
from tuner.model_facts import model_signature
from tuner.paths import cache_path
from tuner.store.lookup import Answer, find_answer
from tuner.tuning import Outcome, Request, StepInputs, answer_key, is_open
from tuner.workload import CacheKey, make_cache_key

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tuner.pools import Pool
    from tuner.store.queries import Difference, SimilarKey


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
        request = Request(
            key,
            cache_path(database),
            environment_of(pool),
            lambda: nullcontext(_inputs(pool, state, control, model, bench_nsteps)),
            time_budget_s=time_budget_s,
            wait_s=wait_s,
            seed=seed,
            clock=clock,
            model_file=model_file,
        )
        outcome = answer_key(request)
    except Exception as error:
        log.warn(f"using the native default, not tuned: {error or type(error).__name__}")
        return None
    _report(outcome, request)
    return outcome.answer.chunk_size


def tune_pool(
    pool: Any, state: Any, *, model: Any, nstep: int, control: Any = None, **options: Any
) -> int | None:
    """Say which chunk_size a pool should be stepped with, as `resolve_chunk_size` does.

    Args:
        pool: What steps the environments; its `nbatch` and `nthread` are num_envs and nthread.
        state: (num_envs, nstate) float64, the states to time from.
        model: The MjModel behind the pool.
        nstep: Physics steps in one step of the pool.
        control: (num_envs, nstep, nu) float64; zeros if it is None.
        **options: Any other argument of `resolve_chunk_size`.
    """
    facts: dict[str, Any] = {
        "num_envs": getattr(pool, "nbatch", None),
        "nthread": getattr(pool, "nthread", None),
        "n_variants": 1,
        "dtype": getattr(state, "dtype", "float64"),
        "post_step_forward_sensor": False,
        "manual_chunk_size": None,
        "adaptive": True,
    }
    facts |= options
    unknown = [name for name in ("num_envs", "nthread") if facts[name] is None]
    if unknown and facts["manual_chunk_size"] is None:
        log.warn(
            f"using the native default, not tuned: a {type(pool).__name__} does not tell its "
            f"{unknown[0]}: pass {unknown[0]}=..."
        )
        return None
    given = {"pool": pool, "state": state, "model": model, "control": control}
    return resolve_chunk_size(**facts | given, bench_nsteps=nstep)


def _inputs(pool: Pool, state: Any, control: Any, model: Any, nstep: int) -> StepInputs:
    """Time the caller's own state, with its controls or zeros.

    Zeros and not None: copying controls into the workers is a part of every real step.
    """
    description = "the caller's state and controls"
    if control is None:
        import numpy as np

        control = np.zeros((len(state), nstep, int(model.nu)))
        description = "the caller's state, zero controls"
    timestep = getattr(getattr(model, "opt", None), "timestep", None)
    return StepInputs(pool, state, control, description, timestep=timestep)


def _report(outcome: Outcome, request: Request) -> None:
    """Log one line on the outcome; the timings after a measurement, else at debug level."""
    answer, key = outcome.answer, request.key
    about = {"model_file": request.model_file, "pool": request.environment.pool}
    facts = answer._asdict() | key.workload._asdict() | about
    log.inform(f"{outcome.source}: {describe_answer(facts)}")
    timings = ", ".join(
        f"{'default' if name == 'None' else name} {ms:.4g}"
        for name, ms in answer.per_candidate_ms.items()
    )
    details = [f"measured because {outcome.miss.reason}"] if outcome.miss else []
    details += [f"warm-started by key {outcome.near.key[:11]}"] if outcome.near else []
    details += [f"ms per step: {timings}"] if timings else []
    if details:
        tell = log.inform if outcome.race else log.debug
        tell("; ".join(details))
    log.debug(f"key {key} in {request.database}")


WILL_HAPPEN = {
    "hit": "the stored answer is used, nothing is measured",
    "pinned": "the pinned answer is used, nothing is measured",
    "resumed": "the next job measures further, for a tenth of the time budget or for what an "
    "interrupted run had left",
    "outdated": "it is measured again, starting with the old choice and its neighbours",
    "adopted": "a short comparison with the default confirms its choice, or it is measured",
    "near": "it is measured, starting with the similar key's choice (scaled to as many chunks per "
    "thread), its neighbours and the default",
    "miss": "it is measured from scratch",
    "nothing to tune": "the native default is used, nothing is measured",
}
"""By kind."""


class Explanation(NamedTuple):
    """Why a key is answered from the database or not."""

    kind: str
    """One of `WILL_HAPPEN`."""
    key: CacheKey
    """The key that was asked for."""
    reason: str
    answer: Answer | None
    """Of the stored key, where it answers."""
    near: SimilarKey | None
    """The most similar stored key, where none answers."""

    @property
    def differences(self) -> tuple[Difference, ...]:
        """The facts in which the most similar key and its software differ."""
        return () if self.near is None else (*self.near.differences, *self.near.environment)

    @property
    def will_happen(self) -> str:
        """What the next job that asks will do."""
        return WILL_HAPPEN[self.kind]

    def __str__(self) -> str:
        lines = [f"{self.kind}: {self.reason}", f"key:       {self.key}"]
        if self.answer is not None:
            facts = self.answer._asdict() | self.key.workload._asdict()
            lines.append(f"choice:    {describe_choice(facts)}")
        if self.near is not None:
            choice = candidate_name(self.near.chunk_size)
            gain = f", {percent(self.near.gain)} faster than the default" if self.near.gain else ""
            there = gain and f"{gain} there"
            lines.append(f"similar:   {self.near.key}, where {choice} won{there}")
        lines += [f"{'':11}{difference}" for difference in self.differences]
        return "\n".join(map(printable, [*lines, f"next:      {self.will_happen}"]))


def explain(
    *,
    model: Any,
    n_variants: int,
    num_envs: int,
    nthread: int,
    dtype: Any,
    post_step_forward_sensor: bool,
    bench_nsteps: int,
    backend_type: str = "mujoco",
    pool: Pool | None = None,
    time_budget_s: float = TIME_BUDGET_S,
    database: str | os.PathLike[str] | None = None,
) -> Explanation:
    """Say which stored key answers, or the nearest one and how it differs. Changes nothing.

    Args:
        model: The MjModel behind the pool.
        n_variants: Different models in the pool.
        num_envs: Environments stepped by one call.
        nthread: Threads of the pool.
        dtype: The environments' scalar type.
        post_step_forward_sensor: Whether a step ends with a forward pass for its sensors.
        bench_nsteps: Physics steps inside one timed step.
        backend_type: Name of what steps the environments.
        pool: What would step them, for its software stack; unknown if it is None.
        time_budget_s: Seconds that the job would have for a measurement.
        database: A path or URL; by default that of `cache_path()`.

    Raises:
        TunerError: if the facts make no key, or the database cannot be read.
    """
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
    return explain_key(cache_path(database), key, environment_of(pool), time_budget_s)


def explain_key(
    database: Path, key: CacheKey, here: Environment, time_budget_s: float = TIME_BUDGET_S
) -> Explanation:
    """Say the same of a key that is made already, for a software stack."""
    num_envs, nthread = key.workload.num_envs, key.workload.nthread
    if num_envs <= nthread:
        envs, threads = counted(num_envs, "environment"), counted(nthread, "thread")
        reason = f"{envs} on {threads} can only be cut one way"
        return Explanation("nothing to tune", key, reason, None, None)
    found = find_answer(database, key, num_envs, here)
    if isinstance(found, Answer):
        return _answered(key, found, time_budget_s)
    from tuner.store.queries import find_similar
    from tuner.store.sqlite import exists, is_empty

    known = exists(database) and not is_empty(database)
    near = find_similar(database, key, here) if known else None
    if near is None:
        return Explanation(
            "miss", key, f"{found.reason}, and no decided relative is near", None, None
        )
    return Explanation(near.trigger_for(key), key, found.reason, None, near)


def _answered(key: CacheKey, answer: Answer, time_budget_s: float) -> Explanation:
    if answer.pinned_because is not None:
        return Explanation("pinned", key, f"it is pinned: {answer.pinned_because}", answer, None)
    if is_open(answer, time_budget_s):
        reason = f"it has an answer, which is undecided ({answer.reason})"
        return Explanation("resumed", key, reason, answer, None)
    decided = "" if answer.decided else f", undecided ({answer.reason}) but too slow to go on"
    return Explanation("hit", key, f"it has an answer{decided}", answer, None)
