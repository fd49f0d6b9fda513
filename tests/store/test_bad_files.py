"""Whatever lies where the database should be: one clear line, the default, and nothing lost."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.damage import DAMAGED, FOREIGN, NOT_DATABASES, fill
from tests.support.facts import SleepingPool
from tests.support.processes import tuner
from tests.support.resolving import NTHREAD, NUM_ENVS, its_key, no_logging, resolve
from tests.support.stored import rows_of
from tuner import load_cache, store_cache
from tuner.errors import DatabaseError
from tuner.store.lookup import find_answer
from tuner.store.migrate import upgrade


@pytest.mark.parametrize("spoil", [*NOT_DATABASES, *DAMAGED, *FOREIGN])
def test_a_job_gets_the_default_and_one_line_and_the_file_stays(
    database: Path, capfd: pytest.CaptureFixture[str], spoil: Callable[[Path], None]
) -> None:
    spoil(database)
    content = database.read_bytes()
    pool = SleepingPool(NUM_ENVS, NTHREAD)
    with no_logging():
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
    with no_logging():
        answer = resolve(pool, database)
    assert answer is None or 1 <= answer <= NUM_ENVS
    assert len(pool.chunks) > 4
    result, timings = capfd.readouterr().err.splitlines()
    assert result.startswith("tuner: measured: using ")
    assert "measured because the stored " in timings


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
    rows_of(database, "UPDATE run SET other_facts = '[[['")
    connection = sqlite3.connect(database)
    connection.execute("UPDATE verdict SET per_candidate_ms = ?", (timings,))
    connection.commit()
    connection.close()
    assert resolve(SleepingPool(NUM_ENVS, NTHREAD), database) == 4
    assert load_cache(database)[its_key()]["chunk_size"] == 4


def test_a_number_of_hundreds_of_digits_is_left_out(database: Path) -> None:
    store_cache(database, its_key(), {"chunk_size": 4})
    connection = sqlite3.connect(database)
    timings = '{"4": ' + "9" * 400 + ', "' + "8" * 10**5 + '": 1.0, "16": 2.5}'
    connection.execute("UPDATE verdict SET per_candidate_ms = ?", (timings,))
    connection.commit()
    connection.close()
    assert load_cache(database)[its_key()]["per_candidate_ms"] == {"16": 2.5}
    assert resolve(SleepingPool(NUM_ENVS, NTHREAD), database) == 4


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


@pytest.mark.parametrize("column", ["pool", "per_candidate_ms"])
def test_a_text_that_is_no_text_spoils_its_own_row_at_most(database: Path, column: str) -> None:
    store_cache(database, its_key(), {"chunk_size": 4, "per_candidate_ms": {"4": 1.0}})
    store_cache(database, "other", {"chunk_size": 2, "hostname": "node7"})
    rows_of(
        database, f"UPDATE verdict SET {column} = CAST(x'ff' AS TEXT) WHERE key_digest <> 'other'"
    )
    rows_of(database, "UPDATE run SET hostname = CAST(x'ff7b' AS TEXT) WHERE hostname = 'node7'")
    assert load_cache(database)["other"]["chunk_size"] == 2
    assert resolve(SleepingPool(NUM_ENVS, NTHREAD), database) in (4, None)
    assert tuner("list", "--database", str(database)).returncode == 0
