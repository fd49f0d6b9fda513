"""Reads the views, for people and for programs: text in, rows out.

Standard library only, like the hit path: SQLAlchemy's import takes longer than reading ten
thousand keys, and a view asks for nothing that it would be needed for.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from tuner.errors import ArgumentError
from tuner.store.diagnosis import REVISION, exists, explained, other_revision
from tuner.store.runs import Rows
from tuner.store.sqlite import open_for_reading

Row = dict[str, Any]
Parameters = Sequence[object] | Mapping[str, object]


@contextmanager
def one_moment(database: Path) -> Iterator[Rows]:
    """Open a database for reading; all that is read shows one moment's state. Never writes.

    Raises:
        SchemaError: if the file has another schema than this code reads.
        DatabaseError: for whatever the driver raises; a missing file is one of them.
    """
    exists(database)  # raises for what is no file, which SQLite would only call unopenable
    try:
        with closing(open_for_reading(database)) as connection:
            connection.row_factory = sqlite3.Row

            def rows(statement: str, parameters: Parameters = ()) -> list[Row]:
                return [dict(row) for row in connection.execute(statement, parameters)]

            connection.execute("BEGIN")
            revision = [row["version_num"] for row in rows("SELECT * FROM alembic_version")]
            if revision != [REVISION]:
                raise other_revision(database, revision[0] if revision else None)
            yield rows
    except sqlite3.Error as error:
        raise explained(database, error) from error


def read_overview(database: Path) -> list[Row]:
    """Read the view `tuning_overview`, the keys measured last first."""
    with one_moment(database) as rows:
        return rows("SELECT * FROM tuning_overview ORDER BY last_measured_utc DESC, tuning_key")


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
    """Read all there is about one key: its overview, candidates and runs.

    Raises:
        ArgumentError: if there is no such key.
        SchemaError, DatabaseError: as `one_moment`.
    """
    with one_moment(database) as rows:
        overview = rows("SELECT * FROM tuning_overview WHERE tuning_key = ?", (key,))
        if not overview:
            raise ArgumentError(f"there is no key {key} any more: `tuner list` shows all")
        return {
            "overview": overview[0],
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
