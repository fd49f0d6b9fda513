"""Locks between processes, by the operating system: they die with their holder.

Best effort: where the system has no `fcntl` nothing is held and the caller goes on. Never a
lock on the database file itself: a second open of a database in a process that holds SQLite's
locks on it gives those locks away.
"""

from __future__ import annotations

import errno
import math
import os
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tuner.errors import LockError

if sys.platform != "win32":
    import fcntl

LOCK_FOLDER_VARIABLE: Final = "TUNER_LOCK_FOLDER"
MEASURING_LOCK: Final = "tuner-measuring.lock"
POLL_SECONDS: Final = 0.05
HELD_ELSEWHERE: Final = (errno.EWOULDBLOCK, errno.EACCES)

_held: set[int] = set()
"""Descriptors of the locks that this process holds or waits for."""


@contextmanager
def file_lock(
    lock_path: str | os.PathLike[str], *, timeout_s: float | None = None
) -> Iterator[None]:
    """Hold a lock that one process at a time can hold, and one thread of it.

    The file stays when the lock is released, because removing it would let two holders in.

    Args:
        lock_path: The file to lock; made, with its folder, if it is missing.
        timeout_s: Seconds to wait for another holder; None waits for ever.

    Raises:
        LockError: if the file cannot be opened or locked, or the time is up.
    """
    path = Path(lock_path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _cannot("make the folder of", path, error) from error
    with _taken(path, timeout_s, lambda: False, follow=True):
        yield


@contextmanager
def measuring_turn(wait_s: float, *, unless: Callable[[], bool]) -> Iterator[bool]:
    """Wait for this machine's one turn to measure, and hold it.

    Two processes that time their pools at the same moment measure each other, whatever their
    keys, their databases and their users. So the lock lies on the machine, in a folder that
    all its users share, and never in a home that other machines see.

    Args:
        wait_s: Seconds to wait for the holder, who may be slow or stopped.
        unless: Asked some twenty times a second while waiting; True ends the waiting, because
            whoever holds the turn has found what the caller wants to know.

    Yields:
        True with the turn, False where `unless` ended the waiting.

    Raises:
        LockError: if the lock cannot be used, or the time is up.
    """
    with _taken(measuring_lock_path(), wait_s, unless, follow=False) as mine:
        yield mine


def measuring_lock_path() -> Path:
    """Name the file whose lock is this machine's turn to measure.

    /tmp and not TMPDIR, which batch systems set for each job: it would be a lock for each job.
    """
    named = os.environ.get(LOCK_FOLDER_VARIABLE)
    shared = "/tmp" if os.path.isdir("/tmp") else tempfile.gettempdir()
    return Path(named or shared) / MEASURING_LOCK


@contextmanager
def _taken(
    path: Path, timeout_s: float | None, unless: Callable[[], bool], *, follow: bool
) -> Iterator[bool]:
    if sys.platform == "win32":
        yield True
        return
    descriptor = _open(path, follow=follow)
    _held.add(descriptor)
    try:
        yield _wait(descriptor, path, timeout_s, unless)
    finally:
        if descriptor in _held:  # not so in a child forked meanwhile, where it is closed already
            _held.discard(descriptor)
            os.close(descriptor)  # closing releases: this is the lock's only descriptor


def _open(path: Path, *, follow: bool) -> int:
    """Open a lock file that may be somebody else's, or make it for everybody.

    Reading is all that flock needs, so another user's file will do. It is not opened with
    O_CREAT where it exists: in a sticky folder Linux refuses that for another user's file.
    In a folder that may be anybody's, links are not followed; a pipe is never waited for.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW)
    try:
        try:
            descriptor = os.open(path, flags)
        except FileNotFoundError:
            descriptor = os.open(path, flags | os.O_CREAT, 0o644)
            if os.fstat(descriptor).st_uid == os.geteuid():
                os.fchmod(descriptor, 0o644)  # a umask of 077 would lock the others out
    except OSError as error:
        raise _cannot("open", path, error) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise LockError(
            f"the lock {path} is not a file: remove it, "
            f"or name another folder with {LOCK_FOLDER_VARIABLE}"
        )
    return descriptor


def _wait(descriptor: int, path: Path, timeout_s: float | None, unless: Callable[[], bool]) -> bool:
    """Poll for the lock: flock itself knows no bound, and would not look around meanwhile."""
    if timeout_s is not None and math.isnan(timeout_s):
        raise LockError("the time to wait for a lock must be a number of seconds, received nan")
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError as error:
            if error.errno not in HELD_ELSEWHERE:
                raise _cannot("lock", path, error) from error
        if unless():
            return False
        if deadline is not None and time.monotonic() >= deadline:
            raise LockError(
                f"another process has held {path} for {timeout_s:g} s: "
                "wait for it, or look for one that hangs"
            )
        time.sleep(POLL_SECONDS)


def _cannot(deed: str, path: Path, error: OSError) -> LockError:
    return LockError(
        f"cannot {deed} the lock {path}: {error.strerror}; check its permissions, "
        f"or name another folder with {LOCK_FOLDER_VARIABLE}"
    )


def _leave_to_the_parent() -> None:
    """After a fork, let go of the parent's locks: a child would keep them past its death."""
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_the_parent)
