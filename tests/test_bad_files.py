"""Whatever lies where the database should be: one clear line, the default, and nothing lost."""

from __future__ import annotations

import os
import random
import re
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.facts import SleepingPool, a_key
from tests.test_cli import tuner
from tests.test_resolve import NTHREAD, NUM_ENVS, _no_logging, its_key, resolve
from tuner import load_cache, store_cache
from tuner.errors import DatabaseError, SchemaError
from tuner.store.lookup import find_answer
from tuner.store.maintenance import check, repair
from tuner.store.migrate import upgrade
from tuner.store.runs import pin, recompute, unpin


def fill(database: Path, keys: int = 40) -> None:
    """Make a database of several pages."""
    for number in range(keys):
        store_cache(
            database,
            a_key(num_envs=1024 + number),
            {"chunk_size": 4, "per_candidate_ms": {str(n): 1.0 + n for n in range(1, 60)}},
        )


def random_bytes(database: Path) -> None:
    database.write_bytes(random.Random(7).randbytes(20_000))


def text(database: Path) -> None:
    database.write_text('{"k1_0": {"chunk_size": 3}}\n' * 50)


def half(database: Path) -> None:
    fill(database)
    os.truncate(database, database.stat().st_size // 2)


def scribbled(database: Path) -> None:
    fill(database)
    content = bytearray(database.read_bytes())
    for page in range(3, len(content) // 4096, 2):
        content[page * 4096 : page * 4096 + 2000] = random.Random(page).randbytes(2000)
    database.write_bytes(content)


def header_only(database: Path) -> None:
    fill(database, keys=1)
    os.truncate(database, 100)


def table_missing(database: Path) -> None:
    fill(database, keys=2)
    _execute(database, "DROP TABLE verdict")


def column_missing(database: Path) -> None:
    fill(database, keys=2)
    _execute(database, "ALTER TABLE verdict DROP COLUMN per_candidate_ms")


def facts_no_json(database: Path) -> None:
    fill(database, keys=2)
    _execute(database, "UPDATE run SET other_facts = '{\"a\"' WHERE run_id = 1")


def failures_no_list(database: Path) -> None:
    fill(database, keys=2)
    _execute(database, "UPDATE run SET failed_chunk_sizes = '[\"many\"]'")


def something_else(database: Path) -> None:
    _execute(database, "CREATE TABLE invoices (total)", "INSERT INTO invoices VALUES (7)")


def from_the_future(database: Path) -> None:
    fill(database, keys=2)
    _execute(database, "UPDATE alembic_version SET version_num = '9999'")


def _execute(database: Path, *statements: str) -> None:
    connection = sqlite3.connect(database)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


DAMAGED = [random_bytes, text, half, scribbled, header_only, table_missing, column_missing]
FOREIGN = [something_else, from_the_future]


@pytest.mark.parametrize("spoil", [*DAMAGED, *FOREIGN])
def test_a_job_gets_the_default_and_one_line_and_the_file_stays(
    database: Path, capfd: pytest.CaptureFixture[str], spoil: Callable[[Path], None]
) -> None:
    spoil(database)
    content = database.read_bytes()
    pool = SleepingPool(NUM_ENVS, NTHREAD)
    with _no_logging():
        answer = resolve(pool, database)
    line = capfd.readouterr().err
    assert answer is None
    assert pool.chunks == []
    assert line.count("\n") == 1
    assert str(database) in line
    assert any(help_ in line for help_ in ("`tuner db ", "TUNER_DATABASE", "upgrade tuner"))
    assert database.read_bytes() == content


def test_an_empty_file_is_filled(database: Path) -> None:
    database.touch()
    assert load_cache(database) == {}
    pool = SleepingPool(NUM_ENVS, NTHREAD)
    answer = resolve(pool, database)
    assert load_cache(database)[its_key()]["chunk_size"] == answer


@pytest.mark.parametrize("spoil", [*DAMAGED, facts_no_json, failures_no_list])
def test_check_finds_the_damage_and_repair_keeps_both_the_file_and_what_it_gives(
    database: Path, spoil: Callable[[Path], None]
) -> None:
    spoil(database)
    content = database.read_bytes()
    checked = tuner("db", "check", "--database", str(database))
    assert checked.returncode == 3
    assert "tuner db repair" in checked.stdout
    assert database.read_bytes() == content

    repaired = tuner("db", "repair", "--database", str(database))
    lost = "nothing of it could be read" in repaired.stdout
    assert repaired.returncode == (3 if lost else 0), repaired.stderr
    assert lost is not bool(re.search(r": [1-9]\d* rows? kept", repaired.stdout))
    [aside] = database.parent.glob(f"{database.name}.damaged-*")
    assert str(aside) in repaired.stdout
    assert tuner("db", "recompute", "--database", str(database)).returncode == 0
    assert aside.read_bytes() == content
    assert check(database) == []
    store_cache(database, "new", {"chunk_size": 2})
    assert load_cache(database)["new"] == {"chunk_size": 2}
    again = tuner("db", "repair", "--database", str(database))
    assert "sound" in again.stdout
    assert len(list(database.parent.iterdir())) == 2


def test_a_pin_that_no_pool_could_take_is_found_and_can_be_taken_back(database: Path) -> None:
    key = a_key(num_envs=64)

    def by_repair() -> None:
        assert repair(database) is not None

    for take_back in (lambda: unpin(database, key), by_repair):
        store_cache(database, key, {"chunk_size": 4})
        pin(database, key, 8, "somebody knows better")
        _execute(database, "UPDATE pin SET chunk_size = 65")
        [finding] = check(database)
        assert "65" in finding.what
        assert "num_envs 64" in finding.what
        assert f"tuner unpin {key}" in finding.next_step
        take_back()
        assert check(database) == []
        assert load_cache(database)[key]["chunk_size"] == 4


@pytest.mark.parametrize("table", ["sample", "verdict"])
def test_what_no_pool_could_take_is_found_and_repair_leaves_it_out(
    database: Path, table: str
) -> None:
    key = a_key(num_envs=64)
    store_cache(database, a_key(num_envs=65), {"chunk_size": 65, "per_candidate_ms": {"65": 1.0}})
    store_cache(database, key, {"chunk_size": 4, "per_candidate_ms": {"None": 9.0, "4": 8.0}})
    _execute(database, f"UPDATE {table} SET chunk_size = 65 WHERE chunk_size = 4")
    [finding] = check(database)
    assert "65, with num_envs 64" in finding.what
    done = repair(database)
    assert done is not None
    assert done.refused[table] == 1
    assert check(database) == []
    recompute(database)
    assert check(database) == []
    assert load_cache(database)[a_key(num_envs=65)]["chunk_size"] == 65


def test_repair_keeps_what_lies_around_the_damage(database: Path) -> None:
    fill(database)
    whole = load_cache(database)
    content = bytearray(database.read_bytes())
    # A leaf of SQLite's trees, with rows in it: without its root a table is lost as a whole.
    leaves = [k for k in range(1, len(content) // 4096) if content[k * 4096] in (0x0A, 0x0D)]
    page = leaves[len(leaves) // 2]
    content[page * 4096 : (page + 1) * 4096] = bytes(4096)
    database.write_bytes(content)
    assert check(database)
    done = repair(database)
    assert done is not None
    kept = load_cache(database)
    assert 0 < done.kept["sample"] <= 40 * 59
    assert kept.items() <= whole.items()
    assert len(kept) >= 10
    assert check(database) == []


def test_repair_keeps_everything_that_breaks_no_rule(database: Path) -> None:
    fill(database, keys=3)
    whole = load_cache(database)
    connection = sqlite3.connect(database)
    connection.execute("PRAGMA ignore_check_constraints = ON")
    connection.execute("UPDATE sample SET nanoseconds = -5 WHERE run_id = 2 AND sample_order = 0")
    connection.commit()
    connection.close()
    assert check(database)
    done = repair(database)
    assert done is not None
    assert done.refused["sample"] == 1
    assert load_cache(database) == whole
    connection = sqlite3.connect(database)
    states = connection.execute("SELECT state, samples FROM run ORDER BY run_id").fetchall()
    connection.close()
    assert states == [("imported", 59), ("cut short", 58), ("imported", 59)]


@pytest.mark.parametrize("spoil", FOREIGN)
def test_neither_repair_nor_upgrade_touches_what_is_not_this_versions(
    database: Path, spoil: Callable[[Path], None]
) -> None:
    spoil(database)
    content = database.read_bytes()
    for command in (("db", "repair"), ("db", "upgrade"), ("list",), ("show", "k1")):
        told = tuner(*command, "--database", str(database))
        assert told.returncode == 1, command
        assert told.stderr.count("\n") == 1
        assert str(database) in told.stderr
    with pytest.raises(SchemaError if spoil is from_the_future else DatabaseError):
        store_cache(database, "new", {"chunk_size": 2})
    assert database.read_bytes() == content
    assert list(database.parent.iterdir()) == [database]


ROWS = [
    ("chunk_size", 0),
    ("chunk_size", -1),
    ("chunk_size", NUM_ENVS + 1),
    ("chunk_size", 2**62),
    ("decided", 7),
    ("decided", 0),  # without a reason
    ("gain", float("inf")),
    ("gain_low", float("-inf")),
]


@pytest.mark.parametrize(("column", "value"), ROWS)
def test_a_row_that_cannot_be_is_not_an_answer(
    database: Path, capfd: pytest.CaptureFixture[str], column: str, value: object
) -> None:
    store_cache(database, its_key(), {"chunk_size": 4})
    connection = sqlite3.connect(database)
    connection.execute("PRAGMA ignore_check_constraints = ON")
    connection.execute(f"UPDATE verdict SET {column} = ?", (value,))
    connection.commit()
    connection.close()
    pool = SleepingPool(NUM_ENVS, NTHREAD)
    with _no_logging():
        answer = resolve(pool, database)
    assert answer is None or 1 <= answer <= NUM_ENVS
    assert len(pool.chunks) > 4
    line = capfd.readouterr().err
    assert line.count("\n") == 1
    assert "measured because the stored " in line


@pytest.mark.parametrize(
    "timings",
    [
        "",
        "null",
        "[]",
        "{",
        '{"4": "fast"}',
        '{"4": 1e999}',
        '{"x": 1}',
        "[" * 100_000,
        "x" * 10**6,
    ],
)
def test_absurd_texts_in_a_row_do_no_harm(database: Path, timings: str) -> None:
    store_cache(database, its_key(), {"chunk_size": 4, "per_candidate_ms": {"4": 1.0}})
    _execute(database, "UPDATE run SET other_facts = '[[['")
    connection = sqlite3.connect(database)
    connection.execute("UPDATE verdict SET per_candidate_ms = ?", (timings,))
    connection.commit()
    connection.close()
    assert resolve(SleepingPool(NUM_ENVS, NTHREAD), database) == 4
    assert load_cache(database)[its_key()]["chunk_size"] == 4


def foreign_by_revision(database: Path) -> None:
    _execute(
        database,
        "CREATE TABLE alembic_version (version_num)",
        "INSERT INTO alembic_version VALUES ('0001')",
        "CREATE TABLE invoices (total)",
    )


def foreign_by_table(database: Path) -> None:
    _execute(database, "CREATE TABLE device (name)", "CREATE TABLE run (miles)")


def foreign_views(database: Path) -> None:
    _execute(database, "CREATE VIEW everything AS SELECT 1 AS one")


@pytest.mark.parametrize("spoil", [foreign_by_revision, foreign_by_table, foreign_views])
def test_a_database_that_only_looks_like_ours_is_never_touched(
    database: Path, spoil: Callable[[Path], None]
) -> None:
    spoil(database)
    content = database.read_bytes()
    for deed in (check, repair, load_cache):
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
    _execute(database, "DROP VIEW run_history")
    holder = sqlite3.connect(database, isolation_level=None)
    holder.execute(begin)
    with pytest.raises(DatabaseError, match="another process"):
        repair(database)
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

    def no_links(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted", str(database))

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", no_links)
        with pytest.raises(DatabaseError, match="where it was"):
            repair(database)
    assert sorted(file.name for file in database.parent.iterdir()) == before
    assert {value["chunk_size"] for value in load_cache(database).values()} == {7}
    writer.close()


def test_repair_follows_a_link_and_keeps_the_mode(database: Path, tmp_path: Path) -> None:
    fill(database, keys=2)
    _execute(database, "DROP VIEW run_history")
    database.chmod(0o640)
    link = tmp_path / "elsewhere" / "link.db"
    link.parent.mkdir()
    link.symlink_to(database)
    (database.parent / f"{database.name}.repairing").write_text("what a killed repair left")
    done = repair(link)
    assert done is not None
    assert link.is_symlink()
    assert done.moved_to.parent == database.parent
    assert database.stat().st_mode & 0o777 == 0o640
    assert check(database) == []
    assert len(load_cache(link)) == 2
    assert sorted(database.parent.glob("tuning.db*")) == sorted([database, done.moved_to])


@pytest.mark.parametrize("column", ["pool", "per_candidate_ms"])
def test_a_text_that_is_no_text_spoils_its_own_row_at_most(database: Path, column: str) -> None:
    store_cache(database, its_key(), {"chunk_size": 4, "per_candidate_ms": {"4": 1.0}})
    store_cache(database, "other", {"chunk_size": 2, "hostname": "node7"})
    _execute(
        database,
        f"UPDATE verdict SET {column} = CAST(x'ff' AS TEXT) WHERE key_digest <> 'other'",
        "UPDATE run SET hostname = CAST(x'ff7b' AS TEXT) WHERE hostname = 'node7'",
    )
    assert load_cache(database)["other"]["chunk_size"] == 2
    assert resolve(SleepingPool(NUM_ENVS, NTHREAD), database) in (4, None)
    assert any("no text" in finding.what for finding in check(database))
    assert tuner("list", "--database", str(database)).returncode == 0
    assert repair(database) is not None
    assert check(database) == []


def test_a_number_of_hundreds_of_digits_is_left_out(database: Path) -> None:
    store_cache(database, its_key(), {"chunk_size": 4})
    connection = sqlite3.connect(database)
    timings = '{"4": ' + "9" * 400 + ', "' + "8" * 10**5 + '": 1.0, "16": 2.5}'
    connection.execute("UPDATE verdict SET per_candidate_ms = ?", (timings,))
    connection.commit()
    connection.close()
    assert load_cache(database)[its_key()]["per_candidate_ms"] == {"16": 2.5}
    assert resolve(SleepingPool(NUM_ENVS, NTHREAD), database) == 4


def test_a_trigger_of_somebody_elses_is_found(database: Path) -> None:
    fill(database, keys=1)
    _execute(
        database,
        "CREATE TRIGGER sneaky BEFORE INSERT ON sample BEGIN SELECT raise(ignore); END",
        'CREATE TABLE "my notes" (a, CONSTRAINT c CHECK (a > 0))',
    )
    assert [finding.what for finding in check(database)] == ["trigger sneaky is not ours"]


def test_texts_from_a_database_cannot_break_a_table(database: Path) -> None:
    store_cache(database, "key", {"chunk_size": 4, "model_file": "a\nb\x1b[31m.xml"})
    shown = tuner("list", "--database", str(database))
    assert len(shown.stdout.splitlines()) == 2
    assert "\x1b" not in shown.stdout


@pytest.mark.parametrize("table", [b"CREATE TABLE model", b"CREATE VIEW run_history"])
def test_a_schema_that_is_no_text_any_more_is_damage(database: Path, table: bytes) -> None:
    whole = database.with_name("whole.db")
    fill(whole, 2)
    content = whole.read_bytes()
    assert content.count(table) == 1
    database.write_bytes(content.replace(table, table[:-6] + b' "\xf0\xfc\xe8\xb2'))
    for deed in (load_cache, upgrade, lambda file: find_answer(file, its_key(), NUM_ENVS)):
        with pytest.raises(DatabaseError, match="damaged"):
            deed(database)
    assert resolve(SleepingPool(NUM_ENVS, NTHREAD), database) is None
