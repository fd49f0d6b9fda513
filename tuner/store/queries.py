"""Reads the database: keys by filters, one key with its runs, similar keys. Never writes.

One set of filters serves every command that chooses keys or runs. Filters of keys apply to the
rows of `tuning_overview`, so that every command means the keys that `tuner list` shows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

import sqlalchemy as sa

from tuner.environment import Environment, violated
from tuner.errors import ArgumentError
from tuner.records import Candidate, Run, Sample, Trigger
from tuner.store import schema
from tuner.store.database import reading
from tuner.store.lookup import timings_of
from tuner.store.schema import (
    ENVIRONMENT_COLUMNS,
    FACTS,
    RUN_ATTRIBUTES,
    RUN_PARAMETERS,
    fitting,
    storable_text,
)
from tuner.store.sqlite import Result, run_query
from tuner.workload import CacheKey, Workload


class Difference(NamedTuple):
    """One fact in which a stored key differs from the one that is asked for."""

    field: str
    here: Any
    there: Any
    """None is unknown."""

    def __str__(self) -> str:
        return f"{self.field}: {_told(self.field, self.here)} here, " + (
            f"{_told(self.field, self.there)} there"
        )


def _told(field: str, value: Any) -> str:
    if value is None:
        return "unknown"
    if field == "cpu_quota":
        return f"{value:g}" if value else "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


class SimilarKey(NamedTuple):
    """A stored key with a decided verdict that is near to another one."""

    key: str
    chunk_size: int | None
    """Its winner; None is the native default."""
    gain: float | None
    """What that gained over the default there, as a share of the default's time."""
    num_envs: int
    nthread: int
    differences: tuple[Difference, ...]
    """Empty where only its software stack is another one."""
    environment: tuple[Difference, ...]
    """Validators by which its verdict does not hold here."""

    def trigger_for(self, key: str) -> Trigger:
        """What a run is made for that this relative shortens."""
        if self.key == key:
            return "outdated"
        # All that is known of it agrees: a row from before a field was known.
        agrees = all(difference.there is None for difference in self.differences)
        return "adopted" if agrees and not self.environment else "near"

    def scaled_to(self, num_envs: int, nthread: int) -> int | None:
        """Its winner for another amount of work: as many chunks a thread."""
        if self.chunk_size is None:
            return None
        share = num_envs / nthread * self.nthread / self.num_envs
        return min(max(1, round(self.chunk_size * share)), num_envs)


Row = dict[str, Any]
Condition = sa.ColumnElement[bool]
read_snapshot = reading
overview, keys = schema.tuning_overview, schema.tuning_key
model_file = overview.c.model_file
FILE_NAME = sa.func.replace(
    model_file, sa.func.rtrim(model_file, sa.func.replace(model_file, "/", "")), ""
)
"""The part of a path after its last slash: SQL has no function for it."""


class Selection(NamedTuple):
    """Filters that all hold together; None filters nothing."""

    key: str | None = None
    """The first characters of the key, with or without its scheme."""
    model: str | None = None
    """A pattern with * and ? for the model's file: its name, or the whole path."""
    device: str | None = None
    """A part of the CPU's model or of the instruction set, in any case."""
    num_envs: int | None = None
    min_gain: float | None = None
    """The smallest gain of the measured choice, as a share."""
    decided: bool | None = None
    """Pinned keys count as decided."""
    since: str | None = None
    """A time as the database holds it, or its beginning."""
    until: str | None = None
    """Likewise, exclusive."""


EVERYTHING = Selection()


def key_conditions(selection: Selection) -> list[Condition]:
    """Build the filters of keys, as conditions on `tuning_overview`."""
    pinned = overview.c.pinned_because.is_not(None)
    found: list[Condition] = []
    if selection.key is not None:
        found.append(_starts_with(overview.c.tuning_key, selection.key))
    if selection.model is not None:
        pattern = _like(selection.model)
        found.append(
            sa.or_(model_file.like(pattern, escape="!"), FILE_NAME.like(pattern, escape="!"))
        )
    if selection.device is not None:
        columns = (overview.c.cpu_model, overview.c.machine)
        found.append(sa.or_(*(c.icontains(selection.device, autoescape=True) for c in columns)))
    if selection.num_envs is not None:
        found.append(overview.c.num_envs == selection.num_envs)
    if selection.min_gain is not None:
        found.append(sa.and_(overview.c.gain >= selection.min_gain, sa.not_(pinned)))
    if selection.decided is not None:
        decided = sa.or_(sa.func.coalesce(overview.c.decided, 0) == 1, pinned)
        found.append(decided if selection.decided else sa.not_(decided))
    return found


def time_conditions(selection: Selection, moment: sa.ColumnElement[Any]) -> list[Condition]:
    """Build the filters of time, as conditions on a column."""
    found: list[Condition] = []
    if selection.since is not None:
        found.append(moment >= selection.since)
    if selection.until is not None:
        found.append(moment < selection.until)
    return found


def run_conditions(selection: Selection, moment: sa.ColumnElement[Any]) -> list[Condition]:
    """Build all filters, as conditions on a statement that joins `tuning_key`.

    Args:
        selection: The filters.
        moment: The column that the filters of time apply to.
    """
    found = key_conditions(selection)
    chosen = keys.c.digest.in_(sa.select(overview.c.tuning_key).where(*found))
    return ([chosen] if found else []) + time_conditions(selection, moment)


def _starts_with(column: sa.ColumnElement[Any], text: str) -> Condition:
    # LIKE ignores case on SQLite
    starts = (sa.func.substr(column, 1, len(start)) == start for start in (text, f"k1_{text}"))
    return sa.or_(*starts)


def _like(pattern: str) -> str:
    """Translate a file pattern with * and ? for LIKE with the escape character "!"."""
    for special in "!%_":
        pattern = pattern.replace(special, f"!{special}")
    return pattern.replace("*", "%").replace("?", "_")


def _rows(connection: sa.Connection, statement: sa.Select[Any]) -> list[Row]:
    result = connection.execute(statement)
    names = tuple(result.keys())
    return [dict(zip(names, row, strict=True)) for row in result]


def find_keys(database: Path, text: str) -> list[Row]:
    """List the keys that a text names: the start of the digest, or the model's file.

    Returns:
        Rows of `tuning_overview` with tuning_key, model_file, num_envs, nthread, bench_nsteps.
    """
    names = ("tuning_key", "model_file", "num_envs", "nthread", "bench_nsteps")
    by_key = sa.select(keys.c.digest).where(_starts_with(keys.c.digest, text))
    by_file = (model_file == text, model_file.endswith(f"/{text}", autoescape=True))
    chosen = sa.select(*(overview.c[name] for name in names)).order_by(overview.c.tuning_key)
    with reading(database) as connection:
        return _rows(connection, chosen.where(overview.c.tuning_key.in_(by_key))) or _rows(
            connection, chosen.where(sa.or_(*by_file))
        )


def read_key(database: Path, key: str) -> dict[str, Any]:
    """Read everything about one key: overview, model, device, verdicts, candidates and runs.

    Raises:
        ArgumentError: if there is no such key.
        SchemaError, DatabaseError: as `reading`.
    """
    quality, history = schema.choice_quality, schema.run_history
    timing = schema.candidate_timing
    candidates = sa.select(*(column for column in timing.c if column.name != "tuning_key"))
    with reading(database) as connection:
        shown = _rows(connection, sa.select(overview).where(overview.c.tuning_key == key))
        if not shown:
            raise _gone(key)
        return {
            "overview": shown[0],
            "model": _known_facts(connection, schema.model, key),
            "device": _known_facts(connection, schema.device, key),
            "verdicts": _rows(
                connection,
                sa.select(quality)
                .where(quality.c.tuning_key == key)
                .order_by(quality.c.last_measured_utc.desc(), quality.c.stack),
            ),
            "candidates": _rows(
                connection,
                candidates.where(timing.c.tuning_key == key).order_by(
                    timing.c.chunk_size.nulls_first()
                ),
            ),
            "runs": _rows(
                connection,
                sa.select(history)
                .where(history.c.tuning_key == key)
                .order_by(history.c.finished_utc, history.c.run_id),
            ),
        }


def _known_facts(connection: sa.Connection, table: sa.Table, key: str) -> Row:
    """Read the row of a key's model or device, without unknown facts."""
    columns = [c for c in table.columns if c.info or c.name == "other_facts"]
    found = _rows(connection, sa.select(*columns).join(keys).where(keys.c.digest == key))
    return {name: value for row in found for name, value in row.items() if value is not None}


def _gone(key: str) -> ArgumentError:
    return ArgumentError(f"no key {key} in the database: `tuner list` shows all")


class Behind(NamedTuple):
    """What a key's newest verdict rests on."""

    num_envs: int | None
    nthread: int | None
    runs: dict[int, Run]
    """By id, those valid for the verdict's environment, ordered by their ends."""


def read_behind(database: Path, key: str) -> Behind:
    """Read the runs with samples that a key's newest verdict rests on.

    Raises:
        ArgumentError: if there is no such key.
        SchemaError, DatabaseError: as `reading`.
    """
    with reading(database) as connection:
        return _behind(connection, key)


def _behind(connection: sa.Connection, key: str) -> Behind:
    table = schema.verdict
    columns = (table.c[name] for name in ENVIRONMENT_COLUMNS)
    newest = (  # whose verdict `tuning_overview` shows
        sa.select(keys.c.num_envs, keys.c.nthread, *columns)
        .select_from(keys.outerjoin(table))
        .where(keys.c.digest == key)
        .order_by(table.c.last_measured_utc.desc(), table.c.stack)
    )
    found = connection.execute(newest).first()
    if found is None:
        raise _gone(key)
    num_envs, nthread, *environment = found
    policies = policies_of(connection)
    runs = valid_runs(read_runs(connection, key), policies, Environment(*environment))
    return Behind(num_envs, nthread, runs)


def read_key_runs(database: Path, key: str) -> tuple[Row, list[Run]]:
    """Read a key's overview, with its `model_id` and `device_id`, and its verdict's runs.

    Raises:
        ArgumentError: if there is no such key.
        SchemaError, DatabaseError: as `reading`.
    """
    shown = (
        sa.select(overview, keys.c.model_id, keys.c.device_id)
        .join(keys, keys.c.digest == overview.c.tuning_key)
        .where(overview.c.tuning_key == key)
    )
    with reading(database) as connection:
        rows = _rows(connection, shown)
        behind = _behind(connection, key)
    return rows[0], list(behind.runs.values())


def keys_with_a_choice(database: Path, device: str) -> list[str]:
    """List a device's unpinned keys that chose a chunk size, longest unmeasured first.

    Args:
        database: The file.
        device: The digest of the device fingerprint.
    """
    chosen = (
        sa.select(overview.c.tuning_key)
        .join(keys, keys.c.digest == overview.c.tuning_key)
        .join(schema.device, schema.device.c.device_id == keys.c.device_id)
        .where(schema.device.c.digest == device)
        .where(overview.c.chunk_size.is_not(None), overview.c.pinned_because.is_(None))
        .order_by(overview.c.last_measured_utc, overview.c.tuning_key)
    )
    with reading(database) as connection:
        return list(connection.execute(chosen).scalars())


Order = Literal["key", "model", "envs", "gain", "measured"]
ORDERS: dict[Order, tuple[sa.ColumnElement[Any], bool]] = {
    "key": (overview.c.tuning_key, False),
    "model": (FILE_NAME, False),
    "envs": (overview.c.num_envs, False),
    "gain": (sa.case((overview.c.pinned_because.is_(None), overview.c.gain)), True),
    "measured": (overview.c.last_measured_utc, True),
}
"""What keys are sorted by, and whether the greatest comes first."""


def read_overview(
    database: Path,
    selection: Selection = EVERYTHING,
    *,
    order: Order = "measured",
    reverse: bool = False,
    columns: Sequence[str] = ("*",),
) -> list[Row]:
    """Read the view `tuning_overview`.

    Args:
        database: The file.
        selection: Which keys.
        order: What they are sorted by: the greatest gain and the last measured first, else the
            least.
        reverse: Sort the other way round; rows without a value stay last.
        columns: The view's columns, all by default; fewer are read faster.

    Raises:
        SchemaError, DatabaseError: as `reading`.
    """
    by, greatest_first = ORDERS[order]
    direction = by.desc() if greatest_first != reverse else by.asc()
    statement = (
        sa.select(*(c for c in overview.c if c.name in columns or "*" in columns))
        .where(*key_conditions(selection))
        .where(*time_conditions(selection, overview.c.last_measured_utc))
        .order_by(direction.nulls_last(), overview.c.tuning_key)
    )
    with reading(database) as connection:
        return _rows(connection, statement)


By = Literal["device", "num_envs", "nthread"]
DIFFERING: dict[By, tuple[tuple[str, ...], str]] = {
    # a device that has more cores is given more threads
    "device": (("device_id", "nthread"), "device_id"),
    "num_envs": (("num_envs",), "num_envs"),
    "nthread": (("nthread",), "nthread"),
}
"""The columns that may differ, and the one that has to."""


def comparable_keys(database: Path, key: str, by: By) -> list[str]:
    """List the keys that differ from one in one thing only, the key itself included.

    A key stored without facts finds only itself.

    Raises:
        SchemaError, DatabaseError: as `reading`.
    """
    mine, other = keys.alias("mine"), keys.alias("other")
    free, differs = DIFFERING[by]
    # No unknown model or device equals another; a run parameter may be unknown in both.
    same = [mine.c[name] == other.c[name] for name in ("model_id", "device_id") if name not in free]
    same += [
        mine.c[name].is_not_distinct_from(other.c[name])
        for name in RUN_PARAMETERS
        if name not in free
    ]
    alike = sa.and_(*same, mine.c[differs] != other.c[differs])
    device = schema.device
    statement = (
        sa.select(other.c.digest)
        .select_from(mine.join(other, sa.or_(mine.c.digest == other.c.digest, alike)))
        .outerjoin(device, device.c.device_id == other.c.device_id)
        .where(mine.c.digest == key)
        .order_by(other.c.num_envs, other.c.nthread, device.c.cpu_model, other.c.digest)
    )
    with reading(database) as connection:
        return list(connection.execute(statement).scalars())


def read_compared(database: Path, chosen: Sequence[str]) -> list[Row]:
    """Read what `tuner compare` shows of some keys, in their order, timings as numbers.

    Raises:
        SchemaError, DatabaseError: as `reading`.
    """
    table = schema.verdict
    same = sa.and_(table.c.key_digest == overview.c.tuning_key, table.c.stack == overview.c.stack)
    statement = sa.select(overview, table.c.per_candidate_ms).outerjoin(table, same)
    with reading(database) as connection:
        found = [
            row
            for key in chosen
            for row in _rows(connection, statement.where(overview.c.tuning_key == key))
        ]
    return [row | {"per_candidate_ms": timings_of(row["per_candidate_ms"])} for row in found]


@contextmanager
def run_statement(database: Path, statement: str) -> Iterator[Result]:
    """Run a person's read-only SQL statement; its rows can be read until the context ends.

    Raises:
        ArgumentError: if SQLite rejects the statement, it writes, or it returns no rows.
        KeyboardInterrupt: if Ctrl-C comes while SQLite is working.
        SchemaError, DatabaseError: as `reading`.
    """
    with reading(database) as connection:
        yield run_query(connection.connection.driver_connection, statement)


def view_names(database: Path) -> list[str]:
    """List the views, which are made for people.

    Raises:
        SchemaError, DatabaseError: as `reading`.
    """
    with reading(database) as connection:
        return sorted(sa.inspect(connection).get_view_names())


UNKNOWN_WEIGHT = 0.01
"""The distance that an unknown fact adds: known facts are preferred."""
FURTHEST = 12.0
"""The largest distance of a similar key."""
MOST_SIMILAR = 50
"""Closest keys that are compared in detail."""


def find_similar(database: Path, key: CacheKey, environment: Environment) -> SimilarKey | None:
    """Find the most similar key with a decided verdict; None if none is close.

    Args:
        database: The file.
        key: The key without an answer.
        environment: The caller's software.

    Raises:
        SchemaError, DatabaseError: as `reading`.
    """
    facts = _by_name(key.workload)
    with reading(database) as connection:
        policies = policies_of(connection)
        rows = _rows(connection, _similar(facts))
    closest = [row for row in rows if row["distance"] == rows[0]["distance"]]
    found = [_similar_key(row, facts, policies, environment) for row in closest]
    # Of equally close ones: a valid environment first, then the newest, as they are sorted.
    return min(found, key=lambda similar: len(similar.environment), default=None)


def _similar(facts: Row) -> sa.Select[Any]:
    model, device, verdict = schema.model, schema.device, schema.verdict
    distance: Any = sum(_distance(column, facts) for column in FACTS.values())
    for table in (model, device):
        distance += sa.case((table.c.other_facts.is_(None), 0), else_=1)
    measured = (
        sa.select(
            keys.c.digest,
            distance.label("distance"),
            *FACTS.values(),
            model.c.other_facts.label("other_model_facts"),
            device.c.other_facts.label("other_device_facts"),
            *(verdict.c[name] for name in ENVIRONMENT_COLUMNS),
            *(verdict.c.chunk_size, verdict.c.gain, verdict.c.last_measured_utc),
        )
        .select_from(keys.join(model).join(device).join(verdict))
        .where(verdict.c.decided == 1, keys.c.num_envs.is_not(None), keys.c.nthread.is_not(None))
        .subquery()
    )
    return (
        sa.select(measured)
        .where(measured.c.distance <= FURTHEST)
        .order_by(measured.c.distance, measured.c.last_measured_utc.desc(), measured.c.digest)
        .limit(MOST_SIMILAR)
    )


def _distance(column: sa.Column[Any], facts: Row) -> sa.ColumnElement[Any]:
    field: schema.Field = column.info["field"]
    fact = fitting(facts.get(column.name), field.kind)
    if fact is None:
        return sa.case((column.is_(None), 0), else_=UNKNOWN_WEIGHT)
    value = storable_text(fact) if isinstance(fact, str) else fact
    return sa.case((column == value, 0), (column.is_(None), UNKNOWN_WEIGHT), else_=field.weight)


def _by_name(facts: Workload) -> Row:
    parameters = {name: getattr(facts, name) for name in RUN_PARAMETERS}
    return {**facts.model, **facts.device, **parameters}


def _similar_key(row: Row, facts: Row, policies: Row, here: Environment) -> SimilarKey:
    there = Environment(*(row[name] for name in ENVIRONMENT_COLUMNS))
    return SimilarKey(
        key=row["digest"],
        chunk_size=row["chunk_size"],
        gain=row["gain"],
        num_envs=row["num_envs"],
        nthread=row["nthread"],
        differences=tuple(differences(facts, row)),
        environment=tuple(
            Difference(name, getattr(here, name), getattr(there, name))
            for name in violated(policies, there, here)
        ),
    )


def differences(here: Row, there: Row) -> list[Difference]:
    """List the facts in which a stored row differs from facts by name, heaviest first."""
    beyond = {**_facts(there["other_model_facts"]), **_facts(there["other_device_facts"])}
    stored = {name: there[name] for name in FACTS if there[name] is not None} | beyond
    found = []
    for name in dict.fromkeys([*FACTS, *sorted(beyond), *sorted(here)]):
        value = stored.get(name)
        if name in here and isinstance(here[name], bool) and value in (0, 1):
            value = bool(value)
        if here.get(name) != value:
            found.append(Difference(name, here.get(name), value))
    return sorted(found, key=lambda difference: -_weight(difference.field))


def _weight(name: str) -> float:
    field: schema.Field | None = FACTS[name].info["field"] if name in FACTS else None
    return field.weight if field else 1.0


def _facts(text: str | None) -> Row:
    try:
        facts = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return {}
    return facts if isinstance(facts, dict) else {}


NOTHING: Mapping[int, Run] = {}
RUNS = (
    sa.select(schema.run)
    .join(keys)
    .where(keys.c.digest == sa.bindparam("key"), schema.run.c.state != "failed")
    .order_by(schema.run.c.finished_utc, schema.run.c.uid)
)
SAMPLES = (
    sa.select(schema.sample)
    .where(schema.sample.c.run_id == sa.bindparam("run_id"))
    .order_by(schema.sample.c.sample_order)
)


def read_runs(
    connection: sa.Connection, key: str, known: Mapping[int, Run] = NOTHING
) -> dict[int, Run]:
    """Read the runs of a key that did not fail, with their samples, by id.

    They are ordered by their ends, whatever the order in which they were stored.

    Args:
        connection: An open transaction.
        key: The key's digest.
        known: Runs that need not be read, because the caller has just stored them.
    """
    found = {}
    for row in connection.execute(RUNS, {"key": key}).mappings().all():
        number = row["run_id"]
        # A row that tuner did not write must not keep other runs of its key from being judged.
        with suppress(ValueError, TypeError, OverflowError, RecursionError):
            found[number] = known.get(number) or _run(dict(row), _samples(connection, number))
    return found


def _samples(connection: sa.Connection, run_id: int) -> tuple[Sample, ...]:
    return tuple(
        Sample(
            candidate=Candidate(row.chunk_size),
            block=row.round,
            order=row.sample_order,
            nanoseconds=row.nanoseconds,
            warm_up=bool(row.warm_up),
            repeats=row.steps,
        )
        for row in connection.execute(SAMPLES, {"run_id": run_id})
    )


def _run(row: Row, samples: tuple[Sample, ...]) -> Run:
    failed = json.loads(row["failed_chunk_sizes"]) if row["failed_chunk_sizes"] else []
    return Run(
        **{attribute: row[name] for name, attribute in RUN_ATTRIBUTES.items()},
        finished=datetime.fromisoformat(row["finished_utc"]),
        started=datetime.fromisoformat(row["started_utc"]) if row["started_utc"] else None,
        samples=samples,
        environment=Environment(*(row[name] for name in ENVIRONMENT_COLUMNS)),
        choice=Candidate(row["chosen_chunk_size"]) if row["has_choice"] else None,
        failed=tuple(Candidate(None if chunk is None else int(chunk)) for chunk in failed),
    )


def valid_runs(runs: Mapping[int, Run], policies: Row, here: Environment) -> dict[int, Run]:
    """Keep the runs whose environment is valid here, as the policies say."""
    return {
        number: run for number, run in runs.items() if not violated(policies, run.environment, here)
    }


def policies_of(connection: sa.Connection) -> Row:
    """Read how strictly each validator counts."""
    table = schema.validator
    return {row.name: row.policy for row in connection.execute(sa.select(table))}
