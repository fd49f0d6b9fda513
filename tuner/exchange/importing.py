"""Imports runs of other databases, JSON lines and JSON caches. A run is stored whole or not at all.

Runs are never overwritten: one that exists already stays, and is compared. Transactions are
short, with pauses between them, so that jobs get their turn during a long import.
"""

from __future__ import annotations

import json
import os
import re
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from hashlib import blake2b
from itertools import groupby
from pathlib import Path
from sqlite3 import Error as SQLiteError
from sqlite3 import connect
from typing import Any, BinaryIO, Literal, NamedTuple

import msgspec
import sqlalchemy as sa

from tuner.cache import stated_run
from tuner.errors import ArgumentError, DatabaseError, TunerError
from tuner.exchange.rows import (
    FORMATS,
    MAX_SAMPLES,
    PRIVATE,
    ROW_COLUMNS,
    SELECT_RUN,
    IncomingRun,
    RunLine,
    check_run,
    named,
    read_samples,
)
from tuner.store import schema
from tuner.store.database import back_up, writing
from tuner.store.migrate import upgrade
from tuner.store.runs import (
    check_digest,
    insert_run,
    insert_samples,
    judge_key,
    key_row,
    run_values,
    sample_rows,
    utc_text,
)
from tuner.store.schema import storable_text
from tuner.store.sqlite import FIRST_TABLES, OLDER_REVISIONS, REVISION, exists, open_untrusted
from tuner.workload import CacheKey, canonical_json

BATCH_SAMPLES = 100_000
"""Samples in memory at once; a run counts for a few more than it has."""
HOLD_SECONDS = 0.5
"""How long an import holds the write lock; a key that is begun is finished."""
PAUSE_SECONDS = 0.05
"""Pause between two transactions: a waiting writer looks again after 1 to 100 ms."""
LONGEST_LINE = 32 << 20
"""Bytes of a line of JSON: enough for a run of MAX_SAMPLES."""
LARGEST_CACHE = 16 << 20
"""Bytes of a JSON cache, which is decoded as a whole."""
MAX_RUNS = 10_000
"""Runs of a key."""
MAX_CANDIDATES = 100
"""Candidates of a key: the time of a verdict grows with their cube."""
MAX_REASONS = 100
"""Rejected rows of a file whose reasons are kept; all are counted."""
MAX_BAD_ROWS = 10_000
"""Bad rows in succession after which the rest of a file is not read."""
STATED = "stated elsewhere"
"""Strategy of a run from a JSON cache, which has no time of its own."""

DECODER = msgspec.json.Decoder(RunLine)
READABLE = "a tuning database, JSON lines that `tuner export --format jsonl` wrote, or a JSON cache"
ROW_BEGINS = re.compile(rb'^\s*\{\s*"format"\s*:\s*"', re.MULTILINE)

Progress = Callable[[int, int], None]
"""Receives how many bytes are read, and how many there are."""


class BadRow(NamedTuple):
    """A rejected row."""

    place: int
    reason: str


class ImportStatus(NamedTuple):
    """What happened to a run."""

    kind: Literal["new", "known", "rejected"]
    reason: str = ""


NEW, KNOWN = ImportStatus("new"), ImportStatus("known")


@dataclass
class Imported:
    """The result of importing one file."""

    file: str
    new_runs: int = 0
    new_samples: int = 0
    known_runs: int = 0
    """Runs that were in the database already."""
    keys: int = 0
    """Keys that got runs, whose verdicts were recomputed."""
    rejected: int = 0
    rejections: list[tuple[int, str]] = field(default_factory=list)
    """The first of them: line or run number, and reason."""
    error: str | None = None
    """Why the file could not be read, or not to its end."""

    def reject(self, place: int, reason: str) -> None:
        """Count a rejection."""
        self.rejected += 1
        if len(self.rejections) < MAX_REASONS:
            self.rejections.append((place, " ".join(reason[:300].split())))


def import_files(
    database: Path,
    files: Sequence[Path],
    *,
    strict: bool = False,
    dry_run: bool = False,
    as_own: bool = False,
    progress: Progress = lambda _, __: None,
) -> tuple[bool, list[Imported]]:
    """Store the new runs of files. Rejected rows are reported, the others are stored.

    Args:
        database: The file; created or upgraded when there is something to store.
        files: Tuning databases, JSON lines or JSON caches.
        strict: Store nothing if anything is rejected; tried on a copy first.
        dry_run: Only try it on a copy of the database.
        as_own: Keep runs that were measured into a file as measured here, to repair a database.
        progress: Called after each batch.

    Returns:
        Whether it was done, and the result for each file, or what it would be.

    Raises:
        DatabaseError: if the database cannot be used; what was stored until then stays.
    """
    if strict or dry_run:
        with tempfile.TemporaryDirectory(prefix="tuner-") as folder:
            copy = Path(folder) / "copy.db"
            if exists(database) and database.stat().st_size:
                back_up(database, copy)
            tried = _import_all(copy, files, as_own, progress)
        if dry_run or any(file.rejected or file.error for file in tried):
            return False, tried
    return True, _import_all(database, files, as_own, progress)


def _import_all(
    database: Path, files: Sequence[Path], as_own: bool, progress: Progress
) -> list[Imported]:
    sizes = [_size(file) for file in files]
    results = []
    for number, file in enumerate(files):
        results.append(Imported(str(file)))
        before, now = sum(sizes[:number]), utc_text(datetime.now(UTC))
        mark = {} if as_own else {"origin": storable_text(file.name), "imported_utc": now}
        for batch, position in _batches(_read(file, results[-1]), results[-1]):
            for incoming in batch:
                if incoming.run["origin"] is None:
                    incoming.run.update(mark)
            _store(database, batch, results[-1])
            progress(before + min(position, sizes[number]), max(1, sum(sizes)))
    return results


def _size(file: Path) -> int:
    try:
        return os.stat(file).st_size
    except (OSError, ValueError):
        return 0


Found = tuple[IncomingRun | BadRow, int]
"""A run or a bad row, and how far the file is read."""


def _batches(found: Iterable[Found], result: Imported) -> Iterator[tuple[list[IncomingRun], int]]:
    """Collect runs in batches of bounded size, and count bad rows."""
    batch: list[IncomingRun] = []
    size = bad_rows = position = 0
    for item, position in found:
        if isinstance(item, BadRow):
            result.reject(*item)
            bad_rows += 1
            if bad_rows > MAX_BAD_ROWS:
                result.error = f"{result.file}: {bad_rows} rows in succession are wrong: gave up"
                break
            continue
        bad_rows = 0
        batch.append(item)
        texts = sum(len(value) for value in item.run.values() if isinstance(value, str))
        size += len(item.samples) + 20 + texts // 100
        if size >= BATCH_SAMPLES:
            yield batch, position
            batch, size = [], 0
    yield batch, position


def _store(database: Path, batch: Sequence[IncomingRun], result: Imported) -> None:
    """Store a batch key by key, each with its verdicts, in short transactions."""
    groups = [list(runs) for _, runs in groupby(sorted(batch, key=_digest), _digest)]
    if groups:
        upgrade(database)
    while groups:
        with writing(database) as connection:
            end = time.monotonic() + HOLD_SECONDS
            stored: list[tuple[list[IncomingRun], list[ImportStatus]]] = []
            while groups and (not stored or time.monotonic() < end):
                group = groups.pop(0)
                stored.append((group, import_runs(connection, group)))
        for group, statuses in stored:
            result.keys += NEW in statuses
            for incoming, status in zip(group, statuses, strict=True):
                if status.kind == "rejected":
                    result.reject(incoming.place, status.reason)
                elif status == NEW:
                    result.new_runs += 1
                    result.new_samples += len(incoming.samples)
                else:
                    result.known_runs += 1
        if groups:
            time.sleep(PAUSE_SECONDS)


def _digest(incoming: IncomingRun) -> str:
    return str(incoming.key)


def import_runs(connection: sa.Connection, runs: Sequence[IncomingRun]) -> list[ImportStatus]:
    """Store the new runs of one key and recompute its verdicts; run by run if that fails."""
    connection.exec_driver_sql("SAVEPOINT key")
    try:
        statuses = _insert_new(connection, runs)
        if all(status.kind == "rejected" for status in statuses):
            connection.exec_driver_sql("ROLLBACK TO key")  # not even the key stays
    except (sa.exc.IntegrityError, ArithmeticError, ValueError) as error:
        connection.exec_driver_sql("ROLLBACK TO key")
        if len(runs) > 1:
            statuses = [import_runs(connection, [incoming])[0] for incoming in runs]
        elif isinstance(error, sa.exc.IntegrityError):
            statuses = [ImportStatus("rejected", f"the database refuses it: {error.orig}")]
        else:
            statuses = [ImportStatus("rejected", f"no verdict can be made of it: {error}")]
    connection.exec_driver_sql("RELEASE key")
    return statuses


def _insert_new(connection: sa.Connection, runs: Sequence[IncomingRun]) -> list[ImportStatus]:
    statuses = [find_existing(connection, incoming) for incoming in runs]
    with_facts = next((r.key for r in runs if isinstance(r.key, CacheKey)), None)
    learned = with_facts is not None and not _has_facts(connection, with_facts)
    if not learned and None not in statuses:
        return [status for status in statuses if status is not None]
    key_id = key_row(connection, runs[0].key if with_facts is None else with_facts)
    limits = _Limits(connection, key_id)
    done: list[ImportStatus] = []
    for incoming, status in zip(runs, statuses, strict=True):
        if status is None:  # a batch may hold the same run twice
            status = find_existing(connection, incoming) or limits.status_with(incoming)
        if status == NEW:
            run_id = insert_run(connection, key_id, incoming.run)
            insert_samples(connection, run_id, incoming.samples)
        done.append(status)
    if learned or NEW in done:
        judge_key(connection, runs[0].key)
    return done


def _has_facts(connection: sa.Connection, key: str) -> bool:
    table = schema.tuning_key.c
    found = connection.execute(sa.select(table.model_id).where(table.digest == str(key)))
    return found.scalar() is not None


FIND_RUN = (
    sa.select(schema.run, schema.tuning_key.c.digest.label("digest"))
    .join_from(schema.run, schema.tuning_key, schema.run.c.key_id == schema.tuning_key.c.key_id)
    .where(schema.run.c.uid == sa.bindparam("uid"))
)


def find_existing(connection: sa.Connection, incoming: IncomingRun) -> ImportStatus | None:
    """Compare a run with the stored run of its uid; None for a new uid."""
    row = connection.execute(FIND_RUN, {"uid": incoming.run["uid"]}).mappings().one_or_none()
    if row is None:
        return None
    differing = [name for name in incoming.run if not _same(name, row, incoming.run)]
    if row["digest"] != str(incoming.key):
        differing.append("tuning_key")
    if read_samples(connection, row["run_id"]) != incoming.samples:
        differing.append("its samples")
    if not differing:
        return KNOWN
    return ImportStatus(
        "rejected",
        f"run {incoming.run['uid'][:40]} is in the database with other content, by "
        f"{', '.join(differing)}: what is there stays",
    )


def _same(name: str, there: Mapping[Any, Any], here: Mapping[str, Any]) -> bool:
    """Compare one value of a run, which an anonymous export may have left out."""
    if there[name] == here[name] or name in ("origin", "imported_utc"):
        return True
    if name == "finished_utc" and there["plan"] == STATED:
        return True  # the time of a file, different for each copy of it
    if name in ("has_choice", "chosen_chunk_size") and there["method"] is here["method"] is None:
        # Schema 0001 kept the choice of a key's latest run only.
        return not (there["has_choice"] and here["has_choice"])
    private = name in PRIVATE or name == "other_facts"
    return private and (there[name] is None or here[name] is None)


class _Limits:
    """Refuses runs of impossible chunk sizes, and more of a key than a verdict can use."""

    def __init__(self, connection: sa.Connection, key_id: int) -> None:
        run, sample, key = schema.run.c, schema.sample.c, schema.tuning_key.c
        self._num_envs = connection.scalar(sa.select(key.num_envs).where(key.key_id == key_id))
        self._runs = connection.scalar(sa.select(sa.func.count()).where(run.key_id == key_id)) or 0
        by_size = connection.execute(
            sa.select(sample.chunk_size, sa.func.count())
            .where(sample.run_id == run.run_id, run.key_id == key_id)
            .group_by(sample.chunk_size)
        ).all()
        self._candidates = {chunk_size for chunk_size, _ in by_size}
        self._samples = sum(count for _, count in by_size)

    def status_with(self, incoming: IncomingRun) -> ImportStatus:
        """Count a run in, unless it exceeds a limit."""
        sizes = {sample[2] for sample in incoming.samples}
        largest = max(size or 0 for size in {*sizes, incoming.run["chosen_chunk_size"]})
        if self._num_envs is not None and largest > self._num_envs:
            reason = f"chunk_size {largest} is more than the key's num_envs {self._num_envs}"
            return ImportStatus("rejected", reason)
        candidates = self._candidates | sizes
        runs, samples = self._runs + 1, self._samples + len(incoming.samples)
        for count, limit, what in (
            (len(candidates), MAX_CANDIDATES, "candidates"),
            (samples, MAX_SAMPLES, "samples"),
            (runs, MAX_RUNS, "runs"),
        ):
            if count > limit:
                reason = f"the key would have {count} {what}, more than {limit}"
                return ImportStatus("rejected", reason)
        self._candidates, self._runs, self._samples = candidates, runs, samples
        return NEW


def _read(file: Path, result: Imported) -> Iterator[Found]:
    """Read a file as far as possible; its content tells what it is."""
    try:
        status = os.stat(file)
        if not stat.S_ISREG(status.st_mode):  # opening a pipe would wait
            raise ArgumentError(f"cannot import {file}: it is not a regular file")
        with file.open("rb") as stream:
            head = stream.read(1 << 16).removeprefix(b"\xef\xbb\xbf")
            stream.seek(3 if stream.tell() > len(head) else 0)
            if head.startswith(b"SQLite format 3\0"):
                yield from _read_database(file)
            elif ROW_BEGINS.search(head):
                yield from _read_lines(stream)
            elif head.lstrip().startswith(b"{"):
                yield from _read_cache(file, stream, status)
            elif not head:
                raise ArgumentError(f"cannot import {file}: it is empty")
            else:
                is_table = head.startswith(b"PAR1") or b"tuning_key" in head.partition(b"\n")[0]
                what = "CSV and Parquet are not read" if is_table else "unknown content"
                raise ArgumentError(f"cannot import {file}: {what}: give {READABLE}")
    except (OSError, ValueError, TunerError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        known = isinstance(error, TunerError)
        result.error = reason if known else f"cannot import {str(file)[:200]!r}: {reason.lower()}"


def _read_lines(stream: BinaryIO) -> Iterator[Found]:
    number = 0
    while line := stream.readline(LONGEST_LINE):
        number += 1
        if len(line) == LONGEST_LINE and not line.endswith(b"\n"):
            while (rest := stream.readline(LONGEST_LINE)) and not rest.endswith(b"\n"):
                pass
            yield BadRow(number, f"the line is longer than {LONGEST_LINE} bytes"), stream.tell()
        elif line.strip():
            try:
                if (
                    FORMATS["runs"].encode() in line[:100]
                    or FORMATS["verdicts"].encode() in line[:100]
                ):
                    raise ValueError("it has no samples to import: export samples")
                row = DECODER.decode(line)
                yield check_run(msgspec.structs.asdict(row), number), stream.tell()
            except (ValueError, RecursionError) as error:
                yield BadRow(number, str(error)), stream.tell()


def _read_cache(file: Path, stream: BinaryIO, status: os.stat_result) -> Iterator[Found]:
    """Read {digest: {"chunk_size": ...}}: choices without the facts of their keys."""
    if status.st_size > LARGEST_CACHE:
        raise ArgumentError(f"cannot import {file}: a JSON cache has at most {LARGEST_CACHE} bytes")
    try:
        cache = msgspec.json.decode(stream.read(), type=dict[str, msgspec.Raw])
    except (ValueError, RecursionError) as error:
        raise ArgumentError(f"cannot import {file}: not a JSON cache: {error}") from error
    moment = datetime.fromtimestamp(status.st_mtime, UTC)
    for number, (digest, raw) in enumerate(cache.items(), 1):
        try:
            check_digest(digest)
            value = json.loads(bytes(raw))
            run = stated_run(digest, value, moment, STATED)
            content = canonical_json({"key": digest, "value": value})
            uid = blake2b(content.encode(), digest_size=16).hexdigest()
            values = run_values(replace(run, uid=uid))
            yield IncomingRun(digest, values, sample_rows(run.samples), number), stream.tell()
        except (ValueError, RecursionError, OverflowError) as error:
            yield BadRow(number, f"{digest[:60]!r}: {error}"), stream.tell()


def _read_database(file: Path) -> Iterator[Found]:
    """Read the runs of another database one by one, by key; damaged ones are bad rows."""
    try:
        with _untrusted_copy(file) as connection:
            run_ids = _run_ids(connection)
            size = file.stat().st_size
            for number, run_id in enumerate(run_ids, 1):
                try:
                    row = connection.execute(SELECT_RUN, {"run_id": run_id}).mappings().one()
                    values = named(ROW_COLUMNS["runs"], row)
                    values["timings"] = read_samples(connection, run_id, MAX_SAMPLES + 1)
                    checked = msgspec.convert({"format": FORMATS["samples"], **values}, RunLine)
                    found: IncomingRun | BadRow = check_run(msgspec.structs.asdict(checked), run_id)
                except sa.exc.SQLAlchemyError as error:
                    why = getattr(error, "orig", None) or error
                    found = BadRow(run_id, f"run {run_id} cannot be read: {why}")
                except (ValueError, RecursionError) as error:
                    found = BadRow(run_id, str(error))
                yield found, size * number // len(run_ids)
    except (sa.exc.DBAPIError, SQLiteError) as error:
        why = getattr(error, "orig", None) or error
        raise DatabaseError(f"cannot read the database {file}: {why}; it is unchanged") from error


@contextmanager
def _untrusted_copy(file: Path) -> Iterator[sa.Connection]:
    """Copy a database page by page, bring the copy to this schema, and open it read-only.

    Raises:
        DatabaseError: if it is not a tuning database that this tuner can read.
        sqlite3.Error: if it cannot be read.
    """
    with tempfile.TemporaryDirectory(prefix="tuner-") as folder:
        copy = Path(folder) / "copy.db"
        with closing(open_untrusted(file)) as source, closing(connect(copy)) as target:
            source.backup(target)
        with closing(open_untrusted(copy, "rw")) as connection:
            objects = connection.execute("SELECT type, name, sql FROM sqlite_master").fetchall()
            tables = {
                name
                for kind, name, sql in objects
                if kind == "table" and not str(sql).upper().startswith("CREATE VIRTUAL")
            }
            missing = sorted((FIRST_TABLES | {"alembic_version"}) - tables)
            if missing:
                raise DatabaseError(
                    f"cannot import {file}: not a tuning database, it has no table {missing[0]}"
                )
            (revision,) = connection.execute(
                "SELECT max(version_num) FROM alembic_version"
            ).fetchone()
            if revision not in (*OLDER_REVISIONS, REVISION):
                raise DatabaseError(
                    f"cannot import {file}: it has schema {str(revision)[:40]!r}, this tuner knows "
                    f"{REVISION}: upgrade tuner"
                )
            for kind, name, _ in objects:
                if kind == "trigger":  # an upgrade would fire it
                    connection.execute('DROP TRIGGER "{}"'.format(name.replace('"', '""')))
        if revision != REVISION:
            upgrade(copy)
        engine = sa.create_engine(
            "sqlite://", creator=lambda: open_untrusted(copy), poolclass=sa.NullPool
        )
        with engine.connect() as opened:
            yield opened


def _run_ids(connection: sa.Connection) -> list[int]:
    """List the runs by key; of damaged tables all that one of three ways still finds."""
    run = schema.run.c
    found: dict[int, None] = {}
    for order in ((run.key_id, run.finished_utc), (run.run_id,), (run.run_id.desc(),)):
        try:
            for (run_id,) in connection.execute(sa.select(run.run_id).order_by(*order)):
                found[run_id] = None
            break
        except sa.exc.DatabaseError:
            if order[0] is not run.key_id and not found:
                raise
    return list(found)
