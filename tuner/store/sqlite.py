"""Opens SQLite files, and explains in words what can be wrong with them.

Everything that holds for SQLite alone is here: file URIs, waiting, recovery, error codes.
Standard library only, because a hit comes through here.
"""

from __future__ import annotations

import os
import sqlite3
import stat
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from tuner.errors import ArgumentError, DatabaseError, OlderSchemaError, SchemaError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from os import PathLike

    Parameters = Sequence[object] | Mapping[str, object]

REVISION = "0002"
"""The schema this code reads and writes; the newest file in migrations/versions."""

OLDER_REVISIONS: tuple[str, ...] = ("0001",)
"""Schemas that a write upgrades, oldest first."""

FIRST_TABLES = frozenset(("model", "device", "tuning_key", "run", "sample", "verdict"))
"""Tables that every revision has."""

OUR_TABLES = FIRST_TABLES | {"validator", "pin", "lookup"}

BUSY_SECONDS = 30.0
"""How long a statement waits for another process's transaction. Writers hold the database for
milliseconds; half a minute outlasts many of them on a slow disk."""

READ_BUSY_SECONDS = 5.0
"""The same for a reader, who waits only while a commit is written and may hold up a job."""

LEFT_BY_A_CRASH = ("SQLITE_READONLY_ROLLBACK", "SQLITE_READONLY_RECOVERY")
"""A writer was killed half-way: its transaction must be rolled back before anyone can read,
which a read-only connection cannot do."""

HEADER = b"SQLite format 3\0"
"""The first bytes of every SQLite database."""

MAX_VALUE_BYTES = 1_000_000
"""Longest text or blob that is read from an untrusted file."""

VERSION = sqlite3.sqlite_version
"""SQLite's, as in "3.40.1"."""

LONGEST_NAME = 200
"""Characters of an unusable path that an error repeats."""


def query(
    database: str | PathLike[str], statement: str, parameters: Parameters = ()
) -> list[tuple[Any, ...]]:
    """Read rows from an existing file. Creates and changes nothing.

    The one exception is SQLite's own recovery: after a crash every reader first rolls the
    interrupted transaction back.

    Raises:
        sqlite3.Error: if the file cannot be opened or read, or is not a SQLite database.
    """
    try:
        try:
            return _rows(database, "ro", statement, parameters)
        except sqlite3.OperationalError as error:
            if error_name(error) not in LEFT_BY_A_CRASH:
                raise
            return _rows(database, "rw", statement, parameters)
    except UnicodeDecodeError as error:
        raise unreadable_schema(error) from error


def _rows(
    database: str | PathLike[str], mode: str, statement: str, parameters: Parameters
) -> list[tuple[Any, ...]]:
    with closing(_open(database, mode, READ_BUSY_SECONDS)) as connection:
        return connection.execute(statement, parameters).fetchall()


def unreadable_schema(error: UnicodeDecodeError) -> sqlite3.DatabaseError:
    """Turn Python's failure to decode SQLite's message into SQLite's own error.

    The message quotes a schema so damaged that it is not text.
    """
    damage = sqlite3.DatabaseError(error.object.decode(errors="replace"))
    damage.sqlite_errorname = "SQLITE_CORRUPT"
    return damage


def open_for_reading(database: str | PathLike[str]) -> sqlite3.Connection:
    """Open an existing file for reading, after a crash like `query`.

    Raises:
        sqlite3.Error: if it cannot be opened or is not a SQLite database.
    """
    query(database, "SELECT count(*) FROM sqlite_master")
    return _open(database, "ro", READ_BUSY_SECONDS)


def open_for_writing(
    database: str | PathLike[str], busy_seconds: float = BUSY_SECONDS
) -> sqlite3.Connection:
    """Open a file for reading and writing; a missing one is created.

    The journal mode is always SQLite's default, the rollback journal. WAL would commit faster,
    but one tuning is one commit; a WAL file cannot be read in a read-only folder, is unsafe on
    network file systems, and loses committed pages in SQLite 3.7.0 to 3.51.2 (the WAL-reset
    bug, fixed in 3.51.3).
    """
    connection = _open(database, "rwc", busy_seconds)
    connection.execute("PRAGMA foreign_keys = ON")
    return connection


def open_untrusted(database: str | PathLike[str], mode: str = "ro") -> sqlite3.Connection:
    """Open a file of unknown origin, read-only: nothing in its schema is executed.

    A value longer than MAX_VALUE_BYTES is an error. Invalid UTF-8 is read with surrogates.

    Raises:
        sqlite3.Error: if it cannot be opened.
    """
    connection = _open(database, mode, READ_BUSY_SECONDS)
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cell_size_check = ON")
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)
    connection.text_factory = lambda raw: raw.decode(errors="surrogateescape")
    return connection


def _open(database: str | PathLike[str], mode: str, busy_seconds: float) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"{file_uri(database)}?mode={mode}", uri=True, timeout=busy_seconds, isolation_level=None
    )
    # STRICT takes any bytes as text, and one bad row must not hide the others.
    connection.text_factory = lambda raw: raw.decode(errors="replace")
    return connection


def file_uri(file: str | PathLike[str]) -> str:
    """Name a file as a URI, whatever bytes its path has."""
    path = os.path.abspath(os.fspath(file))
    for mark in "%?#":  # what has a meaning in a URI; urllib's quote takes 6 ms to import
        path = path.replace(mark, f"%{ord(mark):02x}")
    if not path.isascii():
        path = "".join(chr(b) if b < 128 else f"%{b:02x}" for b in os.fsencode(path))
    return f"file:{path}"


def error_name(error: BaseException) -> str:
    """Name a database error by SQLite's code, such as "SQLITE_BUSY": texts change, codes do not."""
    return getattr(error, "sqlite_errorname", type(error).__name__)


def exists(database: str | PathLike[str]) -> bool:
    """Tell whether there is a file.

    Raises:
        DatabaseError: if the path cannot be examined or names a folder, a pipe or a device.
    """
    try:
        mode = os.stat(database).st_mode
    except FileNotFoundError:
        return False
    except (OSError, ValueError) as error:
        raise DatabaseError(
            f"cannot look for the tuning database {str(database)[:LONGEST_NAME]!r}: {error}; "
            "check the path and its permissions, or name another with TUNER_DATABASE"
        ) from error
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "not a file"
        raise DatabaseError(
            f"the tuning database {database} is {kind}: name a file with TUNER_DATABASE"
        )
    return True


def is_empty(database: str | PathLike[str]) -> bool:
    """Tell whether a file has no tables, as one that another process is about to fill."""
    try:
        return bool(query(database, "SELECT count(*) FROM sqlite_master")[0][0] == 0)
    except sqlite3.Error:
        return False


def is_ours(database: str | PathLike[str]) -> bool:
    """Tell whether a tuner made a file: it has most of our tables, whatever is missing.

    Other programs use alembic too, number their revisions alike, and have a table `device`.

    Raises:
        sqlite3.Error: if the file cannot be read.
    """
    rows = query(database, "SELECT name FROM sqlite_master WHERE type = 'table'")
    return len({name for (name,) in rows} & FIRST_TABLES) > len(FIRST_TABLES) / 2


def file_revision(database: str | PathLike[str]) -> str | None:
    """Read which schema a file has; None if it does not say."""
    try:
        rows = query(database, "SELECT version_num FROM alembic_version")
    except sqlite3.Error:
        return None
    return str(rows[0][0]) if rows else None


def explained(
    database: str | PathLike[str], error: BaseException, deed: str = "read"
) -> DatabaseError:
    """Turn an error of SQLite's into one that says what is wrong and what to do next."""
    name = error_name(error)
    if name == "SQLITE_NOTADB" and not has_header(database):
        return DatabaseError(
            f"{database} is not a SQLite database: check the path, or name another with "
            "TUNER_DATABASE (this file is unchanged)"
        )
    if is_damage(error) and name != "SQLITE_ERROR":
        return damaged(database, f"it is damaged ({error})")
    if name == "SQLITE_ERROR":
        return _wrong_tables(database, error)
    advice = "nothing was changed; `tuner doctor` looks for the cause"
    if name.startswith("SQLITE_BUSY"):
        advice = "another process holds it; nothing was changed"
    return DatabaseError(
        f"cannot {deed} the tuning database {database}: {error} ({name}); {advice}"
    )


@contextmanager
def explaining(database: str | PathLike[str], deed: str = "read") -> Iterator[None]:
    """Turn SQLite's errors inside the block into ones that say what is wrong and what to do."""
    try:
        yield
    except sqlite3.Error as error:
        raise explained(database, error, deed) from error


def is_damage(error: BaseException) -> bool:
    """Tell whether SQLite rejected a file's content, rather than failed to reach it."""
    name = error_name(error)
    return name in ("SQLITE_NOTADB", "SQLITE_ERROR") or name.startswith("SQLITE_CORRUPT")


def has_header(database: str | PathLike[str]) -> bool:
    """Read a file's first bytes: only after SQLite refused it, so no lock of ours can be lost."""
    try:
        with open(database, "rb") as file:
            return file.read(len(HEADER)) == HEADER
    except OSError:
        return True


def _wrong_tables(database: str | PathLike[str], error: BaseException) -> DatabaseError:
    if not is_ours(database):
        return something_else(database)
    revision = file_revision(database)
    if revision != REVISION:
        return other_revision(database, revision)
    return damaged(database, f"it is incomplete ({error})")


def damaged(database: str | PathLike[str], what: str) -> DatabaseError:
    """Word the error for a file whose content cannot be used."""
    return DatabaseError(
        f"cannot use the tuning database {database}: {what}; it is unchanged: "
        "`tuner db check` examines it, `tuner db repair` moves it aside and keeps what it can"
    )


def something_else(database: str | PathLike[str]) -> DatabaseError:
    """Word the error for another program's database."""
    return DatabaseError(
        f"{database} is a database of something else: name another file with TUNER_DATABASE "
        "(this one is unchanged)"
    )


def other_revision(database: str | PathLike[str], revision: str | None) -> SchemaError:
    """Word the error for a schema that this code does not read."""
    if revision in OLDER_REVISIONS:
        return OlderSchemaError(
            f"{database} has the older schema {revision}: "
            f"`tuner db upgrade` brings it to {REVISION}"
        )
    if revision is None:
        return SchemaError(
            f"{database} does not say which schema it has; it is unchanged: "
            "`tuner db repair` moves it aside and keeps what it can"
        )
    return SchemaError(
        f"{database} has schema {revision}, this tuner knows {REVISION}: "
        "upgrade tuner, or name another database (this one is unchanged)"
    )


STEPS_BETWEEN_INTERRUPTS = 100_000
"""Steps of SQLite's machine between two chances for Ctrl-C: some milliseconds."""
OF_THE_FILE = ("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_BUSY", "SQLITE_IOERR")
"""Errors that do not come from the statement."""


class Result(NamedTuple):
    """What a statement returns."""

    columns: tuple[str, ...]
    """Their names, each once: a second "run_id" is "run_id:1", as SQLite calls it."""
    rows: Iterator[tuple[Any, ...]]


def run_query(connection: Any, statement: str) -> Result:
    """Run a person's statement on a connection that it may only read; rows are read lazily."""
    connection.execute("PRAGMA query_only = ON")
    connection.set_authorizer(_refuse_attach)
    # Python looks for Ctrl-C in the callback, which raises there and so stops SQLite.
    connection.set_progress_handler(lambda: 0, STEPS_BETWEEN_INTERRUPTS)
    cursor = _translated(lambda: connection.execute(statement))
    if cursor.description is None:
        raise ArgumentError("the statement returns no rows: give one that does, a SELECT say")
    rows = iter(lambda: _translated(cursor.fetchone), None)
    return Result(_unique(column[0] for column in cursor.description), rows)


def _refuse_attach(action: int, *_: str | None) -> int:
    return sqlite3.SQLITE_DENY if action == sqlite3.SQLITE_ATTACH else sqlite3.SQLITE_OK


def _translated(deed: Callable[[], Any]) -> Any:
    try:
        return deed()
    except (sqlite3.Error, sqlite3.Warning, ValueError) as error:
        name = error_name(error)
        if name == "SQLITE_INTERRUPT":
            raise KeyboardInterrupt from error
        if name.startswith(OF_THE_FILE):
            raise
        advice = "`tuner sql` alone lists the views"
        if name.startswith(("SQLITE_READONLY", "SQLITE_AUTH")):
            advice = "`tuner sql` only reads; nothing was changed"
        raise ArgumentError(f"the statement failed: {str(error).rstrip('.')}; {advice}") from error


def _unique(names: Iterator[str]) -> tuple[str, ...]:
    found: list[str] = []
    for name in names:
        number, unique = 0, name
        while unique in found:
            number += 1
            unique = f"{name}:{number}"
        found.append(unique)
    return tuple(found)
