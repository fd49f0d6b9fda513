"""The hit path: one row by one index, read-only, with the standard library alone.

Never writes, never migrates, never imports SQLAlchemy. What a row holds is checked before it
counts as an answer: the value goes straight to native code that a 0 would kill.
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from tuner.errors import DatabaseError, SchemaError
from tuner.records import Answer, Candidate, Verdict
from tuner.store.sqlite import error_name, open_read_only

REVISION = "0001"
"""The schema this code reads and writes; the newest file in migrations/versions."""

OLDER_REVISIONS: tuple[str, ...] = ()
"""Schemas that a write upgrades."""

ONE_ANSWER = """
    SELECT (SELECT version_num FROM alembic_version), verdict.chunk_size, verdict.decided,
           verdict.reason, verdict.gain, verdict.gain_low, verdict.gain_high,
           verdict.per_candidate_ms, verdict.samples
    FROM verdict WHERE verdict.key_digest = ?
"""

ALL_ANSWERS = """
    SELECT verdict.key_digest, verdict.chunk_size, verdict.per_candidate_ms,
           run.model_file, run.hostname, run.other_facts
    FROM verdict JOIN run ON run.run_id = verdict.latest_run_id
    ORDER BY verdict.key_digest
"""


def find_answer(database: Path, key: str, num_envs: int | None) -> Answer | None:
    """Look one key up. Does not write to the database, and makes no file.

    Args:
        database: The file. One that does not exist holds no answer.
        key: The digest that `make_cache_key` made.
        num_envs: The largest chunk size that the pool can take; None skips that check.

    Returns:
        The answer, or None for a miss: no such key, or a row that no pool could use.

    Raises:
        SchemaError: if the file was written by a newer tuner.
        DatabaseError: if the file is there and cannot be read.
    """
    if not database.exists():
        return None
    try:
        with closing(open_read_only(database)) as connection:
            row = connection.execute(ONE_ANSWER, (str(key),)).fetchone()
            if row is None:
                check_revision(database, connection)
                return None
    except sqlite3.Error as error:
        raise unreadable(database, error) from error
    revision, *facts = row
    if revision != REVISION:
        raise unknown_revision(database, revision)
    return _checked(facts, num_envs)


def read_answers(database: Path) -> dict[str, dict[str, Any]]:
    """Read every answer, as the values that `load_cache` returns. Does not write.

    Raises:
        SchemaError, DatabaseError: as `find_answer`.
    """
    if not database.exists():
        return {}
    try:
        with closing(open_read_only(database)) as connection:
            if not check_revision(database, connection):
                return {}
            rows = connection.execute(ALL_ANSWERS).fetchall()
    except sqlite3.Error as error:
        raise unreadable(database, error) from error
    return {key: _value(*facts) for key, *facts in rows}


def check_revision(database: Path, connection: sqlite3.Connection) -> bool:
    """Check that the file's schema is one this code can read.

    Returns:
        False where there is no schema yet: a file that somebody is about to fill.

    Raises:
        SchemaError: if the schema is another one.
    """
    tables = "SELECT count(*) FROM sqlite_master"
    if connection.execute(tables).fetchone()[0] == 0:
        return False
    row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    if row is None or row[0] != REVISION:
        raise unknown_revision(database, row and row[0])
    return True


def unknown_revision(database: Path, revision: str | None) -> SchemaError:
    """Word the error for a schema that this code does not know."""
    return SchemaError(
        f"{database} has schema {revision}, this tuner knows {REVISION}: "
        "upgrade tuner, or name another database (this one is unchanged)"
    )


def unreadable(database: Path, error: sqlite3.Error) -> DatabaseError:
    """Word the error for a file that is there and cannot be read."""
    return DatabaseError(
        f"cannot read the tuning database {database}: {error} ({error_name(error)}); "
        "move the file away or name another database (it is unchanged)"
    )


def _checked(facts: list[Any], num_envs: int | None) -> Answer | None:
    """Turn a row into an answer, or into a miss where its values cannot be used."""
    chunk_size, decided, reason, gain, low, high, timings, samples = facts
    if chunk_size is not None and not usable_chunk_size(chunk_size, num_envs):
        return None
    verdict = Verdict(
        candidate=Candidate(chunk_size),
        decided=bool(decided),
        reason=reason,
        gain=gain,
        gain_low=low,
        gain_high=high,
    )
    return Answer(verdict, _timings(timings), samples)


def usable_chunk_size(chunk_size: Any, num_envs: int | None) -> bool:
    """Tell whether a value may be handed to a pool of num_envs environments."""
    return type(chunk_size) is int and chunk_size >= 1 and (not num_envs or chunk_size <= num_envs)


def _timings(text: str | None) -> dict[str, float]:
    """Read a row's timings; they are for people, so an odd one is left out, not an error."""
    try:
        timings = json.loads(text) if text else {}
    except ValueError:
        return {}
    if not isinstance(timings, dict):
        return {}
    return {name: ms for name, ms in timings.items() if isinstance(ms, (int, float))}


def _value(
    chunk_size: int | None,
    timings: str | None,
    model_file: str | None,
    hostname: str | None,
    other_facts: str | None,
) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(other_facts) if other_facts else {}
    value["chunk_size"] = chunk_size
    if timings:
        value["per_candidate_ms"] = _timings(timings)
    if model_file is not None:
        value["model_file"] = model_file
    if hostname is not None:
        value["hostname"] = hostname
    return value
