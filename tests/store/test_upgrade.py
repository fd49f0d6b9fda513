"""An upgrade keeps a copy of what was there, and a failed one leaves the file as it was."""

from __future__ import annotations

import errno
import filecmp
import os
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tests.golden.make import FOLDER
from tests.support.processes import unprivileged
from tests.support.stored import Shell, rows_of
from tuner.store import migrate
from tuner.store.maintenance import check

GOLDEN = FOLDER / "0001.db"


def everything(database: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Read all rows of all tables."""
    tables = rows_of(database, "SELECT name FROM sqlite_master WHERE type = 'table'")
    return {name: rows_of(database, f"SELECT * FROM {name}") for (name,) in tables}


def copies(database: Path) -> list[Path]:
    """List the copies that upgrades have made."""
    return sorted(database.parent.glob(f"{database.name}.schema-0001-*"))


def test_an_upgrade_keeps_a_copy_of_what_was_there(database: Path, shell: Shell) -> None:
    shutil.copyfile(GOLDEN, database)
    before = everything(database)
    told = shell("db", "upgrade", "--database", database)
    assert (told.code, told.out) == (0, f"{database}: schema 0001 -> 0002\n")
    [copy] = copies(database)
    assert everything(copy) == before
    assert check(database) == []
    assert shell("db", "upgrade", "--database", database).code == 0
    assert copies(database) == [copy]


def test_an_upgrade_that_fails_half_way_leaves_the_file_and_one_copy(
    database: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copyfile(GOLDEN, database)
    before = everything(database)
    real = migrate._run_alembic

    def fail(connection: Any) -> None:
        real(connection)  # it did all of it, and is not committed
        raise sqlite3.OperationalError("disk I/O error")

    with monkeypatch.context() as patch:
        patch.setattr(migrate, "_run_alembic", fail)
        for _ in range(3):  # each job that comes along tries it
            assert "I/O" in shell.refused("db", "upgrade", "--database", database)
            assert everything(database) == before
            [copy] = copies(database)
            assert everything(copy) == before
    assert shell("db", "upgrade", "--database", database).code == 0
    assert copies(database) == [copy]
    assert sorted(os.listdir(database.parent)) == sorted([copy.name, database.name])


def test_without_room_for_the_copy_nothing_is_upgraded(
    database: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copyfile(GOLDEN, database)

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        assert "No space" in shell.refused("db", "upgrade", "--database", database)
    assert filecmp.cmp(GOLDEN, database, shallow=False)
    assert os.listdir(database.parent) == [database.name]


def test_a_file_that_may_only_be_read_is_not_copied_by_each_job(database: Path) -> None:
    shutil.copyfile(GOLDEN, database)
    database.chmod(0o444)
    told = unprivileged("db", "upgrade", "--database", database)
    assert (told.returncode, told.stderr.count("\n")) == (1, 1)
    assert "readonly" in told.stderr
    assert os.listdir(database.parent) == [database.name]
