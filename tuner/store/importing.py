"""Takes in runs that were measured elsewhere. A run goes in whole, or not at all with a reason.

Runs are never overwritten: what is there under a run's name stays, and is compared. In short
transactions, with a pause between them: an import of hours must not keep a job from its turn.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import sqlalchemy as sa

from tuner.store import schema
from tuner.store.database import reading, writing
from tuner.store.exporting import PRIVATE
from tuner.store.runs import (
    SampleRow,
    insert_run,
    insert_samples,
    judge_key,
    key_row,
)
from tuner.workload import CacheKey

HOLD_SECONDS = 0.5
"""Of the write lock, after which others get their turn; a key that is begun is ended."""
PAUSE_SECONDS = 0.05
"""Between two turns: a waiting writer looks again after 1 to 100 ms."""
MOST_CANDIDATES = 100
"""Of a key: a verdict's time grows with their cube. No tuning times a quarter of it."""
MOST_SAMPLES = 200_000
"""Of a key: they are in memory while its verdict is made."""
MOST_RUNS = 10_000
"""Of a key."""
MOST_WORK = 2_000_000
"""Of a key, its runs by the square of its candidates: half a gigabyte while its verdict is made."""
STATED = "stated elsewhere"
"""Plan of a run that is somebody's word, without a time of its own."""
OF_THE_IMPORT = {"origin", "imported_utc"}
"""Differs between two databases that hold the same run."""
OF_A_CHOICE = {"has_choice", "chosen_chunk_size"}

FIND_RUN = (
    sa.select(schema.run, schema.tuning_key.c.digest, schema.tuning_key.c.model_id)
    .join_from(schema.run, schema.tuning_key, schema.run.c.key_id == schema.tuning_key.c.key_id)
    .where(schema.run.c.uid == sa.bindparam("uid"))
)
SAMPLES = (
    "SELECT sample_order, round, chunk_size, nanoseconds, warm_up, steps "
    "FROM sample WHERE run_id = ? ORDER BY sample_order"
)
NUM_ENVS = "SELECT num_envs FROM tuning_key WHERE key_id = ?"
RUNS = "SELECT count(*) FROM run WHERE key_id = ?"
CANDIDATES = """
    SELECT sample.chunk_size, count(*) FROM run JOIN sample ON sample.run_id = run.run_id
    WHERE run.key_id = ? GROUP BY sample.chunk_size
"""


class IncomingRun(NamedTuple):
    """A run that wants to be taken in, checked as far as that goes without a database."""

    key: str
    """With its facts, where they are known."""
    run: dict[str, Any]
    """The values of its row, but for the numbers that a database gives out."""
    samples: list[SampleRow]
    """In their order."""
    place: int
    """Where in the file it begins: the number of its first line or row."""


class ImportStatus(NamedTuple):
    """What became of it."""

    kind: Literal["new", "known", "rejected"]
    reason: str = ""
    """Why it was rejected."""


KNOWN = ImportStatus("known")
NEW = ImportStatus("new")


def meet(database: Path, arrivals: Sequence[IncomingRun]) -> list[ImportStatus | None]:
    """Tell which runs are there already.

    Args:
        database: A file of this code's schema.
        arrivals: As many as memory allows.

    Returns:
        What became of each, in their order; None where `take_in` has to say.

    Raises:
        DatabaseError: if the file cannot be used.
    """
    with reading(database) as connection:
        return [_met_before(connection, arrival) for arrival in arrivals]


def take_in(
    database: Path, groups: Iterable[Sequence[IncomingRun]]
) -> Iterator[list[ImportStatus]]:
    """Store what is not there yet, and make the verdicts of its keys anew, of each key once.

    Args:
        database: A file of this code's schema.
        groups: All runs of a key, for each key.

    Yields:
        What became of the runs of each group, once that is stored.

    Raises:
        DatabaseError: if the file cannot be used; what was stored until then stays.
    """
    left = iter(groups)
    group = next(left, None)
    while group is not None:
        done = []
        with writing(database) as connection:
            end = time.monotonic() + HOLD_SECONDS
            while group is not None:
                done.append(_take_in_key(connection, group))
                group = next(left, None)
                if time.monotonic() >= end:
                    break
        yield from done
        if group is not None:
            time.sleep(PAUSE_SECONDS)


def _met_before(connection: sa.Connection, arrival: IncomingRun) -> ImportStatus | None:
    """Tell whether a run is there already, and is the same; None if something of it is new."""
    row = connection.execute(FIND_RUN, {"uid": arrival.run["uid"]}).mappings().one_or_none()
    if row is None:
        return None
    differing = [name for name in arrival.run if not _same(name, row, arrival.run)]
    if row["digest"] != str(arrival.key):
        differing.append("tuning_key")
    # Straight from the driver: of a file that is there already, this takes most of the time.
    driver = connection.connection.driver_connection
    assert isinstance(driver, sqlite3.Connection)
    if driver.execute(SAMPLES, (row["run_id"],)).fetchall() != arrival.samples:
        differing.append("its samples")
    if not differing:
        learnt = isinstance(arrival.key, CacheKey) and row["model_id"] is None
        return None if learnt else KNOWN
    return ImportStatus(
        "rejected",
        f"run {arrival.run['uid']} is in the database already with other content, by "
        f"{', '.join(differing)}: what is there stays; compare the two with `tuner export --key "
        f"{str(arrival.key)[:40]}`",
    )


def _same(name: str, there: Mapping[Any, Any], here: Mapping[str, Any]) -> bool:
    """Compare what two databases say of a run; one may have been told less, to keep it private."""
    if there[name] == here[name] or name in OF_THE_IMPORT:
        return True
    if name == "finished_utc" and there["plan"] == STATED:
        return True  # the time of a file, which is another one for each copy of it
    if name in OF_A_CHOICE and there["method"] is None and here["method"] is None:
        # Schema 0001 knew the choice of a key's latest run only, and forgot it with the next run.
        return not (there["has_choice"] and here["has_choice"])
    private = name in PRIVATE or name == "other_facts"
    return private and (there[name] is None or here[name] is None)


def _take_in_key(connection: sa.Connection, arrivals: Sequence[IncomingRun]) -> list[ImportStatus]:
    """Store runs of one key with its verdicts; where that fails as a whole, half by half."""
    connection.exec_driver_sql("SAVEPOINT key")
    try:
        fates = _take_in_runs(connection, arrivals)
        if all(fate.kind == "rejected" for fate in fates):
            connection.exec_driver_sql("ROLLBACK TO key")  # not even the key is there for them
        else:
            judge_key(connection, arrivals[0].key)
    except (sa.exc.IntegrityError, ArithmeticError, ValueError) as error:
        connection.exec_driver_sql("ROLLBACK TO key")
        if len(arrivals) > 1:
            middle = len(arrivals) // 2
            halves = (arrivals[:middle], arrivals[middle:])
            fates = [fate for half in halves for fate in _take_in_key(connection, half)]
        else:
            fates = [ImportStatus("rejected", _why(error))]
    connection.exec_driver_sql("RELEASE key")
    return fates


def _take_in_runs(connection: sa.Connection, arrivals: Sequence[IncomingRun]) -> list[ImportStatus]:
    # Facts first: what no pool of the key could take is to be told in any order of the files.
    facts = next((a.key for a in arrivals if isinstance(a.key, CacheKey)), arrivals[0].key)
    key_id = key_row(connection, facts)
    amount = _Amount(connection, key_id)
    fates = []
    for arrival in arrivals:
        # Met again: another process may have been faster, or another file has it too.
        fate = _met_before(connection, arrival) or amount.fate_with(arrival)
        if fate == NEW:
            insert_samples(connection, insert_run(connection, key_id, arrival.run), arrival.samples)
        fates.append(fate)
    return fates


class _Amount:
    """How much there is of a key, and whether a verdict can still be made of more."""

    def __init__(self, connection: sa.Connection, key_id: int) -> None:
        def ask(statement: str) -> Any:
            return connection.exec_driver_sql(statement, (key_id,))

        self._num_envs = ask(NUM_ENVS).scalar_one()
        self._runs = ask(RUNS).scalar_one()
        by_candidate = ask(CANDIDATES).all()
        self._candidates = {chunk_size for chunk_size, _ in by_candidate}
        self._samples = sum(count for _, count in by_candidate)

    def fate_with(self, arrival: IncomingRun) -> ImportStatus:
        """Count a run in, unless that were too much."""
        here = {sample[2] for sample in arrival.samples}
        largest = max(here | {arrival.run["chosen_chunk_size"]}, key=lambda size: size or 0)
        if self._num_envs is not None and largest is not None and largest > self._num_envs:
            reason = f"chunk_size {largest} is more than the key's num_envs {self._num_envs}"
            return ImportStatus("rejected", reason)
        candidates = self._candidates | here
        samples, runs = self._samples + len(arrival.samples), self._runs + 1
        for count, most, what in (
            (len(candidates), MOST_CANDIDATES, "candidates"),
            (samples, MOST_SAMPLES, "samples"),
            (runs, min(MOST_RUNS, MOST_WORK // max(1, len(candidates)) ** 2), "runs"),
        ):
            if count > most:
                return ImportStatus(
                    "rejected", f"the key would have {count} {what}, more than {most}"
                )
        self._candidates, self._samples, self._runs = candidates, samples, runs
        return NEW


def _why(error: Exception) -> str:
    if isinstance(error, sa.exc.IntegrityError):
        return f"the database refuses it: {error.orig}"
    return f"no verdict can be made of it: {error}"
