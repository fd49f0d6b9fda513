"""Keeps a database in order: checks, repairs, deletions, pins, statistics."""

from __future__ import annotations

import json
import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from tuner.candidates import checked_chunk_size
from tuner.errors import ArgumentError, DatabaseError
from tuner.records import LARGEST_INTEGER
from tuner.store import schema
from tuner.store.database import reading, writing
from tuner.store.migrate import make_empty, upgrade
from tuner.store.queries import EVERYTHING, Selection, on_runs, policies_of, read_snapshot
from tuner.store.runs import judge_key, recompute, utc_text
from tuner.store.schema import storable_text
from tuner.store.sqlite import (
    OLDER_REVISIONS,
    OUR_TABLES,
    REVISION,
    error_name,
    exists,
    explained,
    file_revision,
    is_empty,
    is_ours,
    open_damaged,
    open_for_writing,
    other_revision,
    query,
    something_else,
)

MOST_FINDINGS = 20
"""Findings of one kind that are told; a damaged file can have thousands."""

REPAIR = "`tuner db repair` moves the file aside and keeps what can be read"

CONTRADICTIONS = {
    "run {} says it has {} samples and has {}": """
        SELECT run.run_id, run.samples, count(sample.run_id)
        FROM run LEFT JOIN sample ON sample.run_id = run.run_id
        GROUP BY run.run_id HAVING run.samples <> count(sample.run_id)""",
    "the verdict of key {} has chunk_size {}, with num_envs {}": """
        SELECT substr(tuning_key.digest, 1, 40), verdict.chunk_size, tuning_key.num_envs
        FROM verdict JOIN tuning_key ON tuning_key.digest = verdict.key_digest
        WHERE verdict.chunk_size > tuning_key.num_envs""",
    "run {} has samples of chunk_size {}, with num_envs {}": """
        SELECT run.run_id, max(sample.chunk_size), tuning_key.num_envs
        FROM sample JOIN run ON run.run_id = sample.run_id
        JOIN tuning_key ON tuning_key.key_id = run.key_id
        WHERE sample.chunk_size > tuning_key.num_envs GROUP BY run.run_id""",
}
"""What no constraint of one table can say, as a sentence and the rows that break it."""

IMPOSSIBLE_PINS = """
    SELECT pin.key_digest, pin.chunk_size, tuning_key.num_envs
    FROM pin JOIN tuning_key ON tuning_key.digest = pin.key_digest
    WHERE pin.chunk_size > tuning_key.num_envs"""
JSON_OF_RUNS = "SELECT run_id, failed_chunk_sizes, other_facts FROM run"


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it should be."""

    what: str
    next_step: str


def check(database: Path) -> list[Finding]:
    """Look a database over.

    Returns:
        What is wrong with it; an empty list if nothing is.

    Raises:
        DatabaseError: if there is no file to look at.
    """
    if not exists(database):
        raise DatabaseError(f"there is no tuning database at {database}")
    if is_empty(database):
        return []
    try:
        if not is_ours(database):
            raise something_else(database)
        revision = file_revision(database)
        if revision in OLDER_REVISIONS:
            older = f"the schema is {revision}, older than {REVISION}"
            return [Finding(older, "`tuner db upgrade`")]
        if revision is None:
            return [Finding("it does not say which schema it has", REPAIR)]
        if revision != REVISION:
            raise other_revision(database, revision)
        # Rows can only be asked where the tables are as they should be.
        findings = _pages(database) + _schema(database)
        return (findings or _rows(database))[:MOST_FINDINGS]
    except sqlite3.Error as error:
        # Only damage is a finding: a file that is locked or may not be read is as sound as it was.
        if not is_damage(error):
            raise explained(database, error) from error
        return [Finding(f"SQLite cannot read it: {error} ({error_name(error)})", REPAIR)]


def is_damage(error: BaseException) -> bool:
    """Tell whether SQLite found a file's content, and not its circumstances, to be bad."""
    return error_name(error) in ("SQLITE_NOTADB", "SQLITE_ERROR") or error_name(error).startswith(
        "SQLITE_CORRUPT"
    )


def _pages(database: Path) -> list[Finding]:
    """Let SQLite go through its pages, indexes and constraints."""
    integrity = query(database, f"PRAGMA integrity_check({MOST_FINDINGS})")
    findings = [Finding(f"SQLite says: {text}", REPAIR) for (text,) in integrity if text != "ok"]
    for table, row, parent, _ in query(database, "PRAGMA foreign_key_check")[:MOST_FINDINGS]:
        findings.append(Finding(f"row {row} of {table} belongs to no {parent}", REPAIR))
    return findings


def _schema(database: Path) -> list[Finding]:
    """Compare tables, indexes and views with those of a database made afresh."""
    here, fresh = schema_of(database), fresh_schema()
    findings = [Finding(f"{name} is missing", REPAIR) for name in fresh if name not in here]
    findings += [
        Finding(f"{name} is not as the migrations made it", REPAIR)
        for name in fresh
        if name in here and here[name] != fresh[name]
    ]
    # A trigger changes what a statement of ours does; tables and views of others do not.
    findings += [
        Finding(f"{name} is not ours", f"drop it with the sqlite3 program, or {REPAIR}")
        for name in here
        if name.startswith("trigger ") and name not in fresh
    ]
    return findings


def _text_columns(database: Path) -> list[tuple[str, str]]:
    return [
        (table, name)
        for table in sorted(OUR_TABLES)
        for _, name, kind, *_ in query(database, f"PRAGMA table_info({table})")
        if kind == "TEXT"
    ]


def _undecodable(database: Path, table: str, column: str) -> int:
    """Count the texts that are no UTF-8: STRICT takes any bytes that call themselves a text."""
    rows = query(database, f"SELECT CAST({column} AS BLOB) FROM {table}")
    return sum(raw is not None and not _is_text(raw) for (raw,) in rows)


def _is_text(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def schema_of(database: Path) -> dict[str, str]:
    """Read the SQL of each table, index and view, white space folded."""
    rows = query(database, "SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL")
    return {f"{kind} {name}": " ".join(sql.split()) for kind, name, sql in rows}


def fresh_schema(revision: str = REVISION) -> dict[str, str]:
    """Read the same of a database that the migrations made just now, up to a revision."""
    with tempfile.TemporaryDirectory(prefix="tuner-") as folder:
        fresh = Path(folder) / "fresh.db"
        make_empty(fresh, revision)
        return schema_of(fresh)


def _rows(database: Path) -> list[Finding]:
    # integrity_check leaves out the CHECKs of a table without row ids, so they are asked here
    broken = []
    with reading(database) as connection:
        inspector = sa.inspect(connection)
        for table in sorted(OUR_TABLES):
            for rule in inspector.get_check_constraints(table):
                statement = f"SELECT count(*) FROM {table} WHERE NOT ({rule['sqltext']})"
                rows = connection.exec_driver_sql(statement).scalar_one()
                if rows:
                    broken.append(Finding(f"{rows} rows of {table} break {rule['name']}", REPAIR))
    broken += [
        Finding(f"{rows} rows of {table} have a {column} that is no text", REPAIR)
        for table, column in _text_columns(database)
        if (rows := _undecodable(database, table, column))
    ]
    broken += [
        Finding(sentence.format(*row), REPAIR)
        for sentence, statement in CONTRADICTIONS.items()
        for row in query(database, statement)[:MOST_FINDINGS]
    ]
    broken += [
        Finding(
            f"key {key[:40]} is pinned to {chunk_size}, with num_envs {num_envs}",
            f"`tuner unpin {key[:40]}`, or pin another",
        )
        for key, chunk_size, num_envs in query(database, IMPOSSIBLE_PINS)[:MOST_FINDINGS]
    ]
    return broken + [
        Finding(f"run {run_id} has a {column} that cannot be read", REPAIR)
        for run_id, *texts in query(database, JSON_OF_RUNS)
        for column in unreadable(dict(zip(JSON_COLUMNS, texts, strict=True)))
    ]


def _is_chunk_sizes(value: object) -> bool:
    return isinstance(value, list) and all(
        size is None or (type(size) is int and size >= 1) for size in value
    )


JSON_COLUMNS: dict[str, Callable[[object], bool]] = {
    "failed_chunk_sizes": _is_chunk_sizes,
    "other_facts": lambda value: isinstance(value, dict),
}
"""Of a run, and what has to stand in them where they are not empty."""


def unreadable(run: Mapping[str, Any]) -> list[str]:
    """Name the columns of a run that ought to be JSON and are not what they ought to be."""
    return [
        column
        for column, fits in JSON_COLUMNS.items()
        if run.get(column) is not None and not _holds(run[column], fits)
    ]


def _holds(text: str, fits: Callable[[object], bool]) -> bool:
    try:
        return fits(json.loads(text))
    except (ValueError, RecursionError):
        return False


TABLES = {
    "model": ("model_id",),
    "device": ("device_id",),
    "tuning_key": ("key_id",),
    "run": ("run_id",),
    "sample": ("run_id", "sample_order"),
    "verdict": ("key_digest", "stack"),
    "validator": ("name",),
    "pin": ("key_digest",),
    "lookup": ("key_digest", "day_utc", "kind"),
}
"""Parents before children, each with its primary key."""

NO_POOL_TAKES = {
    "pin": """
        DELETE FROM pin WHERE chunk_size > (
            SELECT num_envs FROM tuning_key WHERE tuning_key.digest = pin.key_digest)""",
    "verdict": """
        DELETE FROM verdict WHERE chunk_size > (
            SELECT num_envs FROM tuning_key WHERE tuning_key.digest = verdict.key_digest)""",
    "sample": """
        DELETE FROM sample WHERE chunk_size > (
            SELECT num_envs FROM tuning_key JOIN run ON run.key_id = tuning_key.key_id
            WHERE run.run_id = sample.run_id)""",
}
"""Takes out what no pool of its key could take, by table: it is in the damaged file still."""

COMPANIONS = ("-journal", "-wal", "-shm")
"""What SQLite may have left beside a database file."""


@dataclass(frozen=True, slots=True)
class Repair:
    """What a repair did."""

    moved_to: Path
    """Where the damaged file is now."""
    kept: dict[str, int]
    """Rows that are in the new database, by table."""
    refused: dict[str, int]
    """Rows that could be read but break a rule of the schema, by table."""


def repair(database: Path) -> Repair | None:
    """Replace a damaged database by a sound one that holds what could be read.

    Where SQLite can still lock the file, no other process writes to it meanwhile. A link is
    followed: the file behind it is repaired.

    Returns:
        What was done; None if there was nothing to repair, and nothing was touched.

    Raises:
        SchemaError: if the file has another schema; it is not touched.
        DatabaseError: if it is another program's, is missing, cannot be read for another reason
            than damage, or its folder is not writable; it is not touched.
    """
    if not exists(database):
        raise DatabaseError(f"there is no tuning database at {database}: nothing to repair")
    file = Path(os.path.realpath(database))
    try:
        with _locked(file):
            # Only now: another repair may just have finished.
            return _replace(file) if check(file) else None
    except OSError as error:
        raise DatabaseError(
            f"cannot repair {file}: {error.strerror} ({error.filename}); "
            "the damaged file is where it was"
        ) from error


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Hold SQLite's write lock, unless the file is too damaged for SQLite to lock it.

    Raises:
        DatabaseError: if another process holds it, or the file cannot be opened.
    """
    try:
        connection = open_for_writing(file)
    except sqlite3.Error as error:
        raise explained(file, error, "repair") from error
    with closing(connection):
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            if not is_damage(error):
                raise explained(file, error, "repair") from error
        yield


def _replace(file: Path) -> Repair:
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%fZ")
    fresh = file.with_name(f"{file.name}.repairing")
    aside = file.with_name(f"{file.name}.damaged-{stamp}")
    _remove(fresh)  # what a killed repair left
    moved: list[tuple[Path, Path]] = []
    try:
        upgrade(fresh)
        kept, refused = _salvage(file, fresh)
        _hand_over(file, fresh)
        # First a second name, then the exchange: at every moment there is a file at the
        # database's place, and the damaged one has a name. Where a second name cannot be had,
        # nothing has been moved yet.
        os.link(file, aside)
        for suffix in COMPANIONS:
            companion = file.with_name(file.name + suffix)
            if companion.exists():
                companion.rename(aside.with_name(aside.name + suffix))
                moved.append((companion, aside.with_name(aside.name + suffix)))
        os.replace(fresh, file)
    except BaseException:
        for companion, place in moved:
            place.rename(companion)
        _remove(fresh)
        raise
    return Repair(aside, kept, refused)


def _hand_over(file: Path, fresh: Path) -> None:
    """Give the new file the old one's owner and mode, as far as that is allowed."""
    status = file.stat()
    os.chmod(fresh, status.st_mode & 0o777)
    if (status.st_uid, status.st_gid) != (fresh.stat().st_uid, fresh.stat().st_gid):
        with suppress(PermissionError):
            os.chown(fresh, status.st_uid, status.st_gid)


def _remove(fresh: Path) -> None:
    for suffix in ("", *COMPANIONS):
        fresh.with_name(fresh.name + suffix).unlink(missing_ok=True)


def _salvage(damaged: Path, fresh: Path) -> tuple[dict[str, int], dict[str, int]]:
    kept = dict.fromkeys(TABLES, 0)
    refused = dict.fromkeys(TABLES, 0)
    with writing(fresh) as target:
        for name, row in _readable_rows(damaged):
            table = getattr(schema, name)
            known = {column.name for column in table.columns}
            statement = sa.insert(table)
            if name == "validator":  # a new database has policies, which give way to those set
                statement = statement.prefix_with("OR REPLACE")
            if name == "run":  # a fact that cannot be read is unknown, and the rest of it counts
                row = row | dict.fromkeys(unreadable(row))
            try:
                target.execute(statement, {k: v for k, v in row.items() if k in known})
                kept[name] += 1
            except (sa.exc.IntegrityError, sa.exc.StatementError):
                refused[name] += 1
        for name, clearing in NO_POOL_TAKES.items():
            impossible = target.exec_driver_sql(clearing).rowcount
            kept[name] -= impossible
            refused[name] += impossible
        _admit_losses(target)
    return kept, refused


def _readable_rows(damaged: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        connection = open_damaged(damaged)
    except sqlite3.Error:
        return
    with closing(connection):
        for name, key in TABLES.items():
            for row in _rows_of(connection, name, key):
                yield name, row


def _rows_of(
    connection: sqlite3.Connection, table: str, key: tuple[str, ...]
) -> Iterator[dict[str, Any]]:
    """Read a table from the front until it breaks, then from the back until it breaks.

    What lies between two damaged pages is lost, what lies around them is not.
    """
    seen: set[tuple[Any, ...]] = set()
    for direction in ("ASC", "DESC"):
        order = ", ".join(f"{column} {direction}" for column in key)
        try:
            rows = connection.execute(f"SELECT * FROM {table} ORDER BY {order}")
            for row in rows:
                identity = tuple(row[column] for column in key)
                if identity not in seen:
                    seen.add(identity)
                    yield dict(row)
            return  # to the end without a fault: there is no need to come from behind
        except (sqlite3.Error, IndexError, OverflowError):
            continue


def _admit_losses(target: sa.Connection) -> None:
    """Let a run that lost samples say so: no run claims more than it has."""
    have = (
        sa.select(sa.func.count())
        .select_from(schema.sample)
        .where(schema.sample.c.run_id == schema.run.c.run_id)
        .scalar_subquery()
    )
    target.execute(
        sa.update(schema.run)
        .where(schema.run.c.samples != have)
        .values(samples=have, state="cut short", message="samples were lost to a damaged file")
    )


def pin(database: Path, key: str, chunk_size: int | None, reason: str) -> None:
    """Let a key answer with a chunk size whatever is measured; None is the native default.

    Raises:
        ArgumentError: if there is no such key, or its pool could not take the chunk size.
        DatabaseError: if nothing could be stored.
    """
    upgrade(database)
    pins, keys = schema.pin, schema.tuning_key
    with writing(database) as connection:
        found = connection.execute(
            sa.select(keys.c.num_envs).where(keys.c.digest == key)
        ).one_or_none()
        if found is None:
            raise ArgumentError(f"there is no key {key} to pin: `tuner list` shows all")
        if chunk_size is not None:
            most = LARGEST_INTEGER if found.num_envs is None else found.num_envs
            chunk_size = checked_chunk_size(chunk_size, most)
        connection.execute(sa.delete(pins).where(pins.c.key_digest == key))
        connection.execute(
            sa.insert(pins).values(
                key_digest=key,
                chunk_size=chunk_size,
                reason=storable_text(" ".join(reason.split())),
                pinned_utc=utc_text(datetime.now(UTC)),
            )
        )


def unpin(database: Path, key: str) -> bool:
    """Let a key answer by its verdict again; tells whether it was pinned."""
    upgrade(database)
    with writing(database) as connection:
        done = connection.execute(sa.delete(schema.pin).where(schema.pin.c.key_digest == key))
        return bool(done.rowcount)


def read_policies(database: Path) -> dict[str, str]:
    """Read how strictly each validator counts."""
    with read_snapshot(database) as rows:
        return policies_of(rows)


def set_policy(database: Path, name: str, policy: str) -> None:
    """Set how strictly a validator counts, and make the verdicts anew under it.

    Key by key, like `recompute`, which also finishes what was interrupted here.
    """
    upgrade(database)
    table = schema.validator
    with writing(database) as connection:
        connection.execute(sa.delete(table).where(table.c.name == name))
        connection.execute(sa.insert(table).values(name=name, policy=policy))
    recompute(database)


def forget(database: Path, keys: Iterable[str]) -> None:
    """Remove keys with all that was measured of them."""
    upgrade(database)
    with writing(database) as connection:
        for key in keys:
            _forget(connection, key)
        _drop_orphans(connection)


def _forget(connection: sa.Connection, key: str) -> None:
    for table, column in ((schema.tuning_key, "digest"), (schema.lookup, "key_digest")):
        connection.execute(sa.delete(table).where(table.c[column] == key))


def _drop_orphans(connection: sa.Connection) -> None:
    for table, name in ((schema.model, "model_id"), (schema.device, "device_id")):
        used = sa.select(schema.tuning_key.c[name]).where(schema.tuning_key.c[name].is_not(None))
        connection.execute(sa.delete(table).where(table.c[name].not_in(used)))


KNOWN = sa.text("SELECT 1 FROM tuning_key WHERE digest = :key")
UNUSED = sa.text(
    """
    SELECT 1 FROM tuning_key WHERE digest = :key
        AND NOT EXISTS (SELECT 1 FROM run WHERE run.key_id = tuning_key.key_id)
        AND NOT EXISTS (SELECT 1 FROM pin WHERE pin.key_digest = tuning_key.digest)
    """
)


@dataclass(frozen=True, slots=True)
class Pruning:
    """What a pruning takes out."""

    run_ids: tuple[int, ...]
    samples: int
    keys: tuple[str, ...]
    """Keys that lose runs."""
    gone: tuple[str, ...]
    """Those of them that lose all, and are forgotten; a pinned key never is."""


RUNS_OLDEST_FIRST = """
    SELECT run.run_id, run.samples, run.finished_utc, tuning_key.digest AS key,
           row_number() OVER (
               PARTITION BY run.key_id, run.state = 'failed'
               ORDER BY run.finished_utc DESC, run.uid DESC
           ) AS newest, {meant} AS meant
    FROM run JOIN tuning_key ON tuning_key.key_id = run.key_id
    ORDER BY run.finished_utc, run.uid
"""


RUN_WEIGHT = 16
"""A run without samples takes about as many bytes as so many samples."""
BYTES = """
    SELECT page_size * (page_count - freelist_count) AS used,
           (SELECT page_size * count(*) + sum(length(sql)) FROM sqlite_master WHERE rootpage > 0)
               AS fixed
    FROM pragma_page_size, pragma_page_count, pragma_freelist_count
"""
"""What the file would take without its free pages, and what it would without any rows."""


def plan_pruning(
    database: Path,
    *,
    older_than: timedelta | None = None,
    keep_runs: int | None = None,
    most_bytes: int | None = None,
    selection: Selection = EVERYTHING,
) -> Pruning:
    """Say what a pruning would take out. Changes nothing.

    Args:
        database: The file.
        older_than: Runs that ended longer ago than this go.
        keep_runs: Of each key only so many of the newest runs stay, failed ones counted apart.
        most_bytes: The oldest runs go until the file would be so small.
        selection: Only these runs go.
    """
    with read_snapshot(database) as rows:
        meant, given = on_runs(selection, "run.finished_utc")
        runs = rows(RUNS_OLDEST_FIRST.format(meant=meant), given)
        pinned = {row["key_digest"] for row in rows("SELECT key_digest FROM pin")}
        (file,) = rows(BYTES)
    before = _moment_before(older_than) if older_than is not None else ""
    going = {
        run["run_id"]
        for run in runs
        if run["meant"]
        and (run["finished_utc"] < before or (keep_runs is not None and run["newest"] > keep_runs))
    }
    if most_bytes is not None:
        weights = {run["run_id"]: run["samples"] + RUN_WEIGHT for run in runs}
        used, fixed = file["used"], min(file["used"], file["fixed"])
        share = (used - fixed) / max(1, sum(weights.values()))
        size = used - share * sum(weights[run_id] for run_id in going)
        for run in runs:
            if size <= most_bytes:
                break
            if run["meant"] and run["run_id"] not in going:
                going.add(run["run_id"])
                size -= share * weights[run["run_id"]]
    touched = {run["key"] for run in runs if run["run_id"] in going}
    left = {run["key"] for run in runs if run["run_id"] not in going}
    return Pruning(
        run_ids=tuple(run["run_id"] for run in runs if run["run_id"] in going),
        samples=sum(run["samples"] for run in runs if run["run_id"] in going),
        keys=tuple(sorted(touched)),
        gone=tuple(sorted(touched - left - pinned)),
    )


def _moment_before(age: timedelta) -> str:
    try:
        return utc_text(datetime.now(UTC) - age)
    except OverflowError:  # older than the calendar is nothing
        return ""


def prune(database: Path, pruning: Pruning) -> None:
    """Take out what was planned, and make the verdicts anew from what is left.

    A key that was pinned or measured since it was planned is not forgotten.

    Raises:
        DatabaseError: if nothing was changed; or if only the space could not be given back.
    """
    upgrade(database)
    with writing(database) as connection:
        for run_id in pruning.run_ids:
            connection.execute(sa.delete(schema.run).where(schema.run.c.run_id == run_id))
        for key in pruning.keys:
            if connection.execute(UNUSED, {"key": key}).one_or_none():
                _forget(connection, key)
            elif connection.execute(KNOWN, {"key": key}).one_or_none():
                judge_key(connection, key)
        _drop_orphans(connection)
    try:
        vacuum(database)
    except DatabaseError as error:
        raise DatabaseError(
            f"the runs are removed, their space is not given back: {error}; "
            "`tuner db vacuum` tries that again"
        ) from error


def vacuum(database: Path) -> tuple[int, int]:
    """Give back the space that deleted rows left; bytes before and after.

    Raises:
        DatabaseError: if the database is held, or there is no room for a second copy.
        SchemaError: if its schema is another one; it is not touched.
    """
    with read_snapshot(database):
        pass  # raises for what is not ours to touch
    before = database.stat().st_size
    try:
        with closing(open_for_writing(database)) as connection:
            connection.execute("VACUUM")
    except sqlite3.Error as error:
        raise explained(database, error, "vacuum") from error
    return before, database.stat().st_size


STATS = """
    SELECT (SELECT count(*) FROM tuning_key) AS keys,
           (SELECT count(*) FROM verdict WHERE decided = 1) AS decided_verdicts,
           (SELECT count(*) FROM verdict WHERE decided = 0) AS undecided_verdicts,
           (SELECT count(*) FROM pin) AS pins,
           (SELECT count(*) FROM run) AS runs,
           (SELECT count(*) FROM run WHERE state = 'imported' OR origin IS NOT NULL)
               AS imported_runs,
           (SELECT count(*) FROM run WHERE state = 'failed') AS failed_runs,
           (SELECT coalesce(sum(samples), 0) FROM run) AS samples,
           (SELECT coalesce(sum(pool_seconds), 0) FROM run) AS tuning_seconds
"""


def read_stats(database: Path) -> dict[str, Any]:
    """Add up what is stored. Changes nothing."""
    with read_snapshot(database) as rows:
        (stats,) = rows(STATS)
    size = database.stat().st_size
    return {
        **stats,
        "bytes": size,
        "bytes_per_sample": size / stats["samples"] if stats["samples"] else None,
    }
