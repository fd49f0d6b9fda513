"""Folders and files that cannot be used: reading still works where it can, else the default."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.facts import SleepingPool
from tests.support.jobs import ROOT, finish, start_job
from tests.support.processes import WITHOUT_PRIVILEGE
from tests.support.resolving import NTHREAD, NUM_ENVS, its_key, resolve
from tuner import load_cache, store_cache
from tuner.lock import measuring_lock_path

VALUE = {"chunk_size": 4}

JOB = """
import sys
from pathlib import Path
from tests.support.facts import SleepingPool
from tests.support.resolving import *
pool = SleepingPool(NUM_ENVS, NTHREAD)
print(resolve(pool, Path(sys.argv[1])), len(pool.chunks))
"""


@pytest.fixture(autouse=True)
def _permissions_count() -> None:
    if WITHOUT_PRIVILEGE and shutil.which("setpriv") is None:
        pytest.skip("as root, permissions can only be tested with setpriv (util-linux)")


def run_job(database: Path) -> tuple[str, str]:
    """Ask in a process for which permissions count; its answer with its steps, and its line."""
    done = subprocess.run(
        [*WITHOUT_PRIVILEGE, sys.executable, "-c", JOB, str(database)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    return done.stdout.strip(), done.stderr


@pytest.mark.parametrize("folder_mode", [0o555, 0o755])
@pytest.mark.parametrize("file_mode", [0o444, 0o644])
def test_a_stored_answer_is_read_whatever_may_be_written(
    tmp_path: Path, folder_mode: int, file_mode: int
) -> None:
    database = tmp_path / "folder" / "tuning.db"
    store_cache(database, its_key(), VALUE)
    content = database.read_bytes()
    database.chmod(file_mode)
    database.parent.chmod(folder_mode)
    answer, line = run_job(database)
    database.parent.chmod(0o755)
    assert answer == "4 0"
    assert "hit: " in line
    assert database.read_bytes() == content
    assert list(database.parent.iterdir()) == [database]


@pytest.mark.parametrize(
    ("folder_mode", "file_mode"), [(0o555, None), (0o000, None), (0o755, 0o000), (0o555, 0o444)]
)
def test_without_an_answer_a_place_that_cannot_be_written_is_the_default_and_one_line(
    tmp_path: Path, folder_mode: int, file_mode: int | None
) -> None:
    database = tmp_path / "folder" / "tuning.db"
    database.parent.mkdir()
    if file_mode is not None:
        store_cache(database, "another key", VALUE)
        database.chmod(file_mode)
    database.parent.chmod(folder_mode)
    answer, line = run_job(database)
    database.parent.chmod(0o755)
    assert answer == "None 0"
    assert line.count("\n") == 1
    assert str(database.parent) in line


@pytest.mark.parametrize(
    "name",
    [
        "a folder with spaces/tuning.db",
        "50%/%20?mode=memory#x.db",
        "größer/Ωμέγα/数据.db",
        "quote'and\"double.db",
        "x" * 200 + ".db",
        "/".join(["deep"] * 60) + "/tuning.db",
    ],
)
def test_an_odd_name_is_a_name(tmp_path: Path, name: str) -> None:
    database = tmp_path / name
    store_cache(database, its_key(), VALUE)
    assert resolve(SleepingPool(NUM_ENVS, NTHREAD), database) == 4
    assert load_cache(database)[its_key()] == VALUE


@pytest.mark.parametrize("name", ["x" * 300, "y" * 5000, "nul\0byte", "folder"])
def test_an_impossible_name_is_the_default_and_one_line(
    tmp_path: Path, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "folder").mkdir()
    pool = SleepingPool(NUM_ENVS, NTHREAD)
    assert resolve(pool, tmp_path / name) is None
    assert pool.chunks == []


@pytest.mark.parametrize("home", [None, "/", "/nowhere/at/all", ""])
def test_a_job_without_a_usable_home_lives(home: str | None, tmp_path: Path) -> None:
    program = "import tuner; print(tuner.cache_path())"
    environment = dict(os.environ)
    environment.pop("XDG_DATA_HOME", None)
    environment.pop("HOME", None)
    if home is not None:
        environment["HOME"] = home
    done = subprocess.run(
        [*WITHOUT_PRIVILEGE, sys.executable, "-c", program],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment,
        check=True,
    )
    assert done.stdout.strip().endswith("tuning.db")


def test_a_lock_of_another_user_is_no_obstacle(database: Path) -> None:
    lock = measuring_lock_path()
    lock.touch()
    lock.chmod(0o444)
    if os.geteuid() == 0:
        os.chown(lock, 65534, 65534)
    assert finish(start_job(database))["steps"] > 0
    lock.unlink()


def test_a_lock_made_under_a_narrow_umask_can_be_used_by_all(database: Path) -> None:
    measuring_lock_path().unlink(missing_ok=True)
    before = os.umask(0o077)
    try:
        assert finish(start_job(database))["steps"] > 0
    finally:
        os.umask(before)
    assert measuring_lock_path().stat().st_mode & 0o777 == 0o644


def test_a_lock_call_that_fails_is_the_default_and_one_line(
    database: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    import errno
    import fcntl

    def flock(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    pool = SleepingPool(NUM_ENVS, NTHREAD)
    assert resolve(pool, database) is None
    assert pool.chunks == []
    store_cache(database, its_key(), VALUE)
    assert resolve(pool, database) == 4


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small file system")
def test_a_full_disk_is_the_default_and_one_line(tmp_path: Path) -> None:
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("this machine does not let root mount")
    try:
        answer, line = run_job(tmp_path / "tuning.db")
        assert answer == "None 0"
        assert line.count("\n") == 1
        assert "full" in line
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
