"""Writes runs, and makes verdicts from them. One transaction a deed.

A run goes in whole or not at all, together with the verdict that it leads to; nothing is
overwritten but the verdict, which is made from the samples of all runs. No pool is ever timed
while a transaction is open: a caller hands over what is finished.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from tuner.environment import Environment
from tuner.errors import ArgumentError
from tuner.racing.meta_analysis import judge_runs
from tuner.records import Candidate, Run, Sample, Verdict
from tuner.store import schema
from tuner.store.database import reading, writing
from tuner.store.migrate import upgrade
from tuner.store.queries import NOTHING, policies_of, read_runs, valid_runs
from tuner.store.schema import (
    DEVICE_FIELDS,
    LONGEST_TEXT,
    MODEL_FIELDS,
    RUN_PARAMETERS,
    Field,
    fitting,
    storable_text,
)
from tuner.workload import CacheKey, Workload, canonical_json, device_digest, model_digest

# Statements are made once: making them takes longer than SQLite takes to carry them out.
FIND_KEY = sa.select(schema.tuning_key.c.key_id, schema.tuning_key.c.model_id).where(
    schema.tuning_key.c.digest == sa.bindparam("digest")
)
WORK_OF_KEY = sa.select(schema.tuning_key.c.num_envs, schema.tuning_key.c.nthread).where(
    schema.tuning_key.c.digest == sa.bindparam("digest")
)
# Two stacks may read alike, of an unknown version and of one called "": the later one stands.
INSERT_VERDICT = sa.insert(schema.verdict).prefix_with("OR REPLACE")
INSERT_RUN = sa.insert(schema.run).returning(schema.run.c.run_id)
INSERT_SAMPLE = "INSERT INTO sample ({}) VALUES ({})".format(
    ", ".join(column.name for column in schema.sample.columns),
    ", ".join("?" for _ in schema.sample.columns),
)
IMPOSSIBLE_RUNS = """
    DELETE FROM run WHERE key_id = :key_id AND (
        chosen_chunk_size > :num_envs
        OR run_id IN (SELECT run_id FROM sample WHERE chunk_size > :num_envs))
"""
SampleRow = tuple[int, int, int | None, int, int, int]
"""A sample's order, round, chunk size, nanoseconds, warm-up and steps."""


def utc_text(moment: datetime) -> str:
    """Write a moment as the database holds it: UTC, microseconds, a Z."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def save_run(database: Path, key: str, run: Run) -> Verdict | None:
    """Store a run with all its samples, and make the key's verdicts anew.

    Args:
        database: The file; made or upgraded if need be.
        key: What `make_cache_key` made, with its facts; a plain string has none to store.
        run: What was measured. A failed one leaves the verdicts as they are.

    Returns:
        The verdict for the run's software stack; None for a failed run.

    Raises:
        DatabaseError: if nothing could be stored; the database is as it was.
    """
    upgrade(database)
    with writing(database) as connection:
        run_id = insert_run(connection, key_row(connection, key), run_values(run))
        insert_samples(connection, run_id, sample_rows(run.samples))
        if run.state == "failed":
            return None
        return judge_key(connection, key, {run_id: run})[run.environment]


def recompute(database: Path, progress: Callable[[Sequence[str]], Iterable[str]] = iter) -> int:
    """Make all verdicts anew from the samples, key by key.

    Args:
        database: The file.
        progress: Goes through the keys, and may show how far it is.

    Returns:
        How many keys there are.
    """
    upgrade(database)
    with reading(database) as connection:
        keys = list(connection.execute(sa.select(schema.tuning_key.c.digest)).scalars())
    for key in progress(keys):
        with writing(database) as connection:  # one by one: nobody waits long for their turn
            judge_key(connection, key)
    return len(keys)


def judge_key(
    connection: sa.Connection, key: str, known: Mapping[int, Run] = NOTHING
) -> dict[Environment, Verdict]:
    """Make a key's verdicts anew from its runs: one for each software stack it was measured with.

    A verdict rests on all runs that hold for its stack, so what is stored depends neither on
    the order in which runs arrive nor on which of them came last.
    """

    def rows(statement: str, parameters: Mapping[str, object] | None = None) -> list[Any]:
        found = connection.execute(sa.text(statement), parameters or {})
        return [dict(row) for row in found.mappings()]

    table = schema.verdict
    connection.execute(sa.delete(table).where(table.c.key_digest == str(key)))
    work = connection.execute(WORK_OF_KEY, {"digest": str(key)}).mappings().one_or_none()
    if work is None:  # somebody has forgotten it meanwhile
        return {}
    runs = read_runs(rows, str(key), known)
    stacks = dict.fromkeys(run.environment for run in runs.values())
    policies = policies_of(rows) if len(stacks) > 1 else {}  # all runs of one stack hold for it
    verdicts = {}
    for stack in stacks:
        usable = valid_runs(runs, policies, stack)
        verdict = judge_runs(list(usable.values()), **work)
        values = _storable(_verdict_values(key, stack, usable, verdict))
        connection.execute(INSERT_VERDICT, values)
        verdicts[stack] = verdict
    return verdicts


def _verdict_values(
    key: str, stack: Environment, runs: Mapping[int, Run], verdict: Verdict
) -> dict[str, Any]:
    timings = {str(e.candidate.chunk_size): e.milliseconds for e in verdict.estimates}
    if not timings:  # nothing was measured: what was stated with the answer
        stated = max(runs.values(), key=lambda run: (run.finished, run.uid)).samples
        timings = {str(s.candidate.chunk_size): s.milliseconds for s in stated}
    seconds = [run.pool_seconds for run in runs.values() if run.pool_seconds is not None]
    latest, last = max(runs.items(), key=lambda numbered: (numbered[1].finished, numbered[1].uid))
    return {
        "key_digest": str(key),
        "stack": str(stack),
        **stack._asdict(),
        "chunk_size": verdict.chunk_size,
        "decided": int(verdict.decided),
        "reason": verdict.reason,
        "gain": verdict.gain,
        "gain_low": verdict.gain_low,
        "gain_high": verdict.gain_high,
        "expected_loss": verdict.expected_loss,
        "between_runs": verdict.between_runs,
        "runs": len(runs),
        "imported_runs": sum(run.is_imported for run in runs.values()),
        "samples": sum(len(run.samples) for run in runs.values()),
        "pool_seconds": sum(seconds) if seconds else None,
        "latest_run_id": latest,
        "last_measured_utc": utc_text(last.finished),
        "per_candidate_ms": json.dumps(timings) if timings else None,
    }


def key_row(connection: sa.Connection, key: str) -> int:
    """Find or make a key's row, and those of its model and its device."""
    table = schema.tuning_key
    found = connection.execute(FIND_KEY, {"digest": str(key)}).one_or_none()
    if found is not None and (found.model_id is not None or not isinstance(key, CacheKey)):
        return int(found.key_id)
    facts = _key_values(connection, key.facts) if isinstance(key, CacheKey) else {}
    if found is not None:  # stored before by its digest alone: now its facts are known
        connection.execute(sa.update(table).where(table.c.key_id == found.key_id).values(**facts))
        pins = schema.pin  # one that was set when nobody knew what the key's pool can take
        too_large = pins.c.chunk_size > facts["num_envs"]
        connection.execute(sa.delete(pins).where(pins.c.key_digest == str(key), too_large))
        # And runs of somebody's word: with them, no import or check of the key would ever pass.
        connection.exec_driver_sql(
            IMPOSSIBLE_RUNS, {"key_id": found.key_id, "num_envs": facts["num_envs"]}
        )
        return int(found.key_id)
    result = connection.execute(
        sa.insert(table).values(digest=str(key), **facts).returning(table.c.key_id)
    )
    return int(result.scalar_one())


def _key_values(connection: sa.Connection, facts: Workload) -> dict[str, Any]:
    model_row = _typed(facts.model, MODEL_FIELDS) | {"digest": model_digest(facts.model)}
    device_row = _typed(facts.device, DEVICE_FIELDS) | {"digest": device_digest(facts.device)}
    return {
        "model_id": _find_or_insert(connection, schema.model, "model_id", model_row),
        "device_id": _find_or_insert(connection, schema.device, "device_id", device_row),
        **_storable({name: getattr(facts, name) for name in RUN_PARAMETERS}),
        "post_step_forward_sensor": int(facts.post_step_forward_sensor),
    }


def _typed(facts: Mapping[str, Any], columns: Mapping[str, Field]) -> dict[str, Any]:
    """Split facts into those that fit a column of their own and the rest, kept as JSON."""
    columned = {name: fitting(facts.get(name), field.kind) for name, field in columns.items()}
    rest = {name: value for name, value in facts.items() if columned.get(name) is None}
    return columned | {"other_facts": canonical_json(rest) if rest else None}


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


def run_values(run: Run) -> dict[str, Any]:
    """Give a run as its row holds it, but for the numbers that a database gives out."""
    around = run.metadata
    values = {
        "uid": run.uid,
        "state": run.state,
        "plan": run.strategy,
        "work": run.work,
        **run.environment._asdict(),
        "occasion": run.trigger,
        "near_key": run.warm_start_key,
        "has_choice": int(run.choice is not None),
        "chosen_chunk_size": run.choice.chunk_size if run.choice else None,
        "origin": run.origin,
        "imported_utc": utc_text(datetime.now(UTC)) if run.origin else None,
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
        "python_version": around.python_version,
        "message": storable_text(run.message)[:LONGEST_TEXT] if run.message else run.message,
        "failed_chunk_sizes": _chunk_sizes(run.failed),
        "other_facts": canonical_json(run.other_facts) if run.other_facts else None,
    }
    return _storable(values)


def insert_run(connection: sa.Connection, key_id: int, values: Mapping[str, Any]) -> int:
    """Add a run's row; its number."""
    result = connection.execute(INSERT_RUN, {"key_id": key_id, **values})
    return int(result.scalar_one())


def _chunk_sizes(candidates: Sequence[Candidate]) -> str | None:
    return json.dumps([c.chunk_size for c in candidates]) if candidates else None


def sample_rows(samples: Iterable[Sample]) -> list[SampleRow]:
    """Give samples as their rows hold them, but for the run's number."""
    return [
        (
            sample.order,
            sample.block,
            sample.candidate.chunk_size,
            sample.nanoseconds,
            int(sample.warm_up),
            sample.repeats,
        )
        for sample in samples
    ]


def insert_samples(connection: sa.Connection, run_id: int, samples: Sequence[SampleRow]) -> None:
    """Add a run's samples."""
    # Rows as tuples, straight to the driver: for hundreds of samples, Core's way through a
    # dictionary each takes longer than SQLite itself.
    if samples:
        connection.exec_driver_sql(INSERT_SAMPLE, [(run_id, *sample) for sample in samples])


def check_digest(key: str) -> None:
    """Check that a text can stand as a key.

    Raises:
        ArgumentError: if it is not a text of 1 to 1000 characters.
    """
    if not isinstance(key, str) or not 1 <= len(key) <= 1000 or storable_text(key) != key:
        raise ArgumentError(f"key {str(key)[:50]!r} is not a key: give what make_cache_key returns")


def _storable(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: storable_text(value) if isinstance(value, str) else value
        for name, value in values.items()
    }
