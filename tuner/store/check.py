"""Looks a database file over, from the file system up to single rows. Changes nothing.

Thorough and so slow (seconds for a million samples): for a person who asks, never at start-up.
"""

from __future__ import annotations

import sqlite3
import tempfile
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa

from tuner.errors import DatabaseError
from tuner.store.diagnosis import (
    OLDER_REVISIONS,
    REVISION,
    exists,
    file_revision,
    is_empty,
    other_revision,
)
from tuner.store.engine import reading
from tuner.store.migrate import upgrade
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
        revision = file_revision(database)
        if revision in OLDER_REVISIONS:
            return [
                Finding(f"the schema is {revision}, older than {REVISION}", "`tuner db upgrade`")
            ]
        if revision is not None and revision != REVISION:
            raise other_revision(database, revision)
        # Rows can only be asked where the tables are as they should be.
        findings = _pages(database) + _schema(database)
        return (findings or _rows(database))[:MOST_FINDINGS]
    except sqlite3.Error as error:
        return [Finding(f"SQLite cannot read it: {error} ({error_name(error)})", REPAIR)]


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
    return findings


def schema_of(database: Path) -> dict[str, str]:
    """Read the SQL of each table, index and view, white space folded."""
    rows = query(database, "SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL")
    return {f"{kind} {name}": " ".join(sql.split()) for kind, name, sql in rows}


def fresh_schema() -> dict[str, str]:
    """Read the same of a database that the migrations made just now."""
    with tempfile.TemporaryDirectory(prefix="tuner-") as folder:
        fresh = Path(folder) / "fresh.db"
        upgrade(fresh)
        return schema_of(fresh)


def _rows(database: Path) -> list[Finding]:
    # integrity_check leaves out the CHECKs of a table without row ids, so they are asked here
    broken = []
    with reading(database) as connection:
        inspector = sa.inspect(connection)
        for table in inspector.get_table_names():
            for rule in inspector.get_check_constraints(table):
                statement = f"SELECT count(*) FROM {table} WHERE NOT ({rule['sqltext']})"
                rows = connection.exec_driver_sql(statement).scalar_one()
                if rows:
                    broken.append(Finding(f"{rows} rows of {table} break {rule['name']}", REPAIR))
    return broken + [
        Finding(sentence.format(*row), REPAIR)
        for sentence, statement in CONTRADICTIONS.items()
        for row in query(database, statement)[:MOST_FINDINGS]
    ]
