"""The hit path: one row by one index, read-only, with the standard library alone.

Never writes, never migrates, never imports SQLAlchemy. What a row holds is checked before it
counts as an answer: the value goes straight to native code that a 0 would kill.
"""

from __future__ import annotations

import json
import sqlite3
import sys
from typing import TYPE_CHECKING, Any

from tuner.answers import Answer, Miss
from tuner.store.diagnosis import (
    REVISION,
    exists,
    explained,
    file_revision,
    is_empty,
    other_revision,
)
from tuner.store.sqlite import error_name, query, query_again

if TYPE_CHECKING:
    from collections.abc import Callable
    from os import PathLike

ONE_ANSWER = """
    SELECT verdict.chunk_size, verdict.decided, verdict.reason,
           verdict.gain, verdict.gain_low, verdict.gain_high,
           verdict.per_candidate_ms, verdict.samples
    FROM alembic_version AS known
    LEFT JOIN verdict ON verdict.key_digest = ?
    WHERE known.version_num = ?
"""
"""One row where the schema is the one we read, with NULLs where the key has no answer."""

ALL_ANSWERS = """
    SELECT verdict.key_digest, tuning_key.num_envs, verdict.chunk_size, verdict.per_candidate_ms,
           run.model_file, run.hostname, run.other_facts
    FROM verdict
    JOIN tuning_key ON tuning_key.digest = verdict.key_digest
    JOIN run ON run.run_id = verdict.latest_run_id
    ORDER BY verdict.key_digest
"""

LARGEST_FLOAT = sys.float_info.max
LONGEST_NAME = 20
"""Characters of a candidate's name: no chunk size is longer."""

REASONS = ("budget", "noise", "too few")


def find_answer(database: str | PathLike[str], key: str, num_envs: int | None) -> Answer | Miss:
    """Look one key up. Does not write to the database, and makes no file.

    Args:
        database: The file. One that does not exist holds no answer.
        key: The digest that `make_cache_key` made.
        num_envs: The largest chunk size that the pool can take; None skips that check.

    Returns:
        The answer, or why there is none: no such key, or a row that no pool could use.

    Raises:
        SchemaError: if the file has another schema than this code reads.
        DatabaseError: if the file is there and cannot be read.
    """
    if not exists(database):
        return Miss("there is no database yet")
    rows = _ask(query_again, database, ONE_ANSWER, (str(key), REVISION))
    if rows is None:
        return Miss("the database is empty")
    if not rows:
        raise other_revision(database, file_revision(database))
    return _checked(rows[0], num_envs)


def read_answers(database: str | PathLike[str]) -> dict[str, dict[str, Any]]:
    """Read every answer, as the values that `load_cache` returns. Does not write.

    A row that no pool could use is left out.

    Raises:
        SchemaError, DatabaseError: as `find_answer`.
    """
    if not exists(database):
        return {}
    rows = _ask(query, database, ALL_ANSWERS)
    if rows is None:
        return {}
    revision = file_revision(database)
    if revision != REVISION:
        raise other_revision(database, revision)
    return {
        key: _value(*facts)
        for key, num_envs, *facts in rows
        if facts[0] is None or usable_chunk_size(facts[0], num_envs)
    }


def _ask(
    look: Callable[..., list[tuple[Any, ...]]],
    database: str | PathLike[str],
    statement: str,
    parameters: tuple[object, ...] = (),
) -> list[tuple[Any, ...]] | None:
    """Read rows; None from a file that holds nothing at all yet."""
    try:
        return look(database, statement, parameters)
    except sqlite3.Error as error:
        if error_name(error) != "SQLITE_ERROR":
            raise explained(database, error) from error
    if is_empty(database):
        return None
    try:  # somebody may have filled it just between the two looks
        return query(database, statement, parameters)
    except sqlite3.Error as error:
        raise explained(database, error) from error


def usable_chunk_size(chunk_size: Any, num_envs: int | None) -> bool:
    """Tell whether a value may be handed to a pool of num_envs environments."""
    return type(chunk_size) is int and chunk_size >= 1 and (not num_envs or chunk_size <= num_envs)


def is_finite(number: Any) -> bool:
    """Tell whether a value is a number that can be counted with."""
    return type(number) in (int, float) and -LARGEST_FLOAT <= number <= LARGEST_FLOAT


def _checked(facts: tuple[Any, ...], num_envs: int | None) -> Answer | Miss:
    """Turn a row into an answer, or into a miss where its values cannot be used."""
    chunk_size, decided, reason, gain, low, high, timings, samples = facts
    if decided is None:
        return Miss("this key has no answer yet")
    if chunk_size is not None and not usable_chunk_size(chunk_size, num_envs):
        most = "num_envs" if num_envs is None else num_envs
        return Miss(
            f"the stored chunk_size {_short(chunk_size)} is no whole number from 1 to {most}"
        )
    if decided not in (0, 1) or (decided == 0 and reason not in REASONS):
        return Miss(f"the stored verdict says decided {_short(decided)}, reason {_short(reason)}")
    for number in (gain, low, high):
        if number is not None and not is_finite(number):
            return Miss(f"the stored gain {_short(number)} is not a number")
    return Answer(
        chunk_size,
        decided == 1,
        reason if decided == 0 else None,
        gain,
        low,
        high,
        _timings(timings),
        samples if type(samples) is int else 0,
    )


def _short(value: Any) -> str:
    """Repeat a value that somebody may have made a billion characters long."""
    return repr(value[:40] if isinstance(value, (str, bytes)) else value)


def _timings(text: Any) -> dict[str, float]:
    """Read a row's timings; they are for people, so an odd one is left out, not an error."""
    try:
        timings = json.loads(text) if isinstance(text, str) else {}
    except (ValueError, RecursionError):
        return {}
    if not isinstance(timings, dict):
        return {}
    return {
        name: float(ms)
        for name, ms in timings.items()
        if len(name) <= LONGEST_NAME and (name == "None" or name.isdecimal())
        if is_finite(ms) and ms > 0
    }


def _value(
    chunk_size: int | None, timings: Any, model_file: Any, hostname: Any, other_facts: Any
) -> dict[str, Any]:
    value = _facts(other_facts)
    value["chunk_size"] = chunk_size
    if timings:
        value["per_candidate_ms"] = _timings(timings)
    if model_file is not None:
        value["model_file"] = model_file
    if hostname is not None:
        value["hostname"] = hostname
    return value


def _facts(text: Any) -> dict[str, Any]:
    try:
        facts = json.loads(text) if isinstance(text, str) else {}
    except (ValueError, RecursionError):
        return {}
    return facts if isinstance(facts, dict) else {}
