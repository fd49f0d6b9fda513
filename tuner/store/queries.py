"""Which keys, or which of their runs, are meant: one set of filters for all that choose some.

A filter of keys goes by the line of `tuning_overview`, so that every command means the keys that
`tuner list` shows. A time is that of what a command handles: a run's end, or a key's last one.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from tuner.environment import Environment, violated
from tuner.errors import ArgumentError
from tuner.records import Candidate, Difference, Run, Sample, SimilarKey
from tuner.store.lookup import timings_of
from tuner.store.schema import DEVICE_FIELDS, MODEL_FIELDS, RUN_PARAMETERS, fitting, storable_text
from tuner.store.sqlite import (
    REVISION,
    error_name,
    exists,
    explained,
    open_for_reading,
    other_revision,
)
from tuner.workload import CacheKey, Workload

Rows = Callable[..., list[dict[str, Any]]]
"""A statement and its parameters in, rows by name out."""

FILE_NAME = "replace(model_file, rtrim(model_file, replace(model_file, '/', '')), '')"
"""The part of a path after its last slash: SQLite has no function for it."""


class Selection(NamedTuple):
    """What is meant; None does not matter."""

    key: str | None = None
    """The first characters of the key, with or without its scheme."""
    model: str | None = None
    """A pattern with * and ? for the model's file: its name, or the whole path."""
    device: str | None = None
    """A part of the CPU's model or of the instruction set, small or capital."""
    num_envs: int | None = None
    min_gain: float | None = None
    """The share that the measured choice saves at least."""
    decided: bool | None = None
    """Pinned keys are decided: by somebody."""
    since: str | None = None
    """A time as the database holds it, or its beginning."""
    until: str | None = None
    """Likewise; what is meant ended before it."""


EVERYTHING = Selection()
OF_KEYS = {
    "key": "(substr(tuning_key, 1, length(:key)) = :key"
    " OR substr(tuning_key, 1, 3 + length(:key)) = 'k1_' || :key)",
    "model": f"(model_file GLOB :model OR {FILE_NAME} GLOB :model)",
    "device": "(instr(lower(cpu_model), lower(:device)) OR instr(lower(machine), lower(:device)))",
    "num_envs": "num_envs = :num_envs",
    "min_gain": "gain >= :min_gain AND pinned_because IS NULL",
    "decided": "coalesce(decided, 0) + (pinned_because IS NOT NULL) > 0 = :decided",
}
"""Conditions on a line of `tuning_overview`."""
OF_TIMES = {"since": "{moment} >= :since", "until": "{moment} < :until"}


Condition = tuple[str, dict[str, Any]]
"""In SQL, with its parameters."""


def on_overview(selection: Selection) -> Condition:
    """Write the condition on a line of `tuning_overview`."""
    given = _given(selection)
    return _all(_keys(given) + _times(given, "last_measured_utc")), given


def on_runs(selection: Selection, moment: str) -> Condition:
    """Write the condition on a row that has a `tuning_key.digest`.

    Args:
        selection: What is meant.
        moment: The column of the time.
    """
    given = _given(selection)
    keys = _keys(given)
    chosen = f"tuning_key.digest IN (SELECT tuning_key FROM tuning_overview WHERE {_all(keys)})"
    return _all(([chosen] if keys else []) + _times(given, moment)), given


def _given(selection: Selection) -> dict[str, Any]:
    return {name: value for name, value in selection._asdict().items() if value is not None}


def _keys(given: Iterable[str]) -> list[str]:
    return [OF_KEYS[name] for name in given if name in OF_KEYS]


def _times(given: Iterable[str], moment: str) -> list[str]:
    return [OF_TIMES[name].format(moment=moment) for name in given if name in OF_TIMES]


def _all(conditions: list[str]) -> str:
    return " AND ".join(conditions) or "1"


Row = dict[str, Any]
Parameters = Sequence[object] | Mapping[str, object]


@contextmanager
def reading(database: Path) -> Iterator[sqlite3.Connection]:
    """Open a database for reading; all that is read shows one moment's state. Never writes.

    Raises:
        SchemaError: if the file has another schema than this code reads.
        DatabaseError: for whatever the driver raises; a missing file is one of them.
    """
    exists(database)  # raises for what is no file, which SQLite would only call unopenable
    try:
        with closing(open_for_reading(database)) as connection:
            connection.execute("BEGIN")
            revision = connection.execute("SELECT version_num FROM alembic_version").fetchall()
            if revision != [(REVISION,)]:
                raise other_revision(database, revision[0][0] if revision else None)
            yield connection
    except sqlite3.Error as error:
        raise explained(database, error) from error


@contextmanager
def read_snapshot(database: Path) -> Iterator[Rows]:
    """Open a database like `reading`, for statements whose rows are wanted by name."""
    with reading(database) as connection:
        connection.row_factory = sqlite3.Row

        def rows(statement: str, parameters: Parameters = ()) -> list[Row]:
            return [dict(row) for row in connection.execute(statement, parameters)]

        yield rows


def find_keys(database: Path, prefix: str) -> list[str]:
    """List the keys whose digest starts with a text, with or without the scheme in front."""
    with read_snapshot(database) as rows:
        found = rows(
            "SELECT digest FROM tuning_key "
            "WHERE substr(digest, 1, length(:prefix)) = :prefix "
            "   OR substr(digest, 1, 3 + length(:prefix)) = 'k1_' || :prefix "
            "ORDER BY digest",
            {"prefix": prefix},
        )
    return [row["digest"] for row in found]


def read_key(database: Path, key: str) -> dict[str, Any]:
    """Read all there is about one key: overview, model, device, verdicts, candidates and runs.

    Raises:
        ArgumentError: if there is no such key.
        SchemaError, DatabaseError: as `read_snapshot`.
    """
    with read_snapshot(database) as rows:
        overview = rows("SELECT * FROM tuning_overview WHERE tuning_key = ?", (key,))
        if not overview:
            raise _gone(key)
        return {
            "overview": overview[0],
            "model": _known_facts(rows, "model", (*MODEL_FIELDS, "other_facts"), key),
            "device": _known_facts(rows, "device", (*DEVICE_FIELDS, "other_facts"), key),
            "verdicts": rows(
                "SELECT * FROM choice_quality WHERE tuning_key = ? "
                "ORDER BY last_measured_utc DESC, stack",
                (key,),
            ),
            "candidates": rows(
                "SELECT chunk_size, samples, min_ms, median_ms, mean_ms, relative_to_default "
                "FROM candidate_timing WHERE tuning_key = ? ORDER BY chunk_size NULLS FIRST",
                (key,),
            ),
            "runs": rows(
                "SELECT * FROM run_history WHERE tuning_key = ? ORDER BY finished_utc, run_id",
                (key,),
            ),
        }


def _known_facts(rows: Rows, table: str, columns: Sequence[str], key: str) -> Row:
    """Read the row of a key's model or device, without what is not known."""
    found = rows(
        f"SELECT {', '.join(f'{table}.{column}' for column in columns)} FROM tuning_key "
        f"JOIN {table} ON {table}.{table}_id = tuning_key.{table}_id "
        "WHERE tuning_key.digest = ?",
        (key,),
    )
    return {name: value for row in found for name, value in row.items() if value is not None}


def _gone(key: str) -> ArgumentError:
    return ArgumentError(f"there is no key {key} any more: `tuner list` shows all")


class Behind(NamedTuple):
    """What a key's newest verdict rests on."""

    num_envs: int | None
    nthread: int | None
    runs: dict[int, Run]
    """By their number, those whose software stack holds for it; in the order of their ends."""


NEWEST_STACK = """
    SELECT num_envs, nthread, verdict.mujoco_version, verdict.pool, verdict.pool_version,
           verdict.method
    FROM tuning_key LEFT JOIN verdict ON verdict.key_digest = tuning_key.digest
    WHERE tuning_key.digest = ? ORDER BY verdict.last_measured_utc DESC, verdict.stack LIMIT 1
"""
"""The stack whose verdict `tuning_overview` shows."""


def read_behind(database: Path, key: str) -> Behind:
    """Read the runs that a key's newest verdict rests on, samples and all.

    Raises:
        ArgumentError: if there is no such key.
        SchemaError, DatabaseError: as `read_snapshot`.
    """
    with read_snapshot(database) as rows:
        return _behind(rows, key)


def _behind(rows: Rows, key: str) -> Behind:
    found = rows(NEWEST_STACK, (key,))
    if not found:
        raise _gone(key)
    stack = Environment._make(found[0][name] for name in Environment._fields)
    runs = valid_runs(read_runs(rows, key), policies_of(rows), stack)
    return Behind(found[0]["num_envs"], found[0]["nthread"], runs)


def read_evidence(database: Path, key: str) -> tuple[Row, list[Run]]:
    """Read what a key's newest verdict is made from: its overview, and the runs that count for it.

    The overview also has `model_id` and `device_id`, by which keys of one model or one device
    are told; no such number is of use outside this database.

    Raises:
        ArgumentError: if there is no such key.
        SchemaError, DatabaseError: as `read_snapshot`.
    """
    with read_snapshot(database) as rows:
        overview = rows(
            "SELECT tuning_overview.*, model_id, device_id FROM tuning_overview "
            "JOIN tuning_key ON tuning_key.digest = tuning_overview.tuning_key "
            "WHERE tuning_key = ?",
            (key,),
        )
        behind = _behind(rows, key)
    return overview[0], list(behind.runs.values())


def keys_with_a_choice(database: Path, device: str) -> list[str]:
    """List a device's keys that chose something else than the default, longest unmeasured first.

    Args:
        database: The file.
        device: The digest of the device fingerprint.
    """
    with read_snapshot(database) as rows:
        found = rows(
            "SELECT overview.tuning_key FROM device "
            "JOIN tuning_key ON tuning_key.device_id = device.device_id "
            "JOIN tuning_overview AS overview ON overview.tuning_key = tuning_key.digest "
            "WHERE device.digest = ? "
            "  AND overview.chunk_size IS NOT NULL AND overview.pinned_because IS NULL "
            "ORDER BY overview.last_measured_utc, overview.tuning_key",
            (device,),
        )
    return [row["tuning_key"] for row in found]


Order = Literal["key", "model", "envs", "gain", "measured"]
ORDERS: dict[Order, tuple[str, bool]] = {
    "key": ("tuning_key", False),
    "model": (FILE_NAME, False),
    "envs": ("num_envs", False),
    "gain": ("CASE WHEN pinned_because IS NULL THEN gain END", True),
    "measured": ("last_measured_utc", True),
}
"""What the keys go by, and whether the greatest is of the most interest."""


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
        order: What they go by: the greatest gain and the last measured first, else the least.
        reverse: The other way round; what has no value comes last all the same.
        columns: The view's columns; SQLite does not work out those that are not asked for.

    Raises:
        SchemaError, DatabaseError: as `read_snapshot`.
    """
    condition, given = on_overview(selection)
    by, greatest_first = ORDERS[order]
    direction = "DESC" if greatest_first != reverse else "ASC"
    with read_snapshot(database) as rows:
        return rows(
            f"SELECT {', '.join(columns)} FROM tuning_overview WHERE {condition} "
            f"ORDER BY {by} {direction} NULLS LAST, tuning_key",
            given,
        )


By = Literal["device", "num_envs", "nthread"]
SAME = {
    "model": "other.model_id = mine.model_id",
    "device": "other.device_id = mine.device_id",
    **{name: f"other.{name} IS mine.{name}" for name in RUN_PARAMETERS},
}
"""A key that was stored by its text alone knows nothing to compare by: it finds itself only."""
DIFFERING: dict[By, tuple[tuple[str, ...], str]] = {
    # a device that has more cores is given more threads
    "device": (("device", "nthread"), "other.device_id <> mine.device_id"),
    "num_envs": (("num_envs",), "other.num_envs <> mine.num_envs"),
    "nthread": (("nthread",), "other.nthread <> mine.nthread"),
}
"""What may differ, and what has to."""
COLUMNS = """
    SELECT overview.tuning_key, model_file, system, machine, cpu_model, cpu_count, usable_cpus,
           num_envs, nthread, overview.chunk_size, pinned_because, overview.decided,
           overview.reason, overview.gain, overview.gain_low, overview.gain_high, overview.stack,
           overview.last_measured_utc, verdict.per_candidate_ms
    FROM tuning_overview AS overview LEFT JOIN verdict
        ON verdict.key_digest = overview.tuning_key AND verdict.stack = overview.stack
"""


def keys_alike(database: Path, key: str, by: By) -> list[str]:
    """List the keys that differ from one in one thing, the key itself among them.

    Raises:
        SchemaError, DatabaseError: as `read_snapshot`.
    """
    free, differs = DIFFERING[by]
    same = [condition for name, condition in SAME.items() if name not in free]
    conditions = " AND ".join([*same, differs])
    with read_snapshot(database) as rows:
        found = rows(
            "SELECT other.digest FROM tuning_key AS mine JOIN tuning_key AS other "
            f"ON other.digest = mine.digest OR {conditions} "
            "LEFT JOIN device ON device.device_id = other.device_id WHERE mine.digest = ? "
            "ORDER BY other.num_envs, other.nthread, device.cpu_model, other.digest",
            (key,),
        )
    return [row["digest"] for row in found]


def read_compared(database: Path, keys: Sequence[str]) -> list[Row]:
    """Read what `tuner compare` shows of some keys, in their order, timings as numbers.

    Raises:
        SchemaError, DatabaseError: as `read_snapshot`.
    """
    with read_snapshot(database) as rows:
        found = [row for key in keys for row in rows(f"{COLUMNS} WHERE tuning_key = ?", (key,))]
    return [row | {"per_candidate_ms": timings_of(row["per_candidate_ms"])} for row in found]


UNKNOWN_WEIGHT = 0.01
"""How far apart a fact that one of two keys does not know sets them: known ones go before."""
FURTHEST = 12.0
"""A relative further away than this is none: its winner says nothing here."""
MOST_RELATIVES = 50
"""Nearest keys that are looked at closely."""


def nearest(database: Path, key: CacheKey, here: Environment) -> SimilarKey | None:
    """Find the nearest key with a decided verdict; None if none is near.

    Args:
        database: The file.
        key: The key that has no answer.
        here: The software stack that asks.

    Raises:
        SchemaError, DatabaseError: as `read_snapshot`.
    """
    with read_snapshot(database) as rows:
        policies = policies_of(rows)
        found = [_relative(row, key.facts, policies, here) for row in _nearest_rows(rows, key)]
    # Of equally near ones that whose stack holds, then the newest: they come sorted by that.
    return min(found, key=lambda relative: len(relative.environment), default=None)


FACT_COLUMNS = {
    **{name: f"model.{name}" for name in MODEL_FIELDS},
    **{name: f"device.{name}" for name in DEVICE_FIELDS},
    **{name: f"tuning_key.{name}" for name in RUN_PARAMETERS},
}
WEIGHTS = {
    name: field.weight
    for fields in (MODEL_FIELDS, DEVICE_FIELDS, RUN_PARAMETERS)
    for name, field in fields.items()
}
KINDS = {
    name: field.kind
    for fields in (MODEL_FIELDS, DEVICE_FIELDS, RUN_PARAMETERS)
    for name, field in fields.items()
}
DISTANCE = " + ".join(
    f"CASE WHEN {column} IS :{name} THEN 0 "
    f"WHEN {column} IS NULL OR :{name} IS NULL THEN {UNKNOWN_WEIGHT} ELSE {WEIGHTS[name]} END"
    for name, column in FACT_COLUMNS.items()
) + "".join(
    f" + CASE WHEN {table}.other_facts IS NULL THEN 0 ELSE 1 END" for table in ("model", "device")
)
NEAREST = f"""
    SELECT tuning_key.digest, {DISTANCE} AS distance, {", ".join(FACT_COLUMNS.values())},
           model.other_facts AS other_model_facts, device.other_facts AS other_device_facts,
           verdict.mujoco_version, verdict.pool, verdict.pool_version, verdict.method,
           verdict.chunk_size, verdict.gain
    FROM tuning_key
    JOIN model ON model.model_id = tuning_key.model_id
    JOIN device ON device.device_id = tuning_key.device_id
    JOIN verdict ON verdict.key_digest = tuning_key.digest
    WHERE verdict.decided = 1 AND tuning_key.num_envs IS NOT NULL
        AND tuning_key.nthread IS NOT NULL AND distance <= {FURTHEST}
    ORDER BY distance, verdict.last_measured_utc DESC, tuning_key.digest
    LIMIT {MOST_RELATIVES}
"""


def _nearest_rows(rows: Rows, key: CacheKey) -> list[dict[str, Any]]:
    facts = _by_name(key.facts)
    found = rows(NEAREST, {name: _stored(facts.get(name), KINDS[name]) for name in FACT_COLUMNS})
    return [row for row in found if row["distance"] == found[0]["distance"]]


def _stored(value: Any, kind: type) -> Any:
    """Give a fact as its column would hold it."""
    fact = fitting(value, kind)
    return storable_text(fact) if isinstance(fact, str) else fact


def _by_name(facts: Workload) -> dict[str, Any]:
    parameters = {name: getattr(facts, name) for name in RUN_PARAMETERS}
    return {**facts.model, **facts.device, **parameters}


def _relative(
    row: dict[str, Any], facts: Workload, policies: dict[str, Any], here: Environment
) -> SimilarKey:
    known = _by_name(facts)
    there = Environment._make(row[name] for name in Environment._fields)
    return SimilarKey(
        key=row["digest"],
        chunk_size=row["chunk_size"],
        gain=row["gain"],
        num_envs=row["num_envs"],
        nthread=row["nthread"],
        differences=tuple(differences(known, row)),
        environment=tuple(
            Difference(name, getattr(here, name), getattr(there, name))
            for name in violated(policies, there, here)
        ),
    )


def differences(here: dict[str, Any], there: dict[str, Any]) -> list[Difference]:
    """List the facts in which a stored row differs from facts by name, heaviest first."""
    beyond = {**_facts(there["other_model_facts"]), **_facts(there["other_device_facts"])}
    stored = {name: there[name] for name in FACT_COLUMNS if there[name] is not None} | beyond
    found = []
    for name in dict.fromkeys([*FACT_COLUMNS, *sorted(beyond), *sorted(here)]):
        value = stored.get(name)
        if name in here and isinstance(here[name], bool) and value in (0, 1):
            value = bool(value)
        if here.get(name) != value:
            found.append(Difference(name, here.get(name), value))
    return sorted(found, key=lambda difference: -WEIGHTS.get(difference.field, 1.0))


def _facts(text: str | None) -> dict[str, Any]:
    try:
        facts = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return {}
    return facts if isinstance(facts, dict) else {}


Given = TypeVar("Given")

LOOK_UP_EVERY = 100_000
"""Steps of SQLite's machine between two chances for Ctrl-C: some milliseconds."""
OF_THE_FILE = ("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_BUSY", "SQLITE_IOERR")
"""Errors that no other statement would get round."""


class Result(NamedTuple):
    """What a statement gives."""

    columns: tuple[str, ...]
    """Their names, each once: a second "run_id" is "run_id:1", as SQLite calls it."""
    rows: Iterator[tuple[Any, ...]]
    """Read when they are asked for."""


@contextmanager
def asked(database: Path, statement: str) -> Iterator[Result]:
    """Open a database and ask it; the rows can be read until the context ends.

    Raises:
        ArgumentError: if SQLite does not take the statement, it writes, or it gives no rows.
        KeyboardInterrupt: if Ctrl-C comes while SQLite is at work.
        SchemaError, DatabaseError: as `reading`.
    """
    with reading(database) as connection:
        connection.execute("PRAGMA query_only = ON")
        connection.set_authorizer(_nothing_attached)
        connection.set_progress_handler(_go_on, LOOK_UP_EVERY)
        cursor = _carried_out(lambda: connection.execute(statement))
        if cursor.description is None:
            raise ArgumentError("the statement asks for no rows: give one, a SELECT say")
        yield Result(_told_apart(column[0] for column in cursor.description), _rows(cursor))


def _nothing_attached(action: int, *_: str | None) -> int:
    return sqlite3.SQLITE_DENY if action == sqlite3.SQLITE_ATTACH else sqlite3.SQLITE_OK


def _go_on() -> int:
    """Let Python look whether Ctrl-C has come: it raises here, and SQLite stops."""
    return 0


def _rows(cursor: sqlite3.Cursor) -> Iterator[tuple[Any, ...]]:
    while (row := _carried_out(cursor.fetchone)) is not None:
        yield row


def _carried_out(deed: Callable[[], Given]) -> Given:
    try:
        return deed()
    except (sqlite3.Error, sqlite3.Warning, ValueError) as error:
        name = error_name(error)
        if name == "SQLITE_INTERRUPT":
            raise KeyboardInterrupt from error
        if name.startswith(OF_THE_FILE):
            raise
        advice = "`tuner sql` alone lists the views"
        if name.startswith(("SQLITE_READONLY", "SQLITE_AUTH")):
            advice = "`tuner sql` only reads; nothing was changed"
        raise ArgumentError(f"the statement failed: {str(error).rstrip('.')}; {advice}") from error


def _told_apart(names: Iterator[str]) -> tuple[str, ...]:
    found: list[str] = []
    for name in names:
        number, unique = 0, name
        while unique in found:
            number += 1
            unique = f"{name}:{number}"
        found.append(unique)
    return tuple(found)


NOTHING: Mapping[int, Run] = {}
RUNS = """
    SELECT run.* FROM run JOIN tuning_key ON tuning_key.key_id = run.key_id
    WHERE tuning_key.digest = :key AND run.state <> 'failed'
    ORDER BY run.finished_utc, run.uid
"""
SAMPLES = "SELECT * FROM sample WHERE run_id = :run_id ORDER BY sample_order"
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
            block=row["round"],
            order=row["sample_order"],
            nanoseconds=row["nanoseconds"],
            warm_up=bool(row["warm_up"]),
            repeats=row["steps"],
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
        strategy=row["plan"],
        samples=samples,
        environment=Environment(
            row["mujoco_version"], row["pool"], row["pool_version"], row["method"]
        ),
        trigger=row["occasion"],
        choice=Candidate(row["chosen_chunk_size"]) if row["has_choice"] else None,
        origin=row["origin"],
        time_budget_seconds=row["time_budget_seconds"],
        pool_seconds=row["pool_seconds"],
        message=row["message"],
        failed=tuple(Candidate(None if chunk is None else int(chunk)) for chunk in failed),
    )


def valid_runs(
    runs: Mapping[int, Run], policies: dict[str, Any], here: Environment
) -> dict[int, Run]:
    """Keep the runs whose stack holds here, as the policies say."""
    return {
        number: run for number, run in runs.items() if not violated(policies, run.environment, here)
    }


def policies_of(rows: Rows) -> dict[str, Any]:
    """Read how strictly each validator counts."""
    return {row["name"]: row["policy"] for row in rows(POLICIES)}
