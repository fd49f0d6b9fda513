"""Writes runs, verdicts, pins and policies; deletes runs. One transaction for each change.

A run is stored whole or not at all, together with the verdict that it leads to. Only verdicts
are overwritten: they are computed from the samples of all runs. No pool is ever timed while a
transaction is open.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from tuner.candidates import checked_chunk_size
from tuner.environment import Environment
from tuner.errors import ArgumentError, DatabaseError
from tuner.racing.meta_analysis import judge_runs
from tuner.records import LARGEST_INTEGER, Run, Sample, Verdict
from tuner.store import schema
from tuner.store.database import insert_if_new, reading, upsert, vacuum, writing
from tuner.store.migrate import upgrade
from tuner.store.queries import (
    EVERYTHING,
    NOTHING,
    Selection,
    policies_of,
    read_runs,
    run_conditions,
    valid_runs,
)
from tuner.store.schema import (
    DEVICE_FIELDS,
    ENVIRONMENT_COLUMNS,
    LONGEST_TEXT,
    MODEL_FIELDS,
    RUN_ATTRIBUTES,
    RUN_PARAMETERS,
    Field,
    fitting,
    storable_text,
)
from tuner.workload import CacheKey, Workload, canonical_json, device_digest, model_digest

keys, runs_table, pins = schema.tuning_key, schema.run, schema.pin
# Statements are built once: building one takes longer than SQLite takes to carry it out.
FIND_KEY = sa.select(keys).where(keys.c.digest == sa.bindparam("key"))
INSERT_KEY = insert_if_new(keys, ["digest"])
# Two environments may have the same text, of an unknown version and of one called "?".
PUT_VERDICT = upsert(schema.verdict)
INSERT_RUN = sa.insert(runs_table).returning(runs_table.c.run_id)
INSERT_SAMPLE = "INSERT INTO sample ({}) VALUES ({})".format(
    ", ".join(column.name for column in schema.sample.columns),
    ", ".join("?" for _ in schema.sample.columns),
)
SampleRow = tuple[int, int, int | None, int, int, int]
"""A sample's order, block, chunk size, nanoseconds, warm-up and repeats."""


def utc_text(moment: datetime) -> str:
    """Write a moment as the database holds it: UTC, microseconds, a Z."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def save_run(database: Path, key: str, run: Run) -> Verdict | None:
    """Store a run with all its samples, and update the key's verdicts.

    Args:
        database: The file; created or upgraded if necessary.
        key: What `make_cache_key` returned, with its facts; a plain string has none to store.
        run: What was measured. A failed one leaves the verdicts as they are.

    Returns:
        The verdict for the run's environment; None for a failed run.

    Raises:
        DatabaseError: if the run was not stored; the database is unchanged.
    """
    upgrade(database)
    with writing(database) as connection:
        run_id = insert_run(connection, key_row(connection, key), run_values(run))
        insert_samples(connection, run_id, sample_rows(run.samples))
        if run.state == "failed":
            return None
        return judge_key(connection, key, {run_id: run})[run.environment]


def recompute(database: Path, progress: Callable[[Sequence[str]], Iterable[str]] = iter) -> int:
    """Recompute all verdicts from the samples, key by key.

    Args:
        database: The file.
        progress: Iterates over the keys, and may show the progress.

    Returns:
        The number of keys.
    """
    upgrade(database)
    with reading(database) as connection:
        digests = list(connection.execute(sa.select(keys.c.digest)).scalars())
    for key in progress(digests):
        with writing(database) as connection:  # one by one: other writers wait briefly
            judge_key(connection, key)
    return len(digests)


def judge_key(
    connection: sa.Connection, key: str, known: Mapping[int, Run] = NOTHING
) -> dict[Environment, Verdict]:
    """Recompute a key's verdicts from its runs: one for each environment it was measured in.

    A verdict rests on all runs that are valid for its environment, so the order in which runs
    are stored does not matter.
    """
    connection.execute(sa.delete(schema.verdict).where(schema.verdict.c.key_digest == str(key)))
    found = connection.execute(FIND_KEY, {"key": str(key)}).one_or_none()
    if found is None:  # deleted meanwhile
        return {}
    runs = read_runs(connection, str(key), known)
    environments = dict.fromkeys(run.environment for run in runs.values())
    # All runs of a single environment are valid for it, whatever the policies.
    policies = policies_of(connection) if len(environments) > 1 else {}
    verdicts = {}
    for environment in environments:
        usable = valid_runs(runs, policies, environment)
        verdict = judge_runs(list(usable.values()), num_envs=found.num_envs, nthread=found.nthread)
        values = _verdict_values(key, environment, usable, verdict)
        connection.execute(PUT_VERDICT, _storable(values))
        verdicts[environment] = verdict
    return verdicts


def _verdict_values(
    key: str, environment: Environment, runs: Mapping[int, Run], verdict: Verdict
) -> dict[str, Any]:
    timings = {str(e.candidate.chunk_size): e.milliseconds for e in verdict.estimates}
    if not timings:  # nothing was measured: use what came with the stated answer
        stated = max(runs.values(), key=lambda run: (run.finished, run.uid)).samples
        timings = {str(s.candidate.chunk_size): s.milliseconds for s in stated}
    seconds = [run.pool_seconds for run in runs.values() if run.pool_seconds is not None]
    latest, last = max(runs.items(), key=lambda numbered: (numbered[1].finished, numbered[1].uid))
    return {
        "key_digest": str(key),
        "stack": str(environment),
        **dict(zip(ENVIRONMENT_COLUMNS, environment, strict=True)),
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
    """Find or insert a key's row, and those of its model and its device; returns its id."""
    facts = _key_values(connection, key.workload) if isinstance(key, CacheKey) else {}
    connection.execute(INSERT_KEY, {"digest": str(key), **facts})
    found = connection.execute(FIND_KEY, {"key": str(key)}).one()
    if facts and found.model_id is None:  # stored before by its digest alone
        connection.execute(sa.update(keys).where(keys.c.key_id == found.key_id).values(**facts))
        _delete_impossible(connection, str(key), found.key_id, facts["num_envs"])
    return int(found.key_id)


def _delete_impossible(connection: sa.Connection, key: str, key_id: int, num_envs: int) -> None:
    """Delete pins and stated runs that exceed the num_envs of a key that is known only now."""
    samples = schema.sample.c
    too_large = sa.select(samples.run_id).where(samples.chunk_size > num_envs)
    chosen = runs_table.c.chosen_chunk_size > num_envs
    connection.execute(
        sa.delete(pins).where(pins.c.key_digest == key, pins.c.chunk_size > num_envs)
    )
    connection.execute(
        sa.delete(runs_table)
        .where(runs_table.c.key_id == key_id)
        .where(sa.or_(chosen, runs_table.c.run_id.in_(too_large)))
    )


def _key_values(connection: sa.Connection, facts: Workload) -> dict[str, Any]:
    model_row = _typed(facts.model, MODEL_FIELDS) | {"digest": model_digest(facts.model)}
    device_row = _typed(facts.device, DEVICE_FIELDS) | {"digest": device_digest(facts.device)}
    return {
        "model_id": _find_or_insert(connection, schema.model, model_row),
        "device_id": _find_or_insert(connection, schema.device, device_row),
        **_storable({name: getattr(facts, name) for name in RUN_PARAMETERS}),
    }


def _typed(facts: Mapping[str, Any], columns: Mapping[str, Field]) -> dict[str, Any]:
    """Split facts into those that fit a column of their own and the rest, kept as JSON."""
    columned = {name: fitting(facts.get(name), field.kind) for name, field in columns.items()}
    rest = {name: value for name, value in facts.items() if columned.get(name) is None}
    return columned | {"other_facts": canonical_json(rest) if rest else None}


def _find_or_insert(connection: sa.Connection, table: sa.Table, values: dict[str, Any]) -> int:
    connection.execute(insert_if_new(table, ["digest"]), _storable(values))
    (number,) = table.primary_key
    found = sa.select(number).where(table.c.digest == values["digest"])
    return int(connection.execute(found).scalar_one())


def run_values(run: Run) -> dict[str, Any]:
    """Return a run as its row holds it, without the ids that a database assigns."""
    metadata = asdict(run.metadata)
    values = {
        **{column: getattr(run, attribute) for column, attribute in RUN_ATTRIBUTES.items()},
        **dict(zip(ENVIRONMENT_COLUMNS, run.environment, strict=True)),
        **{name: value for name, value in metadata.items() if name in runs_table.c},
        "has_choice": int(run.choice is not None),
        "chosen_chunk_size": run.choice.chunk_size if run.choice else None,
        "imported_utc": utc_text(datetime.now(UTC)) if run.origin else None,
        "samples": len(run.samples),
        "started_utc": utc_text(run.started) if run.started else None,
        "finished_utc": utc_text(run.finished),
        "message": storable_text(run.message)[:LONGEST_TEXT] if run.message else run.message,
        "failed_chunk_sizes": json.dumps([c.chunk_size for c in run.failed])
        if run.failed
        else None,
        "other_facts": canonical_json(run.other_facts) if run.other_facts else None,
    }
    return _storable(values)


def insert_run(connection: sa.Connection, key_id: int, values: Mapping[str, Any]) -> int:
    """Insert a run's row; returns its id."""
    result = connection.execute(INSERT_RUN, {"key_id": key_id, **values})
    return int(result.scalar_one())


def sample_rows(samples: Iterable[Sample]) -> list[SampleRow]:
    """Return samples as their rows hold them, without the run's id."""
    return [
        (s.order, s.block, s.candidate.chunk_size, s.nanoseconds, int(s.warm_up), s.repeats)
        for s in samples
    ]


def insert_samples(connection: sa.Connection, run_id: int, samples: Sequence[SampleRow]) -> None:
    """Insert a run's samples."""
    # Tuples, straight to the driver: for hundreds of samples, Core's dictionaries take longer
    # than SQLite itself.
    if samples:
        connection.exec_driver_sql(INSERT_SAMPLE, [(run_id, *sample) for sample in samples])


def check_digest(key: str) -> None:
    """Check that a text can be a key.

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


def pin(database: Path, key: str, chunk_size: int | None, reason: str) -> None:
    """Make a key answer with a chunk size whatever is measured; None is the native default.

    Raises:
        ArgumentError: if there is no such key, or the chunk size is larger than its num_envs.
        DatabaseError: if nothing was stored.
    """
    upgrade(database)
    with writing(database) as connection:
        found = connection.execute(FIND_KEY, {"key": key}).one_or_none()
        if found is None:
            raise ArgumentError(f"there is no key {key} to pin: `tuner list` shows all")
        if chunk_size is not None:
            most = LARGEST_INTEGER if found.num_envs is None else found.num_envs
            chunk_size = checked_chunk_size(chunk_size, most)
        values = {
            "key_digest": key,
            "chunk_size": chunk_size,
            "reason": storable_text(" ".join(reason.split())),
            "pinned_utc": utc_text(datetime.now(UTC)),
        }
        connection.execute(upsert(pins), values)


def unpin(database: Path, key: str) -> bool:
    """Remove a pin; tells whether there was one."""
    upgrade(database)
    with writing(database) as connection:
        return bool(connection.execute(sa.delete(pins).where(pins.c.key_digest == key)).rowcount)


def read_policies(database: Path) -> dict[str, str]:
    """Read how strictly each validator counts."""
    with reading(database) as connection:
        return policies_of(connection)


def set_policy(database: Path, name: str, policy: str) -> None:
    """Set how strictly a validator counts, and recompute the verdicts under it.

    Recomputes key by key; `recompute` completes an interrupted change.
    """
    upgrade(database)
    with writing(database) as connection:
        connection.execute(upsert(schema.validator), {"name": name, "policy": policy})
    recompute(database)


@dataclass(frozen=True, slots=True)
class Deletion:
    """What a deletion removes."""

    run_ids: tuple[int, ...]
    samples: int
    keys: tuple[str, ...]
    """Keys that lose runs, or are removed."""
    gone: tuple[str, ...]
    """Those of them that are removed entirely."""
    with_pins: bool = False
    """Whether pins are removed along with their keys; otherwise a pinned key stays."""


def plan_deletion(
    database: Path, selection: Selection = EVERYTHING, keys: Sequence[str] = ()
) -> Deletion:
    """Choose what a deletion would remove. Changes nothing.

    Args:
        database: The file.
        selection: Which runs, by their keys and the times of their ends. Without a filter of
            time, the keys are removed entirely. A pinned key stays unless it is in `keys`.
        keys: Digests; only these keys, if any are given.

    Raises:
        ArgumentError: if neither filters nor keys are given.
    """
    if not keys and selection == EVERYTHING:
        raise ArgumentError("choose what to delete: give keys, or a filter")
    table = schema.tuning_key
    whole = selection.since is None and selection.until is None
    with_pins = whole and bool(keys)
    chosen = run_conditions(selection, runs_table.c.finished_utc)
    if keys:
        chosen.append(table.c.digest.in_(keys))
    columns = (runs_table.c.run_id, runs_table.c.samples, table.c.digest)
    runs = sa.select(*columns).join(table).where(*chosen).order_by(runs_table.c.run_id)
    with reading(database) as connection:
        going = connection.execute(runs).all()
        run_ids = {row.run_id for row in going}
        touched = {row.digest for row in going}
        if whole:
            gone = set(connection.execute(sa.select(table.c.digest).where(*chosen)).scalars())
        else:
            left = connection.execute(sa.select(runs_table.c.run_id, table.c.digest).join(table))
            gone = touched - {row.digest for row in left if row.run_id not in run_ids}
        if not with_pins:
            gone -= set(connection.execute(sa.select(pins.c.key_digest)).scalars())
    return Deletion(
        run_ids=tuple(row.run_id for row in going),
        samples=sum(row.samples for row in going),
        keys=tuple(sorted(touched | gone)),
        gone=tuple(sorted(gone)),
        with_pins=with_pins,
    )


def delete(database: Path, deletion: Deletion) -> int:
    """Remove what was planned, recompute the verdicts of what is left, and free the space.

    A key that was measured since, or pinned unless pins are removed as well, is kept.

    Returns:
        The bytes given back to the disk.

    Raises:
        DatabaseError: if nothing was changed; or if only the space could not be given back.
    """
    upgrade(database)
    unused = runs_table.c.key_id == keys.c.key_id, pins.c.key_digest == keys.c.digest
    remove_run = sa.delete(runs_table).where(runs_table.c.run_id == sa.bindparam("number"))
    remove_key = sa.delete(keys).where(
        keys.c.digest == sa.bindparam("key"),
        *(~sa.exists().where(used) for used in unused[: 1 if deletion.with_pins else 2]),
    )
    with writing(database) as connection:
        if deletion.run_ids:
            connection.execute(remove_run, [{"number": run_id} for run_id in deletion.run_ids])
        for key in deletion.keys:
            removed = key in deletion.gone and connection.execute(remove_key, {"key": key}).rowcount
            if not removed:
                judge_key(connection, key)
        for table, column in ((schema.model, keys.c.model_id), (schema.device, keys.c.device_id)):
            (number,) = table.primary_key
            connection.execute(sa.delete(table).where(~sa.exists().where(column == number)))
    try:
        return vacuum(database)
    except DatabaseError as error:
        raise DatabaseError(
            f"the runs are deleted, but their space is not freed: {error}; "
            "the next `tuner delete` frees it"
        ) from error
