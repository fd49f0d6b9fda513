"""Writes runs and verdicts. One transaction a deed.

A run goes in whole or not at all, together with the verdict that it leads to; nothing is
overwritten but the verdict, which can be made again from the samples. No pool is ever timed
while a transaction is open: a caller hands over what is finished.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.sqlite import insert

from tuner.errors import ArgumentError
from tuner.keys import CacheKey, KeyFacts, canonical_json, device_digest, model_digest
from tuner.records import LARGEST_INTEGER, Candidate, Run, Sample, Verdict
from tuner.store import schema
from tuner.store.engine import writing
from tuner.store.migrate import upgrade

# Statements are made once: making them takes longer than SQLite takes to carry them out.
FIND_KEY = sa.select(schema.tuning_key.c.key_id, schema.tuning_key.c.model_id).where(
    schema.tuning_key.c.digest == sa.bindparam("digest")
)
INSERT_RUN = sa.insert(schema.run).returning(schema.run.c.run_id)
INSERT_SAMPLE = "INSERT INTO sample ({}) VALUES ({})".format(
    ", ".join(column.name for column in schema.sample.columns),
    ", ".join("?" for _ in schema.sample.columns),
)
RUNS_OF_KEY = sa.select(
    sa.func.count(), sa.func.sum(schema.run.c.samples), sa.func.max(schema.run.c.finished_utc)
).where(schema.run.c.key_id == sa.bindparam("key_id"), schema.run.c.state != "failed")


def _put_verdict_statement() -> sa.Executable:
    """Insert a verdict or replace the key's own, unless it is decided and the new one is not.

    A run that was cut short does not undo what an earlier one decided.
    """
    statement = insert(schema.verdict)
    new = statement.excluded
    return statement.on_conflict_do_update(
        index_elements=["key_digest"],
        set_={column.name: new[column.name] for column in schema.verdict.columns},
        where=sa.or_(new.decided == 1, schema.verdict.c.decided == 0),
    )


PUT_VERDICT = _put_verdict_statement()


def utc_text(moment: datetime) -> str:
    """Write a moment as the database holds it: UTC, microseconds, a Z."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def save_run(
    database: Path,
    key: str,
    run: Run,
    verdict: Verdict | None,
    per_candidate_ms: Mapping[str, float],
) -> int:
    """Store a run with all its samples, and what the key's verdict is now.

    Args:
        database: The file; made or upgraded if need be.
        key: What `make_cache_key` made, with its facts; a plain string has none to store.
        run: What was measured.
        verdict: What it says; None (a failed run) leaves the key's verdict as it is.
        per_candidate_ms: Milliseconds of one step by candidate, "None" for the native
            default, kept in the verdict's row for a hit to show.

    Returns:
        The run's number in this database.

    Raises:
        DatabaseError: if nothing could be stored; the database is as it was.
    """
    upgrade(database)
    with writing(database) as connection:
        key_id = _key_row(connection, key)
        run_id = _insert_run(connection, key_id, run)
        if run.samples:
            _insert_samples(connection, run_id, run.samples)
        if verdict is not None:
            _put_verdict(connection, key, key_id, run_id, verdict, per_candidate_ms)
    return run_id


def _key_row(connection: sa.Connection, key: str) -> int:
    """Find or make a key's row, and those of its model and its device."""
    table = schema.tuning_key
    found = connection.execute(FIND_KEY, {"digest": str(key)}).one_or_none()
    if found is not None and (found.model_id is not None or not isinstance(key, CacheKey)):
        return int(found.key_id)
    facts = _key_values(connection, key.facts) if isinstance(key, CacheKey) else {}
    if found is not None:  # stored before by its digest alone: now its facts are known
        connection.execute(sa.update(table).where(table.c.key_id == found.key_id).values(**facts))
        return int(found.key_id)
    result = connection.execute(
        sa.insert(table).values(digest=str(key), **facts).returning(table.c.key_id)
    )
    return int(result.scalar_one())


def _key_values(connection: sa.Connection, facts: KeyFacts) -> dict[str, Any]:
    model_row = _typed(facts.model, schema.MODEL_FIELDS) | {"digest": model_digest(facts.model)}
    device_row = _typed(facts.device, schema.DEVICE_FIELDS) | {
        "digest": device_digest(facts.device)
    }
    return {
        "model_id": _find_or_insert(connection, schema.model, "model_id", model_row),
        "device_id": _find_or_insert(connection, schema.device, "device_id", device_row),
        **_storable({name: getattr(facts, name) for name in schema.RUN_PARAMETERS}),
        "post_step_forward_sensor": int(facts.post_step_forward_sensor),
    }


def _typed(facts: Mapping[str, Any], columns: Mapping[str, type]) -> dict[str, Any]:
    """Split facts into those that fit a column of their own and the rest, kept as JSON."""
    fitting = {name: facts.get(name) for name, kind in columns.items()}
    for name, kind in columns.items():
        if not _fits(fitting[name], kind):
            fitting[name] = None
    rest = {name: value for name, value in facts.items() if fitting.get(name) is None}
    return fitting | {"other_facts": canonical_json(rest) if rest else None}


def _fits(value: Any, kind: type) -> bool:
    if type(value) is int:
        return kind is int and 0 <= value <= LARGEST_INTEGER
    return type(value) is kind


def _find_or_insert(
    connection: sa.Connection, table: sa.TableClause, id_name: str, values: dict[str, Any]
) -> int:
    # Both within one write transaction: nobody can come in between.
    query = sa.select(table.c[id_name]).where(table.c.digest == values["digest"])
    found = connection.execute(query).scalar()
    if found is None:
        found = connection.execute(
            sa.insert(table).returning(table.c[id_name]), _storable(values)
        ).scalar_one()
    return int(found)


def _insert_run(connection: sa.Connection, key_id: int, run: Run) -> int:
    around = run.circumstances
    values = {
        "key_id": key_id,
        "uid": run.uid,
        "state": run.state,
        "plan": run.plan,
        "work": run.work,
        "pool": run.pool,
        "pool_version": run.pool_version,
        "seed": run.seed,
        "samples": len(run.samples),
        "time_budget_seconds": run.time_budget_seconds,
        "pool_seconds": run.pool_seconds,
        "started_utc": utc_text(run.started) if run.started else None,
        "finished_utc": utc_text(run.finished),
        "model_file": run.model_file,
        "hostname": around.hostname,
        "pid": around.pid,
        "load_average": around.load_average,
        "tuner_version": around.tuner_version,
        "mujoco_version": around.mujoco_version,
        "python_version": around.python_version,
        "message": run.message,
        "failed_chunk_sizes": _chunk_sizes(run.failed),
        "other_facts": canonical_json(run.other_facts) if run.other_facts else None,
    }
    result = connection.execute(INSERT_RUN, _storable(values))
    return int(result.scalar_one())


def _chunk_sizes(candidates: Sequence[Candidate]) -> str | None:
    return json.dumps([c.chunk_size for c in candidates]) if candidates else None


def _insert_samples(connection: sa.Connection, run_id: int, samples: Sequence[Sample]) -> None:
    # Rows as tuples, straight to the driver: for hundreds of samples, Core's way through a
    # dictionary each takes longer than SQLite itself.
    connection.exec_driver_sql(
        INSERT_SAMPLE,
        [
            (
                run_id,
                sample.order,
                sample.round,
                sample.candidate.chunk_size,
                sample.nanoseconds,
                int(sample.warm_up),
                sample.steps,
            )
            for sample in samples
        ],
    )


def _put_verdict(
    connection: sa.Connection,
    key: str,
    key_id: int,
    run_id: int,
    verdict: Verdict,
    per_candidate_ms: Mapping[str, float],
) -> None:
    runs, samples, last = connection.execute(RUNS_OF_KEY, {"key_id": key_id}).one()
    values = {
        "key_digest": str(key),
        "chunk_size": verdict.chunk_size,
        "decided": int(verdict.decided),
        "reason": verdict.reason,
        "gain": verdict.gain,
        "gain_low": verdict.gain_low,
        "gain_high": verdict.gain_high,
        "runs": runs,
        "samples": samples,
        "latest_run_id": run_id,
        "last_measured_utc": last,
        "per_candidate_ms": json.dumps(dict(per_candidate_ms)) if per_candidate_ms else None,
    }
    connection.execute(PUT_VERDICT, values)


def check_digest(key: str) -> None:
    """Check that a text can stand as a key.

    Raises:
        ArgumentError: if it is not a text of 1 to 1000 characters.
    """
    if not isinstance(key, str) or not 1 <= len(key) <= 1000 or storable_text(key) != key:
        raise ArgumentError(f"key {str(key)[:50]!r} is not a key: give what make_cache_key returns")


def storable_text(text: str) -> str:
    """Write a text so that a database can hold it: file names may hold bytes that are no text."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")


def _storable(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: storable_text(value) if isinstance(value, str) else value
        for name, value in values.items()
    }
