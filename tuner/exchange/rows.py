"""The row parser: what a file says of a run, in; a run that can be stored, or a reason, out. Pure.

Nothing is guessed and nothing mended: a value is of its column's type and within its range, or
the row is rejected. A key is made anew from its facts and has to come out as it is given.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from itertools import pairwise
from operator import itemgetter
from typing import Any

from tuner.errors import ArgumentError
from tuner.records import LARGEST_INTEGER
from tuner.store.exporting import KEY_COLUMNS, RUN_COLUMNS, SAMPLE_COLUMNS, Column
from tuner.store.importing import MOST_SAMPLES, IncomingRun
from tuner.store.runs import SampleRow, check_digest, utc_text
from tuner.store.schema import (
    DEVICE_FIELDS,
    LARGEST_NUMBER,
    LONGEST_TEXT,
    MODEL_FIELDS,
    RUN_PARAMETERS,
    storable_text,
)
from tuner.workload import (
    Facts,
    Workload,
    canonical_json,
    device_digest,
    key_of,
    model_digest,
)

FORMAT = "tuner.samples.1"
"""What the first column of each row says. It changes when a file of before is read differently."""
RUNS_FORMAT = "tuner.runs.1"
VERDICTS_FORMAT = "tuner.verdicts.1"

FACTS = {"format": Column(str, ""), **KEY_COLUMNS, **RUN_COLUMNS}
"""The columns that all rows of a run share."""
COLUMNS = {**FACTS, **SAMPLE_COLUMNS}
REQUIRED = ("format", "tuning_key", "run_uid", "state", "samples", "finished_utc", *SAMPLE_COLUMNS)

NO_SAMPLES = "it has no samples, and a verdict is made of nothing else: export samples"

STATES = ("complete", "cut short", "failed", "imported")
OCCASIONS = ("new", "near", "adopted", "outdated", "resumed", "forced", "verify", "stated")
LONGEST_NAME = 1000
"""Characters of a key or of a run's name."""
SHOWN = 60
"""Characters of a wrong value that its reason repeats."""
MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?Z", re.ASCII)

LOWEST = {
    "seed": -LARGEST_INTEGER - 1,
    **dict.fromkeys(("num_envs", "nthread", "bench_nsteps", "chosen_chunk_size"), 1),
    **dict.fromkeys(("chunk_size", "nanoseconds", "steps"), 1),
}
"""Of whole numbers; 0 for the others."""


class RowError(Exception):
    """Why a row is rejected."""


def shown(value: Any) -> str:
    """Repeat a value that may be a billion characters long, or print as anything at all."""
    if isinstance(value, (str, bytes)):
        text = repr(value[:SHOWN])
        return text if len(value) <= SHOWN else f"{text}..."
    if isinstance(value, int) and value.bit_length() > 200:
        return "a number of hundreds of digits"
    if isinstance(value, (list, dict)):
        return f"a {type(value).__name__} of {len(value)}"
    return repr(value)[:SHOWN]


def check_names(names: Iterable[Any]) -> None:
    """Check the names of a file's columns.

    Raises:
        RowError: if one is unknown, missing, or there twice.
    """
    names = list(names)
    if "samples" in names and not {"sample_order", "nanoseconds"} & set(names):
        raise RowError(NO_SAMPLES)
    seen: set[str] = set()
    for name in names:
        if name not in COLUMNS:
            raise RowError(
                f"column {shown(name)} is unknown: a newer tuner may know it; else take it out"
            )
        if name in seen:
            raise RowError(f"column {name} is there twice")
        seen.add(name)
    missing = [name for name in REQUIRED if name not in seen]
    if missing:
        raise RowError(f"column {missing[0]} is missing")


def check_format(value: Any) -> None:
    """Check what a row says it is.

    Raises:
        RowError: if it is not a row of samples of this version.
    """
    if value == FORMAT:
        return
    if value in (RUNS_FORMAT, VERDICTS_FORMAT):
        raise RowError(NO_SAMPLES)
    raise RowError(f"format is {shown(value)}, this tuner reads {FORMAT!r}")


def sample_of(values: Mapping[str, Any]) -> SampleRow | None:
    """Check the columns of one sample; None for the row of a run that has none.

    Raises:
        RowError: if they are not a sample.
    """
    if all(values.get(name) is None for name in SAMPLE_COLUMNS):
        return None
    found = {name: _value(name, column, values) for name, column in SAMPLE_COLUMNS.items()}
    for name, value in found.items():
        if value is None and name != "chunk_size":
            raise RowError(f"{name} is missing")
    return (
        found["sample_order"],
        found["round"],
        found["chunk_size"],
        found["nanoseconds"],
        int(found["warm_up"]),
        found["steps"],
    )


def samples_claimed(facts: Mapping[str, Any]) -> int:
    """Read how many samples a row says its run has.

    Raises:
        RowError: if that is no number, or more than can be taken in.
    """
    claimed = _value("samples", COLUMNS["samples"], facts)
    if claimed is None:
        raise RowError("samples is missing")
    if claimed > MOST_SAMPLES:
        raise RowError(f"samples is {claimed}, more than {MOST_SAMPLES} of a run are not taken in")
    return int(claimed)


def check_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Check what the rows of a run share, value by value; all of them by name.

    Raises:
        RowError: if one is not of its column's type and within its range.
    """
    return {name: _value(name, column, facts) for name, column in FACTS.items() if name != "format"}


def arrival_of(facts: Mapping[str, Any], samples: list[SampleRow], place: int) -> IncomingRun:
    """Check all that the rows of a run say of it.

    Args:
        facts: The columns that they share, by name; a missing one is unknown.
        samples: What `sample_of` made of each; the run's number of them.
        place: Where in the file it begins.

    Raises:
        RowError: if it is not a run that could be stored.
    """
    check_format(facts.get("format"))
    values = check_facts(facts)
    key = _key(values)
    _check_run(values)
    samples = sorted(samples, key=itemgetter(0))
    _check_samples(values, samples)
    run = {name: values[name] for name in RUN_COLUMNS if name not in ("run_uid", "run_other_facts")}
    run["uid"] = values["run_uid"]
    run["other_facts"] = _canonical("run_other_facts", values["run_other_facts"])
    if run["has_choice"] is not None:
        run["has_choice"] = int(run["has_choice"])
    for name in ("started_utc", "finished_utc", "imported_utc"):
        run[name] = _moment(name, run[name])
    run["failed_chunk_sizes"] = _chunk_sizes(run["failed_chunk_sizes"])
    return IncomingRun(key, run, samples, place)


def _value(name: str, column: Column, values: Mapping[str, Any]) -> Any:
    """Check a value by its column's type and range."""
    value = values.get(name)
    if value is None:
        return None
    if column.kind is str:
        return _text(name, value)
    if column.kind is bool:
        if type(value) is not bool:
            raise RowError(f"{name} is {shown(value)}: true or false is expected")
        return value
    if column.kind is float:
        if type(value) not in (int, float) or not 0 <= value <= LARGEST_NUMBER:
            raise RowError(f"{name} is {shown(value)}: a number from 0 to 1e12 is expected")
        return float(value)
    lowest = LOWEST.get(name, 0)
    if type(value) is not int or not lowest <= value <= LARGEST_INTEGER:
        raise RowError(f"{name} is {shown(value)}: a whole number of {lowest} or more is expected")
    return value


def _text(name: str, value: Any) -> str:
    if type(value) is not str:
        raise RowError(f"{name} is {shown(value)}: a text is expected")
    longest = LONGEST_NAME if name in ("tuning_key", "run_uid", "near_key") else LONGEST_TEXT
    if len(value) > longest:
        raise RowError(f"{name} has {len(value)} characters, more than {longest}")
    if (not value.isascii() or "\0" in value) and storable_text(value) != value:
        raise RowError(f"{name} is {shown(value)}: no text that a database holds")
    return value


def _key(values: Mapping[str, Any]) -> str:
    """Make the key from its facts, and hold it to the digest that is given."""
    digest = values["tuning_key"]
    if digest is None:
        raise RowError("tuning_key is missing")
    try:
        check_digest(digest)
    except ArgumentError as error:
        raise RowError(str(error)) from error
    known = [name for name in KEY_COLUMNS if name != "tuning_key" and values[name] is not None]
    if not known:
        return str(digest)
    for name in RUN_PARAMETERS:
        if values[name] is None:
            raise RowError(f"{name} is missing, and {known[0]} is given: a key has all or no facts")
    parameters = {name: values[name] for name in RUN_PARAMETERS}
    models = _spellings(values, MODEL_FIELDS, "model_other_facts")
    devices = _spellings(values, DEVICE_FIELDS, "device_other_facts")
    model = _of_digest(models, values["model_digest"], model_digest, "model")
    device = _of_digest(devices, values["device_digest"], device_digest, "device")
    key = key_of(Workload(model=model, device=device, **parameters))
    if key != digest:
        raise RowError(f"its facts make the key {key}, not {shown(digest)}")
    return key


def _spellings(values: Mapping[str, Any], fields: Iterable[str], rest: str) -> list[Facts]:
    """Read facts back from their columns: a whole 2.0 may have been a 2 when it was digested."""
    beyond = _object(rest, values[rest]) or {}
    facts = {name: values[name] for name in fields if values[name] is not None}
    twice = facts.keys() & beyond.keys()
    if twice:
        raise RowError(f"{min(twice)} stands in its own column and in {rest}")
    plain = {
        name: int(fact) if type(fact) is float and fact.is_integer() else fact
        for name, fact in facts.items()
    }
    return [facts | beyond, plain | beyond]


def _of_digest(spellings: list[Facts], digest: Any, digest_of: Any, what: str) -> Facts:
    for facts in spellings:
        made = digest_of(facts)
        if digest == made:
            return facts
    raise RowError(f"its facts make the {what}_digest {made}, not {shown(digest)}")


def _check_run(values: Mapping[str, Any]) -> None:
    for name in ("run_uid", "state", "finished_utc", "samples"):
        if values[name] is None or values[name] == "":
            raise RowError(f"{name} is missing")
    for name, allowed in (("state", STATES), ("occasion", OCCASIONS)):
        if values[name] is not None and values[name] not in allowed:
            raise RowError(f"{name} is {shown(values[name])}: one of {', '.join(allowed)}")
    chosen, num_envs = values["chosen_chunk_size"], values["num_envs"]
    if chosen is not None and not values["has_choice"]:
        raise RowError("it has a chosen_chunk_size, and has_choice does not say so")
    if chosen is not None and num_envs is not None and chosen > num_envs:
        raise RowError(f"chosen_chunk_size {chosen} is more than num_envs {num_envs}")


def _check_samples(values: Mapping[str, Any], samples: list[SampleRow]) -> None:
    if values["samples"] != len(samples):
        raise RowError(
            f"run {shown(values['run_uid'])} has {len(samples)} samples here, not "
            f"{values['samples']}: a run is taken whole or not at all"
        )
    if len({sample[0] for sample in samples}) < len(samples):
        twice = next(after[0] for before, after in pairwise(samples) if before[0] == after[0])
        raise RowError(f"sample_order {twice} is there twice")
    num_envs = values["num_envs"]
    largest = max((size or 0 for size in {sample[2] for sample in samples}), default=0)
    if num_envs is not None and largest > num_envs:
        raise RowError(f"chunk_size {largest} is more than num_envs {num_envs}")


def _moment(name: str, text: str | None) -> str | None:
    if text is None:
        return None
    try:
        if MOMENT.fullmatch(text):
            return utc_text(datetime.fromisoformat(text))
    except (ValueError, OverflowError):
        pass
    raise RowError(
        f"{name} is {shown(text)}: a time such as 2026-01-31T12:00:00.000000Z is expected"
    )


def _object(name: str, text: str | None) -> Facts | None:
    """Read a JSON object from a text."""
    if text is None:
        return None
    try:
        value = json.loads(text)
        if isinstance(value, dict):
            canonical_json(value)  # no NaN and no infinity
            return value
    except (ValueError, RecursionError):
        pass
    raise RowError(f"{name} is {shown(text)}: a JSON object is expected")


def _canonical(name: str, text: str | None) -> str | None:
    value = _object(name, text)
    return None if value is None else canonical_json(value)


def _chunk_sizes(text: str | None) -> str | None:
    """Check the list of the candidates on which the pool raised."""
    if text is None:
        return None
    try:
        sizes = json.loads(text)
    except (ValueError, RecursionError):
        sizes = None
    if not isinstance(sizes, list) or not all(
        size is None or (type(size) is int and 1 <= size <= LARGEST_INTEGER) for size in sizes
    ):
        raise RowError(
            f"failed_chunk_sizes is {shown(text)}: a JSON list of chunk sizes is expected"
        )
    return json.dumps(sizes)
