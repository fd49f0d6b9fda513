"""Imports files: what they are, what of them is taken in, and what is rejected and why."""

from __future__ import annotations

import json
import os
import re
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO

from tuner.cache import stated_run
from tuner.errors import ArgumentError, DatabaseError, TunerError
from tuner.exchange.cache_file import read_cache
from tuner.exchange.parquet import read_parquet
from tuner.exchange.readers import Problem, Read, Rows, read_csv, read_json_lines
from tuner.exchange.rows import (
    FORMAT,
    RowError,
    arrival_of,
    check_facts,
    sample_of,
    samples_claimed,
    shown,
)
from tuner.exchange.spool import Spool
from tuner.store.backup import back_up
from tuner.store.exporting import SAMPLE_COLUMNS, Snapshot
from tuner.store.foreign import foreign_shelf, read_foreign_run
from tuner.store.importing import MOST_SAMPLES, STATED, IncomingRun, meet, take_in
from tuner.store.migrate import upgrade
from tuner.store.queries import EVERYTHING
from tuner.store.runs import SampleRow, check_digest, run_values, sample_rows, utc_text
from tuner.store.schema import storable_text
from tuner.store.sqlite import exists
from tuner.workload import canonical_json

BATCH_SAMPLES = 20_000
"""Which are looked for in the database together; a run counts for a few more than it has."""
MOST_WAITING = 200_000
"""Samples of runs whose other rows have not come yet."""
MOST_TOLD = 100
"""Rejected rows of a file whose reasons are kept; all are counted."""
MOST_WRONG = 10_000
"""Rejected rows one after the other, after which a file is given up."""
PROGRESS_EVERY = 16
HEAD_BYTES = 1 << 16
"""Of a file, by which it is told what it is."""

Progress = Callable[[int, int], None]
"""Is told how much is done, and how much there is to do."""


@dataclass
class Imported:
    """What came of a file."""

    file: str
    new_runs: int = 0
    new_samples: int = 0
    known_runs: int = 0
    """Runs that were in the database already."""
    keys: int = 0
    """Keys that got runs, whose verdicts are made anew."""
    rejected: int = 0
    rejections: list[tuple[int, str]] = field(default_factory=list)
    """The first of them: line or row, and reason."""
    error: str | None = None
    """Why the file could not be read, or not to its end."""

    def reject(self, place: int, reason: str) -> None:
        """Note a rejection."""
        self.rejected += 1
        if len(self.rejections) < MOST_TOLD:
            self.rejections.append((place, reason))


def import_files(
    database: Path,
    files: Sequence[Path],
    *,
    strict: bool = False,
    dry_run: bool = False,
    progress: Progress = lambda _, __: None,
) -> tuple[bool, list[Imported]]:
    """Take in what is new in files; what is rejected is told, and the rest goes in.

    Args:
        database: The file; made or upgraded as soon as there is something to store.
        files: What `tuner export` wrote, whole databases, JSON caches.
        strict: Take nothing in if anything is rejected: first tried on a copy.
        dry_run: Only try it, on a copy of the database.
        progress: Is told now and then.

    Returns:
        Whether it was done, and what came of each file, or would have.

    Raises:
        DatabaseError: if the database cannot be used.
    """
    sizes = [_size(file) for file in files]
    whole = max(1, sum(sizes))

    def reading(number: int, done: int) -> None:
        progress(min(whole, sum(sizes[:number]) + done), 2 * whole)

    def storing(done: int, runs: int) -> None:
        progress(whole + whole * done // runs, 2 * whole)

    with _spooling(), Spool() as spool:
        if not (strict or dry_run):
            found = _sift(database, files, spool, reading)
            _store(database, found, spool, storing)
            return True, found
        with _rehearsal(database) as copy:
            found = _sift(copy, files, spool, reading)
            tried = deepcopy(found)
            _store(copy, tried, spool, storing)
        if dry_run or any(file.rejected or file.error for file in tried):
            return False, tried
        _store(database, found, spool, storing)
        return True, found


def _size(file: Path) -> int:
    try:
        return os.stat(file).st_size
    except (OSError, ValueError):
        return 0


@contextmanager
def _spooling() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DatabaseError(
            f"cannot keep what is read until it is stored: {error.strerror}; "
            "make room, or name another folder with TMPDIR; what is stored so far is whole"
        ) from error


@contextmanager
def _rehearsal(database: Path) -> Iterator[Path]:
    """Copy a database, to see what an import would do to it."""
    with tempfile.TemporaryDirectory(prefix="tuner-") as folder:
        copy = Path(folder) / "copy.db"
        if exists(database) and database.stat().st_size:
            back_up(database, copy)
        yield copy


def check_file(file: Path) -> os.stat_result:
    """Check that there is a file, before it is opened: a pipe would not be, a device do things.

    Raises:
        ArgumentError: if there is none.
    """
    try:
        status = os.stat(file)
    except (OSError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise ArgumentError(f"cannot import {str(file)[:200]!r}: {reason}") from error
    if not stat.S_ISREG(status.st_mode):
        kind = "a folder" if stat.S_ISDIR(status.st_mode) else "a pipe or a device"
        raise ArgumentError(f"cannot import {file}: it is {kind}; save it as a file and name that")
    if not status.st_size:
        raise ArgumentError(f"cannot import {file}: it is empty")
    return status


def _sift(
    database: Path, files: Sequence[Path], spool: Spool, progress: Callable[[int, int], None]
) -> list[Imported]:
    """Read files, and keep the runs that are not in the database yet."""
    found = []
    for number, file in enumerate(files):
        found.append(Imported(str(file)))
        _sift_file(database, file, found[-1], spool, number, partial(progress, number))
    return found


def _sift_file(
    database: Path,
    file: Path,
    done: Imported,
    spool: Spool,
    number: int,
    progress: Callable[[int], None],
) -> None:
    batch: list[IncomingRun] = []
    room = BATCH_SAMPLES
    wrong = 0

    def sift() -> None:
        nonlocal wrong
        if not batch:
            return
        upgrade(database)
        for arrival, fate in zip(batch, meet(database, batch), strict=True):
            if fate is not None and fate.kind == "rejected":
                wrong += 1
                done.reject(arrival.place, fate.reason)
                continue
            wrong = 0
            if fate is None:
                spool.add(number, arrival)
            else:
                done.known_runs += 1
        batch.clear()

    origin, now = storable_text(file.name), utc_text(datetime.now(UTC))
    for found in _read(file, progress, done):
        if isinstance(found, Problem):
            wrong += 1
            done.reject(*found)
        else:
            if found.run["origin"] is None:
                found.run["origin"], found.run["imported_utc"] = origin, now
            batch.append(found)
            room -= _weight(found.run, found.samples)
        if room <= 0:
            sift()
            room = BATCH_SAMPLES
        if wrong > MOST_WRONG:
            done.error = f"{file}: {wrong} rows in a row are wrong: the rest of it is not read"
            break
    sift()


def _store(
    database: Path,
    found: Sequence[Imported],
    spool: Spool,
    progress: Callable[[int, int], None],
) -> None:
    """Store the runs that were kept, key by key."""
    stored, runs = 0, spool.runs()
    if runs:
        upgrade(database)
    for slips, fates in zip(spool.slips(), take_in(database, spool.groups()), strict=True):
        for slip, fate in zip(slips, fates, strict=True):
            file = found[slip.file]
            if fate.kind == "rejected":
                file.reject(slip.place, fate.reason)
            elif fate.kind == "new":
                file.new_runs += 1
                file.new_samples += slip.samples
            else:
                file.known_runs += 1
        new = {slip.file for slip, fate in zip(slips, fates, strict=True) if fate.kind == "new"}
        for number in new:
            found[number].keys += 1
        stored += len(slips)
        progress(stored, runs)


def _weight(values: Mapping[str, Any], samples: Sequence[Any]) -> int:
    """Say how much memory a run takes, in samples."""
    texts = sum(len(value) for value in values.values() if type(value) is str)
    return len(samples) + 20 + texts // 100


def _read(
    file: Path, progress: Callable[[int], None], done: Imported
) -> Iterator[IncomingRun | Problem]:
    """Read a file as far as it can be read."""
    try:
        status = check_file(file)
        with file.open("rb") as stream:
            for number, found in enumerate(_arrivals(file, stream, status)):
                yield found
                if number % PROGRESS_EVERY == 0:
                    progress(stream.tell())
    except OSError as error:
        done.error = f"cannot read {file}: {error.strerror}"
    except TunerError as error:
        done.error = str(error)


def _arrivals(
    file: Path, stream: BinaryIO, status: os.stat_result
) -> Iterator[IncomingRun | Problem]:
    """Tell by its content what a file is, and read it."""
    head = stream.read(HEAD_BYTES)
    mark = len(BYTE_ORDER_MARK) if head.startswith(BYTE_ORDER_MARK) else 0
    head = head[mark:]
    stream.seek(mark)
    if head.startswith(b"SQLite format 3\0"):
        with foreign_shelf(file) as shelf:
            yield from _of_shelf(shelf)
    elif head.startswith(b"PAR1"):
        yield from _assembled(read_parquet(stream))
    elif _is_json_lines(head):
        yield from _assembled(read_json_lines(stream))
    elif T4_BEGINS.match(head):
        raise ArgumentError(
            f"cannot import {file}: it is T4, which lacks the order of the samples: export CSV, "
            "JSON lines, Parquet or SQLite"
        )
    elif head.lstrip(b" \t\r\n").startswith(b"{"):
        yield from _of_cache(stream, datetime.fromtimestamp(status.st_mtime, UTC))
    elif FORMAT_NAME in head.partition(b"\n")[0]:
        yield from _assembled(read_csv(stream))
    else:
        raise ArgumentError(
            f"cannot import {file}: it begins with {shown(head[:20])}, and is none of CSV, JSON "
            "lines, Parquet and SQLite as `tuner export` writes them, nor a JSON cache"
        )


BYTE_ORDER_MARK = b"\xef\xbb\xbf"
"""Some editors write it before any text."""
FORMAT_NAME = b"tuning_key"
"""A column that our CSV has, wherever it stands."""
T4_BEGINS = re.compile(rb'^\s*\{\s*"schema_version"\s*:\s*"')
ROW_BEGINS = re.compile(rb'^\{[ \t]*"format"[ \t]*:[ \t]*[^ \t{]', re.MULTILINE)


def _is_json_lines(head: bytes) -> bool:
    """Tell rows from a JSON cache, whose values are objects and never a format."""
    if ROW_BEGINS.search(head):
        return True
    try:
        row = json.loads(head.partition(b"\n")[0])
    except (ValueError, RecursionError):
        return False
    return isinstance(row, dict) and not isinstance(row.get("format", {}), dict)


def _assembled(read: Read) -> Iterator[IncomingRun | Problem]:
    """Bring the rows of each run together, wherever they stand in the file."""
    waiting: dict[str, Rows] = {}
    room = MOST_WAITING
    for found in read:
        if isinstance(found, Problem):
            yield found
            continue
        try:
            whole = samples_claimed(found.facts)
            uid = found.facts.get("run_uid")
            if type(uid) is not str:
                raise RowError(f"run_uid is {shown(uid)}: a text is expected")
            if uid not in waiting and len(found.samples) >= whole:
                yield arrival_of(found.facts, found.samples, found.place)
                continue
            rows = waiting.get(uid)
            if rows is None:
                check_facts(found.facts)  # what waits is weighed, and only a text can be
                rows = waiting[uid] = found
                room -= _weight(found.facts, found.samples)
            elif rows.facts != found.facts:
                raise RowError(f"of run {shown(uid)} it says otherwise than line {rows.place}")
            else:
                rows.samples.extend(found.samples)
                room -= len(found.samples)
            if len(rows.samples) >= whole:
                del waiting[uid]
                room += _weight(rows.facts, rows.samples)
                yield arrival_of(rows.facts, rows.samples, rows.place)
        except RowError as error:
            yield Problem(found.place, str(error))
        if room < 0:
            yield from _incomplete(waiting)
            room = MOST_WAITING
    yield from _incomplete(waiting)


def _incomplete(waiting: dict[str, Rows]) -> Iterator[Problem]:
    for uid, rows in waiting.items():
        yield Problem(
            rows.place,
            f"run {shown(uid)} has {len(rows.samples)} of its {rows.facts['samples']} samples "
            "here: a run is taken whole or not at all; sort the rows by run_uid if they are there",
        )
    waiting.clear()


def _of_shelf(shelf: Snapshot) -> Iterator[IncomingRun | Problem]:
    """Read the runs of a database. Their places are their numbers in it."""
    for run_id in shelf.run_ids(EVERYTHING):
        try:
            run, rows = read_foreign_run(shelf, run_id, MOST_SAMPLES + 1)
            facts = {"format": FORMAT, **run}
            yield arrival_of(facts, [_stored_sample(row) for row in rows], run_id)
        except (RowError, DatabaseError) as error:
            yield Problem(run_id, str(error))


def _stored_sample(row: tuple[Any, ...]) -> SampleRow:
    values = dict(zip(SAMPLE_COLUMNS, row, strict=True))
    if values["warm_up"] in (0, 1):
        values["warm_up"] = values["warm_up"] == 1
    sample = sample_of(values)
    if sample is None:
        raise RowError("a sample is empty")
    return sample


def _of_cache(stream: BinaryIO, moment: datetime) -> Iterator[IncomingRun | Problem]:
    """Read {digest: {"chunk_size": ...}}: answers without the facts of their keys."""
    for found in read_cache(stream):
        if isinstance(found, Problem):
            yield found
            continue
        line, digest, value = found
        try:
            check_digest(digest)
            run = stated_run(digest, value, moment, STATED)
            content = canonical_json({"key": digest, "value": value})
            uid = blake2b(content.encode(), digest_size=16).hexdigest()
            values = run_values(replace(run, uid=uid))
            yield IncomingRun(digest, values, sample_rows(run.samples), line)
        except (ValueError, RecursionError, OverflowError) as error:
            reason = " ".join(str(error)[:300].split())
            yield Problem(line, f"{shown(digest)}: {reason}")
