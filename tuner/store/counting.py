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
import sys
import time
from collections import Counter
from contextlib import closing
from typing import TYPE_CHECKING, Literal

from tuner.store.sqlite import open_for_writing

if sys.platform != "win32":
    import fcntl

if TYPE_CHECKING:
    from os import PathLike

LookupKind = Literal["hit", "pinned", "near", "miss", "resumed"]
KINDS = ("hit", "pinned", "near", "miss", "resumed")

DAY = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
SUFFIX = ".lookups"
MOST_BYTES = 1 << 20
"""A file of this size is added up by whoever notices, or is full."""

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
            size = os.fstat(descriptor).st_size
            if size < MOST_BYTES:
                os.write(descriptor, line)
        finally:
            os.close(descriptor)
        if size >= MOST_BYTES:
            add_up(database)


def add_up(database: str | PathLike[str]) -> None:
    """Move what was noted into the database. Never raises: what cannot be moved waits."""
    if sys.platform == "win32":  # there is no flock: nothing is counted
        return
    with contextlib.suppress(OSError, sqlite3.Error):
        descriptor = os.open(
            f"{os.fspath(database)}{SUFFIX}", os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK
        )
        try:
            if os.fstat(descriptor).st_size:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _add(database, _counts(_content(descriptor)))
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
        return _counts(_content(descriptor))
    except OSError:
        return Counter()
    finally:
        os.close(descriptor)


def _content(descriptor: int) -> bytes:
    return os.pread(descriptor, 2 * MOST_BYTES, 0)


def _counts(content: bytes) -> Counter[tuple[str, str, str]]:
    """Read the lines that are whole and say what they should."""
    counts: Counter[tuple[str, str, str]] = Counter()
    for line in content.decode(errors="replace").splitlines():
        day, _, rest = line.partition(" ")
        kind, _, key = rest.partition(" ")
        if DAY.fullmatch(day) and kind in KINDS and 1 <= len(key) <= 1000:
            counts[key, day, kind] += 1
    return counts


def _add(database: str | PathLike[str], counts: Counter[tuple[str, str, str]]) -> None:
    with closing(open_for_writing(database)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(ADD, [(*names, count) for names, count in counts.items()])
        connection.execute("COMMIT")
