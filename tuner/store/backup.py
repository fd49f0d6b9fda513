"""Copies a database consistently while others write to it."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from contextlib import closing
from pathlib import Path

from tuner.errors import DatabaseError
from tuner.store.diagnosis import explained
from tuner.store.sqlite import open_for_reading


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
    partial = copy.with_name(f"{copy.name}.partial-{os.getpid()}")
    try:
        with closing(open_for_reading(database)) as connection:
            connection.execute("VACUUM INTO ?", (os.fspath(partial),))
        _synchronise(partial)  # SQLite does not: a power cut could leave an empty file
        os.chmod(partial, database.stat().st_mode & 0o777)
        _name(partial, copy)
        _synchronise(copy.parent)
    except FileExistsError as error:
        raise DatabaseError(f"{copy} is there already: name another file") from error
    except sqlite3.Error as error:
        raise explained(database, error, "copy") from error
    except OSError as error:
        raise DatabaseError(
            f"cannot write the copy {copy}: {error.strerror}; the database is as it was"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink()


def _name(partial: Path, copy: Path) -> None:
    """Give the finished copy its name, unless something has it already."""
    try:
        os.link(partial, copy)
    except FileExistsError:
        raise
    except OSError:  # a file system without second names
        if os.path.lexists(copy):
            raise FileExistsError(copy) from None
        partial.rename(copy)


def _synchronise(path: Path) -> None:
    """Have a file's content, or a folder's entries, written to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
