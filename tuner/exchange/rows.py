"""Describes the rows of exports: their columns, how they are read, and what an import accepts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import sqlalchemy as sa

from tuner.records import LARGEST_INTEGER, State, Trigger
from tuner.store import schema
from tuner.store.runs import SampleRow, utc_text
from tuner.store.schema import LARGEST_NUMBER, LONGEST_TEXT, RUN_PARAMETERS, storable_text
from tuner.workload import Workload, canonical_json, device_digest, key_of, model_digest

FORMATS = {
    "samples": "tuner.samples.1",
    "runs": "tuner.runs.1",
    "verdicts": "tuner.verdicts.1",
}
"""The first column of every row. The number changes when older files would be misread."""

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
"""Left out of anonymous exports: host and file names, and free texts that may contain them."""

BOOLEANS = {"has_choice", "warm_up", "decided"}
"""Stored as 0 and 1, like the facts of a key that are declared as bool."""


class Column(NamedTuple):
    """One column of an export."""

    kind: type
    source: sa.ColumnElement[Any]


def _kind(column: sa.ColumnElement[Any], name: str) -> type:
    if name in BOOLEANS:
        return bool
    return column.type.python_type


def _columns(table: sa.FromClause, *without: str, **renamed: str) -> dict[str, Column]:
    return {
        str(renamed.get(column.name, column.name)): Column(_kind(column, column.name), column)
        for column in table.columns
        if column.name not in without
    }


def _facts(table: sa.FromClause, fields: Mapping[str, Any]) -> dict[str, Column]:
    return {str(name): Column(field.kind, table.c[name]) for name, field in fields.items()}


MODEL, DEVICE, KEY = schema.model, schema.device, schema.tuning_key
KEY_COLUMNS = {
    "tuning_key": Column(str, KEY.c.digest),
    **_facts(KEY, schema.RUN_PARAMETERS),
    "model_digest": Column(str, MODEL.c.digest),
    **_facts(MODEL, schema.MODEL_FIELDS),
    "model_other_facts": Column(str, MODEL.c.other_facts),
    "device_digest": Column(str, DEVICE.c.digest),
    **_facts(DEVICE, schema.DEVICE_FIELDS),
    "device_other_facts": Column(str, DEVICE.c.other_facts),
}
"""A key with its facts; NULL where they are unknown."""
RUN_COLUMNS = _columns(schema.run, "run_id", "key_id", uid="run_uid", other_facts="run_other_facts")
SAMPLE_COLUMNS = _columns(schema.sample, "run_id")
VERDICT_COLUMNS = {
    **_columns(schema.verdict, "key_digest", "latest_run_id"),
    "pinned": Column(bool, schema.pin.c.key_digest.is_not(None)),
    "pinned_chunk_size": Column(int, schema.pin.c.chunk_size),
    "pinned_because": Column(str, schema.pin.c.reason),
    "latest_run_uid": Column(str, schema.run.c.uid),
    "model_file": Column(str, schema.run.c.model_file),
    "hostname": Column(str, schema.run.c.hostname),
}
ROW_COLUMNS = {
    "samples": {**KEY_COLUMNS, **RUN_COLUMNS, **SAMPLE_COLUMNS},
    "runs": {**KEY_COLUMNS, **RUN_COLUMNS},
    "verdicts": {**KEY_COLUMNS, **VERDICT_COLUMNS},
}
"""Columns of each kind of row, after `format`."""


def _with_facts(source: sa.FromClause) -> sa.FromClause:
    return source.outerjoin(MODEL, MODEL.c.model_id == KEY.c.model_id).outerjoin(
        DEVICE, DEVICE.c.device_id == KEY.c.device_id
    )


def _labelled(columns: Mapping[str, Column]) -> list[sa.Label[Any]]:
    return [column.source.label(name) for name, column in columns.items()]


RUNS = _with_facts(schema.run.outerjoin(KEY, KEY.c.key_id == schema.run.c.key_id))
SELECT_RUNS = sa.select(
    schema.run.c.run_id.label("run_id"), *_labelled(ROW_COLUMNS["runs"])
).select_from(RUNS)
SELECT_RUN = SELECT_RUNS.where(schema.run.c.run_id == sa.bindparam("run_id"))
SELECT_VERDICTS = (
    sa.select(*_labelled(ROW_COLUMNS["verdicts"]))
    .select_from(
        _with_facts(KEY)
        .outerjoin(schema.verdict, schema.verdict.c.key_digest == KEY.c.digest)
        .outerjoin(schema.run, schema.run.c.run_id == schema.verdict.c.latest_run_id)
        .outerjoin(schema.pin, schema.pin.c.key_digest == KEY.c.digest)
    )
    .where(schema.verdict.c.stack.is_not(None) | schema.pin.c.reason.is_not(None))
    .order_by(KEY.c.digest, schema.verdict.c.stack)
)
SELECT_SAMPLES = (
    sa.select(*(column.source for column in SAMPLE_COLUMNS.values()))
    .where(schema.sample.c.run_id == sa.bindparam("run_id"))
    .order_by(schema.sample.c.sample_order)
)


def read_samples(
    connection: sa.Connection, run_id: int, limit: int | None = None
) -> list[SampleRow]:
    """Read a run's samples in order, at most `limit`."""
    rows = connection.execute(SELECT_SAMPLES.limit(limit), {"run_id": run_id})
    return [tuple(row) for row in rows]


def named(columns: Mapping[str, Column], row: Mapping[Any, Any]) -> dict[str, Any]:
    """Name a row's values, with 0 and 1 as truth values where the column is one."""
    return {
        name: bool(row[name]) if column.kind is bool and row[name] in (0, 1) else row[name]
        for name, column in columns.items()
    }


MAX_SAMPLES = 200_000
"""Samples of a run, and of a key: they are in memory while its verdict is made."""
MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?Z", re.ASCII)


class IncomingRun(NamedTuple):
    """A run to import, checked as far as that is possible without a database."""

    key: str
    """A CacheKey where the key's facts are known."""
    run: dict[str, Any]
    """The values of its row, without the numbers that a database assigns."""
    samples: list[SampleRow]
    place: int
    """Its line in the file, or its number in a database."""


def _bounds(name: str, kind: type) -> Any:
    """Give the type that a column's value must have, with its range."""
    if name == "state":
        return State
    if name == "occasion":
        return Trigger
    if kind is float:
        return Annotated[float, msgspec.Meta(ge=0, le=LARGEST_NUMBER)]
    if kind is str:
        longest = 1000 if name in ("tuning_key", "run_uid", "near_key") else LONGEST_TEXT
        shortest = 1 if name in ("tuning_key", "run_uid") else 0
        return Annotated[str, msgspec.Meta(min_length=shortest, max_length=longest)]
    if kind is int:
        positive = name in ("num_envs", "nthread", "bench_nsteps", "chosen_chunk_size")
        lowest = -LARGEST_INTEGER - 1 if name == "seed" else int(positive)
        return Annotated[int, msgspec.Meta(ge=lowest, le=LARGEST_INTEGER)]
    return kind


Count = Annotated[int, msgspec.Meta(ge=0, le=LARGEST_INTEGER)]
Positive = Annotated[int, msgspec.Meta(ge=1, le=LARGEST_INTEGER)]
Flag = Annotated[int, msgspec.Meta(ge=0, le=1)]
Timings = Annotated[
    list[tuple[Count, Count, Positive | None, Positive, Flag, Positive]],
    msgspec.Meta(max_length=MAX_SAMPLES),
]
REQUIRED = ("tuning_key", "run_uid", "state", "samples", "finished_utc")
_FIELDS = {name: _bounds(name, column.kind) for name, column in ROW_COLUMNS["runs"].items()}
RunLine = msgspec.defstruct(
    "RunLine",
    [
        ("format", Literal[FORMATS["samples"]]),
        ("timings", Timings),
        *((name, _FIELDS[name]) for name in REQUIRED),
        *((name, kind | None, None) for name, kind in _FIELDS.items() if name not in REQUIRED),
    ],
    forbid_unknown_fields=True,
)
"""A line of JSON: a run with its samples and the facts of its key. A missing column is unknown."""


def check_run(values: dict[str, Any], place: int) -> IncomingRun:
    """Check what the types of the columns cannot say.

    Raises:
        ValueError: if it is not a run that can be stored.
    """
    for name, value in values.items():
        if isinstance(value, str) and storable_text(value) != value:
            raise ValueError(f"{name} has characters that a database cannot store")
    samples: list[SampleRow] = sorted(values["timings"], key=lambda sample: sample[0])
    _check_samples(values, samples)
    run = {name: values[name] for name in RUN_COLUMNS if name not in ("run_uid", "run_other_facts")}
    run["uid"] = values["run_uid"]
    facts = values["run_other_facts"]
    run["other_facts"] = (
        None
        if facts is None
        else canonical_json(_decoded("run_other_facts", facts, dict[str, Any]))
    )
    if run["has_choice"] is not None:
        run["has_choice"] = int(run["has_choice"])
    for name in ("started_utc", "finished_utc", "imported_utc"):
        run[name] = _moment(name, run[name])
    if run["failed_chunk_sizes"] is not None:
        sizes = _decoded("failed_chunk_sizes", run["failed_chunk_sizes"], list[Positive | None])
        run["failed_chunk_sizes"] = json.dumps(sizes)
    return IncomingRun(_key(values), run, samples, place)


def _check_samples(values: Mapping[str, Any], samples: Sequence[SampleRow]) -> None:
    if values["samples"] != len(samples):
        raise ValueError(f"the run has {len(samples)} samples here, not {values['samples']}")
    if len({sample[0] for sample in samples}) < len(samples):
        raise ValueError("two of its samples have the same sample_order")
    chosen, num_envs = values["chosen_chunk_size"], values["num_envs"]
    if chosen is not None and not values["has_choice"]:
        raise ValueError("it has a chosen_chunk_size, but has_choice is not true")
    largest = max(size or 0 for size in {chosen, *(sample[2] for sample in samples)})
    if num_envs is not None and largest > num_envs:
        raise ValueError(f"chunk_size {largest} is more than num_envs {num_envs}")


def _moment(name: str, text: str | None) -> str | None:
    if text is None:
        return None
    if not MOMENT.fullmatch(text):
        raise ValueError(f"{name} is {text[:60]!r}: a time such as 2026-01-31T12:00:00Z is needed")
    return utc_text(datetime.fromisoformat(text))


def _decoded(name: str, text: str, kind: Any) -> Any:
    try:
        return msgspec.json.decode(text, type=kind)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name} is not the JSON that it should be: {error}") from error


def _key(values: Mapping[str, Any]) -> str:
    """Recompute the key from its facts, which must give the digest in the file."""
    digest: str = values["tuning_key"]
    known = [name for name in KEY_COLUMNS if name != "tuning_key" and values[name] is not None]
    if not known:
        return digest
    parameters = {name: values[name] for name in RUN_PARAMETERS}
    missing = [name for name, value in parameters.items() if value is None]
    if missing:
        raise ValueError(f"{missing[0]} is missing, but {known[0]} is given")
    key = key_of(
        Workload(
            model=_checked_facts(values, "model", schema.MODEL_FIELDS, model_digest),
            device=_checked_facts(values, "device", schema.DEVICE_FIELDS, device_digest),
            **parameters,
        )
    )
    if key != digest:
        raise ValueError(f"its facts make the key {key}, not {digest[:60]!r}")
    return key


def _checked_facts(
    values: Mapping[str, Any],
    what: str,
    fields: Iterable[str],
    digest_of: Callable[[Mapping[str, Any]], str],
) -> dict[str, Any]:
    """Read the facts of a model or a device, which must give the digest in the file."""
    others = _decoded(f"{what}_other_facts", values[f"{what}_other_facts"] or "{}", dict[str, Any])
    facts = {name: values[name] for name in fields if values[name] is not None}
    twice = sorted(facts.keys() & others.keys())
    if twice:
        raise ValueError(f"{twice[0]} is in its own column and in {what}_other_facts")
    # A column of fractions stores 2 as 2.0, and the digest tells them apart.
    whole = {n: int(v) if type(v) is float and v.is_integer() else v for n, v in facts.items()}
    for spelling in (facts | others, whole | others):
        made = digest_of(spelling)
        if made == values[f"{what}_digest"]:
            return dict(spelling)
    raise ValueError(f"its facts make the {what}_digest {made}, not the one given")
