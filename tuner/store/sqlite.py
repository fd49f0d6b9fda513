"""What is SQLite's alone: file URIs, waiting, recovery, and what its error codes mean.

Kept apart so that the rest of the store holds for another database too. Standard library only:
the hit path comes through here.
"""

from __future__ import annotations

import atexit
import os
import sqlite3
import threading
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from os import PathLike

    Parameters = Sequence[object] | Mapping[str, object]


import stat
from typing import TYPE_CHECKING

from tuner.errors import ArgumentError, DatabaseError, OlderSchemaError, SchemaError

if TYPE_CHECKING:
    from os import PathLike

BUSY_SECONDS = 30.0
"""How long a statement waits for another process's transaction. Writers hold the database for
milliseconds; half a minute outlasts a storm of them on a slow disk."""

READ_BUSY_SECONDS = 5.0
"""The same for the look-up in front of a training job: a reader waits only while a commit is
being written, and a job must not stand for long."""

LEFT_BY_A_CRASH = ("SQLITE_READONLY_ROLLBACK", "SQLITE_READONLY_RECOVERY")
"""A writer was killed half-way: its transaction has to be rolled back before anybody can read,
and a connection that may only read cannot do that."""


class _AtWork:
    """Around SQLite's work for a look-up, so that no fork falls into it.

    SQLite's own locks, that of its memory say, are the process's; one that a thread holds while
    another forks is never let go of in the child, whose first statement would wait for ever.
    """

    LONGEST_WAIT_S = 1.0
    """A look-up lasts microseconds, but for one that waits for a held file, or that the signal
    interrupted whose handler forks."""

    def __init__(self) -> None:
        self.after_fork_in_child()

    def __enter__(self) -> None:
        with self._changed:
            if self._forks:
                self._changed.wait_for(lambda: not self._forks, self.LONGEST_WAIT_S)
            self._at_work += 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._at_work -= 1
            if self._forks:
                self._changed.notify_all()

    def before_fork(self) -> None:
        """Let nobody begin, and wait until nobody is at work."""
        self._changed.acquire()
        self._forks += 1
        self._changed.wait_for(lambda: self._at_work <= 0, self.LONGEST_WAIT_S)

    def after_fork_in_parent(self) -> None:
        """Let the others go on."""
        self._forks -= 1
        self._changed.notify_all()
        self._changed.release()

    def after_fork_in_child(self) -> None:
        """Begin anew: the other threads are not here."""
        self._changed = threading.Condition()
        self._at_work = self._forks = 0


_at_work = _AtWork()


def query(
    database: str | PathLike[str], statement: str, parameters: Parameters = ()
) -> list[tuple[Any, ...]]:
    """Read rows from an existing file: no file is made, none is changed.

    The one exception is what SQLite itself does for every reader: after a crash it first rolls
    the interrupted transaction back.

    Raises:
        sqlite3.Error: if the file cannot be opened or read, or is no SQLite database.
    """
    try:
        try:
            return _rows(database, "ro", statement, parameters)
        except sqlite3.OperationalError as error:
            if error_name(error) not in LEFT_BY_A_CRASH:
                raise
            return _rows(database, "rw", statement, parameters)
    except UnicodeDecodeError as error:
        raise scribbled(error) from error


def scribbled(error: UnicodeDecodeError) -> sqlite3.DatabaseError:
    """Give what Python makes of a message that quotes a damaged schema, and is no text itself."""
    damage = sqlite3.DatabaseError(error.object.decode(errors="replace"))
    damage.sqlite_errorname = "SQLITE_CORRUPT"
    return damage


def _rows(
    database: str | PathLike[str], mode: str, statement: str, parameters: Parameters
) -> list[tuple[Any, ...]]:
    with _at_work, closing(_open(database, mode, READ_BUSY_SECONDS)) as connection:
        return connection.execute(statement, parameters).fetchall()


class _KeptReader:
    """The read-only connection of the last look-up, for the next one in this process.

    Two thirds of what a look-up costs are opening the file and reading its schema. Between
    look-ups the connection holds no lock and keeps nobody from anything.
    """

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._file: tuple[str, int, int] | None = None
        self._connection: sqlite3.Connection | None = None
        self._of_parents: list[sqlite3.Connection | None] = []

    def rows(
        self, database: str | PathLike[str], statement: str, parameters: Parameters
    ) -> list[tuple[Any, ...]]:
        """Read rows as `query` does; the path may name another file than the last time.

        Nobody waits here for another thread, which may itself be waiting for a held file, nor a
        signal's handler for the look-up that it interrupted: they open the file for themselves.
        """
        turn = self._turn
        if not turn.acquire(blocking=False):
            return query(database, statement, parameters)
        try:
            stat = os.stat(database)
            file = (os.path.abspath(os.fspath(database)), stat.st_dev, stat.st_ino)
            with _at_work:
                return self._connection_to(database, file).execute(statement, parameters).fetchall()
        except BaseException:
            self._close()
            raise
        finally:
            turn.release()

    def _connection_to(
        self, database: str | PathLike[str], file: tuple[str, int, int]
    ) -> sqlite3.Connection:
        if self._connection is None or file != self._file:
            self._close()
            self._connection = _open(database, "ro", READ_BUSY_SECONDS, any_thread=True)
            self._file = file
        return self._connection

    def close(self) -> None:
        """Let go of the file."""
        with self._turn:
            self._close()

    def _close(self) -> None:
        kept, self._connection = self._connection, None
        if kept is not None:
            kept.close()

    def leave_to_parent(self) -> None:
        """In a forked child: a connection must not cross a fork, not even to be closed."""
        self._turn = threading.Lock()  # a thread that is not here any more may have held it
        self._of_parents.append(self._connection)
        self._connection = None


_kept_reader = _KeptReader()
CAN_FORK = hasattr(os, "register_at_fork")
if CAN_FORK:
    os.register_at_fork(
        before=_at_work.before_fork,
        after_in_parent=_at_work.after_fork_in_parent,
        after_in_child=_at_work.after_fork_in_child,
    )
    os.register_at_fork(after_in_child=_kept_reader.leave_to_parent)
    atexit.register(_kept_reader.close)


def query_again(
    database: str | PathLike[str], statement: str, parameters: Parameters = ()
) -> list[tuple[Any, ...]]:
    """Read rows like `query`, for what a process asks again and again.

    Keeps the file open for the next time; not on Windows, where nobody could move it then.

    Raises:
        sqlite3.Error: as `query`.
    """
    if CAN_FORK:
        try:
            return _kept_reader.rows(database, statement, parameters)
        except (OSError, sqlite3.Error, UnicodeDecodeError) as error:
            if error_name(error).startswith("SQLITE_BUSY"):
                raise  # it has waited long enough; else a new connection does, or says why not
    return query(database, statement, parameters)


def open_for_reading(database: str | PathLike[str]) -> sqlite3.Connection:
    """Open an existing file for reading, after a crash like `query`.

    Raises:
        sqlite3.Error: if it cannot be opened or is no SQLite database.
    """
    query(database, "SELECT count(*) FROM sqlite_master")
    return _open(database, "ro", READ_BUSY_SECONDS)


def open_for_writing(
    database: str | PathLike[str], busy_seconds: float = BUSY_SECONDS
) -> sqlite3.Connection:
    """Open a file for reading and writing; it is made if it is missing.

    Journal mode: the rollback journal, SQLite's default, always. WAL would commit faster, but
    one tuning is one commit; a WAL file cannot be read in a folder where nothing may be
    written, leaves files beside it, is unsafe on network file systems, and loses committed
    pages in SQLite 3.7.0 to 3.51.2 (the WAL-reset bug, fixed in 3.51.3).
    """
    connection = _open(database, "rwc", busy_seconds)
    connection.execute("PRAGMA foreign_keys = ON")
    return connection


def _open(
    database: str | PathLike[str], mode: str, busy_seconds: float, *, any_thread: bool = False
) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"{file_uri(database)}?mode={mode}",
        uri=True,
        timeout=busy_seconds,
        isolation_level=None,
        check_same_thread=not any_thread,
    )
    connection.text_factory = _text
    return connection


LONGEST_VALUE = 1_000_000
"""Bytes of a text or a blob that is read from a file of somebody else's."""
MOST_MEMORY = 256_000_000
"""Bytes that SQLite may take in a process that opened such a file."""


def open_untrusted(database: str | PathLike[str], mode: str = "ro") -> sqlite3.Connection:
    """Open a file of unknown origin: nothing that its schema holds is executed for us.

    A value above a bound is an error, and so is memory above one, which SQLite then keeps to for
    the rest of the process. A text that is no UTF-8 comes with surrogates in it.

    Raises:
        sqlite3.Error: if it cannot be opened.
    """
    connection = _open(database, mode, READ_BUSY_SECONDS)
    for pragma in (
        f"hard_heap_limit = {MOST_MEMORY}",
        "trusted_schema = OFF",
        "cache_size = -8192",  # in KiB; else the file's own word on it counts
        "cell_size_check = ON",
        "mmap_size = 0",
    ):
        connection.execute(f"PRAGMA {pragma}")
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST_VALUE)
    connection.text_factory = lambda raw: raw.decode(errors="surrogateescape")
    return connection


def file_uri(file: str | PathLike[str]) -> str:
    """Name a file as a URI, whatever characters, or bytes that are none, its path has."""
    path = os.path.abspath(os.fspath(file))
    for mark in "%?#":  # what means something in a URI; urllib's quote takes 6 ms to import
        path = path.replace(mark, f"%{ord(mark):02x}")
    if not path.isascii():
        path = "".join(chr(b) if b < 128 else f"%{b:02x}" for b in os.fsencode(path))
    return f"file:{path}"


def _text(raw: bytes) -> str:
    """Read a text that may not be one: STRICT takes any bytes, and one bad row is not all."""
    return raw.decode(errors="replace")


def error_name(error: BaseException) -> str:
    """Name a database error by SQLite's code, "SQLITE_BUSY" say: texts change, codes do not."""
    return getattr(error, "sqlite_errorname", type(error).__name__)


def open_damaged(database: str | PathLike[str]) -> sqlite3.Connection:
    """Open a file that may be damaged, for reading whatever it still gives, rows by name.

    Raises:
        sqlite3.Error: if SQLite cannot open it at all.
    """
    connection = open_for_reading(database)
    connection.row_factory = sqlite3.Row
    return connection


REVISION = "0002"
"""The schema this code reads and writes; the newest file in migrations/versions."""

OLDER_REVISIONS: tuple[str, ...] = ("0001",)
"""Schemas that a write upgrades, oldest first."""

FIRST_TABLES = frozenset(("model", "device", "tuning_key", "run", "sample", "verdict"))
"""What every revision has."""

OUR_TABLES = FIRST_TABLES | {"validator", "pin", "lookup"}

LONGEST_NAME = 200
"""Characters of an unusable path that an error repeats."""


def exists(database: str | PathLike[str]) -> bool:
    """Tell whether there is a file.

    Raises:
        DatabaseError: if nobody can tell, or it is no file: a folder, a pipe, a device.
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
    """Tell whether a file holds no table at all: one that somebody is about to fill."""
    try:
        return bool(query(database, "SELECT count(*) FROM sqlite_master")[0][0] == 0)
    except sqlite3.Error:
        return False


def file_revision(database: str | PathLike[str]) -> str | None:
    """Read which schema a file has; None if it does not say."""
    try:
        rows = query_again(database, "SELECT version_num FROM alembic_version")
    except sqlite3.Error:
        return None
    return str(rows[0][0]) if rows else None


def explained(
    database: str | PathLike[str], error: BaseException, deed: str = "read"
) -> DatabaseError:
    """Turn what SQLite raised into what is wrong, and what helps."""
    name = error_name(error)
    if name == "SQLITE_NOTADB":
        return damaged(database, "it is not a SQLite database")
    if name.startswith("SQLITE_CORRUPT"):
        return damaged(database, f"it is damaged ({error})")
    if name == "SQLITE_ERROR":
        return _wrong_tables(database, error)
    advice = "nothing was changed; `tuner doctor` says what stands in the way"
    if name.startswith("SQLITE_BUSY"):
        advice = "another process holds it; nothing was changed"
    return DatabaseError(
        f"cannot {deed} the tuning database {database}: {error} ({name}); {advice}"
    )


def _wrong_tables(database: str | PathLike[str], error: BaseException) -> DatabaseError:
    if not is_ours(database):
        return something_else(database)
    revision = file_revision(database)
    if revision != REVISION:
        return other_revision(database, revision)
    return damaged(database, f"it is incomplete ({error})")


def is_ours(database: str | PathLike[str]) -> bool:
    """Tell whether a file was made by a tuner: it has most of our tables, whatever is missing.

    Others use alembic too, count their revisions alike, and have a table called `device`.

    Raises:
        sqlite3.Error: if nobody can tell.
    """
    rows = query(database, "SELECT name FROM sqlite_master WHERE type = 'table'")
    return len({name for (name,) in rows} & FIRST_TABLES) > len(FIRST_TABLES) / 2


def damaged(database: str | PathLike[str], what: str) -> DatabaseError:
    """Word the error for a file whose content cannot be used."""
    return DatabaseError(
        f"cannot use the tuning database {database}: {what}; it is left as it is: "
        "`tuner db check` looks closer, `tuner db repair` moves it aside and keeps what it can"
    )


def something_else(database: str | PathLike[str]) -> DatabaseError:
    """Word the error for a database that is not ours."""
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
            f"{database} does not say which schema it has; it is left as it is: "
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
