"""Asks the database what somebody else has written: one statement, and SQLite keeps it to reading.

Nothing here looks at the text. The file is opened read-only, the connection only answers
queries, and no other file can be attached, which is how "VACUUM INTO" would write one.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from tuner.errors import ArgumentError
from tuner.store.sqlite import error_name
from tuner.store.views import reading

Given = TypeVar("Given")

LOOK_UP_EVERY = 100_000
"""Steps of SQLite's machine between two chances for Ctrl-C: some milliseconds."""
OF_THE_FILE = ("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_BUSY", "SQLITE_IOERR")
"""Errors that no other statement would get round."""


class Result(NamedTuple):
    """What a statement gives."""

    columns: tuple[str, ...]
    """Their names, each once: a second "run_id" is "run_id:1", as SQLite calls it."""
    rows: Iterator[tuple[Any, ...]]
    """Read when they are asked for."""


@contextmanager
def asked(database: Path, statement: str) -> Iterator[Result]:
    """Open a database and ask it; the rows can be read until the context ends.

    Raises:
        ArgumentError: if SQLite does not take the statement, it writes, or it gives no rows.
        KeyboardInterrupt: if Ctrl-C comes while SQLite is at work.
        SchemaError, DatabaseError: as `reading`.
    """
    with reading(database) as connection:
        connection.execute("PRAGMA query_only = ON")
        connection.set_authorizer(_nothing_attached)
        connection.set_progress_handler(_go_on, LOOK_UP_EVERY)
        cursor = _carried_out(lambda: connection.execute(statement))
        if cursor.description is None:
            raise ArgumentError("the statement asks for no rows: give one, a SELECT say")
        yield Result(_told_apart(column[0] for column in cursor.description), _rows(cursor))


def _nothing_attached(action: int, *_: str | None) -> int:
    return sqlite3.SQLITE_DENY if action == sqlite3.SQLITE_ATTACH else sqlite3.SQLITE_OK


def _go_on() -> int:
    """Let Python look whether Ctrl-C has come: it raises here, and SQLite stops."""
    return 0


def _rows(cursor: sqlite3.Cursor) -> Iterator[tuple[Any, ...]]:
    while (row := _carried_out(cursor.fetchone)) is not None:
        yield row


def _carried_out(deed: Callable[[], Given]) -> Given:
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


def _told_apart(names: Iterator[str]) -> tuple[str, ...]:
    found: list[str] = []
    for name in names:
        number, unique = 0, name
        while unique in found:
            number += 1
            unique = f"{name}:{number}"
        found.append(unique)
    return tuple(found)
