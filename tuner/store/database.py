"""Connections and transactions through SQLAlchemy, for everything except a hit.

One context manager for writing and one for reading own begin, commit, rollback and the
translation of driver errors. A writer takes the write lock before it reads (BEGIN IMMEDIATE):
a deferred transaction that reads first and writes later fails at once when another process
has committed in between, whatever the busy timeout.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Literal

import sqlalchemy as sa
from sqlalchemy.dialects.sqlite import Insert
from sqlalchemy.dialects.sqlite import insert as insert_with_conflict

from tuner.store.sqlite import (
    READ_BUSY_SECONDS,
    REVISION,
    exists,
    explained,
    open_for_reading,
    open_for_writing,
    other_revision,
    unreadable_schema,
)

Deed = Literal["read", "write"]


@contextmanager
def writing(database: Path) -> Iterator[sa.Connection]:
    """Open a file for one write transaction: committed at the end, rolled back on any error.

    A missing file is created; its folder must exist.

    Raises:
        DatabaseError: for whatever the driver raises.
    """
    with _connected(database, "write") as connection:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        try:
            yield connection
            connection.exec_driver_sql("COMMIT")
        except BaseException:
            _roll_back(connection)
            raise


@contextmanager
def reading(database: Path) -> Iterator[sa.Connection]:
    """Open an existing file in one read transaction, which shows one state. Never writes.

    Raises:
        SchemaError: if the file has another schema than this code reads.
        DatabaseError: for whatever the driver raises, a missing file included.
    """
    with _connected(database, "read") as connection:
        connection.exec_driver_sql("BEGIN")
        revision = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()
        if revision != REVISION:
            raise other_revision(database, revision)
        yield connection
        connection.exec_driver_sql("ROLLBACK")


def check_writable(database: Path) -> None:
    """Check that the file can be written, by a transaction that is rolled back.

    SQLite opens a read-only file and begins a write transaction all the same: only the first
    change is refused. Waits for another writer no longer than a reader does.

    Raises:
        DatabaseError: if not.
    """
    try:
        with closing(open_for_writing(database, READ_BUSY_SECONDS)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("UPDATE alembic_version SET version_num = version_num")
            connection.execute("ROLLBACK")
    except sqlite3.Error as error:
        raise explained(database, error, "write") from error


def vacuum(database: Path) -> int:
    """Give the space of deleted rows back to the disk; returns how many bytes.

    Raises:
        DatabaseError: if the database is locked, or there is no room for a second copy.
    """
    before = database.stat().st_size
    try:
        with closing(open_for_writing(database)) as connection:
            connection.execute("VACUUM")
    except sqlite3.Error as error:
        raise explained(database, error, "vacuum") from error
    return before - database.stat().st_size


def upsert(table: sa.Table) -> Insert:
    """Build the statement that inserts a row, or overwrites the one with its primary key."""
    statement = insert_with_conflict(table)
    keys = [column.name for column in table.primary_key]
    rest = {c.name: statement.excluded[c.name] for c in table.columns if c.name not in keys}
    return statement.on_conflict_do_update(index_elements=keys, set_=rest)


def insert_if_new(table: sa.Table, unique: Sequence[str]) -> Insert:
    """Build the statement that inserts a row unless one with these unique values exists."""
    return insert_with_conflict(table).on_conflict_do_nothing(index_elements=unique)


@contextmanager
def _connected(database: Path, deed: Deed) -> Iterator[sa.Connection]:
    """Connect once, and translate whatever the driver raises until the end."""
    exists(database)  # names what is not a file, which SQLite only reports as unopenable
    try:
        with _engine(database, deed).connect() as connection:
            yield connection
    except (sa.exc.DBAPIError, sqlite3.Error) as error:
        raise explained(database, getattr(error, "orig", None) or error, deed) from error
    except UnicodeDecodeError as error:
        raise explained(database, unreadable_schema(error), deed) from error


@lru_cache(maxsize=8)
def _engine(database: Path, deed: Deed) -> sa.Engine:
    """Keep an engine per file, for its compiled statements, not for connections.

    NullPool: a connection must not cross a fork, and is opened a few times per process.
    AUTOCOMMIT keeps SQLAlchemy's own deferred BEGIN away.
    """

    def connect() -> sqlite3.Connection:
        return open_for_writing(database) if deed == "write" else open_for_reading(database)

    return sa.create_engine(
        "sqlite://", creator=connect, poolclass=sa.NullPool, isolation_level="AUTOCOMMIT"
    )


def _roll_back(connection: sa.Connection) -> None:
    """Undo the transaction, unless SQLite has done so itself, as on a full disk."""
    if connection.invalidated:
        return  # Ctrl-C in a statement: SQLAlchemy has closed the connection, which rolls back
    driver = connection.connection.driver_connection
    if isinstance(driver, sqlite3.Connection) and driver.in_transaction:
        driver.rollback()
