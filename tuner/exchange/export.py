"""Exports what is stored: to a file that appears whole or not at all, or to a stream."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

from tuner.errors import ArgumentError, cannot_write
from tuner.exchange.rows import COLUMNS, FACTS, FORMAT, RUNS_FORMAT, VERDICTS_FORMAT
from tuner.exchange.writers import (
    Columns,
    CsvWriter,
    JsonLinesWriter,
    ParquetWriter,
    T4Writer,
    Writer,
)
from tuner.store.backup import NAME_KEPT
from tuner.store.exporting import (
    KEY_COLUMNS,
    PRIVATE,
    VERDICT_COLUMNS,
    Column,
    shelf,
    write_database,
)
from tuner.store.queries import EVERYTHING, Selection

What = Literal["samples", "runs", "verdicts"]
Format = Literal["csv", "jsonl", "parquet", "sqlite", "t4"]

FORMATS = {"samples": FORMAT, "runs": RUNS_FORMAT, "verdicts": VERDICTS_FORMAT}

Progress = Callable[[int, int], None]
"""Is told how many samples are written, and how many there will be."""


class Written(NamedTuple):
    """What an export holds."""

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
        stream: Where to.
        form: Any but "sqlite", which is no stream.
        what: A row for each sample, run or verdict.
        selection: Of which runs, or verdicts.
        anonymous: Whether to leave the columns `PRIVATE` empty.
        progress: Is told now and then.

    Raises:
        ArgumentError: for a form that needs what is not installed.
        DatabaseError: if the database cannot be read.
    """
    rows = runs = 0
    columns: Columns = COLUMNS if what == "samples" else FACTS
    if what == "verdicts":
        columns = {"format": Column(str, ""), **KEY_COLUMNS, **VERDICT_COLUMNS}
    with shelf(database) as stored:
        writer = _writer(form, stream, columns)
        if what == "verdicts":
            for verdict in stored.verdicts(selection):
                writer.add(_shared(what, verdict, anonymous), None)
                rows += 1
        else:
            _, total = stored.count(selection)
            for run_id in stored.run_ids(selection):
                run = _shared(what, stored.run(run_id), anonymous)
                samples = stored.samples(run_id) if what == "samples" else None
                writer.add(run, samples)
                rows, runs = rows + (len(samples) if samples else 1), runs + 1
                progress(rows, total)
        writer.close()
    return Written(rows, runs)


def _shared(what: What, row: Mapping[str, Any], anonymous: bool) -> dict[str, Any]:
    private = dict.fromkeys(name for name in PRIVATE if name in row) if anonymous else {}
    return {"format": FORMATS[what], **row, **private}


def _writer(form: Format, stream: BinaryIO, columns: Columns) -> Writer:
    if form == "csv":
        return CsvWriter(stream, columns)
    if form == "parquet":
        return ParquetWriter(stream, columns)
    return JsonLinesWriter(stream) if form == "jsonl" else T4Writer(stream)


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
    """Write an export under its name, in place of what has it already.

    The file appears whole, or not at all.

    Args:
        database: The file.
        target: Where to.
        form: As for `write_rows`, or "sqlite": a database of our own schema.
        what: As for `write_rows`.
        selection: As for `write_rows`.
        anonymous: As for `write_rows`.
        progress: As for `write_rows`.

    Raises:
        ArgumentError: if the target is no place for an export.
        DatabaseError: if the database cannot be read.
    """
    with _appearing(database, target) as partial:
        if form == "sqlite":
            runs, rows = write_database(database, partial, selection, anonymous=anonymous)
            return Written(rows, runs)
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
    """Name a file beside the target, which takes its name once it is whole."""
    # Another name each time: one that a killed export left is in nobody's way.
    partial = target.parent / f"{target.name[:NAME_KEPT]}.partial-{os.urandom(8).hex()}"
    try:
        _check_place(database, target)
        yield partial
        os.replace(partial, target)
    except OSError as error:
        raise ArgumentError(cannot_write(target, error)) from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink()


def _check_place(database: Path, target: Path) -> None:
    if target.exists() and not target.is_file():
        raise ArgumentError(f"cannot export to {target}: it is not a file; `-o -` is stdout")
    if not target.parent.is_dir():
        raise ArgumentError(cannot_write(target, FileNotFoundError()))
    if target.exists() and target.samefile(database):
        raise ArgumentError(f"{target} is the database itself: name another file")
