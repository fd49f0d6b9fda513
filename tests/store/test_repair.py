"""The repair moves a damaged file aside, imports what it can, and asks before."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.golden.make import FOLDER
from tests.support.damage import (
    DAMAGED,
    FOREIGN,
    facts_no_json,
    failures_no_list,
    fill,
    foreign_by_revision,
    foreign_by_table,
    foreign_views,
    from_the_future,
    half,
)
from tests.support.processes import tuner
from tests.support.stored import Shell, contents, rows_of
from tuner import load_cache, store_cache
from tuner.errors import DatabaseError, SchemaError
from tuner.store.maintenance import check, set_aside


@pytest.mark.parametrize("spoil", [*DAMAGED, facts_no_json, failures_no_list])
def test_a_repair_keeps_the_damaged_file_and_leaves_a_sound_one(
    database: Path, shell: Shell, spoil: Callable[[Path], None]
) -> None:
    spoil(database)
    content = database.read_bytes()
    told = shell("db", "repair", "--yes", "--database", database)
    lost = "nothing could be read" in told.out
    assert told.code == (3 if lost else 0), told
    assert lost is (load_cache(database) == {})
    [aside] = database.parent.glob(f"{database.name}.damaged-*")
    assert str(aside) in told.out
    assert aside.read_bytes() == content
    assert check(database) == []
    store_cache(database, "new", {"chunk_size": 2})
    assert load_cache(database)["new"] == {"chunk_size": 2}
    assert "sound" in shell("db", "repair", "--database", database).out
    assert len(list(database.parent.iterdir())) == 2


def test_without_yes_and_a_terminal_it_says_what_it_would_do(
    database: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    half(database)
    before = contents(database.parent)
    told = tuner("db", "repair", "--database", str(database))
    assert (told.returncode, told.stdout, told.stderr.count("\n")) == (1, "", 1)
    assert f"move {database} aside" in told.stderr
    assert "--yes" in told.stderr
    assert contents(database.parent) == before


def test_what_breaks_no_rule_is_kept(database: Path, shell: Shell) -> None:
    fill(database, keys=3)
    whole = load_cache(database)
    rows_of(database, "DROP VIEW run_history")
    assert shell("db", "repair", "--yes", "--database", database).code == 0
    assert load_cache(database) == whole
    assert check(database) == []


def test_an_older_schema_is_not_repaired(database: Path) -> None:
    shutil.copy(FOLDER / "0001.db", database)
    before = contents(database.parent)
    with pytest.raises(SchemaError, match="tuner db upgrade"):
        set_aside(database)
    assert contents(database.parent) == before


@pytest.mark.parametrize("spoil", FOREIGN)
def test_neither_repair_nor_upgrade_touches_what_is_not_this_versions(
    database: Path, spoil: Callable[[Path], None]
) -> None:
    spoil(database)
    content = database.read_bytes()
    for command in (("db", "repair", "--yes"), ("db", "upgrade"), ("list",), ("show", "k1")):
        told = tuner(*command, "--database", str(database))
        assert told.returncode == 1, command
        assert told.stderr.count("\n") == 1
        assert str(database) in told.stderr
    with pytest.raises(SchemaError if spoil is from_the_future else DatabaseError):
        store_cache(database, "new", {"chunk_size": 2})
    assert database.read_bytes() == content
    assert list(database.parent.iterdir()) == [database]


@pytest.mark.parametrize("spoil", [foreign_by_revision, foreign_by_table, foreign_views])
def test_a_database_that_only_looks_like_ours_is_never_touched(
    database: Path, spoil: Callable[[Path], None]
) -> None:
    spoil(database)
    content = database.read_bytes()
    for deed in (check, set_aside, load_cache):
        with pytest.raises(DatabaseError, match="something else"):
            deed(database)
    with pytest.raises(DatabaseError, match="something else"):
        store_cache(database, "new", {"chunk_size": 2})
    assert database.read_bytes() == content
    assert list(database.parent.iterdir()) == [database]


@pytest.mark.parametrize("begin", ["BEGIN EXCLUSIVE", "BEGIN IMMEDIATE"])
def test_a_database_that_is_only_locked_is_not_repaired(
    database: Path, monkeypatch: pytest.MonkeyPatch, begin: str
) -> None:
    monkeypatch.setattr("tuner.store.sqlite.READ_BUSY_SECONDS", 0.1)
    monkeypatch.setattr("tuner.store.maintenance.open_for_writing", lambda file: _impatient(file))
    fill(database, keys=2)
    rows_of(database, "DROP VIEW run_history")
    holder = sqlite3.connect(database, isolation_level=None)
    holder.execute(begin)
    with pytest.raises(DatabaseError, match="another process"):
        set_aside(database)
    holder.execute("ROLLBACK")
    holder.close()
    assert len(load_cache(database)) == 2
    assert list(database.parent.iterdir()) == [database]


def _impatient(file: Path) -> sqlite3.Connection:
    return sqlite3.connect(file, timeout=0.1, isolation_level=None)


def test_a_repair_that_fails_leaves_everything_where_it_was(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(database, keys=2)
    writer = sqlite3.connect(database, isolation_level=None)
    writer.execute("PRAGMA journal_mode = WAL")
    writer.execute("DROP VIEW run_history")
    writer.execute("UPDATE verdict SET chunk_size = 7")
    before = sorted(file.name for file in database.parent.iterdir())
    real = os.rename

    def refuse(self: Path, target: Path) -> None:
        if self == database:
            raise PermissionError(1, "Operation not permitted", str(self))
        real(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", refuse)
        with pytest.raises(DatabaseError, match="it is unchanged"):
            set_aside(database)
    assert sorted(file.name for file in database.parent.iterdir()) == before
    assert {value["chunk_size"] for value in load_cache(database).values()} == {7}
    writer.close()


def test_repair_follows_a_link_and_keeps_the_mode(
    database: Path, tmp_path: Path, shell: Shell
) -> None:
    fill(database, keys=2)
    rows_of(database, "DROP VIEW run_history")
    database.chmod(0o640)
    link = tmp_path / "elsewhere" / "link.db"
    link.parent.mkdir()
    link.symlink_to(database)
    assert shell("db", "repair", "--yes", "--database", link).code == 0
    assert link.is_symlink()
    [moved] = database.parent.glob("tuning.db.damaged-*")
    assert database.stat().st_mode & 0o777 == 0o640
    assert check(database) == []
    assert len(load_cache(link)) == 2
    assert sorted(database.parent.glob("tuning.db*")) == sorted([database, moved])
