"""The check finds what is wrong with a file, names the next step, and changes nothing."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.damage import DAMAGED, NOT_DATABASES, facts_no_json, failures_no_list, fill
from tests.support.facts import a_key
from tests.support.stored import Shell, contents, rows_of
from tuner import load_cache, store_cache
from tuner.store.maintenance import check


@pytest.mark.parametrize("spoil", [*DAMAGED, facts_no_json, failures_no_list])
def test_damage_is_found_and_repair_suggested(
    database: Path, shell: Shell, spoil: Callable[[Path], None]
) -> None:
    spoil(database)
    content = database.read_bytes()
    told = shell("db", "check", "--database", database)
    assert told.code == 3
    assert "tuner db repair" in told.out
    assert database.read_bytes() == content


@pytest.mark.parametrize("spoil", NOT_DATABASES)
@pytest.mark.parametrize(
    "command", [("db", "check"), ("db", "repair", "--yes"), ("db", "upgrade"), ("list",)]
)
def test_what_is_not_a_database_is_a_wrong_path_and_never_moved(
    database: Path, shell: Shell, spoil: Callable[[Path], None], command: tuple[str, ...]
) -> None:
    spoil(database)
    before = contents(database.parent)
    line = shell.refused(*command, "--database", database)
    assert f"{database} is not a SQLite database: check the path" in line
    assert "repair" not in line
    assert contents(database.parent) == before


def test_a_pin_that_no_pool_could_take_is_found_and_can_be_removed(
    database: Path, shell: Shell
) -> None:
    key = a_key(num_envs=64)
    store_cache(database, key, {"chunk_size": 4})
    assert shell("pin", key, 8, "--reason", "so", "--database", database).code == 0
    rows_of(database, "UPDATE pin SET chunk_size = 65")
    [finding] = check(database)
    assert "65" in finding.what
    assert "num_envs 64" in finding.what
    assert f"tuner unpin {key}" in finding.next_step
    assert shell("unpin", key, "--database", database).code == 0
    assert check(database) == []
    assert load_cache(database)[key]["chunk_size"] == 4


@pytest.mark.parametrize("table", ["sample", "verdict"])
def test_a_chunk_size_that_no_pool_could_take_is_found(database: Path, table: str) -> None:
    store_cache(database, a_key(num_envs=65), {"chunk_size": 65, "per_candidate_ms": {"65": 1.0}})
    key = a_key(num_envs=64)
    store_cache(database, key, {"chunk_size": 4, "per_candidate_ms": {"None": 9.0, "4": 8.0}})
    assert check(database) == []
    rows_of(database, f"UPDATE {table} SET chunk_size = 65 WHERE chunk_size = 4")
    [finding] = check(database)
    assert "65, with num_envs 64" in finding.what


def test_a_lost_sample_is_found(database: Path) -> None:
    fill(database, keys=3)
    rows_of(database, "DELETE FROM sample WHERE run_id = 3 AND sample_order = 0")
    assert [finding.what for finding in check(database)] == [
        "run 3 says it has 59 samples and has 58"
    ]


@pytest.mark.parametrize("failed", ["[1e999]", "[-1]", "[true]", "[null, 4.5]", "[[1]]", "{}", "x"])
def test_odd_facts_of_a_run_are_found(database: Path, failed: str) -> None:
    fill(database, keys=1)
    rows_of(database, "UPDATE run SET failed_chunk_sizes = '[null, 4]'")
    assert check(database) == []
    rows_of(database, "UPDATE run SET failed_chunk_sizes = ?", failed)
    [finding] = check(database)
    assert finding.what == "run 1 has a failed_chunk_sizes that cannot be read"


def test_a_trigger_of_somebody_elses_is_found(database: Path) -> None:
    fill(database, keys=1)
    rows_of(
        database, "CREATE TRIGGER sneaky BEFORE INSERT ON sample BEGIN SELECT raise(ignore); END"
    )
    rows_of(database, 'CREATE TABLE "my notes" (a, CONSTRAINT c CHECK (a > 0))')
    assert [finding.what for finding in check(database)] == ["trigger sneaky is not ours"]


def test_a_row_that_breaks_a_rule_is_found(database: Path) -> None:
    fill(database, keys=1)
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.execute("UPDATE sample SET nanoseconds = -5 WHERE sample_order = 0")
    [finding] = check(database)
    assert "sample" in finding.what
    assert "tuner db repair" in finding.next_step
