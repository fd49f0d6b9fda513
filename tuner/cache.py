"""The database seen as a dictionary: {key: {"chunk_size": ..., "per_candidate_ms": ...}}.

For callers who know the answer already and want it kept, or want all answers at once. The
native default is a full answer: {"chunk_size": None} is stored and found like any other.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from tuner.candidates import checked_chunk_size, whole_number
from tuner.errors import ArgumentError
from tuner.paths import cache_path
from tuner.records import LARGEST_INTEGER, Candidate, Run, RunMetadata, Sample
from tuner.store.lookup import read_answers
from tuner.store.schema import LONGEST_TEXT, storable_text
from tuner.workload import CacheKey, canonical_json

KNOWN_FIELDS = ("chunk_size", "per_candidate_ms", "model_file", "hostname")
NANOSECONDS_PER_MS = 1e6


def load_cache(path: str | os.PathLike[str]) -> dict[str, dict[str, Any]]:
    """Read every answer of a database. Does not write, and makes no file.

    Returns:
        {key: value}; {} for a missing file. A value has "chunk_size" (None: the native default
        won) and, where known, "per_candidate_ms" ({"None": ms, "4": ms, ...}, milliseconds of
        one step), "model_file" and "hostname".

    Raises:
        DatabaseError: if the file is there and is not a tuning database.
    """
    return read_answers(cache_path(path))


def store_cache(path: str | os.PathLike[str], key: str, value: Mapping[str, Any]) -> None:
    """Add an answer to a database, as an imported run. Other keys stay as they are.

    Args:
        path: The database; made if it is missing.
        key: What `make_cache_key` returned (its facts are stored too), or any text.
        value: "chunk_size", and if known "per_candidate_ms", "model_file", "hostname";
            further fields are kept and come back.

    Raises:
        ArgumentError: if the value is not one a pool could use; nothing is stored.
        DatabaseError: if the file cannot be written.
    """
    from tuner.store.runs import check_digest, save_run

    check_digest(key)
    run = stated_run(key, value, datetime.now(UTC), "store_cache")
    save_run(cache_path(path), key, run)


def stated_run(key: str, value: Any, moment: datetime, plan: str) -> Run:
    """Make a run of an answer that was not measured here.

    Args:
        key: As for `store_cache`.
        value: As for `store_cache`.
        moment: When it was stated.
        plan: How it came here.

    Raises:
        ArgumentError: if the value is not one a pool could use.
    """
    if not isinstance(value, Mapping):
        raise ArgumentError(f'value must be a dict such as {{"chunk_size": 4}}, received {value!r}')
    timings = _timings(value)
    further = {name: item for name, item in value.items() if name not in KNOWN_FIELDS}
    _check_length("all further fields together", canonical_json(further))
    return Run(
        state="imported",
        finished=moment,
        strategy=plan,
        trigger="stated",
        choice=Candidate(_chunk_size(value, key)),
        samples=_samples(timings),
        model_file=_text(value, "model_file"),
        metadata=RunMetadata(hostname=_text(value, "hostname")),
        other_facts=further,
    )


def _chunk_size(value: Mapping[str, Any], key: str) -> int | None:
    if "chunk_size" not in value:
        raise ArgumentError(
            f"the value has no chunk_size, only {sorted(map(str, value))}: "
            'give {"chunk_size": None} for the native default'
        )
    if value["chunk_size"] is None:
        return None
    if isinstance(key, CacheKey):
        return checked_chunk_size(value["chunk_size"], key.workload.num_envs)
    return whole_number(value["chunk_size"], "chunk_size", most=LARGEST_INTEGER)


def _timings(value: Mapping[str, Any]) -> dict[str, float]:
    timings = value.get("per_candidate_ms") or {}
    if not isinstance(timings, Mapping):
        raise ArgumentError(
            f'per_candidate_ms must be a dict such as {{"None": 9.4}}, received {timings!r}'
        )
    return {str(name): _positive(ms, str(name)) for name, ms in timings.items()}


def _positive(ms: Any, name: str) -> float:
    most = LARGEST_INTEGER / NANOSECONDS_PER_MS
    if isinstance(ms, (bool, str)) or not hasattr(ms, "__float__") or not 0 < ms < most:
        raise ArgumentError(
            f"per_candidate_ms[{name!r}] is {ms!r}: give milliseconds, a number above 0"
        )
    return float(ms)


def _samples(timings: Mapping[str, float]) -> tuple[Sample, ...]:
    """Keep each candidate's time as the one sample of it that is known."""
    return tuple(
        Sample(
            candidate=_candidate(name),
            block=0,
            order=order,
            nanoseconds=max(1, round(ms * NANOSECONDS_PER_MS)),
        )
        for order, (name, ms) in enumerate(timings.items())
    )


def _candidate(name: str) -> Candidate:
    if name == "None":
        return Candidate(None)
    if not (name.isascii() and name.isdecimal()) or str(int(name)) != name:
        raise ArgumentError(f'a candidate is named "None" or by its chunk size, received {name!r}')
    return Candidate(whole_number(int(name), "candidate", most=LARGEST_INTEGER))


def _text(value: Mapping[str, Any], name: str) -> str | None:
    text = value.get(name)
    if text is None:
        return None
    _check_length(name, storable_text(str(text)))
    return str(text)


def _check_length(what: str, text: str) -> None:
    if len(text) > LONGEST_TEXT:
        raise ArgumentError(f"{what}: {len(text)} characters, more than {LONGEST_TEXT}: shorten it")
