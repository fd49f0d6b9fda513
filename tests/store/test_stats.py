"""The statistics add up what is stored and change nothing."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.facts import a_key
from tests.support.stored import Shell, a_run, contents, store
from tuner import store_cache
from tuner.store.migrate import upgrade

KEY = a_key()
OTHER = a_key(num_envs=2048)


def test_statistics_count_what_is_stored(database: Path, shell: Shell) -> None:
    runs = [a_run(1, pool_seconds=4.0), a_run(2, pool_seconds=6.0)]
    store(database, KEY, *runs, a_run(3, pool_seconds=100.0, trigger="verify"))
    store(database, OTHER, a_run(4, state="failed", samples=(), pool_seconds=None))
    store_cache(database, "stated", {"chunk_size": 4})
    store(database, "from elsewhere", a_run(5, pairs=0, origin="other.db", pool_seconds=0.0))
    before = contents(database.parent)
    stats = json.loads(shell("db", "stats", "--json", "--database", database).out)
    assert contents(database.parent) == before
    assert stats["tuning_seconds"] == 110.0
    assert (stats["keys"], stats["runs"], stats["failed_runs"], stats["imported_runs"]) == (
        4, 6, 1, 2,
    )  # fmt: skip
    assert stats["samples"] == sum(len(run.samples) for run in runs) * 3 / 2 + 5
    assert stats["bytes"] == len(before[database.name])
    assert "110.0 s" in shell("db", "stats", "--database", database).out


def test_statistics_of_nothing_divide_by_nothing(database: Path, shell: Shell) -> None:
    upgrade(database)
    assert shell("db", "stats", "--database", database).code == 0
    store(database, KEY, a_run(1, state="failed", samples=(), pool_seconds=None))
    stats = json.loads(shell("db", "stats", "--json", "--database", database).out)
    assert stats["bytes_per_sample"] is None
    assert "none yet" in shell("db", "stats", "--database", database).out
