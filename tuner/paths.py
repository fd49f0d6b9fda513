"""Where the tuning database is: flag, then environment, then the platform's own place.

Computes paths only: creates no folder and opens no file.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from tuner.errors import DatabaseError

if TYPE_CHECKING:
    from pathlib import Path

DATABASE_VARIABLE = "TUNER_DATABASE"
FILE_NAME = "tuning.db"
SQLITE_SCHEMES = ("sqlite", "sqlite+pysqlite")


def cache_path(database: str | os.PathLike[str] | None = None) -> Path:
    """Say where the tuning database is.

    Args:
        database: A path or an SQLAlchemy URL (sqlite:///...). Without it the environment
            variable TUNER_DATABASE counts, and without that the user's data directory.

    Raises:
        DatabaseError: for a URL of another database than a SQLite file.
    """
    from pathlib import Path  # 8 ms, which a hit does without

    return Path(database_file(database))


def database_file(database: str | os.PathLike[str] | None = None) -> str:
    """Say the same as `cache_path`, as a text: the way of a hit.

    Raises:
        DatabaseError: as `cache_path`.
    """
    named = database if database is not None else os.environ.get(DATABASE_VARIABLE)
    if named:
        return _from_url_or_path(os.fspath(named))
    return os.path.join(user_data_folder(), FILE_NAME)


def user_data_folder() -> str:
    """Name the user's data folder for this program, as `platformdirs` does."""
    if sys.platform != "linux":
        import platformdirs

        return platformdirs.user_data_dir("tuner", appauthor=False)
    # platformdirs' rule in three lines, a test holds it to that: its import takes 14 ms
    base = os.environ.get("XDG_DATA_HOME", "")
    if not os.path.isabs(base):
        base = os.path.expanduser("~/.local/share")
    return os.path.join(base, "tuner")


def _from_url_or_path(named: str) -> str:
    scheme, separator, rest = named.partition("://")
    if not separator:
        return os.path.expanduser(named)
    if scheme not in SQLITE_SCHEMES:
        raise DatabaseError(
            f"database {named!r}: only SQLite files can be used; "
            "give a path or sqlite:////absolute/path.db"
        )
    from urllib.parse import unquote  # 6 ms, for those who give a URL

    location = unquote(rest.partition("?")[0])
    # SQLAlchemy's form: sqlite:///relative and sqlite:////absolute
    if not location.startswith("/") or location == "/":
        raise DatabaseError(f"database {named!r} names no file: give sqlite:////absolute/path.db")
    return location[1:]
