"""Checks a database, moves a damaged one aside, and adds up what is stored."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from tuner.errors import DatabaseError
from tuner.store.database import reading
from tuner.store.migrate import make_empty
from tuner.store.sqlite import (
    OLDER_REVISIONS,
    OUR_TABLES,
    REVISION,
    error_name,
    exists,
    explained,
    file_revision,
    has_header,
    is_damage,
    is_empty,
    is_ours,
    open_for_writing,
    other_revision,
    query,
    something_else,
)

MAX_FINDINGS = 20
"""Findings of one kind that are reported; a damaged file can have thousands."""

REPAIR = "`tuner db repair` moves the file aside and keeps what can be read"

CONTRADICTIONS = (
    (
        "run {} says it has {} samples and has {}",
        REPAIR,
        """
        SELECT run.run_id, run.samples, count(sample.run_id)
        FROM run LEFT JOIN sample ON sample.run_id = run.run_id
        GROUP BY run.run_id HAVING run.samples <> count(sample.run_id)""",
    ),
    (
        "the verdict of key {} has chunk_size {}, with num_envs {}",
        REPAIR,
        """
        SELECT substr(tuning_key.digest, 1, 40), verdict.chunk_size, tuning_key.num_envs
        FROM verdict JOIN tuning_key ON tuning_key.digest = verdict.key_digest
        WHERE verdict.chunk_size > tuning_key.num_envs""",
    ),
    (
        "run {} has samples of chunk_size {}, with num_envs {}",
        REPAIR,
        """
        SELECT run.run_id, max(sample.chunk_size), tuning_key.num_envs
        FROM sample JOIN run ON run.run_id = sample.run_id
        JOIN tuning_key ON tuning_key.key_id = run.key_id
        WHERE sample.chunk_size > tuning_key.num_envs GROUP BY run.run_id""",
    ),
    (
        "key {} is pinned to {}, with num_envs {}",
        "`tuner unpin {}`, or pin another",
        """
        SELECT substr(pin.key_digest, 1, 40), pin.chunk_size, tuning_key.num_envs
        FROM pin JOIN tuning_key ON tuning_key.digest = pin.key_digest
        WHERE pin.chunk_size > tuning_key.num_envs""",
    ),
    (
        "run {} has a {} that cannot be read",
        REPAIR,
        """
        SELECT run_id, 'failed_chunk_sizes' FROM run
        WHERE iif(json_valid(coalesce(failed_chunk_sizes, '[]')),
                  json_type(coalesce(failed_chunk_sizes, '[]')), '') <> 'array'
        OR EXISTS (
            SELECT 1 FROM json_each(iif(json_valid(failed_chunk_sizes), failed_chunk_sizes, '[]'))
            WHERE type NOT IN ('integer', 'null') OR value < 1)
        UNION ALL SELECT run_id, 'other_facts' FROM run
        WHERE iif(json_valid(coalesce(other_facts, '{}')),
                  json_type(coalesce(other_facts, '{}')), '') <> 'object'""",
    ),
)
"""Rules across rows and tables: a sentence, a next step, and a query for what breaks them."""

COMPANIONS = ("-journal", "-wal", "-shm")
"""Endings of the files that SQLite may have left beside a database."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong with a database."""

    what: str
    next_step: str


def check(database: Path) -> list[Finding]:
    """Examine a database: pages, foreign keys, schema and rows. Changes nothing.

    Returns:
        What is wrong with it; an empty list if nothing is.

    Raises:
        SchemaError: if a newer tuner made the file.
        DatabaseError: if the file is missing, not a tuner's database, or cannot be read for
            another reason than damage.
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
        # Rows can be queried only where the tables are as they should be.
        findings = _check_pages(database) + _check_schema(database)
        return (findings or _check_rows(database))[:MAX_FINDINGS]
    except sqlite3.Error as error:
        # Neither a locked file nor one that never was a database is damaged.
        if not is_damage(error) or not has_header(database):
            raise explained(database, error) from error
        return [Finding(f"SQLite cannot read it: {error} ({error_name(error)})", REPAIR)]


def _check_pages(database: Path) -> list[Finding]:
    integrity = query(database, f"PRAGMA integrity_check({MAX_FINDINGS})")
    findings = [Finding(f"SQLite says: {text}", REPAIR) for (text,) in integrity if text != "ok"]
    for table, row, parent, _ in query(database, "PRAGMA foreign_key_check")[:MAX_FINDINGS]:
        findings.append(Finding(f"row {row} of {table} belongs to no {parent}", REPAIR))
    return findings


def _check_schema(database: Path) -> list[Finding]:
    """Compare tables, indexes and views with those of a fresh database."""
    here, fresh = schema_of(database), fresh_schema()
    findings = [
        Finding(f"{name} is {'different' if name in here else 'missing'}", REPAIR)
        for name in fresh
        if here.get(name) != fresh[name]
    ]
    # A foreign trigger changes what our statements do; foreign tables and views do not.
    findings += [
        Finding(f"{name} is not ours", f"drop it with the sqlite3 program, or {REPAIR}")
        for name in here
        if name.startswith("trigger ") and name not in fresh
    ]
    return findings


def schema_of(database: Path) -> dict[str, str]:
    """Read the SQL of each table, index and view, white space folded."""
    rows = query(database, "SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL")
    return {f"{kind} {name}": " ".join(sql.split()) for kind, name, sql in rows}


def fresh_schema(revision: str = REVISION) -> dict[str, str]:
    """Read the same of a new database, migrated up to a revision."""
    with tempfile.TemporaryDirectory(prefix="tuner-") as folder:
        fresh = Path(folder) / "fresh.db"
        make_empty(fresh, revision)
        return schema_of(fresh)


def _check_rows(database: Path) -> list[Finding]:
    findings = []
    with reading(database) as connection:  # integrity_check skips CHECKs of tables without row ids
        inspector = sa.inspect(connection)
        for table in sorted(OUR_TABLES):
            for rule in inspector.get_check_constraints(table):
                statement = f"SELECT count(*) FROM {table} WHERE NOT ({rule['sqltext']})"
                rows = connection.exec_driver_sql(statement).scalar_one()
                if rows:
                    findings.append(Finding(f"{rows} rows of {table} break {rule['name']}", REPAIR))
    return findings + [
        Finding(sentence.format(*row), next_step.format(*row))
        for sentence, next_step, statement in CONTRADICTIONS
        for row in query(database, statement)[:MAX_FINDINGS]
    ]


def set_aside(database: Path) -> Path | None:
    """Move a damaged database aside, and leave an empty file with its permissions in its place.

    SQLite's write lock is held meanwhile if the file is sound enough for it. A link is followed.

    Returns:
        Where the damaged file is now, in the same folder; None if it is sound, and unchanged.

    Raises:
        SchemaError: if the file has another schema; it is unchanged.
        DatabaseError: as `check`, or if another process holds the file, or its folder is not
            writable; it is unchanged.
    """
    file = Path(os.path.realpath(database))
    if not check(file):
        return None
    try:
        with _locked(file):
            # Another repair may have finished while this one waited.
            return _move(file) if check(file) else None
    except OSError as error:
        raise DatabaseError(
            f"cannot move {file} aside: {error.strerror}; it is unchanged: "
            "check the permissions of its folder"
        ) from error


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Hold SQLite's write lock, unless the file is too damaged to be locked."""
    try:
        with closing(open_for_writing(file)) as connection:
            try:
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.Error as error:
                if not is_damage(error):
                    raise
            yield
    except sqlite3.Error as error:
        raise explained(file, error, "repair") from error


def _move(file: Path) -> Path:
    if file_revision(file) in OLDER_REVISIONS:
        raise other_revision(file, file_revision(file))
    mode = file.stat().st_mode & 0o777
    aside = file.with_name(f"{file.name}.damaged-{datetime.now(UTC):%Y%m%dT%H%M%S%fZ}")
    moved = []
    try:
        # The file itself goes last: a journal left behind would be played into its successor.
        for suffix in (*COMPANIONS, ""):
            source, target = (Path(f"{path}{suffix}") for path in (file, aside))
            if source.exists():
                source.rename(target)
                moved.append((source, target))
    except OSError:
        for source, target in moved:
            target.rename(source)
        raise
    with suppress(FileExistsError):  # another process has started a new database
        file.touch(exist_ok=False)
        file.chmod(mode)
    return aside


STATS = """
    SELECT (SELECT count(*) FROM tuning_key) AS keys,
           (SELECT count(*) FROM verdict WHERE decided = 1) AS decided_verdicts,
           (SELECT count(*) FROM verdict WHERE decided = 0) AS undecided_verdicts,
           (SELECT count(*) FROM pin) AS pins,
           (SELECT count(*) FROM run) AS runs,
           (SELECT count(*) FROM run WHERE state = 'imported' OR origin IS NOT NULL)
               AS imported_runs,
           (SELECT count(*) FROM run WHERE state = 'failed') AS failed_runs,
           (SELECT coalesce(sum(samples), 0) FROM run) AS samples,
           (SELECT coalesce(sum(pool_seconds), 0) FROM run) AS tuning_seconds
"""


def read_stats(database: Path) -> dict[str, Any]:
    """Add up what is stored. Changes nothing."""
    with reading(database) as connection:
        stats = connection.exec_driver_sql(STATS).mappings().one()
    size = database.stat().st_size
    return {
        **stats,
        "bytes": size,
        "bytes_per_sample": size / stats["samples"] if stats["samples"] else None,
    }
