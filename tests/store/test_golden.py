"""Databases of every released revision, made by that revision's code: upgraded, compared, used."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.golden.make import FOLDER
from tests.support.facts import ClockworkPool, a_key
from tests.support.resolving import NTHREAD, NUM_ENVS, resolve
from tuner import load_cache, store_cache
from tuner.store.lookup import Answer, find_answer
from tuner.store.maintenance import check, fresh_schema, schema_of
from tuner.store.migrate import upgrade
from tuner.store.queries import read_key, read_overview
from tuner.store.runs import recompute
from tuner.store.sqlite import OLDER_REVISIONS, REVISION

RELEASED = (*OLDER_REVISIONS, REVISION)
CHOICES = {a_key(): 4, a_key(num_envs=4096): None, a_key(nthread=4): None}
"""What the golden databases answer, whatever their revision."""


@pytest.fixture(params=RELEASED)
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Copy the golden database of one revision."""
    return Path(shutil.copy(FOLDER / f"{request.param}.db", tmp_path / "tuning.db"))


def rows_of(database: Path) -> dict[str, list[dict[str, Any]]]:
    """Read every table."""
    with closing(sqlite3.connect(database)) as connection:
        connection.row_factory = sqlite3.Row
        names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        return {
            name: [dict(row) for row in connection.execute(f"SELECT * FROM {name}")]
            for (name,) in names
        }


def test_an_upgraded_file_has_the_schema_of_a_fresh_one(golden: Path) -> None:
    upgrade(golden)
    assert schema_of(golden) == fresh_schema()
    assert check(golden) == []


def test_an_upgrade_keeps_every_row_and_every_value(golden: Path) -> None:
    before = rows_of(golden)
    upgrade(golden)
    after = rows_of(golden)
    for table in before.keys() - {"alembic_version"}:
        assert len(after[table]) == len(before[table])
        for old, new in zip(before[table], after[table], strict=True):
            assert {name: new[name] for name in old} == old


def test_the_file_from_before_stays_beside_the_upgraded_one(golden: Path) -> None:
    content = golden.read_bytes()
    before, now = upgrade(golden)
    copies = list(golden.parent.glob("tuning.db.schema-*"))
    assert len(copies) == (before != now)
    assert golden.read_bytes() == content or copies
    for copy in copies:
        assert f"schema-{before}-" in copy.name
        assert [row["version_num"] for row in rows_of(copy)["alembic_version"]] == [before]
        assert rows_of(copy)["sample"] == rows_of(golden)["sample"]


def test_an_upgraded_file_answers_and_takes_more(golden: Path) -> None:
    upgrade(golden)
    for key, chunk_size in CHOICES.items():
        found = find_answer(golden, key, None)
        assert isinstance(found, Answer)
        assert found.chunk_size == chunk_size
    assert load_cache(golden)["a key of somebody's own"]["team"] == "locomotion"
    store_cache(golden, "new", {"chunk_size": 2})
    assert len(read_overview(golden)) == len(load_cache(golden)) == 6
    assert read_key(golden, a_key())["runs"][0]["hostname"] == "node7"
    assert check(golden) == []


def test_verdicts_can_be_made_anew_from_old_samples(golden: Path) -> None:
    upgrade(golden)
    recompute(golden)
    answers = load_cache(golden)
    for key, chunk_size in CHOICES.items():
        assert answers[key]["chunk_size"] == chunk_size
    assert answers["a key of somebody's own"]["chunk_size"] == 16
    assert check(golden) == []


def test_a_job_brings_an_old_file_up_to_date_by_itself(golden: Path) -> None:
    pool = ClockworkPool(NUM_ENVS, NTHREAD)
    answer = resolve(pool, golden, clock=pool.clock)
    assert answer is None or answer >= 1
    assert len(pool.chunks) > 4
    assert len(rows_of(golden)["run"]) == 8
    assert check(golden) == []
