"""What is SQLite's alone: file URIs, waiting, and what its error codes mean.

Kept apart so that the rest of the store holds for another database too. Standard library only:
the hit path comes through here.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from urllib.parse import quote

BUSY_SECONDS = 30.0
"""How long a statement waits for another process's transaction. Writers hold the database for
milliseconds; half a minute outlasts a storm of them on a slow disk."""

READ_BUSY_SECONDS = 5.0
"""The same for the look-up in front of a training job: a reader waits only while a commit is
being written, and a job must not stand for long."""


def read_only_uri(database: Path) -> str:
    """Spell a path as a URI that opens it for reading: no file is made, none is changed."""
    return f"file:{quote(str(database.absolute()))}?mode=ro"


def open_read_only(database: Path) -> sqlite3.Connection:
    """Open an existing file for reading.

    Raises:
        sqlite3.OperationalError: if there is no such file or it cannot be opened.
    """
    return sqlite3.connect(
        read_only_uri(database), uri=True, timeout=READ_BUSY_SECONDS, isolation_level=None
    )


def error_name(error: BaseException) -> str:
    """Name a database error by SQLite's code, "SQLITE_BUSY" say: texts change, codes do not."""
    return getattr(error, "sqlite_errorname", type(error).__name__)
