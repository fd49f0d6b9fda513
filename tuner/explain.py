"""Says why a key is answered or not, field by field, and what would happen. Changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tuner.api import is_open
from tuner.budget import TIME_BUDGET_S
from tuner.device import device_fingerprint
from tuner.environment import Environment, environment_of
from tuner.formatting import counted
from tuner.model_facts import model_signature
from tuner.paths import cache_path
from tuner.records import Answer, Difference, SimilarKey
from tuner.store.lookup import find_answer
from tuner.store.queries import nearest
from tuner.store.sqlite import exists, is_empty
from tuner.workload import CacheKey, make_cache_key

if TYPE_CHECKING:
    import os

    from tuner.pools import Pool

WILL_HAPPEN = {
    "hit": "its answer is used, nothing is measured",
    "pinned": "the pinned answer is used, nothing is measured",
    "resumed": "the next process that asks spends a tenth of the time budget on it, or what an "
    "interrupted run had left",
    "outdated": "it is measured again, its old winner and the neighbours first",
    "adopted": "a short duel of its winner against the default confirms it, or it is measured",
    "near": "it is measured, the relative's winner (scaled to as many chunks a thread), its "
    "neighbours and the default first",
    "miss": "it is measured from scratch",
    "nothing to tune": "the native default is used, nothing is measured",
}
"""By kind."""


class Explanation(NamedTuple):
    """Why a key is a hit, a near relative's business, or a miss."""

    kind: str
    """One of `WILL_HAPPEN`."""
    key: CacheKey
    """The key that was asked for."""
    reason: str
    answer: Answer | None
    """Of the stored key, where it answers."""
    near: SimilarKey | None
    """The nearest stored key, where none answers."""

    @property
    def differences(self) -> tuple[Difference, ...]:
        """Fact by fact, in what the nearest stored key and its software stack differ."""
        return () if self.near is None else (*self.near.differences, *self.near.environment)

    @property
    def will_happen(self) -> str:
        """What the next process that asks will do."""
        return WILL_HAPPEN[self.kind]


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
    num_envs, nthread = key.facts.num_envs, key.facts.nthread
    if num_envs <= nthread:
        envs, threads = counted(num_envs, "environment"), counted(nthread, "thread")
        reason = f"{envs} on {threads} can only be cut one way"
        return Explanation("nothing to tune", key, reason, None, None)
    found = find_answer(database, key, num_envs, here)
    if isinstance(found, Answer):
        return _answered(key, found, time_budget_s)
    known = exists(database) and not is_empty(database)
    near = nearest(database, key, here) if known else None
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
