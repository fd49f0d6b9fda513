"""Looks after what is stored: pins, policies, what is forgotten, and what all of it amounts to."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from tuner.candidates import checked_chunk_size
from tuner.errors import ArgumentError, DatabaseError
from tuner.records import LARGEST_INTEGER
from tuner.store import schema
from tuner.store.counting import KINDS, add_up, pending
from tuner.store.diagnosis import explained
from tuner.store.engine import writing
from tuner.store.fields import storable_text
from tuner.store.filters import EVERYTHING, Selection, on_runs
from tuner.store.ledger import Judge, judge_key, recompute, utc_text
from tuner.store.migrate import upgrade
from tuner.store.runs import policies_of
from tuner.store.sqlite import open_for_writing
from tuner.store.views import one_moment


def pin(database: Path, key: str, chunk_size: int | None, reason: str) -> None:
    """Let a key answer with a chunk size whatever is measured; None is the native default.

    Raises:
        ArgumentError: if there is no such key, or its pool could not take the chunk size.
        DatabaseError: if nothing could be stored.
    """
    upgrade(database)
    pins, keys = schema.pin, schema.tuning_key
    with writing(database) as connection:
        found = connection.execute(
            sa.select(keys.c.num_envs).where(keys.c.digest == key)
        ).one_or_none()
        if found is None:
            raise ArgumentError(f"there is no key {key} to pin: `tuner list` shows all")
        if chunk_size is not None:
            most = LARGEST_INTEGER if found.num_envs is None else found.num_envs
            chunk_size = checked_chunk_size(chunk_size, most)
        connection.execute(sa.delete(pins).where(pins.c.key_digest == key))
        connection.execute(
            sa.insert(pins).values(
                key_digest=key,
                chunk_size=chunk_size,
                reason=storable_text(" ".join(reason.split())),
                pinned_utc=utc_text(datetime.now(UTC)),
            )
        )


def unpin(database: Path, key: str) -> bool:
    """Let a key answer by its verdict again; tells whether it was pinned."""
    upgrade(database)
    with writing(database) as connection:
        done = connection.execute(sa.delete(schema.pin).where(schema.pin.c.key_digest == key))
        return bool(done.rowcount)


def read_policies(database: Path) -> dict[str, str]:
    """Read how strictly each validator counts."""
    with one_moment(database) as rows:
        return policies_of(rows)


def set_policy(database: Path, name: str, policy: str, judge: Judge) -> None:
    """Set how strictly a validator counts, and make the verdicts anew under it.

    Key by key, like `recompute`, which also finishes what was interrupted here.
    """
    upgrade(database)
    table = schema.validator
    with writing(database) as connection:
        connection.execute(sa.delete(table).where(table.c.name == name))
        connection.execute(sa.insert(table).values(name=name, policy=policy))
    recompute(database, judge)


def forget(database: Path, keys: Iterable[str]) -> None:
    """Remove keys with all that was measured of them."""
    upgrade(database)
    add_up(database)
    with writing(database) as connection:
        for key in keys:
            _forget(connection, key)
        _drop_orphans(connection)


def _forget(connection: sa.Connection, key: str) -> None:
    for table, column in ((schema.tuning_key, "digest"), (schema.lookup, "key_digest")):
        connection.execute(sa.delete(table).where(table.c[column] == key))


def _drop_orphans(connection: sa.Connection) -> None:
    for table, name in ((schema.model, "model_id"), (schema.device, "device_id")):
        used = sa.select(schema.tuning_key.c[name]).where(schema.tuning_key.c[name].is_not(None))
        connection.execute(sa.delete(table).where(table.c[name].not_in(used)))


KNOWN = sa.text("SELECT 1 FROM tuning_key WHERE digest = :key")
UNUSED = sa.text(
    """
    SELECT 1 FROM tuning_key WHERE digest = :key
        AND NOT EXISTS (SELECT 1 FROM run WHERE run.key_id = tuning_key.key_id)
        AND NOT EXISTS (SELECT 1 FROM pin WHERE pin.key_digest = tuning_key.digest)
    """
)


@dataclass(frozen=True, slots=True)
class Pruning:
    """What a pruning takes out."""

    run_ids: tuple[int, ...]
    samples: int
    keys: tuple[str, ...]
    """Keys that lose runs."""
    gone: tuple[str, ...]
    """Those of them that lose all, and are forgotten; a pinned key never is."""


RUNS_OLDEST_FIRST = """
    SELECT run.run_id, run.samples, run.finished_utc, tuning_key.digest AS key,
           row_number() OVER (
               PARTITION BY run.key_id, run.state = 'failed'
               ORDER BY run.finished_utc DESC, run.uid DESC
           ) AS newest, {meant} AS meant
    FROM run JOIN tuning_key ON tuning_key.key_id = run.key_id
    ORDER BY run.finished_utc, run.uid
"""


RUN_WEIGHT = 16
"""A run without samples takes about as many bytes as so many samples."""
BYTES = """
    SELECT page_size * (page_count - freelist_count) AS used,
           (SELECT page_size * count(*) + sum(length(sql)) FROM sqlite_master WHERE rootpage > 0)
               AS fixed
    FROM pragma_page_size, pragma_page_count, pragma_freelist_count
"""
"""What the file would take without its free pages, and what it would without any rows."""


def plan_pruning(
    database: Path,
    *,
    older_than: timedelta | None = None,
    keep_runs: int | None = None,
    most_bytes: int | None = None,
    selection: Selection = EVERYTHING,
) -> Pruning:
    """Say what a pruning would take out. Changes nothing.

    Args:
        database: The file.
        older_than: Runs that ended longer ago than this go.
        keep_runs: Of each key only so many of the newest runs stay, failed ones counted apart.
        most_bytes: The oldest runs go until the file would be so small.
        selection: Only these runs go.
    """
    with one_moment(database) as rows:
        meant, given = on_runs(selection, "run.finished_utc")
        runs = rows(RUNS_OLDEST_FIRST.format(meant=meant), given)
        pinned = {row["key_digest"] for row in rows("SELECT key_digest FROM pin")}
        (file,) = rows(BYTES)
    before = _moment_before(older_than) if older_than is not None else ""
    going = {
        run["run_id"]
        for run in runs
        if run["meant"]
        and (run["finished_utc"] < before or (keep_runs is not None and run["newest"] > keep_runs))
    }
    if most_bytes is not None:
        weights = {run["run_id"]: run["samples"] + RUN_WEIGHT for run in runs}
        used, fixed = file["used"], min(file["used"], file["fixed"])
        share = (used - fixed) / max(1, sum(weights.values()))
        size = used - share * sum(weights[run_id] for run_id in going)
        for run in runs:
            if size <= most_bytes:
                break
            if run["meant"] and run["run_id"] not in going:
                going.add(run["run_id"])
                size -= share * weights[run["run_id"]]
    touched = {run["key"] for run in runs if run["run_id"] in going}
    left = {run["key"] for run in runs if run["run_id"] not in going}
    return Pruning(
        run_ids=tuple(run["run_id"] for run in runs if run["run_id"] in going),
        samples=sum(run["samples"] for run in runs if run["run_id"] in going),
        keys=tuple(sorted(touched)),
        gone=tuple(sorted(touched - left - pinned)),
    )


def _moment_before(age: timedelta) -> str:
    try:
        return utc_text(datetime.now(UTC) - age)
    except OverflowError:  # older than the calendar is nothing
        return ""


def prune(database: Path, pruning: Pruning, judge: Judge) -> None:
    """Take out what was planned, and make the verdicts anew from what is left.

    A key that was pinned or measured since it was planned is not forgotten.

    Raises:
        DatabaseError: if nothing was changed; or if only the space could not be given back.
    """
    upgrade(database)
    add_up(database)
    with writing(database) as connection:
        for run_id in pruning.run_ids:
            connection.execute(sa.delete(schema.run).where(schema.run.c.run_id == run_id))
        for key in pruning.keys:
            if connection.execute(UNUSED, {"key": key}).one_or_none():
                _forget(connection, key)
            elif connection.execute(KNOWN, {"key": key}).one_or_none():
                judge_key(connection, key, judge)
        _drop_orphans(connection)
    try:
        vacuum(database)
    except DatabaseError as error:
        raise DatabaseError(
            f"the runs are removed, their space is not given back: {error}; "
            "`tuner db vacuum` tries that again"
        ) from error


def vacuum(database: Path) -> tuple[int, int]:
    """Give back the space that deleted rows left; bytes before and after.

    Raises:
        DatabaseError: if the database is held, or there is no room for a second copy.
        SchemaError: if its schema is another one; it is not touched.
    """
    with one_moment(database):
        pass  # raises for what is not ours to touch
    add_up(database)
    before = database.stat().st_size
    try:
        with closing(open_for_writing(database)) as connection:
            connection.execute("VACUUM")
    except sqlite3.Error as error:
        raise explained(database, error, "vacuum") from error
    return before, database.stat().st_size


STATS = """
    SELECT (SELECT count(*) FROM tuning_key) AS keys,
           (SELECT count(*) FROM verdict WHERE decided = 1) AS decided_verdicts,
           (SELECT count(*) FROM verdict WHERE decided = 0) AS undecided_verdicts,
           (SELECT count(*) FROM pin) AS pins,
           (SELECT count(*) FROM run) AS runs,
           (SELECT count(*) FROM run WHERE state = 'imported' OR origin IS NOT NULL)
               AS imported_runs,
           (SELECT count(*) FROM run WHERE state = 'failed') AS failed_runs,
           (SELECT coalesce(sum(samples), 0) FROM run) AS samples,
           (SELECT coalesce(sum(pool_seconds), 0) FROM run) AS tuning_seconds
"""
LOOKUPS = "SELECT key_digest, day_utc, kind, lookups FROM lookup"
SECONDS = """
    SELECT tuning_key.digest AS key, avg(run.pool_seconds) AS seconds
    FROM run JOIN tuning_key ON tuning_key.key_id = run.key_id
    WHERE run.pool_seconds IS NOT NULL
        AND coalesce(run.occasion, 'new') NOT IN ('resumed', 'verify')
    GROUP BY tuning_key.digest
"""


def read_stats(database: Path) -> dict[str, Any]:
    """Add up what is stored, what was looked up, and what that saved. Changes nothing.

    A hit saves what a measurement of its key took on average.
    """
    with one_moment(database) as rows:
        (stats,) = rows(STATS)
        lookups = pending(database)
        for row in rows(LOOKUPS):
            lookups[row["key_digest"], row["day_utc"], row["kind"]] += row["lookups"]
        seconds = {row["key"]: row["seconds"] for row in rows(SECONDS)}
    size = database.stat().st_size
    by_kind = dict.fromkeys(KINDS, 0)
    saved = 0.0
    for (key, _, kind), count in lookups.items():
        by_kind[kind] += count
        if kind in ("hit", "pinned"):
            saved += count * seconds.get(key, 0.0)
    total = sum(by_kind.values())
    return {
        **stats,
        "bytes": size,
        "bytes_per_sample": size / stats["samples"] if stats["samples"] else None,
        "lookups": by_kind,
        "hit_rate": (by_kind["hit"] + by_kind["pinned"]) / total if total else None,
        "saved_seconds": saved,
    }
