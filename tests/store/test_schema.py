"""The schema: made by migrations alone, typed, constrained, and readable at a SQL prompt."""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.support.facts import a_key
from tuner import store_cache
from tuner.errors import DatabaseError, SchemaError
from tuner.store import schema
from tuner.store.database import reading
from tuner.store.lookup import find_answer
from tuner.store.migrate import migrations_folder, upgrade
from tuner.store.sqlite import OUR_TABLES, REVISION

ROOT = Path(__file__).parents[2]
TABLES = set(OUR_TABLES)


@pytest.fixture
def connection(database: Path) -> Iterator[sqlite3.Connection]:
    """Open a fresh database that holds one answer."""
    store_cache(
        database,
        a_key(),
        {"chunk_size": 4, "per_candidate_ms": {"None": 10.0, "4": 9.0}, "model_file": "r.xml"},
    )
    connection = sqlite3.connect(database, isolation_level=None)
    connection.execute("PRAGMA foreign_keys = ON")
    yield connection
    connection.close()


@pytest.mark.usefixtures("connection")
def test_the_tables_in_the_code_are_those_that_the_migrations_made(database: Path) -> None:
    assert set(schema.metadata.tables) == TABLES
    with reading(database) as opened:
        inspector = sa.inspect(opened)
        for name, table in schema.metadata.tables.items():
            in_file = {
                column["name"]: (str(column["type"]), column["nullable"])
                for column in inspector.get_columns(name)
            }
            in_code = {
                column.name: (column.type.compile(opened.dialect), column.nullable)
                for column in table.columns
            }
            assert in_code == in_file
            keys = inspector.get_pk_constraint(name)["constrained_columns"]
            assert [column.name for column in table.primary_key] == keys


@pytest.mark.usefixtures("connection")
def test_the_views_in_the_code_are_those_that_the_migrations_made(database: Path) -> None:
    views = [schema.tuning_overview, schema.run_history]
    views += [schema.choice_quality, schema.candidate_timing]
    with reading(database) as opened:
        for view in views:
            found = opened.exec_driver_sql(f"SELECT * FROM {view.name}")
            assert [column.name for column in view.columns] == list(found.keys())


def test_the_newest_migration_is_the_revision_that_the_code_expects() -> None:
    newest = sorted(file.name for file in (migrations_folder() / "versions").glob("[0-9]*.py"))[-1]
    assert newest.partition("_")[0] == REVISION


def test_every_table_is_strict_and_every_constraint_has_a_name(
    connection: sqlite3.Connection,
) -> None:
    tables = "SELECT name, sql FROM sqlite_master WHERE type = 'table'"
    for name, sql in connection.execute(tables):
        if name == "alembic_version":
            continue
        assert name in TABLES
        assert "STRICT" in sql
        for word in ("CHECK", "FOREIGN KEY", "PRIMARY KEY", "UNIQUE"):
            assert sql.count(f" {word} ") == len(re.findall(rf"CONSTRAINT \w+ {word} ", sql))


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE sample SET nanoseconds = 0",
        "UPDATE sample SET nanoseconds = -5",
        "UPDATE sample SET nanoseconds = 1.5",
        "UPDATE sample SET nanoseconds = NULL",
        "UPDATE sample SET nanoseconds = 'soon'",
        "UPDATE sample SET chunk_size = 0",
        "UPDATE sample SET round = -1",
        "UPDATE sample SET steps = 0",
        "UPDATE sample SET warm_up = 2",
        "UPDATE verdict SET chunk_size = 0",
        "UPDATE verdict SET decided = 2",
        "UPDATE verdict SET decided = 0",
        "UPDATE verdict SET decided = 0, reason = 'bogus'",
        "UPDATE verdict SET decided = 0, reason = 'tie'",
        "UPDATE verdict SET decided = 1, reason = 'noise'",
        "UPDATE verdict SET imported_runs = runs + 1",
        "UPDATE verdict SET expected_loss = -0.1",
        "UPDATE run SET occasion = 'weather'",
        "UPDATE run SET has_choice = 2",
        "UPDATE run SET imported_utc = 'today'",
        "UPDATE device SET unequal_cores = 2",
        "UPDATE device SET cpu_quota = -1.0",
        "UPDATE device SET usable_cpus = 0",
        "UPDATE model SET iterations = -1",
        "UPDATE validator SET policy = 'sometimes'",
        "INSERT INTO validator VALUES ('weather', 'exact')",
        "INSERT INTO pin VALUES ('no such key', 4, 'because', '2026-01-01T00:00:00Z')",
        "INSERT INTO lookup VALUES ('key', '2026-01-01', 'maybe', 1)",
        "INSERT INTO lookup VALUES ('key', 'today', 'hit', 1)",
        "UPDATE verdict SET last_measured_utc = 'zzz'",
        "UPDATE verdict SET gain = 0.1, gain_low = 0.2, gain_high = 0.3",
        "UPDATE run SET state = 'sleeping'",
        "UPDATE run SET finished_utc = 'yesterday'",
        "UPDATE run SET key_id = 99",
        "UPDATE tuning_key SET num_envs = 0",
        "UPDATE tuning_key SET post_step_forward_sensor = 2",
        "UPDATE tuning_key SET model_id = 99",
        "UPDATE device SET cpu_count = 0",
        "INSERT INTO model (digest) SELECT digest FROM model",
    ],
)
def test_the_file_itself_refuses_what_cannot_be(
    connection: sqlite3.Connection, statement: str
) -> None:
    with pytest.raises(sqlite3.IntegrityError):
        connection.execute(statement)


def test_deleting_a_key_takes_its_runs_samples_and_verdict_along(
    connection: sqlite3.Connection,
) -> None:
    connection.execute("DELETE FROM tuning_key")
    for table in ("run", "sample", "verdict"):
        assert connection.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)


def test_the_views_say_what_the_rows_hold(connection: sqlite3.Connection) -> None:
    overview = connection.execute(
        "SELECT tuning_key, model_file, system, num_envs, chunk_size, runs, samples "
        "FROM tuning_overview"
    ).fetchall()
    assert overview == [(a_key(), "r.xml", "Linux", 1024, 4, 1, 2)]
    timing = connection.execute(
        "SELECT chunk_size, samples, min_ms, median_ms, mean_ms, relative_to_default "
        "FROM candidate_timing ORDER BY chunk_size"
    ).fetchall()
    assert timing == [(None, 1, 10.0, 10.0, 10.0, 1.0), (4, 1, 9.0, 9.0, 9.0, 0.9)]


@pytest.mark.parametrize(
    ("times", "median"), [([5], 5), ([1, 9], 5), ([7, 1, 3], 3), ([4, 1, 2, 9], 3)]
)
def test_the_views_median_is_the_median(
    connection: sqlite3.Connection, times: list[int], median: float
) -> None:
    connection.execute("DELETE FROM sample")
    connection.executemany(
        "INSERT INTO sample VALUES (1, ?, 0, 4, ?, 0, 2)",
        [(order, 2_000_000 * ms) for order, ms in enumerate(times)],
    )
    connection.execute("INSERT INTO sample VALUES (1, 99, 0, 4, 1000000000, 1, 1)")  # a warm-up
    row = connection.execute("SELECT samples, median_ms FROM candidate_timing").fetchone()
    assert row == (len(times), median)


def test_alembic_at_the_root_makes_the_same_database(
    database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    upgrade(database)
    by_alembic = tmp_path / "folder" / "by alembic.db"
    monkeypatch.setenv("TUNER_DATABASE", str(by_alembic))
    command = [sys.executable, "-m", "alembic", "upgrade", "head"]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    assert _schema_of(by_alembic) == _schema_of(database)


def _schema_of(database: Path) -> list[tuple[str, ...]]:
    connection = sqlite3.connect(database)
    rows = connection.execute("SELECT type, name, sql FROM sqlite_master ORDER BY name").fetchall()
    version = connection.execute("SELECT version_num FROM alembic_version").fetchall()
    connection.close()
    return rows + version


def test_upgrading_twice_changes_nothing(database: Path) -> None:
    assert upgrade(database) == (None, REVISION)
    content = database.read_bytes()
    assert upgrade(database) == (REVISION, REVISION)
    assert database.read_bytes() == content


def test_a_schema_from_the_future_is_refused_and_not_touched(database: Path) -> None:
    upgrade(database)
    connection = sqlite3.connect(database)
    connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.commit()
    connection.close()
    content = database.read_bytes()
    with pytest.raises(SchemaError, match=r"9999.*upgrade tuner"):
        upgrade(database)
    with pytest.raises(SchemaError, match=r"9999.*upgrade tuner"):
        find_answer(database, a_key(), 1024)
    assert database.read_bytes() == content


def test_a_database_of_something_else_is_refused_and_not_touched(database: Path) -> None:
    connection = sqlite3.connect(database)
    connection.execute("CREATE TABLE invoices (total)")
    connection.commit()
    connection.close()
    content = database.read_bytes()
    with pytest.raises(DatabaseError, match="something else"):
        upgrade(database)
    with pytest.raises(DatabaseError):
        find_answer(database, a_key(), 1024)
    assert database.read_bytes() == content


def test_a_failed_migration_leaves_nothing_behind(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from alembic import op

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("power cut")

    with monkeypatch.context() as patch:
        patch.setattr(op, "create_index", fail)
        with pytest.raises(RuntimeError, match="power cut"):
            upgrade(database)
    assert upgrade(database) == (None, REVISION)


def test_a_migration_leaves_the_log_of_a_job_alone(
    database: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        upgrade(database)
    assert [record for record in caplog.records if record.name.startswith("alembic")] == []
