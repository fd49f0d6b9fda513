"""Connections and transactions through SQLAlchemy, for everything except a hit.

One context manager for writing and one for reading own begin, commit, rollback and the
translation of driver errors. A writer takes the write lock before it reads (BEGIN IMMEDIATE):
a deferred transaction that reads first and writes later fails at once when another process
has committed in between, whatever the busy timeout.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Literal

import sqlalchemy as sa
from sqlalchemy.dialects.sqlite import Insert
from sqlalchemy.dialects.sqlite import insert as insert_with_conflict

from tuner.errors import DatabaseError, cannot_write
from tuner.store.sqlite import (
    READ_BUSY_SECONDS,
    REVISION,
    error_name,
    exists,
    explained,
    explaining,
    file_uri,
    open_for_reading,
    open_for_writing,
    other_revision,
    unreadable_schema,
)

Deed = Literal["read", "write"]

OF_THE_DATABASE = ("SQLITE_BUSY", "SQLITE_CORRUPT", "SQLITE_NOTADB")
"""Errors of the file that is copied; any other one is of the copy."""
NAME_KEPT = 40
"""Characters of a name that the unfinished file's name repeats: both must fit in 255 bytes."""


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
    with (
        explaining(database, "write"),
        closing(open_for_writing(database, READ_BUSY_SECONDS)) as connection,
    ):
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("UPDATE alembic_version SET version_num = version_num")
        connection.execute("ROLLBACK")


def vacuum(database: Path) -> int:
    """Give the space of deleted rows back to the disk; returns how many bytes.

    Raises:
        DatabaseError: if the database is locked, or there is no room for a second copy.
    """
    before = database.stat().st_size
    with explaining(database, "vacuum"), closing(open_for_writing(database)) as connection:
        connection.execute("VACUUM")
    return before - database.stat().st_size


def back_up(database: Path, copy: Path) -> None:
    """Write a consistent, compact copy. Other processes may read and write meanwhile.

    The copy appears under its name whole or not at all.

    Args:
        database: The file to be copied.
        copy: The new file; nothing is overwritten.

    Raises:
        DatabaseError: if `copy` exists or cannot be written, or the database cannot be read.
    """
    try:
        if not copy.name:
            raise DatabaseError(f"{str(copy)!r} is not a file to copy to")
        if os.path.lexists(copy):
            raise FileExistsError(copy)
        partial = _new_file_beside(copy)
        try:
            _copy(database, partial, copy)
            _synchronise(partial)  # VACUUM INTO does not
            with contextlib.suppress(PermissionError):  # some file systems have no modes
                os.chmod(partial, database.stat().st_mode & 0o777)
            _name(partial, copy)
        finally:
            with contextlib.suppress(OSError):
                partial.unlink()
        with contextlib.suppress(OSError):  # not every file system can do that to a folder
            _synchronise(copy.parent)
    except FileExistsError as error:
        raise DatabaseError(f"{copy} is there already: name another file") from error
    except OSError as error:
        raise DatabaseError(cannot_write(copy, error)) from error


def _new_file_beside(copy: Path) -> Path:
    """Create the file that becomes the copy, readable by its owner only until it is finished."""
    prefix = f"{copy.name[:NAME_KEPT]}.partial-"
    descriptor, name = tempfile.mkstemp(prefix=prefix, dir=copy.parent)
    os.close(descriptor)
    return Path(name)


def _copy(database: Path, partial: Path, copy: Path) -> None:
    with explaining(database, "copy"), closing(open_for_reading(database)) as connection:
        try:
            # As a URI, because SQLite takes a name like "file:x" for one.
            connection.execute("VACUUM INTO ?", (file_uri(partial),))
        except sqlite3.Error as error:
            if error_name(error).startswith(OF_THE_DATABASE):
                raise
            raise DatabaseError(
                f"cannot write the copy {copy}: {error} ({error_name(error)}); "
                "the database is as it was"
            ) from error


def _name(partial: Path, copy: Path) -> None:
    """Give the finished copy its name, unless the name is taken."""
    try:
        os.link(partial, copy)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        # Take the name first, so that only our own empty file is ever replaced.
        os.close(os.open(copy, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        os.replace(partial, copy)


def _synchronise(path: Path) -> None:
    """Write a file's content, or a folder's entries, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
