"""Takes in runs that were measured elsewhere. A run goes in whole, or not at all with a reason.

Runs are never overwritten: what is there under a run's name stays, and is compared. In short
transactions, with a pause between them: an import of hours must not keep a job from its turn.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, NamedTuple

import sqlalchemy as sa

from tuner.store import schema
from tuner.store.engine import reading, writing
from tuner.store.exporting import PRIVATE
from tuner.store.ledger import (
    Judge,
    SampleRow,
    insert_run,
    insert_samples,
    judge_key,
    key_row,
)

HOLD_SECONDS = 0.5
"""Of the write lock, after which others get their turn; a key that is begun is ended."""
PAUSE_SECONDS = 0.05
"""Between two turns: a waiting writer looks again after 1 to 100 ms."""
MOST_CANDIDATES = 100
"""Of a key: a verdict's time grows with their cube. No tuning times a quarter of it."""
MOST_SAMPLES = 200_000
"""Of a key: they are in memory while its verdict is made."""
STATED = "stated elsewhere"
"""Plan of a run that is somebody's word, without a time of its own."""
OF_THE_IMPORT = {"origin", "imported_utc"}
"""Differs between two databases that hold the same run."""

FIND_RUN = (
    sa.select(schema.run, schema.tuning_key.c.digest)
    .join_from(schema.run, schema.tuning_key, schema.run.c.key_id == schema.tuning_key.c.key_id)
    .where(schema.run.c.uid == sa.bindparam("uid"))
)
SAMPLES = (
    "SELECT sample_order, round, chunk_size, nanoseconds, warm_up, steps "
    "FROM sample WHERE run_id = ? ORDER BY sample_order"
)
AMOUNT = """
    SELECT count(DISTINCT sample.chunk_size), count(*), max(sample.chunk_size),
           max(tuning_key.num_envs)
    FROM tuning_key JOIN run ON run.key_id = tuning_key.key_id
    JOIN sample ON sample.run_id = run.run_id
    WHERE tuning_key.key_id = ?
"""


class Arrival(NamedTuple):
    """A run that wants to be taken in, checked as far as that goes without a database."""

    key: str
    """With its facts, where they are known."""
    run: dict[str, Any]
    """The values of its row, but for the numbers that a database gives out."""
    samples: list[SampleRow]
    """In their order."""
    place: int
    """Where in the file it begins: the number of its first line or row."""


class Fate(NamedTuple):
    """What became of it."""

    kind: Literal["new", "known", "rejected"]
    reason: str = ""
    """Why it was rejected."""


KNOWN = Fate("known")
NEW = Fate("new")


def take_in(database: Path, arrivals: Sequence[Arrival], judge: Judge) -> list[Fate]:
    """Store what is not there yet, and make the verdicts of the keys it belongs to anew.

    Args:
        database: A file of this code's schema.
        arrivals: As many as memory allows.
        judge: Says what a key's runs mean together.

    Returns:
        What became of each, in their order.

    Raises:
        DatabaseError: if the file cannot be used; what was stored until then stays.
    """
    if not arrivals:
        return []
    with reading(database) as connection:
        fates = [_met_before(connection, arrival) for arrival in arrivals]
    strangers = [number for number, fate in enumerate(fates) if fate is None]
    strangers.sort(key=lambda number: str(arrivals[number].key))
    groups = [list(group) for _, group in groupby(strangers, lambda n: str(arrivals[n].key))]
    while groups:
        with writing(database) as connection:
            end = time.monotonic() + HOLD_SECONDS
            held = False
            while groups and not held:
                numbers = groups.pop()
                found = _take_in_key(connection, [arrivals[n] for n in numbers], judge)
                for number, fate in zip(numbers, found, strict=True):
                    fates[number] = fate
                held = time.monotonic() >= end
        if groups:
            time.sleep(PAUSE_SECONDS)
    return [fate for fate in fates if fate is not None]


def _met_before(connection: sa.Connection, arrival: Arrival) -> Fate | None:
    """Tell whether a run is there already, and is the same; None if it is new."""
    row = connection.execute(FIND_RUN, {"uid": arrival.run["uid"]}).mappings().one_or_none()
    if row is None:
        return None
    differing = [name for name, value in arrival.run.items() if not _same(name, row, value)]
    if row["digest"] != str(arrival.key):
        differing.append("tuning_key")
    samples = connection.exec_driver_sql(SAMPLES, (row["run_id"],)).all()
    if [tuple(sample) for sample in samples] != arrival.samples:
        differing.append("its samples")
    if not differing:
        return KNOWN
    return Fate(
        "rejected",
        f"run {arrival.run['uid']} is in the database already with other content, by "
        f"{', '.join(differing)}: what is there stays; compare the two with `tuner export --key "
        f"{str(arrival.key)[:40]}`",
    )


def _same(name: str, row: Mapping[Any, Any], value: Any) -> bool:
    """Compare what two databases say of a run; one may have been told less, to keep it private."""
    there = row[name]
    if there == value or name in OF_THE_IMPORT:
        return True
    if name == "finished_utc" and row["plan"] == STATED:
        return True  # the time of a file, which is another one for each copy of it
    private = name in PRIVATE or name == "other_facts"
    return private and (there is None or value is None)


def _take_in_key(
    connection: sa.Connection, arrivals: Sequence[Arrival], judge: Judge
) -> list[Fate]:
    """Store runs of one key with its verdicts; where that fails as a whole, one by one."""
    connection.exec_driver_sql("SAVEPOINT key")
    try:
        fates = [_take_in_run(connection, arrival) for arrival in arrivals]
        if NEW in fates:
            _check_amount(connection, arrivals[0].key)
            judge_key(connection, arrivals[0].key, judge)
    except (sa.exc.IntegrityError, ArithmeticError, ValueError) as error:
        connection.exec_driver_sql("ROLLBACK TO key")
        if len(arrivals) > 1:
            fates = [fate for a in arrivals for fate in _take_in_key(connection, [a], judge)]
        else:
            fates = [Fate("rejected", _why(error))]
    connection.exec_driver_sql("RELEASE key")
    return fates


def _take_in_run(connection: sa.Connection, arrival: Arrival) -> Fate:
    met = _met_before(connection, arrival)  # again: another process may have been faster
    if met is not None:
        return met
    run_id = insert_run(connection, key_row(connection, arrival.key), arrival.run)
    insert_samples(connection, run_id, arrival.samples)
    return NEW


def _check_amount(connection: sa.Connection, key: str) -> None:
    """Check what only all runs of a key tell.

    Raises:
        ValueError: if a verdict of them would take forever, or could not be used.
    """
    key_id = key_row(connection, key)
    candidates, samples, largest, num_envs = connection.exec_driver_sql(AMOUNT, (key_id,)).one()
    if candidates > MOST_CANDIDATES:
        raise ValueError(f"the key would have {candidates} candidates, more than {MOST_CANDIDATES}")
    if samples > MOST_SAMPLES:
        raise ValueError(f"the key would have {samples} samples, more than {MOST_SAMPLES}")
    if num_envs is not None and largest is not None and largest > num_envs:
        raise ValueError(f"chunk_size {largest} is more than the key's num_envs {num_envs}")


def _why(error: Exception) -> str:
    if isinstance(error, sa.exc.IntegrityError):
        return f"the database refuses it: {error.orig}"
    return f"no verdict can be made of it: {error}"
