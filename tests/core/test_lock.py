"""Locks between processes: exclusive, released by death, bounded where a bound is given."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tuner import file_lock
from tuner.errors import LockError

HOLDER = """
import sys, time
from tuner import file_lock
with file_lock(sys.argv[1]):
    print("held", flush=True)
    time.sleep(600)
"""


def start_holder(lock: Path) -> subprocess.Popen[str]:
    """Start a process that holds the lock until it is killed."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(lock)], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    return holder


def end(process: subprocess.Popen[str]) -> None:
    """Kill a process of ours and close what connects us."""
    process.kill()
    process.communicate()


def test_a_lock_can_be_taken_again(tmp_path: Path) -> None:
    for _ in range(3):
        with file_lock(tmp_path / "lock"):
            pass


def test_a_lock_is_released_by_an_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), file_lock(tmp_path / "lock"):
        raise RuntimeError
    with file_lock(tmp_path / "lock", timeout_s=0):
        pass


def test_another_process_waits_in_vain_while_the_lock_is_held(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    holder = start_holder(lock)
    try:
        with pytest.raises(LockError, match="another process"), file_lock(lock, timeout_s=0.2):
            pass
    finally:
        end(holder)


def test_a_killed_holder_leaves_the_lock_free(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    holder = start_holder(lock)
    os.kill(holder.pid, signal.SIGKILL)
    with file_lock(lock):
        pass
    end(holder)


def test_a_lock_in_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    with file_lock(tmp_path / "new" / "lock"):
        assert (tmp_path / "new" / "lock").exists()


def test_a_lock_by_a_link_is_the_lock_it_points_to(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "lock")
    with (
        file_lock(tmp_path / "link"),
        pytest.raises(LockError),
        file_lock(tmp_path / "lock", timeout_s=0),
    ):
        pass


def test_a_lock_that_cannot_be_opened_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LockError, match="TUNER_LOCK_FOLDER"), file_lock(tmp_path / "file" / "lock"):
        pass
