"""Facts in, digest out: what makes two tunings the same tuning.

A digest here is the same in every process, on every machine, under every locale and hash
seed. This module reads nothing but its arguments.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, NamedTuple

from tuner.candidates import whole_number
from tuner.errors import ArgumentError

DIGEST_BYTES = 16
"""128 bits: no accidental twin in any fleet."""

Facts = dict[str, Any]


class Workload(NamedTuple):
    """All facts of a key: the model, the device and the run parameters."""

    model: Facts
    """The model signature."""
    device: Facts
    """The device fingerprint."""
    backend_type: str
    num_envs: int
    nthread: int
    dtype: str
    """NumPy's name of the environments' scalar type: float32 or float64, say."""
    post_step_forward_sensor: bool
    bench_nsteps: int
    """Physics steps inside one timed `pool.step`."""


class CacheKey(str):
    """A key's digest, a `str` that carries the `Workload` it was made from."""

    __slots__ = ("workload",)
    workload: Workload

    def __new__(cls, digest: str, workload: Workload) -> CacheKey:
        """Join a digest and the facts it was made from."""
        key = super().__new__(cls, digest)
        key.workload = workload
        return key

    def __getnewargs__(self) -> tuple[str, Workload]:  # type: ignore[override]
        return str(self), self.workload


def canonical_json(facts: Any) -> str:
    """Write facts as the one JSON text that equal facts share.

    Keys are sorted, NumPy scalars become Python's, a tuple is a list.

    Raises:
        ArgumentError: for a value with no canonical form (NaN, an infinity, an object).
    """
    return _ENCODER.encode(_plain(facts))


_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def facts_digest(scheme: str, facts: Any) -> str:
    """Digest facts under a scheme's name, which stays readable in front: `m1_5f0c...`."""
    return _digest(scheme, canonical_json(facts))


def _digest(scheme: str, text: str) -> str:
    return f"{scheme}_{blake2b(text.encode(), digest_size=DIGEST_BYTES).hexdigest()}"


def model_digest(model_sig: Mapping[str, Any]) -> str:
    """Digest a model signature."""
    return facts_digest("m1", model_sig)


def device_digest(device: Mapping[str, Any]) -> str:
    """Digest a device fingerprint."""
    return facts_digest("d1", device)


def make_cache_key(
    *,
    backend_type: str,
    model_sig: Mapping[str, Any],
    device: Mapping[str, Any],
    num_envs: int,
    nthread: int,
    dtype: Any,
    post_step_forward_sensor: bool,
    bench_nsteps: int,
) -> CacheKey:
    """Make the key under which the timings of one work load on one machine are kept.

    Args:
        backend_type: Name of what steps the environments, "mujoco" by default elsewhere.
        model_sig: What `model_signature` returned (the `settings` it remembers are taken
            along), or facts of your own.
        device: What `device_fingerprint` returned, or facts of your own. A fact that is None
            is unknown, as if it were left out.
        num_envs: Environments stepped by one call.
        nthread: Threads of the pool.
        dtype: The environments' scalar type in any spelling NumPy takes: np.float32,
            "float32" and np.dtype("float32") make the same key.
        post_step_forward_sensor: Whether a step ends with a forward pass for its sensors.
        bench_nsteps: Physics steps inside one timed step.

    Returns:
        The digest, a `str`; the same for the same facts in every process.

    Raises:
        ArgumentError: for a fact with no canonical form, or a number that is not whole.
    """
    facts = Workload(
        model=_known({**model_sig, **getattr(model_sig, "settings", {})}),
        device=_known(device),
        backend_type=str(backend_type),
        num_envs=whole_number(num_envs, "num_envs"),
        nthread=whole_number(nthread, "nthread"),
        dtype=dtype_name(dtype),
        post_step_forward_sensor=bool(post_step_forward_sensor),
        bench_nsteps=whole_number(bench_nsteps, "bench_nsteps"),
    )
    return key_of(facts)


def key_of(facts: Workload) -> CacheKey:
    """Make the key of facts that are already in canonical form."""
    return CacheKey(_digest("k1", _ENCODER.encode(facts._asdict())), facts)


def dtype_name(dtype: Any) -> str:
    """Name a scalar type as NumPy does, whichever of its spellings came in.

    Raises:
        ArgumentError: if NumPy does not know it.
    """
    import numpy as np  # not at the top: `import tuner` stays free of it

    try:
        return str(np.dtype(dtype).name)
    except TypeError as error:
        raise ArgumentError(
            f"dtype {dtype!r} is not a NumPy type: give float32 or float64"
        ) from error


def _known(facts: Mapping[str, Any]) -> Facts:
    """Keep the facts that are known, in canonical form."""
    plain = _plain(facts)
    return {name: fact for name, fact in plain.items() if fact is not None}


_SIMPLE = (int, str, bool, type(None))


def _plain(value: Any) -> Any:
    """Reduce a value to what JSON has one spelling for."""
    if value is None or type(value) in (bool, int, str):
        return value
    if isinstance(value, Mapping):
        if all(type(name) is str and type(item) in _SIMPLE for name, item in value.items()):
            return dict(value)  # the facts of every hit: nothing to reduce in them
        return {_name(name): _plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and value - value == 0.0:  # NaN and infinities fail this
        return float(value)
    if isinstance(value, (int, str)):  # IntEnum and their like: the plain value under it
        return int(value) if isinstance(value, int) else str(value)
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:  # a NumPy scalar
        return _plain(value.item())
    raise ArgumentError(
        f"{value!r} cannot be part of a key: use numbers, texts, lists and dicts of them"
    )


def _name(name: Any) -> str:
    if not isinstance(name, str):  # 1 and "1" would be one name in JSON, and one fact be lost
        raise ArgumentError(f"a fact's name must be a text, received {name!r}")
    return str(name)
