"""Reads runs back as records: what a key's verdict is made from, and a race goes on from."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

from tuner.records import Candidate, Run, Sample
from tuner.validators import Stack, violated

Rows = Callable[..., list[dict[str, Any]]]
"""A statement and its parameters in, rows by name out."""

RUNS = """
    SELECT run.* FROM run JOIN tuning_key ON tuning_key.key_id = run.key_id
    WHERE tuning_key.digest = :key AND run.state <> 'failed'
    ORDER BY run.finished_utc, run.uid
"""
SAMPLES = "SELECT * FROM sample WHERE run_id = :run_id ORDER BY sample_order"
NOTHING: Mapping[int, Run] = {}
POLICIES = "SELECT name, policy FROM validator"


def read_runs(rows: Rows, key: str, known: Mapping[int, Run] = NOTHING) -> dict[int, Run]:
    """Read all runs of a key but the failed ones, with their samples, by their number.

    They come in the order of their ends, whatever the order in which they were stored.

    Args:
        rows: Asks the database.
        key: The key's digest.
        known: Runs that need not be read, because the caller has just stored them.
    """
    found = {}
    for row in rows(RUNS, {"key": key}):
        number = row["run_id"]
        # A row that no tuner wrote must not keep the other runs of its key from being judged.
        with suppress(ValueError, TypeError, OverflowError, RecursionError):
            found[number] = known.get(number) or _run(row, _samples(rows, number))
    return found


def _samples(rows: Rows, run_id: int) -> tuple[Sample, ...]:
    return tuple(
        Sample(
            candidate=Candidate(row["chunk_size"]),
            round=row["round"],
            order=row["sample_order"],
            nanoseconds=row["nanoseconds"],
            warm_up=bool(row["warm_up"]),
            steps=row["steps"],
        )
        for row in rows(SAMPLES, {"run_id": run_id})
    )


def _run(row: Mapping[str, Any], samples: tuple[Sample, ...]) -> Run:
    failed = json.loads(row["failed_chunk_sizes"]) if row["failed_chunk_sizes"] else []
    return Run(
        state=row["state"],
        uid=row["uid"],
        finished=datetime.fromisoformat(row["finished_utc"]),
        started=datetime.fromisoformat(row["started_utc"]) if row["started_utc"] else None,
        plan=row["plan"],
        samples=samples,
        stack=Stack(row["mujoco_version"], row["pool"], row["pool_version"], row["method"]),
        occasion=row["occasion"],
        choice=Candidate(row["chosen_chunk_size"]) if row["has_choice"] else None,
        origin=row["origin"],
        time_budget_seconds=row["time_budget_seconds"],
        pool_seconds=row["pool_seconds"],
        message=row["message"],
        failed=tuple(Candidate(None if chunk is None else int(chunk)) for chunk in failed),
    )


def holding(runs: Mapping[int, Run], policies: dict[str, Any], here: Stack) -> dict[int, Run]:
    """Keep the runs whose stack holds here, as the policies say."""
    return {number: run for number, run in runs.items() if not violated(policies, run.stack, here)}


def policies_of(rows: Rows) -> dict[str, Any]:
    """Read how strictly each validator counts."""
    return {row["name"]: row["policy"] for row in rows(POLICIES)}
