"""Opens the database through SQLAlchemy, for everything that is not a hit.

One context manager for writing and one for reading own begin, commit, rollback and the
translation of driver errors. A writer takes the write lock before it reads (BEGIN IMMEDIATE):
a deferred transaction that reads first and writes later fails at once when another process
has committed in between, whatever the busy timeout.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Literal

import sqlalchemy as sa

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

    The file is made if it is missing; its folder must exist.

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
    """Open an existing file for reading; what it shows is one moment's state. Never writes.

    Raises:
        SchemaError: if the file has another schema than this code reads.
        DatabaseError: for whatever the driver raises; a missing file is one of them.
    """
    with _connected(database, "read") as connection:
        connection.exec_driver_sql("BEGIN")
        revision = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()
        if revision != REVISION:
            raise other_revision(database, revision)
        yield connection
        connection.exec_driver_sql("ROLLBACK")


def check_writable(database: Path) -> None:
    """Check that a transaction could be written, by one that is taken back.

    SQLite opens a file that may not be written all the same, and lets a write transaction
    begin: only the first change is refused. Waits for another writer no longer than a reader
    does: what is asked here is whether a measurement is worth beginning.

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


@contextmanager
def _connected(database: Path, deed: Deed) -> Iterator[sa.Connection]:
    """Connect once, and translate whatever the driver raises until the end."""
    exists(database)  # raises for what is no file, which SQLite would only call unopenable
    try:
        with _engine(database, deed).connect() as connection:
            yield connection
    except (sa.exc.DBAPIError, sqlite3.Error) as error:
        raise explained(database, getattr(error, "orig", None) or error, deed) from error
    except UnicodeDecodeError as error:
        raise explained(database, unreadable_schema(error), deed) from error


@lru_cache(maxsize=8)
def _engine(database: Path, deed: Deed) -> sa.Engine:
    """Keep an engine per file, for the statements that it has compiled, not for connections.

    NullPool: a connection must not cross a fork, and is opened a few times in a process's
    life. AUTOCOMMIT keeps SQLAlchemy's own BEGIN away, because it is a deferred one.
    """

    def connect() -> sqlite3.Connection:
        return open_for_writing(database) if deed == "write" else open_for_reading(database)

    return sa.create_engine(
        "sqlite://", creator=connect, poolclass=sa.NullPool, isolation_level="AUTOCOMMIT"
    )


def _roll_back(connection: sa.Connection) -> None:
    """Undo what the transaction did. SQLite may have done so itself, a full disk does that."""
    if connection.invalidated:
        return  # Ctrl-C in a statement: SQLAlchemy has closed the driver's connection, and SQLite
        # undoes what one that is closed had not committed
    driver = connection.connection.driver_connection
    if isinstance(driver, sqlite3.Connection) and driver.in_transaction:
        driver.rollback()
