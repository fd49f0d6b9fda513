"""Which chunk sizes are worth timing. Pure arithmetic: no clock, no pool, no database."""

from __future__ import annotations

from collections.abc import Iterable
from operator import index
from typing import Any

from tuner.errors import ArgumentError

CHUNKS_PER_THREAD = 10
"""Work items per thread that the native rule aims at."""

BAND = (0.25, 0.35, 0.5, 0.6, 0.7, 0.8, 0.9, 1.1, 1.25, 1.5, 2.0, 3.0, 4.5, 6.5)
"""Multiples of the heuristic that are worth a look: dense where the optimum usually sits."""


def make_candidates(num_envs: int, nthread: int) -> list[int]:
    """List the chunk sizes worth timing, in ascending order.

    1, the heuristic round(num_envs / (10 * nthread)) and the ceiling ceil(num_envs / nthread)
    are always among them, and nothing is above the ceiling: it would leave threads without
    work. Between them the list is dense around the heuristic.

    Args:
        num_envs: Environments stepped by one call, >= 1.
        nthread: Threads of the pool, >= 1.

    Raises:
        ArgumentError: if either is below 1.
    """
    num_envs = whole_number(num_envs, "num_envs")
    nthread = whole_number(nthread, "nthread")
    if num_envs <= nthread:
        return [1]
    ceiling = -(-num_envs // nthread)
    ideal = num_envs / (CHUNKS_PER_THREAD * nthread)
    wanted = {1, ceiling, round(ideal), native_chunk_size(num_envs, nthread)}
    wanted.update(round(ideal * factor) for factor in BAND)
    return sorted(chunk for chunk in wanted if 1 <= chunk <= ceiling)


def filter_candidates(
    candidates: Iterable[int], num_envs: int, *, max_candidates: int = 16
) -> list[int]:
    """Keep the candidates that a pool of num_envs environments can use, ascending, no twins.

    A value above num_envs becomes num_envs, one below 1 becomes 1. Above `max_candidates` the
    coarse middle goes: the smallest values stay, where the optimum is, and the one largest, as
    the anchor at the other end. Never log-spaced, which drops the optimum.

    Raises:
        ArgumentError: for a candidate that is not a whole number, num_envs below 1, or
            max_candidates below 1.
    """
    num_envs = whole_number(num_envs, "num_envs")
    max_candidates = whole_number(max_candidates, "max_candidates")
    kept = sorted({min(max(_integer(chunk, "candidate"), 1), num_envs) for chunk in candidates})
    if len(kept) <= max_candidates:
        return kept
    return [*kept[: max_candidates - 1], kept[-1]]


def native_chunk_size(num_envs: int, nthread: int) -> int:
    """Compute what the native default amounts to: max(1, num_envs // (10 * nthread))."""
    return max(1, num_envs // (CHUNKS_PER_THREAD * nthread))


def whole_number(value: Any, name: str, *, most: int | None = None) -> int:
    """Check that a value is a whole number from 1 to `most` and return it as a plain int.

    NumPy's integers pass, because callers count with them; bool does not, although Python
    calls it an int: a True that reaches a pool is always a mistake.

    Raises:
        ArgumentError: otherwise.
    """
    number = _integer(value, name)
    if number < 1:
        raise ArgumentError(f"{name} must be a whole number >= 1, received {value!r}")
    if most is not None and number > most:
        raise ArgumentError(f"{name} must be <= {most}, received {value!r}")
    return number


def checked_chunk_size(value: Any, num_envs: int) -> int:
    """Check that a pool of num_envs environments may see a value as its chunk_size.

    On MuJoCo up to 3.11 a 0 kills the process without a trace and a negative value hangs for
    ever, so this stands in front of every pool.

    Returns:
        The value as a plain int; native code refuses NumPy's.

    Raises:
        ArgumentError: if it is not a whole number from 1 to num_envs.
    """
    chunk_size = whole_number(value, "chunk_size")
    if chunk_size > num_envs:
        raise ArgumentError(
            f"chunk_size {chunk_size} is above num_envs {num_envs}: "
            "one work item cannot hold more than all environments"
        )
    return chunk_size


def _integer(value: Any, name: str) -> int:
    try:
        if type(value).__name__ in ("bool", "bool_"):
            raise TypeError
        return index(value)
    except TypeError:  # NumPy's arrays claim to be whole numbers until they are asked
        raise ArgumentError(f"{name} must be a whole number >= 1, received {value!r}") from None
