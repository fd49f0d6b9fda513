"""Reads the views, for people and for programs: text in, rows out.

Standard library only, like the hit path: SQLAlchemy's import takes longer than reading ten
thousand keys, and a view asks for nothing that it would be needed for.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tuner.errors import ArgumentError
from tuner.records import Run
from tuner.store.diagnosis import REVISION, exists, explained, other_revision
from tuner.store.fields import DEVICE_FIELDS, MODEL_FIELDS
from tuner.store.runs import Rows, holding, policies_of, read_runs
from tuner.store.sqlite import open_for_reading
from tuner.validators import Stack

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
def one_moment(database: Path) -> Iterator[Rows]:
    """Open a database like `reading`, for statements whose rows are wanted by name."""
    with reading(database) as connection:
        connection.row_factory = sqlite3.Row

        def rows(statement: str, parameters: Parameters = ()) -> list[Row]:
            return [dict(row) for row in connection.execute(statement, parameters)]

        yield rows


def find_keys(database: Path, prefix: str) -> list[str]:
    """List the keys whose digest starts with a text, with or without the scheme in front."""
    with one_moment(database) as rows:
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
        SchemaError, DatabaseError: as `one_moment`.
    """
    with one_moment(database) as rows:
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
        SchemaError, DatabaseError: as `one_moment`.
    """
    with one_moment(database) as rows:
        return _behind(rows, key)


def _behind(rows: Rows, key: str) -> Behind:
    found = rows(NEWEST_STACK, (key,))
    if not found:
        raise _gone(key)
    stack = Stack._make(found[0][name] for name in Stack._fields)
    runs = holding(read_runs(rows, key), policies_of(rows), stack)
    return Behind(found[0]["num_envs"], found[0]["nthread"], runs)


def read_evidence(database: Path, key: str) -> tuple[Row, list[Run]]:
    """Read what a key's newest verdict is made from: its overview, and the runs that count for it.

    The overview also has `model_id` and `device_id`, by which keys of one model or one device
    are told; no such number is of use outside this database.

    Raises:
        ArgumentError: if there is no such key.
        SchemaError, DatabaseError: as `one_moment`.
    """
    with one_moment(database) as rows:
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
    with one_moment(database) as rows:
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
