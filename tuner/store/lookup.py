"""Looks stored answers up: one row by one index, read-only, with the standard library alone.

Never writes, migrates or imports SQLAlchemy. A row's values are checked before they count as an
answer, because they go straight to native code that crashes on a 0.
"""

from __future__ import annotations

import json
import sqlite3
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from tuner.environment import UNKNOWN, Environment, violated
from tuner.store.sqlite import (
    REVISION,
    error_name,
    exists,
    explained,
    file_revision,
    is_empty,
    other_revision,
    query,
)

if TYPE_CHECKING:
    from os import PathLike

    from tuner.records import Trigger


class Answer(NamedTuple):
    """What the database says of one key: its verdict, and the timings for a person to read."""

    chunk_size: int | None
    """The choice; None is an answer too: the native default won."""
    decided: bool
    reason: Any
    """Why it is not decided: "budget", "noise", "too few" or "contradiction". None where it is,
    or "tie" where the rule for ties decided after all the time there was."""
    gain: float | None
    """Share of the native default's time that the choice saves; None where it is not known."""
    gain_low: float | None
    gain_high: float | None
    """Ends of the 95 % confidence interval of `gain`."""
    per_candidate_ms: dict[str, float]
    """Milliseconds of one step by candidate, "None" for the native default."""
    samples: int
    """How many timings it rests on."""
    pinned_because: str | None = None
    """Why somebody pinned it, where somebody did."""


class Miss(NamedTuple):
    """Why the database has no answer to a key."""

    reason: str
    trigger: Trigger = "new"
    """What a run that mends it is made for, as far as is known before relatives are looked for."""


ONE_ANSWER = """
    SELECT verdict.mujoco_version, verdict.pool, verdict.pool_version, verdict.method,
           verdict.chunk_size, verdict.decided, verdict.reason,
           verdict.gain, verdict.gain_low, verdict.gain_high,
           verdict.per_candidate_ms, verdict.samples,
           (SELECT policy FROM validator WHERE name = 'mujoco_version'),
           (SELECT policy FROM validator WHERE name = 'pool'),
           (SELECT policy FROM validator WHERE name = 'pool_version'),
           (SELECT policy FROM validator WHERE name = 'method'),
           pin.chunk_size, pin.reason
    FROM alembic_version AS known
    LEFT JOIN pin ON pin.key_digest = :key
    LEFT JOIN verdict ON verdict.key_digest = :key
    WHERE known.version_num = :revision
    ORDER BY verdict.last_measured_utc DESC
"""
"""A row per environment that the key has a verdict for, or one of NULLs without a verdict.

No row at all where the schema is not REVISION.
"""

ALL_ANSWERS = """
    SELECT overview.tuning_key, overview.num_envs, overview.chunk_size,
           verdict.per_candidate_ms, run.model_file, run.hostname, run.other_facts
    FROM tuning_overview AS overview
    LEFT JOIN verdict
        ON verdict.key_digest = overview.tuning_key AND verdict.stack = overview.stack
    LEFT JOIN run ON run.run_id = verdict.latest_run_id
    WHERE verdict.stack IS NOT NULL OR overview.pinned_because IS NOT NULL
    ORDER BY overview.tuning_key
"""

LARGEST_FLOAT = sys.float_info.max
LONGEST_NAME = 20
"""Characters of a candidate's name."""

OPEN_REASONS = ("budget", "noise", "too few", "contradiction")
"""Why a verdict is not decided."""


def find_answer(
    database: str | PathLike[str], key: str, num_envs: int | None, here: Environment = UNKNOWN
) -> Answer | Miss:
    """Look one key up. Does not write to the database or create a file.

    Args:
        database: The file. A missing one holds no answer.
        key: The digest that `make_cache_key` made.
        num_envs: The largest chunk size that the pool can take; None skips that check.
        here: The software environment of the caller. A verdict of another one counts as far as
            the validators' policies allow.

    Returns:
        The answer, or the reason for a miss: no such key, an outdated verdict, or a row that
        cannot be used.

    Raises:
        SchemaError: if the file has another schema than this code reads.
        DatabaseError: if the file is there and cannot be read.
    """
    if not exists(database):
        return Miss("there is no database yet")
    rows = _ask(database, ONE_ANSWER, {"key": str(key), "revision": REVISION})
    if rows is None:
        return Miss("the database is empty")
    if not rows:
        raise other_revision(database, file_revision(database))
    return _of_rows(rows, num_envs, here)


def _of_rows(rows: list[tuple[Any, ...]], num_envs: int | None, here: Environment) -> Answer | Miss:
    """Take the valid verdict: this environment's own if there is one, else the newest."""
    pinned, because = rows[0][16:]
    unusable = None if because is None else _unusable(pinned, num_envs)
    if because is not None and unusable is None:
        return Answer(
            pinned, True, None, None, None, None, timings_of(rows[0][10]), 0, str(because)
        )
    # An unusable pin is ignored: otherwise every job would measure again.
    if rows[0][5] is None:
        return Miss(f"the pinned {unusable}" if unusable else "this key has no answer yet")
    policies = dict(zip(Environment._fields, rows[0][12:16], strict=True))
    broken: list[str] = []
    valid_runs = []
    for row in rows:
        there = Environment._make(row[:4])
        broken = violated(policies, there, here)
        if not broken:
            valid_runs.append((there != here, row))
    if not valid_runs:
        return Miss(_outdated(broken, Environment._make(rows[-1][:4]), here), "outdated")
    _, row = min(valid_runs, key=lambda found: found[0])
    return _checked(row[4:12], num_envs)


def _outdated(broken: list[str], there: Environment, here: Environment) -> str:
    """Say what has changed since the verdict, field by field."""
    return "its verdict is of " + ", ".join(
        f"{name} {_short(getattr(there, name))}, here it is {_short(getattr(here, name))}"
        for name in broken
    )


def read_answers(database: str | PathLike[str]) -> dict[str, dict[str, Any]]:
    """Read every answer, as the values that `load_cache` returns. Does not write.

    Rows with unusable values are left out.

    Raises:
        SchemaError, DatabaseError: as `find_answer`.
    """
    if not exists(database):
        return {}
    rows = _ask(database, ALL_ANSWERS)
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
    database: str | PathLike[str], statement: str, parameters: dict[str, object] | None = None
) -> list[tuple[Any, ...]] | None:
    """Read rows; None from a file without any tables."""
    try:
        try:
            return query(database, statement, parameters or {})
        except sqlite3.Error as error:
            if error_name(error) != "SQLITE_ERROR":
                raise
        if is_empty(database):
            return None
        # Another process may have created the tables between the two looks.
        return query(database, statement, parameters or {})
    except sqlite3.Error as error:
        raise explained(database, error) from error


def usable_chunk_size(chunk_size: Any, num_envs: int | None) -> bool:
    """Tell whether a value may be handed to a pool of num_envs environments."""
    return type(chunk_size) is int and chunk_size >= 1 and (not num_envs or chunk_size <= num_envs)


def is_finite(number: Any) -> bool:
    """Tell whether a value is a finite number."""
    return type(number) in (int, float) and -LARGEST_FLOAT <= number <= LARGEST_FLOAT


def _unusable(chunk_size: Any, num_envs: int | None) -> str | None:
    """Say what is wrong with a stored chunk size; None if nothing is."""
    if chunk_size is None or usable_chunk_size(chunk_size, num_envs):
        return None
    most = "num_envs" if num_envs is None else num_envs
    return f"chunk_size {_short(chunk_size)} is not an integer from 1 to {most}"


def _checked(facts: tuple[Any, ...], num_envs: int | None) -> Answer | Miss:
    """Turn a row into an answer, or into a miss if its values cannot be used."""
    chunk_size, decided, reason, gain, low, high, timings, samples = facts
    unusable = _unusable(chunk_size, num_envs)
    if unusable:
        return Miss(f"the stored {unusable}")
    if decided not in (0, 1) or (decided == 0 and reason not in OPEN_REASONS):
        return Miss(f"the stored verdict says decided {_short(decided)}, reason {_short(reason)}")
    for number in (gain, low, high):
        if number is not None and not is_finite(number):
            return Miss(f"the stored gain {_short(number)} is not a number")
    return Answer(
        chunk_size,
        decided == 1,
        reason if decided == 0 or reason == "tie" else None,
        gain,
        low,
        high,
        timings_of(timings),
        samples if type(samples) is int else 0,
    )


def _short(value: Any) -> str:
    """Quote a stored value, which may be very long."""
    return repr(value[:40] if isinstance(value, (str, bytes)) else value)


def timings_of(text: Any) -> dict[str, float]:
    """Read a row's timings. They are for people only, so malformed ones are left out."""
    return {
        name: float(ms)
        for name, ms in _json_object(text).items()
        if len(name) <= LONGEST_NAME and (name == "None" or name.isdecimal())
        if is_finite(ms) and ms > 0
    }


def _value(
    chunk_size: int | None, timings: Any, model_file: Any, hostname: Any, other_facts: Any
) -> dict[str, Any]:
    value = _json_object(other_facts) | {"chunk_size": chunk_size}
    if timings:
        value["per_candidate_ms"] = timings_of(timings)
    stated = {"model_file": model_file, "hostname": hostname}
    return value | {name: fact for name, fact in stated.items() if fact is not None}


def _json_object(text: Any) -> dict[str, Any]:
    try:
        value = json.loads(text) if isinstance(text, str) else {}
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
