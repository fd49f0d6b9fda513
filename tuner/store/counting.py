"""Counts what was looked up: beside the database, because a hit never writes to it.

A look-up adds a line to `tuning.db.lookups`, and the next writer adds the lines up in the table
`lookup`. A writer that is killed between its commit and the emptying counts some lines twice,
and whoever cannot have the file at once is not counted: these are statistics, no samples.
"""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import stat
import sys
import time
from collections import Counter
from contextlib import closing
from typing import TYPE_CHECKING, Literal

from tuner.errors import DatabaseError
from tuner.store.diagnosis import REVISION, exists
from tuner.store.sqlite import BUSY_SECONDS, open_for_writing

if sys.platform != "win32":
    import fcntl

if TYPE_CHECKING:
    from os import PathLike

LookupKind = Literal["hit", "pinned", "near", "miss", "resumed"]
KINDS = ("hit", "pinned", "near", "miss", "resumed")

LINE = rb"(\d{4}-\d\d-\d\d) (%b) ([a-z]\d_[0-9a-f]{32})" % "|".join(KINDS).encode()
"""A day, a kind and the digest of a key."""
SUFFIX = ".lookups"
MOST_BYTES = 1 << 20
"""A file of this size is added up by whoever notices, or is full."""

OURS = "UPDATE alembic_version SET version_num = version_num WHERE version_num = ?"
ADD = """
    INSERT INTO lookup (key_digest, day_utc, kind, lookups) VALUES (?, ?, ?, ?)
    ON CONFLICT (key_digest, day_utc, kind) DO UPDATE SET lookups = lookups + excluded.lookups
"""


def note_lookup(database: str | PathLike[str], key: str, kind: LookupKind) -> None:
    """Note that a key was looked up. Never raises, never waits."""
    if sys.platform == "win32":  # there is no flock: nothing is counted
        return
    with contextlib.suppress(Exception):
        line = f"{time.strftime('%Y-%m-%d', time.gmtime())} {kind} {key}\n".encode()
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
        descriptor = os.open(f"{os.fspath(database)}{SUFFIX}", flags, 0o644)
        try:
            # Shared: appending writes do not mix; only whoever empties the file wants it alone.
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            size = _size(descriptor)
            if size < MOST_BYTES:
                os.write(descriptor, line)
        finally:
            os.close(descriptor)
        if size >= MOST_BYTES:
            add_up(database, busy_seconds=0.0)


def add_up(database: str | PathLike[str], busy_seconds: float = BUSY_SECONDS) -> None:
    """Move what was noted into the database. Never raises: what cannot be moved waits.

    Args:
        database: The file. It is not made, and only one with this code's schema is written.
        busy_seconds: How long to wait for another process's transaction.
    """
    if sys.platform == "win32":  # there is no flock: nothing is counted
        return
    with contextlib.suppress(OSError, sqlite3.Error, DatabaseError):
        descriptor = os.open(
            f"{os.fspath(database)}{SUFFIX}", os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK
        )
        try:
            if _size(descriptor):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _add(database, descriptor, busy_seconds)
                os.ftruncate(descriptor, 0)
        finally:
            os.close(descriptor)


def pending(database: str | PathLike[str]) -> Counter[tuple[str, str, str]]:
    """Count what was noted and is not in the database yet, by key, day and kind."""
    try:
        descriptor = os.open(
            f"{os.fspath(database)}{SUFFIX}", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
        )
    except (OSError, AttributeError):
        return Counter()
    try:
        return _counts(_content(descriptor)) if _size(descriptor) else Counter()
    except OSError:
        return Counter()
    finally:
        os.close(descriptor)


def _size(descriptor: int) -> int:
    """Tell how large the file is.

    Raises:
        FileExistsError: if it is no file of its own: a pipe, a folder, another file's second name,
            which must be neither filled nor emptied.
    """
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        raise FileExistsError
    return status.st_size


def _content(descriptor: int) -> bytes:
    return os.pread(descriptor, 2 * MOST_BYTES, 0)


def _counts(content: bytes) -> Counter[tuple[str, str, str]]:
    """Read the lines that are whole and say what they should."""
    counts: Counter[tuple[str, str, str]] = Counter()
    whole = re.compile(LINE).fullmatch
    for line in content.split(b"\n")[:-1]:  # what follows the last line's end is half a line
        if found := whole(line):
            day, kind, key = found.groups()
            counts[key.decode(), day.decode(), kind.decode()] += 1
    return counts


def _add(database: str | PathLike[str], descriptor: int, busy_seconds: float) -> None:
    if not exists(database):
        raise FileNotFoundError
    with closing(open_for_writing(database, busy_seconds)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        # Whether it may be written, and is ours, is known before a full file is read.
        if connection.execute(OURS, (REVISION,)).rowcount != 1:
            raise sqlite3.DatabaseError("another schema")
        counts = _counts(_content(descriptor))
        connection.executemany(ADD, [(*names, count) for names, count in counts.items()])
        connection.execute("COMMIT")
