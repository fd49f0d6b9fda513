"""Copies a database consistently while other processes write to it."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

from tuner.errors import DatabaseError, cannot_write
from tuner.store.sqlite import error_name, explained, file_uri, open_for_reading

OF_THE_DATABASE = ("SQLITE_BUSY", "SQLITE_CORRUPT", "SQLITE_NOTADB")
"""Errors of the file that is copied; any other one is of the copy."""
NAME_KEPT = 40
"""Characters of a name that the unfinished file's name repeats: both must fit in 255 bytes."""


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
    try:
        connection = open_for_reading(database)
    except sqlite3.Error as error:
        raise explained(database, error, "copy") from error
    with closing(connection):
        try:
            # As a URI, because SQLite takes a name like "file:x" for one.
            connection.execute("VACUUM INTO ?", (file_uri(partial),))
        except sqlite3.Error as error:
            if error_name(error).startswith(OF_THE_DATABASE):
                raise explained(database, error, "copy") from error
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
