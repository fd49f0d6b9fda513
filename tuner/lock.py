"""Locks between processes that the operating system releases when their holder dies.

Without `fcntl` (on Windows) nothing is locked and the caller goes on. The database file itself
is never locked: closing a second descriptor of it would release SQLite's own locks.
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
"""Descriptors of the locks that this process holds or waits for; a forked child closes them."""


@contextmanager
def file_lock(
    lock_path: str | os.PathLike[str], *, timeout_s: float | None = None
) -> Iterator[None]:
    """Hold a lock that one thread of one process at a time can hold.

    The file is not removed at the end, because that would let two holders in.

    Args:
        lock_path: The file to lock; created, with its folder, if it is missing.
        timeout_s: Seconds to wait for another holder; None waits without limit.

    Raises:
        LockError: if the file cannot be opened or locked, or the wait times out.
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
    """Wait until no other process on this machine measures, then hold its measuring lock.

    Processes that time their pools at the same moment disturb each other, whatever their keys,
    databases and users. So the lock is in a folder that all users of the machine share, and
    never in a home that other machines see.

    Args:
        wait_s: Seconds to wait for the holder.
        unless: Called while waiting, every POLL_SECONDS; True ends the wait, because the holder
            has found the answer.

    Yields:
        True with the lock, False if `unless` ended the wait.

    Raises:
        LockError: if the lock cannot be used, or the wait times out.
    """
    with _taken(measuring_lock_path(), wait_s, unless, follow=False) as mine:
        yield mine


def measuring_lock_path() -> Path:
    """Return the path of this machine's measuring lock.

    /tmp and not TMPDIR, which batch systems set for each job.
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
        if descriptor in _held:  # a child forked meanwhile has closed it already
            _held.discard(descriptor)
            os.close(descriptor)  # this releases the lock


def _open(path: Path, *, follow: bool) -> int:
    """Open a lock file, which may be another user's, or create it for all users.

    flock needs a descriptor for reading only. An existing file is opened without O_CREAT: in a
    sticky folder Linux refuses that for another user's file. In a shared folder links are not
    followed. O_NONBLOCK keeps a pipe from blocking.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW)
    try:
        try:
            descriptor = os.open(path, flags)
        except FileNotFoundError:
            descriptor = os.open(path, flags | os.O_CREAT, 0o644)
            if os.fstat(descriptor).st_uid == os.geteuid():
                os.fchmod(descriptor, 0o644)  # a umask of 077 would exclude other users
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
    """Poll for the lock, because flock has no timeout."""
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
                "wait for it, or stop it if it hangs"
            )
        time.sleep(POLL_SECONDS)


def _cannot(deed: str, path: Path, error: OSError) -> LockError:
    return LockError(
        f"cannot {deed} the lock {path}: {error.strerror}; check its permissions, "
        f"or name another folder with {LOCK_FOLDER_VARIABLE}"
    )


def _leave_to_the_parent() -> None:
    """Close the parent's locks in a forked child, which would hold them after the parent ends."""
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_the_parent)
