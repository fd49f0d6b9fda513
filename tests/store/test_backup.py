"""A backup is one moment of the database, whole or not there, and overwrites nothing."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.damage import half
from tests.support.facts import a_key
from tests.support.jobs import ROOT
from tests.support.processes import runs_in, tuner, unprivileged
from tests.support.stored import Shell, a_run, contents, rows_of, store
from tuner import load_cache
from tuner.errors import DatabaseError
from tuner.store import database as backup
from tuner.store.database import back_up
from tuner.store.maintenance import check

KEY = a_key()
OTHER = a_key(num_envs=2048)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a database of two keys with a choice, one model and one device, to be copied."""
    file = tmp_path_factory.mktemp("template") / "filled.db"
    store(file, KEY, a_run(1), a_run(2))
    store(file, OTHER, a_run(3))
    return file


@pytest.fixture
def filled(database: Path, template: Path) -> Path:
    """Name a database of two keys with a choice."""
    shutil.copyfile(template, database)
    return database


WRITING = """
import sys
from pathlib import Path
from tests.support.facts import a_key
from tests.support.stored import a_run, store
number = int(sys.argv[2])
print("writing", flush=True)
while True:
    store(Path(sys.argv[1]), a_key(num_envs=64 + number), a_run(number, pairs=60))
    number += 2
"""


def test_a_backup_among_writers_is_one_moment_of_the_database(filled: Path) -> None:
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITING, str(filled), str(number)],
            cwd=ROOT, stdout=subprocess.PIPE, text=True,
        )
        for number in (100, 101)
    ]  # fmt: skip
    try:
        for writer in writers:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "writing\n"
        counts: list[int] = []
        for number in range(6):
            while number and len(runs_in(filled)) <= counts[-1]:
                time.sleep(0.01)
            copy = filled.with_name(f"copy-{number}.db")
            back_up(filled, copy)
            assert check(copy) == []
            counts.append(len(runs_in(copy)))
            verdicts_of_copy = rows_of(copy, "SELECT sum(runs) FROM verdict")
            assert verdicts_of_copy == [(counts[-1],)]
    finally:
        for writer in writers:
            writer.kill()
            writer.communicate()
    assert counts == sorted(counts)
    assert counts[-1] > counts[0]
    assert check(filled) == []


@pytest.mark.parametrize("there", ["file", "folder", "link", "dangling link", "itself"])
def test_a_backup_overwrites_nothing(filled: Path, shell: Shell, there: str) -> None:
    copy = filled.with_name("copy.db")
    match there:
        case "file":
            copy.write_text("dear")
        case "folder":
            copy.mkdir()
        case "link":
            copy.symlink_to(filled)
        case "dangling link":
            copy.symlink_to("nowhere")
        case "itself":
            copy = filled
    before, names = contents(filled.parent), sorted(os.listdir(filled.parent))
    line = shell.refused("db", "backup", copy, "--database", filled)
    assert f"{copy} is there already" in line
    assert contents(filled.parent) == before
    assert sorted(os.listdir(filled.parent)) == names


@pytest.mark.parametrize("copy", ["", "/", "missing/copy.db", "x" * 300, "tuning.db/copy.db"])
def test_a_backup_that_cannot_be_written_is_one_clear_line(
    filled: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch, copy: str
) -> None:
    monkeypatch.chdir(filled.parent)
    before = contents(filled.parent)
    line = shell.refused("db", "backup", copy, "--database", filled)
    assert (copy or "copy to") in line
    assert "doctor" not in line  # the database is well
    assert contents(filled.parent) == before


def test_a_backup_into_a_folder_that_may_not_be_written_is_one_clear_line(
    filled: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "locked"
    folder.mkdir(mode=0o555)
    told = unprivileged("db", "backup", folder / "c.db", "--database", filled)
    assert (told.returncode, told.stdout, told.stderr.count("\n")) == (1, "", 1)
    assert f"cannot write {folder / 'c.db'}: Permission denied" in told.stderr
    assert list(folder.iterdir()) == []


class Full(sqlite3.Connection):
    """A connection that fails as on a full disk, the copy half written."""

    def execute(self, statement: str, *parameters: Any) -> sqlite3.Cursor:
        if statement.startswith("VACUUM"):
            [[uri]] = parameters
            Path(uri.removeprefix("file:")).write_bytes(b"half")
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorname = "SQLITE_FULL"
            raise error
        return super().execute(statement, *parameters)


def test_a_full_disk_leaves_no_part_of_a_backup(
    filled: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = contents(filled.parent)
    full = sqlite3.connect(filled, factory=Full)
    with monkeypatch.context() as patch:
        patch.setattr(backup, "open_for_reading", lambda _: full)
        line = shell.refused("db", "backup", filled.with_name("c.db"), "--database", filled)
    assert "disk is full" in line
    assert "c.db" in line
    assert "the database is as it was" in line

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for deed in ("fsync", "chmod"):
        with monkeypatch.context() as patch:
            patch.setattr(os, deed, fail)
            line = shell.refused("db", "backup", filled.with_name("c.db"), "--database", filled)
        assert "No space left" in line
    assert contents(filled.parent) == before


def test_a_file_system_without_second_names_and_modes_does_for_a_backup(
    filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)
    monkeypatch.setattr(os, "chmod", refuse)
    copy = filled.with_name("copy.db")
    back_up(filled, copy)
    assert load_cache(copy) == load_cache(filled)
    with pytest.raises(DatabaseError, match="there already"):
        back_up(filled, copy)
    assert sorted(os.listdir(filled.parent)) == ["copy.db", filled.name]


def test_without_second_names_a_backup_overwrites_nothing_that_came_meanwhile(
    filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)
    copy = filled.with_name("copy.db")
    synchronise = backup._synchronise

    def come_meanwhile(path: Path) -> None:
        synchronise(path)
        copy.write_text("somebody else's")

    with monkeypatch.context() as patch:
        patch.setattr(backup, "_synchronise", come_meanwhile)
        with pytest.raises(DatabaseError, match="there already"):
            back_up(filled, copy)
    assert copy.read_text() == "somebody else's"
    copy.unlink()
    back_up(filled, copy)
    assert load_cache(copy) == load_cache(filled)
    assert sorted(os.listdir(filled.parent)) == ["copy.db", filled.name]


def test_a_name_as_long_as_names_may_be_does_for_a_backup(filled: Path) -> None:
    for name in ("x" * 255, "\u6570" * 85):
        back_up(filled, filled.with_name(name))
        assert check(filled.with_name(name)) == []


@pytest.mark.parametrize(
    "name", ["file:copy.db?mode=memory", ":memory:", "a b%3f?#.db", os.fsdecode(b"\xff\xc3\xa9")]
)
def test_any_name_does_for_a_backup(
    filled: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(filled.parent)
    filled.chmod(0o600)
    assert shell("db", "backup", name, "--database", filled).code == 0
    assert check(filled.parent / name) == []
    assert sorted(os.listdir()) == sorted([name, filled.name])
    assert os.stat(name).st_mode & 0o777 == 0o600


def test_two_backups_to_one_name_at_once_and_one_of_them_is_there(filled: Path) -> None:
    told: list[str] = []

    def run() -> None:
        try:
            back_up(filled, filled.with_name("c.db"))
            told.append("done")
        except DatabaseError as error:
            told.append(str(error))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert told.count("done") == 1
    assert sum("there already" in line for line in told) == 3
    assert sorted(os.listdir(filled.parent)) == ["c.db", filled.name]


def test_a_damaged_database_is_not_backed_up(database: Path, shell: Shell) -> None:
    half(database)
    line = shell.refused("db", "backup", database.with_name("c.db"), "--database", database)
    assert "tuner db check" in line
    assert os.listdir(database.parent) == [database.name]


def test_the_command_is_there_for_a_user_too(filled: Path) -> None:
    copy = filled.with_name("copy.db")
    assert tuner("db", "backup", str(copy), "--database", str(filled)).returncode == 0
    refused = tuner("db", "backup", str(copy), "--database", str(filled))
    assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (1, "", 1)
