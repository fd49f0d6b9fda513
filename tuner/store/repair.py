"""Moves a damaged database aside and starts a new one with all that can still be read.

Deletes nothing: the damaged file stays beside the new one, under a name that says what it is.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from tuner.errors import DatabaseError
from tuner.store import schema
from tuner.store.check import check, is_damage, unreadable
from tuner.store.diagnosis import exists, explained
from tuner.store.engine import writing
from tuner.store.migrate import upgrade
from tuner.store.sqlite import open_damaged, open_for_writing

TABLES = {
    "model": ("model_id",),
    "device": ("device_id",),
    "tuning_key": ("key_id",),
    "run": ("run_id",),
    "sample": ("run_id", "sample_order"),
    "verdict": ("key_digest", "stack"),
    "validator": ("name",),
    "pin": ("key_digest",),
    "lookup": ("key_digest", "day_utc", "kind"),
}
"""Parents before children, each with its primary key."""

NO_POOL_TAKES = {
    "pin": """
        DELETE FROM pin WHERE chunk_size > (
            SELECT num_envs FROM tuning_key WHERE tuning_key.digest = pin.key_digest)""",
    "verdict": """
        DELETE FROM verdict WHERE chunk_size > (
            SELECT num_envs FROM tuning_key WHERE tuning_key.digest = verdict.key_digest)""",
    "sample": """
        DELETE FROM sample WHERE chunk_size > (
            SELECT num_envs FROM tuning_key JOIN run ON run.key_id = tuning_key.key_id
            WHERE run.run_id = sample.run_id)""",
}
"""Takes out what no pool of its key could take, by table: it is in the damaged file still."""

COMPANIONS = ("-journal", "-wal", "-shm")
"""What SQLite may have left beside a database file."""


@dataclass(frozen=True, slots=True)
class Repair:
    """What a repair did."""

    moved_to: Path
    """Where the damaged file is now."""
    kept: dict[str, int]
    """Rows that are in the new database, by table."""
    refused: dict[str, int]
    """Rows that could be read but break a rule of the schema, by table."""


def repair(database: Path) -> Repair | None:
    """Replace a damaged database by a sound one that holds what could be read.

    Where SQLite can still lock the file, no other process writes to it meanwhile. A link is
    followed: the file behind it is repaired.

    Returns:
        What was done; None if there was nothing to repair, and nothing was touched.

    Raises:
        SchemaError: if the file has another schema; it is not touched.
        DatabaseError: if it is another program's, is missing, cannot be read for another reason
            than damage, or its folder is not writable; it is not touched.
    """
    if not exists(database):
        raise DatabaseError(f"there is no tuning database at {database}: nothing to repair")
    file = Path(os.path.realpath(database))
    try:
        with _locked(file):
            # Only now: another repair may just have finished.
            return _replace(file) if check(file) else None
    except OSError as error:
        raise DatabaseError(
            f"cannot repair {file}: {error.strerror} ({error.filename}); "
            "the damaged file is where it was"
        ) from error


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Hold SQLite's write lock, unless the file is too damaged for SQLite to lock it.

    Raises:
        DatabaseError: if another process holds it, or the file cannot be opened.
    """
    try:
        connection = open_for_writing(file)
    except sqlite3.Error as error:
        raise explained(file, error, "repair") from error
    with closing(connection):
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            if not is_damage(error):
                raise explained(file, error, "repair") from error
        yield


def _replace(file: Path) -> Repair:
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%fZ")
    fresh = file.with_name(f"{file.name}.repairing")
    aside = file.with_name(f"{file.name}.damaged-{stamp}")
    _remove(fresh)  # what a killed repair left
    moved: list[tuple[Path, Path]] = []
    try:
        upgrade(fresh)
        kept, refused = _copy(file, fresh)
        _hand_over(file, fresh)
        # First a second name, then the exchange: at every moment there is a file at the
        # database's place, and the damaged one has a name. Where a second name cannot be had,
        # nothing has been moved yet.
        os.link(file, aside)
        for suffix in COMPANIONS:
            companion = file.with_name(file.name + suffix)
            if companion.exists():
                companion.rename(aside.with_name(aside.name + suffix))
                moved.append((companion, aside.with_name(aside.name + suffix)))
        os.replace(fresh, file)
    except BaseException:
        for companion, place in moved:
            place.rename(companion)
        _remove(fresh)
        raise
    return Repair(aside, kept, refused)


def _hand_over(file: Path, fresh: Path) -> None:
    """Give the new file the old one's owner and mode, as far as that is allowed."""
    status = file.stat()
    os.chmod(fresh, status.st_mode & 0o777)
    if (status.st_uid, status.st_gid) != (fresh.stat().st_uid, fresh.stat().st_gid):
        with suppress(PermissionError):
            os.chown(fresh, status.st_uid, status.st_gid)


def _remove(fresh: Path) -> None:
    for suffix in ("", *COMPANIONS):
        fresh.with_name(fresh.name + suffix).unlink(missing_ok=True)


def _copy(damaged: Path, fresh: Path) -> tuple[dict[str, int], dict[str, int]]:
    kept = dict.fromkeys(TABLES, 0)
    refused = dict.fromkeys(TABLES, 0)
    with writing(fresh) as target:
        for name, row in _readable_rows(damaged):
            table = getattr(schema, name)
            known = {column.name for column in table.columns}
            statement = sa.insert(table)
            if name == "validator":  # a new database has policies, which give way to those set
                statement = statement.prefix_with("OR REPLACE")
            if name == "run":  # a fact that cannot be read is unknown, and the rest of it counts
                row = row | dict.fromkeys(unreadable(row))
            try:
                target.execute(statement, {k: v for k, v in row.items() if k in known})
                kept[name] += 1
            except (sa.exc.IntegrityError, sa.exc.StatementError):
                refused[name] += 1
        for name, clearing in NO_POOL_TAKES.items():
            impossible = target.exec_driver_sql(clearing).rowcount
            kept[name] -= impossible
            refused[name] += impossible
        _admit_losses(target)
    return kept, refused


def _readable_rows(damaged: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        connection = open_damaged(damaged)
    except sqlite3.Error:
        return
    with closing(connection):
        for name, key in TABLES.items():
            for row in _rows_of(connection, name, key):
                yield name, row


def _rows_of(
    connection: sqlite3.Connection, table: str, key: tuple[str, ...]
) -> Iterator[dict[str, Any]]:
    """Read a table from the front until it breaks, then from the back until it breaks.

    What lies between two damaged pages is lost, what lies around them is not.
    """
    seen: set[tuple[Any, ...]] = set()
    for direction in ("ASC", "DESC"):
        order = ", ".join(f"{column} {direction}" for column in key)
        try:
            rows = connection.execute(f"SELECT * FROM {table} ORDER BY {order}")
            for row in rows:
                identity = tuple(row[column] for column in key)
                if identity not in seen:
                    seen.add(identity)
                    yield dict(row)
            return  # to the end without a fault: there is no need to come from behind
        except (sqlite3.Error, IndexError, OverflowError):
            continue


def _admit_losses(target: sa.Connection) -> None:
    """Let a run that lost samples say so: no run claims more than it has."""
    have = (
        sa.select(sa.func.count())
        .select_from(schema.sample)
        .where(schema.sample.c.run_id == schema.run.c.run_id)
        .scalar_subquery()
    )
    target.execute(
        sa.update(schema.run)
        .where(schema.run.c.samples != have)
        .values(samples=have, state="cut short", message="samples were lost to a damaged file")
    )
