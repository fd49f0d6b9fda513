"""Why a database cannot be used, in words. Opens files for reading only, and changes none.

Standard library only: a training job that meets a bad file comes through here.
"""

from __future__ import annotations

import os
import sqlite3
import stat
from typing import TYPE_CHECKING

from tuner.errors import DatabaseError, OlderSchemaError, SchemaError
from tuner.store.sqlite import error_name, query, query_again

if TYPE_CHECKING:
    from os import PathLike

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
