"""Copies a database consistently while others write to it."""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

from tuner.errors import DatabaseError, cannot_write
from tuner.store.sqlite import (
    error_name,
    explained,
    file_uri,
    open_for_reading,
)

OF_THE_DATABASE = ("SQLITE_BUSY", "SQLITE_CORRUPT", "SQLITE_NOTADB")
"""Errors that speak of what is copied; any other one speaks of the copy."""
RENAME_NOREPLACE = 1
AT_FDCWD = -100
"""Of Linux: a path is meant as every other one is."""
NAME_KEPT = 40
"""Characters of a name that the unfinished file's name repeats: both have to fit in 255 bytes."""


def back_up(database: Path, copy: Path) -> None:
    """Write a copy of one moment's state, without the space that deleted rows left.

    The copy appears under its name whole or not at all. Others may read and write meanwhile.

    Args:
        database: The file to be copied.
        copy: Where to; nothing is overwritten.

    Raises:
        DatabaseError: if there is something at `copy` already, or it cannot be written, or the
            database cannot be read.
    """
    try:
        if not copy.name:
            raise DatabaseError(f"{str(copy)!r} names no file to copy to")
        if os.path.lexists(copy):
            raise FileExistsError(copy)
        partial = _new_file_beside(copy)
        try:
            _copy(database, partial, copy)
            _synchronise(partial)  # SQLite does not: a power cut could leave an empty file
            with contextlib.suppress(PermissionError):  # some file systems have no modes
                os.chmod(partial, database.stat().st_mode & 0o777)
            _name(partial, copy)
        finally:
            with contextlib.suppress(OSError):
                partial.unlink()
        with contextlib.suppress(OSError):  # not every file system does that to a folder
            _synchronise(copy.parent)
    except FileExistsError as error:
        raise DatabaseError(f"{copy} is there already: name another file") from error
    except OSError as error:
        raise DatabaseError(cannot_write(copy, error)) from error


def _new_file_beside(copy: Path) -> Path:
    """Make the file that becomes the copy, for its owner only as long as it is not finished."""
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
            # As a URI: SQLite would take a name that looks like one for one.
            connection.execute("VACUUM INTO ?", (file_uri(partial),))
        except sqlite3.Error as error:
            if error_name(error).startswith(OF_THE_DATABASE):
                raise explained(database, error, "copy") from error
            raise DatabaseError(
                f"cannot write the copy {copy}: {error} ({error_name(error)}); "
                "the database is as it was"
            ) from error


def _name(partial: Path, copy: Path) -> None:
    """Give the finished copy its name, unless something has it already."""
    try:
        os.link(partial, copy)
    except FileExistsError:
        raise
    except OSError:  # a file system without second names
        if not _rename_without_replacing(partial, copy):
            # The name is taken first, and only ever our own empty file replaced.
            os.close(os.open(copy, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            os.replace(partial, copy)


def _rename_without_replacing(partial: Path, copy: Path) -> bool:
    """Rename a file in one step, where the system can do that only if the name is free.

    Returns:
        Whether it was done.

    Raises:
        FileExistsError: if something has the name.
    """
    import ctypes  # needed on few file systems only

    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    names = os.fsencode(partial), os.fsencode(copy)
    if rename(AT_FDCWD, names[0], AT_FDCWD, names[1], RENAME_NOREPLACE) == 0:
        return True
    if ctypes.get_errno() == errno.EEXIST:
        raise FileExistsError(copy)
    return False


def _synchronise(path: Path) -> None:
    """Have a file's content, or a folder's entries, written to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
