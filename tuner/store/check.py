"""Looks a database file over, from the file system up to single rows. Changes nothing.

Thorough and so slow (seconds for a million samples): for a person who asks, never at start-up.
"""

from __future__ import annotations

import json
import sqlite3
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from tuner.errors import DatabaseError
from tuner.store.diagnosis import (
    OLDER_REVISIONS,
    OUR_TABLES,
    REVISION,
    exists,
    explained,
    file_revision,
    is_empty,
    is_ours,
    other_revision,
    something_else,
)
from tuner.store.engine import reading
from tuner.store.migrate import make_empty
from tuner.store.sqlite import error_name, query

MOST_FINDINGS = 20
"""Findings of one kind that are told; a damaged file can have thousands."""

REPAIR = "`tuner db repair` moves the file aside and keeps what can be read"

CONTRADICTIONS = {
    "run {} says it has {} samples and has {}": """
        SELECT run.run_id, run.samples, count(sample.run_id)
        FROM run LEFT JOIN sample ON sample.run_id = run.run_id
        GROUP BY run.run_id HAVING run.samples <> count(sample.run_id)""",
    "the verdict of key {} has chunk_size {}, with num_envs {}": """
        SELECT substr(tuning_key.digest, 1, 40), verdict.chunk_size, tuning_key.num_envs
        FROM verdict JOIN tuning_key ON tuning_key.digest = verdict.key_digest
        WHERE verdict.chunk_size > tuning_key.num_envs""",
    "run {} has samples of chunk_size {}, with num_envs {}": """
        SELECT run.run_id, max(sample.chunk_size), tuning_key.num_envs
        FROM sample JOIN run ON run.run_id = sample.run_id
        JOIN tuning_key ON tuning_key.key_id = run.key_id
        WHERE sample.chunk_size > tuning_key.num_envs GROUP BY run.run_id""",
}
"""What no constraint of one table can say, as a sentence and the rows that break it."""

IMPOSSIBLE_PINS = """
    SELECT pin.key_digest, pin.chunk_size, tuning_key.num_envs
    FROM pin JOIN tuning_key ON tuning_key.digest = pin.key_digest
    WHERE pin.chunk_size > tuning_key.num_envs"""
JSON_OF_RUNS = "SELECT run_id, failed_chunk_sizes, other_facts FROM run"


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it should be."""

    what: str
    next_step: str


def check(database: Path) -> list[Finding]:
    """Look a database over.

    Returns:
        What is wrong with it; an empty list if nothing is.

    Raises:
        DatabaseError: if there is no file to look at.
    """
    if not exists(database):
        raise DatabaseError(f"there is no tuning database at {database}")
    if is_empty(database):
        return []
    try:
        if not is_ours(database):
            raise something_else(database)
        revision = file_revision(database)
        if revision in OLDER_REVISIONS:
            older = f"the schema is {revision}, older than {REVISION}"
            return [Finding(older, "`tuner db upgrade`")]
        if revision is None:
            return [Finding("it does not say which schema it has", REPAIR)]
        if revision != REVISION:
            raise other_revision(database, revision)
        # Rows can only be asked where the tables are as they should be.
        findings = _pages(database) + _schema(database)
        return (findings or _rows(database))[:MOST_FINDINGS]
    except sqlite3.Error as error:
        # Only damage is a finding: a file that is locked or may not be read is as sound as it was.
        if not is_damage(error):
            raise explained(database, error) from error
        return [Finding(f"SQLite cannot read it: {error} ({error_name(error)})", REPAIR)]


def is_damage(error: BaseException) -> bool:
    """Tell whether SQLite found a file's content, and not its circumstances, to be bad."""
    return error_name(error) in ("SQLITE_NOTADB", "SQLITE_ERROR") or error_name(error).startswith(
        "SQLITE_CORRUPT"
    )


def _pages(database: Path) -> list[Finding]:
    """Let SQLite go through its pages, indexes and constraints."""
    integrity = query(database, f"PRAGMA integrity_check({MOST_FINDINGS})")
    findings = [Finding(f"SQLite says: {text}", REPAIR) for (text,) in integrity if text != "ok"]
    for table, row, parent, _ in query(database, "PRAGMA foreign_key_check")[:MOST_FINDINGS]:
        findings.append(Finding(f"row {row} of {table} belongs to no {parent}", REPAIR))
    return findings


def _schema(database: Path) -> list[Finding]:
    """Compare tables, indexes and views with those of a database made afresh."""
    here, fresh = schema_of(database), fresh_schema()
    findings = [Finding(f"{name} is missing", REPAIR) for name in fresh if name not in here]
    findings += [
        Finding(f"{name} is not as the migrations made it", REPAIR)
        for name in fresh
        if name in here and here[name] != fresh[name]
    ]
    # A trigger changes what a statement of ours does; tables and views of others do not.
    findings += [
        Finding(f"{name} is not ours", f"drop it with the sqlite3 program, or {REPAIR}")
        for name in here
        if name.startswith("trigger ") and name not in fresh
    ]
    return findings


def _text_columns(database: Path) -> list[tuple[str, str]]:
    return [
        (table, name)
        for table in sorted(OUR_TABLES)
        for _, name, kind, *_ in query(database, f"PRAGMA table_info({table})")
        if kind == "TEXT"
    ]


def _undecodable(database: Path, table: str, column: str) -> int:
    """Count the texts that are no UTF-8: STRICT takes any bytes that call themselves a text."""
    rows = query(database, f"SELECT CAST({column} AS BLOB) FROM {table}")
    return sum(raw is not None and not _is_text(raw) for (raw,) in rows)


def _is_text(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def schema_of(database: Path) -> dict[str, str]:
    """Read the SQL of each table, index and view, white space folded."""
    rows = query(database, "SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL")
    return {f"{kind} {name}": " ".join(sql.split()) for kind, name, sql in rows}


def fresh_schema(revision: str = REVISION) -> dict[str, str]:
    """Read the same of a database that the migrations made just now, up to a revision."""
    with tempfile.TemporaryDirectory(prefix="tuner-") as folder:
        fresh = Path(folder) / "fresh.db"
        make_empty(fresh, revision)
        return schema_of(fresh)


def _rows(database: Path) -> list[Finding]:
    # integrity_check leaves out the CHECKs of a table without row ids, so they are asked here
    broken = []
    with reading(database) as connection:
        inspector = sa.inspect(connection)
        for table in sorted(OUR_TABLES):
            for rule in inspector.get_check_constraints(table):
                statement = f"SELECT count(*) FROM {table} WHERE NOT ({rule['sqltext']})"
                rows = connection.exec_driver_sql(statement).scalar_one()
                if rows:
                    broken.append(Finding(f"{rows} rows of {table} break {rule['name']}", REPAIR))
    broken += [
        Finding(f"{rows} rows of {table} have a {column} that is no text", REPAIR)
        for table, column in _text_columns(database)
        if (rows := _undecodable(database, table, column))
    ]
    broken += [
        Finding(sentence.format(*row), REPAIR)
        for sentence, statement in CONTRADICTIONS.items()
        for row in query(database, statement)[:MOST_FINDINGS]
    ]
    broken += [
        Finding(
            f"key {key[:40]} is pinned to {chunk_size}, with num_envs {num_envs}",
            f"`tuner unpin {key[:40]}`, or pin another",
        )
        for key, chunk_size, num_envs in query(database, IMPOSSIBLE_PINS)[:MOST_FINDINGS]
    ]
    return broken + [
        Finding(f"run {run_id} has a {column} that cannot be read", REPAIR)
        for run_id, *texts in query(database, JSON_OF_RUNS)
        for column in unreadable(dict(zip(JSON_COLUMNS, texts, strict=True)))
    ]


def _is_chunk_sizes(value: object) -> bool:
    return isinstance(value, list) and all(
        size is None or (type(size) is int and size >= 1) for size in value
    )


JSON_COLUMNS: dict[str, Callable[[object], bool]] = {
    "failed_chunk_sizes": _is_chunk_sizes,
    "other_facts": lambda value: isinstance(value, dict),
}
"""Of a run, and what has to stand in them where they are not empty."""


def unreadable(run: Mapping[str, Any]) -> list[str]:
    """Name the columns of a run that ought to be JSON and are not what they ought to be."""
    return [
        column
        for column, fits in JSON_COLUMNS.items()
        if run.get(column) is not None and not _holds(run[column], fits)
    ]


def _holds(text: str, fits: Callable[[object], bool]) -> bool:
    try:
        return fits(json.loads(text))
    except (ValueError, RecursionError):
        return False
