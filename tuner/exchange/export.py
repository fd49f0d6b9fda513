"""Exports what is stored: to a file that appears whole or not at all, or to a stream.

Rows are read from a private copy, so a slow reader of a pipe never blocks a writer.
"""

from __future__ import annotations

import contextlib
import csv
import io
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

import msgspec
import sqlalchemy as sa

from tuner.errors import ArgumentError, cannot_write
from tuner.exchange.rows import (
    FORMATS,
    PRIVATE,
    ROW_COLUMNS,
    RUN_COLUMNS,
    RUNS,
    SAMPLE_COLUMNS,
    SELECT_RUNS,
    SELECT_VERDICTS,
    named,
    read_samples,
)
from tuner.store import schema
from tuner.store.database import NAME_KEPT, back_up, reading, writing
from tuner.store.maintenance import fresh_schema, schema_of
from tuner.store.queries import EVERYTHING, Selection, run_conditions
from tuner.store.runs import SampleRow, judge_key
from tuner.store.sqlite import REVISION, file_revision, open_for_writing, other_revision

What = Literal["samples", "runs", "verdicts"]
Format = Literal["csv", "jsonl", "parquet", "sqlite"]
Progress = Callable[[int, int], None]
"""Receives how many samples are written, and how many there will be."""
Record = tuple[dict[str, Any], list[SampleRow] | None]
"""A run or verdict, and the run's samples; None in exports without samples."""

BATCH_ROWS = 16_384
"""Rows in one Parquet row group."""
NO_SAMPLE = (None,) * len(SAMPLE_COLUMNS)
"""Stands in the one row of a run without samples."""
ELSEWHERE = "elsewhere"
"""Origin of imported runs in an anonymous database, which keeps them apart from our own."""


class Written(NamedTuple):
    """The size of an export."""

    rows: int
    runs: int
    """0 for verdicts."""


def write_rows(
    database: Path,
    stream: BinaryIO,
    form: Format,
    *,
    what: What = "samples",
    selection: Selection = EVERYTHING,
    anonymous: bool = False,
    progress: Progress = lambda _, __: None,
) -> Written:
    """Write rows to a stream, in constant memory.

    Args:
        database: The file.
        stream: Receives the rows.
        form: Any format but "sqlite", which needs a file.
        what: Whether a row is a sample, a run or a verdict.
        selection: Which runs or verdicts.
        anonymous: Leaves the columns `PRIVATE` empty.
        progress: Called after each run.

    Raises:
        ArgumentError: if Parquet is asked for and pyarrow is missing.
        DatabaseError: if the database cannot be read.
    """
    rows = runs = 0
    columns = ["format", *ROW_COLUMNS[what]]
    if form == "parquet":
        arrow()  # before anything is copied
    with _private_copy(database) as connection:
        total = _count(connection, selection).rows

        def counted() -> Iterator[Record]:
            nonlocal rows, runs
            for shared, samples in _records(connection, what, selection):
                if anonymous:
                    shared |= dict.fromkeys(name for name in PRIVATE if name in shared)
                yield shared, samples
                rows += len(samples) if samples else 1
                runs += what != "verdicts"
                progress(rows, total)

        if form == "csv":
            _write_csv(stream, columns, _flat(counted()))
        elif form == "parquet":
            kinds = [str, *(column.kind for column in ROW_COLUMNS[what].values())]
            _write_parquet(stream, dict(zip(columns, kinds, strict=True)), _flat(counted()))
        else:
            _write_json_lines(stream, counted())
    return Written(rows, runs)


@contextmanager
def _private_copy(database: Path) -> Iterator[sa.Connection]:
    _check_revision(database)
    with tempfile.TemporaryDirectory(prefix="tuner-") as folder:
        copy = Path(folder) / "copy.db"
        back_up(database, copy)
        with reading(copy) as connection:
            yield connection


def _check_revision(database: Path) -> None:
    revision = file_revision(database)
    if revision is not None and revision != REVISION:
        raise other_revision(database, revision)


def _selected(selection: Selection, moment: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
    return sa.and_(sa.true(), *run_conditions(selection, moment))


def _count(connection: sa.Connection, selection: Selection) -> Written:
    """Count samples and runs."""
    run = schema.run.c
    counts = sa.select(sa.func.count(run.run_id), sa.func.coalesce(sa.func.sum(run.samples), 0))
    where = _selected(selection, schema.run.c.finished_utc)
    runs, rows = connection.execute(counts.select_from(RUNS).where(where)).one()
    return Written(rows, runs)


def _records(connection: sa.Connection, what: What, selection: Selection) -> Iterator[Record]:
    """Read verdicts by key, or runs by key and end."""
    format_name = {"format": FORMATS[what]}
    if what == "verdicts":
        where = _selected(selection, schema.verdict.c.last_measured_utc)
        for row in connection.execute(SELECT_VERDICTS.where(where)).mappings():
            yield format_name | named(ROW_COLUMNS[what], row), None
        return
    statement = SELECT_RUNS.where(_selected(selection, schema.run.c.finished_utc)).order_by(
        schema.tuning_key.c.digest, schema.run.c.finished_utc, schema.run.c.uid
    )
    for row in connection.execute(statement).mappings():
        samples = read_samples(connection, row["run_id"]) if what == "samples" else None
        yield format_name | named(ROW_COLUMNS["runs"], row), samples


def _flat(records: Iterable[Record]) -> Iterator[tuple[Any, ...]]:
    """Repeat what the samples of a run share in a row for each sample."""
    for shared, samples in records:
        head = tuple(shared.values())
        if samples is None:
            yield head
        elif not samples:
            yield head + NO_SAMPLE
        for order, block, chunk_size, nanoseconds, warm_up, steps in samples or ():
            yield (*head, order, block, chunk_size, nanoseconds, bool(warm_up), steps)


def _write_csv(stream: BinaryIO, columns: list[str], rows: Iterable[tuple[Any, ...]]) -> None:
    """Write RFC 4180 with a header; unknown values are empty."""
    text = io.TextIOWrapper(stream, encoding="utf-8", newline="")
    try:
        writer = csv.writer(text)
        writer.writerow(columns)
        for row in rows:
            writer.writerow([str(v).lower() if isinstance(v, bool) else v for v in row])
        text.flush()
    finally:
        text.detach()  # the stream belongs to the caller


def _write_json_lines(stream: BinaryIO, records: Iterable[Record]) -> None:
    """Write one JSON object per run or verdict; a run's samples stand in `timings`."""
    encode = msgspec.json.Encoder().encode
    for shared, samples in records:
        stream.write(encode(shared if samples is None else {**shared, "timings": samples}) + b"\n")


def _write_parquet(
    stream: BinaryIO, kinds: Mapping[str, type], rows: Iterator[tuple[Any, ...]]
) -> None:
    """Write Parquet with Zstandard compression; unknown values are null."""
    pyarrow, parquet = arrow()
    types = {
        str: pyarrow.string(),
        int: pyarrow.int64(),
        float: pyarrow.float64(),
        bool: pyarrow.bool_(),
    }
    fields = pyarrow.schema([(name, types[kind]) for name, kind in kinds.items()])
    with parquet.ParquetWriter(stream, fields, compression="zstd") as writer:
        while batch := list(islice(rows, BATCH_ROWS)):
            arrays = map(pyarrow.array, zip(*batch, strict=True), fields.types)
            writer.write_table(pyarrow.Table.from_arrays(list(arrays), schema=fields))


def arrow() -> tuple[Any, Any]:
    """Import pyarrow, which only Parquet needs.

    Raises:
        ArgumentError: if it is not installed.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ArgumentError(
            f"Parquet needs pyarrow, which cannot be imported here ({error}): "
            "pip install 'tuner[parquet]', or use --format csv or jsonl"
        ) from error
    return pyarrow, pyarrow.parquet


def write_file(
    database: Path,
    target: Path,
    form: Format,
    *,
    what: What = "samples",
    selection: Selection = EVERYTHING,
    anonymous: bool = False,
    progress: Progress = lambda _, __: None,
) -> Written:
    """Write an export to a file, which appears whole or not at all and replaces an older one.

    Args:
        database: The file.
        target: The file to write.
        form: As for `write_rows`, or "sqlite": a database of this schema.
        what: As for `write_rows`.
        selection: As for `write_rows`.
        anonymous: As for `write_rows`.
        progress: As for `write_rows`.

    Raises:
        ArgumentError: if the target cannot be written.
        DatabaseError: if the database cannot be read.
    """
    with _appearing(database, target) as partial:
        if form == "sqlite":
            return _write_database(database, partial, selection, anonymous=anonymous)
        with partial.open("xb") as stream:
            written = write_rows(
                database,
                stream,
                form,
                what=what,
                selection=selection,
                anonymous=anonymous,
                progress=progress,
            )
            stream.flush()
            os.fsync(stream.fileno())
        return written


@contextmanager
def _appearing(database: Path, target: Path) -> Iterator[Path]:
    """Name a partial file beside the target, and rename it when it is complete."""
    # A random name: the leftover of a killed export must not block the next one.
    partial = target.parent / f"{target.name[:NAME_KEPT]}.partial-{os.urandom(8).hex()}"
    try:
        _check_target(database, target)
        yield partial
        os.replace(partial, target)
    except OSError as error:
        raise ArgumentError(cannot_write(target, error)) from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink()


def _check_target(database: Path, target: Path) -> None:
    if target.exists() and not target.is_file():
        raise ArgumentError(f"cannot export to {target}: it is not a file; `-o -` is stdout")
    if not target.parent.is_dir():
        raise ArgumentError(cannot_write(target, FileNotFoundError()))
    if target.exists() and target.samefile(database):
        raise ArgumentError(f"{target} is the database itself: name another file")


def _write_database(
    database: Path, copy: Path, selection: Selection, *, anonymous: bool
) -> Written:
    """Write a database of the selected runs with their keys, pins and verdicts."""
    _check_revision(database)
    back_up(database, copy)
    statements = list(_restore_schema(schema_of(copy), fresh_schema()))
    run, key = schema.run, schema.tuning_key
    selected = sa.select(run.c.run_id).select_from(RUNS)
    selected = selected.where(_selected(selection, schema.run.c.finished_utc))
    dropped = run.c.run_id.not_in(selected)
    with writing(copy) as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)
        of_dropped = sa.select(key.c.digest).join_from(run, key, key.c.key_id == run.c.key_id)
        affected = set(connection.scalars(of_dropped.where(dropped)))
        connection.execute(sa.delete(run).where(dropped))
        connection.execute(sa.delete(schema.lookup))
        if selection != EVERYTHING:  # otherwise a pinned key without runs stays
            has_runs = sa.exists().where(run.c.key_id == key.c.key_id)
            connection.execute(sa.delete(key).where(~has_runs))
        for table, name in ((schema.model, "model_id"), (schema.device, "device_id")):
            used = sa.exists().where(key.c[name] == table.c[name])
            connection.execute(sa.delete(table).where(~used))
        for digest in sorted(affected & set(connection.scalars(sa.select(key.c.digest)))):
            judge_key(connection, digest)
        if anonymous:
            nothing: dict[str, Any] = dict.fromkeys(n for n in PRIVATE if n in RUN_COLUMNS)
            nothing |= {"other_facts": None}
            nothing.pop("run_other_facts")
            nothing["origin"] = sa.case((run.c.origin.is_not(None), ELSEWHERE))
            connection.execute(sa.update(run).values(nothing))
            connection.execute(sa.update(schema.pin).values(reason="pinned"))
    with contextlib.closing(open_for_writing(copy)) as plain:
        plain.execute("VACUUM")  # free pages still hold what was deleted
    with reading(copy) as connection:
        return _count(connection, EVERYTHING)


def _restore_schema(found: Mapping[str, str], ours: Mapping[str, str]) -> Iterator[str]:
    """Write statements that drop what others added, and bring our own views and indexes back.

    Args:
        found: The schema of the file, as `schema_of` reads it.
        ours: The schema that it should have.
    """
    for kind in ("trigger", "view", "index", "table"):
        for what, sql in found.items():
            name = what.partition(" ")[2]
            added = what.startswith(f"{kind} ") and sql != ours.get(what)
            if added and name != "sqlite_sequence":
                yield 'DROP {} IF EXISTS "{}"'.format(kind, name.replace('"', '""'))
    for what, sql in ours.items():
        if what.startswith(("view ", "index ")) and found.get(what) != sql:
            yield sql
