"""Locks between processes, by the operating system: they die with their holder.

The lock is on a file of its own beside the thing it guards, never on the database: a second
open of a database file in a process that holds SQLite's locks on it gives those locks away.
"""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tuner.errors import LockError

if sys.platform != "win32":
    import fcntl

POLL_SECONDS: Final = 0.05
HELD_ELSEWHERE: Final = (errno.EWOULDBLOCK, errno.EACCES)


@contextmanager
def file_lock(
    lock_path: str | os.PathLike[str],
    *,
    timeout_s: float | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[None]:
    """Hold a lock that one process at a time can hold, and one thread of it.

    Best effort: without `fcntl` it holds nothing and lets the caller go on. The file stays
    when the lock is released, because removing it would let two holders in.

    Args:
        lock_path: The file to lock; made, with its folder, if it is missing.
        timeout_s: Seconds to wait for another holder; None waits for ever.
        clock: What the waiting is measured by, in seconds.

    Raises:
        LockError: if the file cannot be opened or locked, or the time is up.
    """
    if sys.platform == "win32":
        yield
        return
    path = Path(lock_path)
    descriptor = _open(path)
    try:
        _lock(descriptor, path, timeout_s, clock)
        yield
    finally:
        os.close(descriptor)  # closing releases: the descriptor is the only one of this lock


def _open(path: Path) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise LockError(
            f"cannot open the lock file {path}: {error.strerror}; "
            "check the folder's permissions, or name another database with TUNER_DATABASE"
        ) from error


def _lock(descriptor: int, path: Path, timeout_s: float | None, clock: Callable[[], float]) -> None:
    """Wait for the lock; by polling where there is a bound, since flock itself knows none."""
    deadline = None if timeout_s is None else clock() + timeout_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if deadline is None else fcntl.LOCK_NB))
            return
        except OSError as error:
            if error.errno not in HELD_ELSEWHERE or deadline is None:
                raise LockError(
                    f"cannot lock {path}: {error.strerror}; the file system may not know locks"
                ) from error
        if clock() >= deadline:
            raise LockError(
                f"another process has held {path} for {timeout_s:g} s: "
                "wait for it, or look for one that hangs"
            )
        time.sleep(POLL_SECONDS)
