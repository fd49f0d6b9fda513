"""Finds the tuning database: by argument, environment variable, or the user's data folder.

Computes paths only: creates no folder and opens no file.
"""

from __future__ import annotations

import os
from pathlib import Path

from tuner.errors import DatabaseError

DATABASE_VARIABLE = "TUNER_DATABASE"
FILE_NAME = "tuning.db"
SQLITE_SCHEMES = ("sqlite", "sqlite+pysqlite")


def cache_path(database: str | os.PathLike[str] | None = None) -> Path:
    """Return the path of the tuning database.

    Args:
        database: A path or an SQLAlchemy URL (sqlite:///...). The default is the environment
            variable TUNER_DATABASE, then a file in the user's data folder.

    Raises:
        DatabaseError: for a URL that does not name a SQLite file.
    """
    named = database if database is not None else os.environ.get(DATABASE_VARIABLE)
    if named:
        return _from_url_or_path(os.fspath(named))
    import platformdirs  # not needed where the database is named

    return platformdirs.user_data_path("tuner", appauthor=False) / FILE_NAME


def _from_url_or_path(named: str) -> Path:
    scheme, separator, rest = named.partition("://")
    if not separator:
        return Path(os.path.expanduser(named))  # Path.expanduser raises without a home
    if scheme not in SQLITE_SCHEMES:
        raise DatabaseError(
            f"database {named!r}: only SQLite files can be used; "
            "give a path or sqlite:////absolute/path.db"
        )
    from urllib.parse import unquote  # 6 ms, needed for URLs only

    location = unquote(rest.partition("?")[0])
    # SQLAlchemy's form: sqlite:///relative and sqlite:////absolute
    if not location.startswith("/") or location == "/":
        raise DatabaseError(f"database {named!r} names no file: give sqlite:////absolute/path.db")
    return Path(location[1:])
