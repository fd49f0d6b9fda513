"""Reads runs and verdicts for a file that others are to read: each row with all its facts.

From a private copy, which SQLite makes in a second: whoever writes an export may be slow (a pipe
into a pager), and a reader that stays keeps every writer of the database waiting.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import sqlalchemy as sa

from tuner.store import schema
from tuner.store.backup import back_up
from tuner.store.database import writing
from tuner.store.maintenance import fresh_schema, schema_of
from tuner.store.queries import EVERYTHING, Selection, on_runs
from tuner.store.runs import judge_key
from tuner.store.schema import DEVICE_FIELDS, MODEL_FIELDS, RUN_PARAMETERS
from tuner.store.sqlite import (
    REVISION,
    file_revision,
    open_for_reading,
    open_for_writing,
    other_revision,
)


class Column(NamedTuple):
    """A column of an export."""

    kind: type
    source: str
    """What stands in it, in SQL."""


def _facts(table: str, fields: Mapping[str, Any]) -> dict[str, Column]:
    return {name: Column(field.kind, f"{table}.{name}") for name, field in fields.items()}


KEY_COLUMNS = {
    "tuning_key": Column(str, "tuning_key.digest"),
    **_facts("tuning_key", RUN_PARAMETERS),
    "model_digest": Column(str, "model.digest"),
    **_facts("model", MODEL_FIELDS),
    "model_other_facts": Column(str, "model.other_facts"),
    "device_digest": Column(str, "device.digest"),
    **_facts("device", DEVICE_FIELDS),
    "device_other_facts": Column(str, "device.other_facts"),
}
"""A key with the facts that it is made from; empty where nobody stated them."""

RUN_KINDS = {
    "state": str,
    "occasion": str,
    "started_utc": str,
    "finished_utc": str,
    "samples": int,
    "has_choice": bool,
    "chosen_chunk_size": int,
    "failed_chunk_sizes": str,
    "plan": str,
    "work": str,
    "method": str,
    "pool": str,
    "pool_version": str,
    "mujoco_version": str,
    "python_version": str,
    "tuner_version": str,
    "near_key": str,
    "seed": int,
    "time_budget_seconds": float,
    "pool_seconds": float,
    "load_average": float,
    "model_file": str,
    "hostname": str,
    "pid": int,
    "origin": str,
    "imported_utc": str,
    "message": str,
}
RUN_COLUMNS = {
    "run_uid": Column(str, "run.uid"),
    **{name: Column(kind, f"run.{name}") for name, kind in RUN_KINDS.items()},
    "run_other_facts": Column(str, "run.other_facts"),
}
SAMPLE_COLUMNS = {
    "sample_order": Column(int, "sample.sample_order"),
    "round": Column(int, "sample.round"),
    "chunk_size": Column(int, "sample.chunk_size"),
    "nanoseconds": Column(int, "sample.nanoseconds"),
    "warm_up": Column(bool, "sample.warm_up"),
    "steps": Column(int, "sample.steps"),
}
VERDICT_KINDS = {
    "stack": str,
    "mujoco_version": str,
    "pool": str,
    "pool_version": str,
    "method": str,
    "chunk_size": int,
    "decided": bool,
    "reason": str,
    "gain": float,
    "gain_low": float,
    "gain_high": float,
    "expected_loss": float,
    "between_runs": float,
    "runs": int,
    "imported_runs": int,
    "samples": int,
    "pool_seconds": float,
    "last_measured_utc": str,
    "per_candidate_ms": str,
}
VERDICT_COLUMNS = {
    **{name: Column(kind, f"verdict.{name}") for name, kind in VERDICT_KINDS.items()},
    "pinned": Column(bool, "pin.key_digest IS NOT NULL"),
    "pinned_chunk_size": Column(int, "pin.chunk_size"),
    "pinned_because": Column(str, "pin.reason"),
    "latest_run_uid": Column(str, "run.uid"),
    "model_file": Column(str, "run.model_file"),
    "hostname": Column(str, "run.hostname"),
}

PRIVATE = (
    "hostname",
    "pid",
    "model_file",
    "origin",
    "imported_utc",
    "message",
    "run_other_facts",
    "pinned_because",
)
"""What an anonymous export leaves out: names of hosts and files, and texts that may hold some."""

ELSEWHERE = "elsewhere"
"""The origin of imported runs in an anonymous database."""

FACTS_OF_KEY = """
    LEFT JOIN model ON model.model_id = tuning_key.model_id
    LEFT JOIN device ON device.device_id = tuning_key.device_id
"""
JOINS = f"LEFT JOIN tuning_key ON tuning_key.key_id = run.key_id {FACTS_OF_KEY}"
ANSWERS = f"""
    FROM tuning_key {FACTS_OF_KEY}
    LEFT JOIN verdict ON verdict.key_digest = tuning_key.digest
    LEFT JOIN run ON run.run_id = verdict.latest_run_id
    LEFT JOIN pin ON pin.key_digest = tuning_key.digest
    WHERE (verdict.stack IS NOT NULL OR pin.reason IS NOT NULL)
"""
SAMPLES = """
    SELECT sample_order, round, chunk_size, nanoseconds, warm_up, steps
    FROM sample WHERE run_id = ? ORDER BY sample_order
"""


class Snapshot:
    """One moment's state of a database, opened for reading row by row."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def count(self, selection: Selection) -> tuple[int, int]:
        """Count runs and their samples."""
        where, given = on_runs(selection, "run.finished_utc")
        row = self._connection.execute(
            f"SELECT count(*), coalesce(sum(run.samples), 0) FROM run {JOINS} WHERE {where}", given
        ).fetchone()
        return int(row[0]), int(row[1])

    def run_ids(self, selection: Selection) -> Iterator[int]:
        """Go through runs by key, and within one by their ends."""
        where, given = on_runs(selection, "run.finished_utc")
        for (run_id,) in self._connection.execute(
            f"SELECT run.run_id FROM run {JOINS} WHERE {where} "
            "ORDER BY tuning_key.digest, run.finished_utc, run.uid",
            given,
        ):
            yield run_id

    def run(self, run_id: int) -> dict[str, Any]:
        """Read a run with its key's facts."""
        columns = {**KEY_COLUMNS, **RUN_COLUMNS}
        sources = ", ".join(column.source for column in columns.values())
        cursor = self._connection.execute(
            f"SELECT {sources} FROM run {JOINS} WHERE run.run_id = ?", (run_id,)
        )
        return named(columns, cursor.fetchone())

    def samples(self, run_id: int, most: int | None = None) -> list[tuple[Any, ...]]:
        """Read a run's samples; no more than `most`."""
        limit = "" if most is None else f" LIMIT {most}"
        return self._connection.execute(SAMPLES + limit, (run_id,)).fetchall()

    def verdicts(self, selection: Selection) -> Iterator[dict[str, Any]]:
        """Go through verdicts by key, with the key's facts; a pin without one is a row too."""
        where, given = on_runs(selection, "verdict.last_measured_utc")
        columns = {**KEY_COLUMNS, **VERDICT_COLUMNS}
        sources = ", ".join(column.source for column in columns.values())
        for row in self._connection.execute(
            f"SELECT {sources} {ANSWERS} AND {where} ORDER BY tuning_key.digest, verdict.stack",
            given,
        ):
            yield named(columns, row)


def named(columns: Mapping[str, Column], values: Iterable[Any]) -> dict[str, Any]:
    """Name a row's values, truth values as such."""
    return {
        name: bool(value) if column.kind is bool and value in (0, 1) else value
        for (name, column), value in zip(columns.items(), values, strict=True)
    }


@contextmanager
def shelf(database: Path) -> Iterator[Snapshot]:
    """Copy a database, for reading as long as it takes.

    Raises:
        SchemaError: if the file has another schema than this code reads.
        DatabaseError: if it cannot be read, or there is no room for a copy.
    """
    revision = file_revision(database)
    if revision is not None and revision != REVISION:
        raise other_revision(database, revision)
    with tempfile.TemporaryDirectory(prefix="tuner-") as folder:
        copy = Path(folder) / "copy.db"
        back_up(database, copy)
        with closing(open_for_reading(copy)) as connection:
            yield Snapshot(connection)


def keeping_ours(
    here: Mapping[str, str], ours: Mapping[str, str], kinds: Iterable[str]
) -> Iterator[str]:
    """Say by which statements what others added to a database goes, and our own is again there.

    Args:
        here: Its schema, as `schema_of` reads it.
        ours: The schema that it should have.
        kinds: What is taken out of it, one kind after the other.
    """
    for doomed in kinds:
        for what, sql in here.items():
            kind, _, name = what.partition(" ")
            if kind == doomed and sql != ours.get(what) and name != "sqlite_sequence":
                quoted = name.replace('"', '""')
                yield f'DROP {kind} IF EXISTS "{quoted}"'
    for what, sql in ours.items():
        if what.startswith(("view ", "index ")) and here.get(what) != sql:
            yield sql


def write_database(
    database: Path, copy: Path, selection: Selection, *, anonymous: bool
) -> tuple[int, int]:
    """Write a database of the runs that are meant, with their keys, pins and verdicts.

    Args:
        database: The file.
        copy: Where to; there must be nothing yet.
        selection: Which runs.
        anonymous: Whether to leave out what is `PRIVATE`.

    Returns:
        How many runs and samples it holds.
    """
    back_up(database, copy)
    here, ours = schema_of(copy), fresh_schema()
    where, given = on_runs(selection, "run.finished_utc")
    going = f"run_id NOT IN (SELECT run.run_id FROM run {JOINS} WHERE {where})"
    private = [name for name in PRIVATE if name in RUN_KINDS]
    with writing(copy) as connection:
        for statement in keeping_ours(here, ours, ("trigger", "view", "index", "table")):
            connection.exec_driver_sql(statement)
        keys = connection.execute(
            sa.text(
                "SELECT DISTINCT tuning_key.digest FROM run "
                f"JOIN tuning_key ON tuning_key.key_id = run.key_id WHERE {going}"
            ),
            given,
        ).scalars()
        losing = set(keys)
        connection.execute(sa.text(f"DELETE FROM run WHERE {going}"), given)
        connection.execute(sa.delete(schema.lookup))
        if given:  # else a key without runs stays, because it is pinned
            connection.exec_driver_sql(
                "DELETE FROM tuning_key WHERE NOT EXISTS "
                "(SELECT 1 FROM run WHERE run.key_id = tuning_key.key_id)"
            )
        for table in ("model", "device"):
            connection.exec_driver_sql(
                f"DELETE FROM {table} WHERE NOT EXISTS (SELECT 1 FROM tuning_key "
                f"WHERE tuning_key.{table}_id = {table}.{table}_id)"
            )
        left = set(connection.execute(sa.select(schema.tuning_key.c.digest)).scalars())
        for key in sorted(losing & left):
            judge_key(connection, key)
        if anonymous:
            nothing: dict[str, Any] = dict.fromkeys((*private, "other_facts"))
            # What was imported must not look as if it had been measured here.
            foreign = sa.case((schema.run.c.origin.is_not(None), ELSEWHERE))
            connection.execute(sa.update(schema.run).values(nothing | {"origin": foreign}))
            connection.execute(sa.update(schema.pin).values(reason="pinned"))
    with closing(open_for_writing(copy)) as plain:
        plain.execute("VACUUM")  # what was taken out is not to be found in the file's free pages
    with closing(open_for_reading(copy)) as plain:
        return Snapshot(plain).count(EVERYTHING)
