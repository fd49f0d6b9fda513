"""Spoils database files in every way that has to be survived."""

from __future__ import annotations

import os
import random
from pathlib import Path

from tests.support.facts import a_key
from tests.support.stored import rows_of
from tuner import store_cache


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
    rows_of(database, "DROP TABLE verdict")


def column_missing(database: Path) -> None:
    fill(database, keys=2)
    rows_of(database, "ALTER TABLE verdict DROP COLUMN per_candidate_ms")


def facts_no_json(database: Path) -> None:
    fill(database, keys=2)
    rows_of(database, "UPDATE run SET other_facts = '{\"a\"' WHERE run_id = 1")


def failures_no_list(database: Path) -> None:
    fill(database, keys=2)
    rows_of(database, "UPDATE run SET failed_chunk_sizes = '[\"many\"]'")


def something_else(database: Path) -> None:
    rows_of(database, "CREATE TABLE invoices (total)")
    rows_of(database, "INSERT INTO invoices VALUES (7)")


def from_the_future(database: Path) -> None:
    fill(database, keys=2)
    rows_of(database, "UPDATE alembic_version SET version_num = '9999'")


NOT_DATABASES = [random_bytes, text]
DAMAGED = [half, scribbled, header_only, table_missing, column_missing]
FOREIGN = [something_else, from_the_future]


def foreign_by_revision(database: Path) -> None:
    rows_of(database, "CREATE TABLE alembic_version (version_num)")
    rows_of(database, "INSERT INTO alembic_version VALUES ('0001')")
    rows_of(database, "CREATE TABLE invoices (total)")


def foreign_by_table(database: Path) -> None:
    rows_of(database, "CREATE TABLE device (name)")
    rows_of(database, "CREATE TABLE run (miles)")


def foreign_views(database: Path) -> None:
    rows_of(database, "CREATE VIEW everything AS SELECT 1 AS one")
