"""What is done to a database by hand: it does what it says, all of it, and nothing else."""

from __future__ import annotations

import errno
import filecmp
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tuner.store.counting import SUFFIX, note_lookup

from tests.support.facts import a_key
from tests.support.jobs import ROOT
from tests.support.stored import HERE, Shell, a_run, contents, everything_in, rows_of, store
from tests.test_bad_places import WITHOUT_PRIVILEGE
from tests.test_cli import tuner
from tests.test_many_processes import runs_in
from tuner import load_cache, store_cache
from tuner.environment import Environment
from tuner.errors import DatabaseError
from tuner.records import Answer
from tuner.store import backup, migrate
from tuner.store import maintenance as upkeep
from tuner.store.backup import back_up, check
from tuner.store.lookup import find_answer
from tuner.store.migrate import upgrade

GOLDEN = Path(__file__).parent / "golden" / "0001.db"
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


def choice_of(database: Path, key: str = KEY, here: Environment = HERE) -> int | None:
    """Look a key up that has an answer."""
    found = find_answer(database, key, 1024, here)
    assert isinstance(found, Answer), found
    return found.chunk_size


# --- vacuum ---------------------------------------------------------------------------------


def foreign(database: Path) -> None:
    rows_of(database, "CREATE TABLE invoices (total)")
    rows_of(database, "DROP TABLE IF EXISTS x")


def future(database: Path) -> None:
    upgrade(database)
    rows_of(database, "UPDATE alembic_version SET version_num = '9999'")


def damaged(database: Path) -> None:
    database.write_bytes(b"SQLite format 3\0" + bytes(range(256)) * 200)


UPKEEP = [
    ("pin", "k", "4", "--reason", "so"),
    ("unpin", "k"),
    ("verify",),
    ("db", "recompute"),
    ("db", "stats"),
    ("db", "policy"),
    ("db", "policy", "pool", "ignore"),
]


@pytest.mark.parametrize("spoil", [foreign, future, damaged])
@pytest.mark.parametrize("command", UPKEEP)
def test_what_is_not_ours_is_refused_in_one_line_and_never_touched(
    database: Path, shell: Shell, spoil: Callable[[Path], None], command: tuple[str, ...]
) -> None:
    spoil(database)
    (database.parent / f"{database.name}{SUFFIX}").write_text(f"2026-01-31 hit {KEY}\n")
    before = contents(database.parent)
    assert str(database) in shell.refused(*command, "--database", database)
    assert contents(database.parent) == before


@pytest.mark.parametrize("command", [*UPKEEP, ("db", "backup", "copy.db")])
def test_where_there_is_no_database_none_is_made(
    database: Path, shell: Shell, command: tuple[str, ...]
) -> None:
    assert "no tuning" in shell.refused(*command, "--database", database)
    assert contents(database.parent) == {}


@pytest.mark.parametrize("command", [c for c in UPKEEP if c[0] in ("pin", "db") and len(c) > 2]
                         + [("db", "recompute")])  # fmt: skip
def test_a_file_that_another_process_holds_stays_as_it_is(
    filled: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    from tuner.store import database as engine
    from tuner.store import sqlite

    def impatient(file: Path, seconds: float = 0.05) -> sqlite3.Connection:
        return sqlite.open_for_writing(file, min(seconds, 0.05))

    for room in (engine, upkeep):
        monkeypatch.setattr(room, "open_for_writing", impatient)
    holder = sqlite3.connect(filled, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    words = [KEY if word == "k" else word for word in command]
    before = filled.read_bytes()
    line = shell.refused(*words, "--database", filled)
    holder.execute("ROLLBACK")
    holder.close()
    assert "another process holds it; nothing was changed" in line
    assert filled.read_bytes() == before


# --- backup ---------------------------------------------------------------------------------

WRITING = """
import sys
from pathlib import Path
from tests.support.facts import a_key
from tests.support.stored import everything_in, a_run, store
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
            while number and rows_of(filled, "SELECT count(*) FROM run")[0][0] <= counts[-1]:
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


def unprivileged(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a command in a process for which permissions count."""
    if WITHOUT_PRIVILEGE and shutil.which("setpriv") is None:
        pytest.skip("as root, permissions can only be tested with setpriv (util-linux)")
    command = [*WITHOUT_PRIVILEGE, sys.executable, "-m", "tuner", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)


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


def refuse_second_names(monkeypatch: pytest.MonkeyPatch, *, renaming: bool) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)
    if not renaming:
        monkeypatch.setattr(backup, "_rename_without_replacing", lambda *_: False)


@pytest.mark.parametrize("renaming", [True, False])
def test_without_second_names_a_backup_overwrites_nothing_that_came_meanwhile(
    filled: Path, monkeypatch: pytest.MonkeyPatch, renaming: bool
) -> None:
    refuse_second_names(monkeypatch, renaming=renaming)
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
    damaged(database)
    line = shell.refused("db", "backup", database.with_name("c.db"), "--database", database)
    assert "tuner db check" in line
    assert os.listdir(database.parent) == [database.name]


# --- upgrades -------------------------------------------------------------------------------


def copies(database: Path) -> list[Path]:
    """List the copies that upgrades have made."""
    return sorted(database.parent.glob(f"{database.name}.schema-0001-*"))


def test_an_upgrade_keeps_a_copy_of_what_was_there(database: Path, shell: Shell) -> None:
    shutil.copyfile(GOLDEN, database)
    before = everything_in(database)
    told = shell("db", "upgrade", "--database", database)
    assert (told.code, told.out) == (0, f"{database}: schema 0001 -> 0002\n")
    [copy] = copies(database)
    assert everything_in(copy) == before
    assert check(database) == []
    assert shell("db", "upgrade", "--database", database).code == 0
    assert copies(database) == [copy]


def test_an_upgrade_that_fails_half_way_leaves_the_file_and_one_copy(
    database: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copyfile(GOLDEN, database)
    before = everything_in(database)
    real = migrate._run_alembic

    def fail(connection: Any) -> None:
        real(connection)  # it did all of it, and is not committed
        raise sqlite3.OperationalError("disk I/O error")

    with monkeypatch.context() as patch:
        patch.setattr(migrate, "_run_alembic", fail)
        for _ in range(3):  # each job that comes along tries it
            assert "I/O" in shell.refused("db", "upgrade", "--database", database)
            assert everything_in(database) == before
            [copy] = copies(database)
            assert everything_in(copy) == before
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


# --- statistics -----------------------------------------------------------------------------


def test_statistics_count_what_is_stored_and_what_was_looked_up(
    database: Path, shell: Shell
) -> None:
    runs = [a_run(1, pool_seconds=4.0), a_run(2, pool_seconds=6.0)]
    store(database, KEY, *runs, a_run(3, pool_seconds=100.0, trigger="verify"))
    store(database, OTHER, a_run(4, state="failed", samples=(), pool_seconds=None))
    store_cache(database, "stated", {"chunk_size": 4})
    store(database, "from elsewhere", a_run(5, pairs=0, origin="other.db", pool_seconds=0.0))
    for kind in ("hit", "hit", "pinned", "near", "miss", "resumed"):
        note_lookup(database, KEY, kind)
    note_lookup(database, KEY, "hit")
    note_lookup(database, OTHER, "hit")  # of which nobody knows what it saves
    before = contents(database.parent)
    stats = json.loads(shell("db", "stats", "--json", "--database", database).out)
    assert contents(database.parent) == before
    assert stats["lookups"] == {"hit": 4, "pinned": 1, "near": 1, "miss": 1, "resumed": 1}
    assert stats["hit_rate"] == 5 / 8
    assert stats["saved_seconds"] == 4 * 5.0
    assert stats["tuning_seconds"] == 110.0
    assert (stats["keys"], stats["runs"], stats["failed_runs"], stats["imported_runs"]) == (
        4, 6, 1, 2,
    )  # fmt: skip
    assert stats["samples"] == sum(len(run.samples) for run in runs) * 3 / 2 + 5
    assert stats["bytes"] == len(before[database.name])
    shown = shell("db", "stats", "--database", database).out
    assert "62.5 %" in shown
    assert "20.0 s" in shown
    assert "lookups: resumed     1\n" in shown


def test_statistics_of_nothing_divide_by_nothing(database: Path, shell: Shell) -> None:
    upgrade(database)
    shell("db", "stats", "--json", "--database", database)
    store(database, KEY, a_run(1, state="failed", samples=(), pool_seconds=None))
    stats = json.loads(shell("db", "stats", "--json", "--database", database).out)
    assert stats["hit_rate"] is None
    assert stats["bytes_per_sample"] is None
    assert stats["saved_seconds"] == 0
    assert "none yet" in shell("db", "stats", "--database", database).out


def test_the_commands_are_there_for_a_user_too(filled: Path) -> None:
    copy = filled.with_name("copy.db")
    assert tuner("db", "backup", str(copy), "--database", str(filled)).returncode == 0
    refused = tuner("db", "backup", str(copy), "--database", str(filled))
    assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (1, "", 1)


@pytest.mark.parametrize(
    "command",
    ["why", "verify", "pin", "unpin", "db backup",
     "db recompute", "db policy", "db stats"],
)  # fmt: skip
def test_each_of_these_commands_has_help_with_an_example(shell: Shell, command: str) -> None:
    told = shell(*command.split(), "--help")
    assert (told.code, told.err) == (0, "")
    assert f"Example:\n    tuner {command}" in told.out
