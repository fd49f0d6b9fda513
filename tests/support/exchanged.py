"""Exports and imports that tests share."""

from __future__ import annotations

import csv
import io
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.support.stored import NOON
from tuner.exchange.export import Format, What, write_file, write_rows
from tuner.exchange.importing import Imported, import_files
from tuner.records import Candidate, Run, Sample
from tuner.store.runs import save_run

SUFFIX = {"csv": ".csv", "jsonl": ".jsonl", "parquet": ".parquet", "sqlite": ".db"}


def export(
    database: Path, form: Format = "jsonl", what: What = "samples", **options: Any
) -> list[dict[str, Any]]:
    """Export rows, and read them as anybody would."""
    stream = io.BytesIO()
    write_rows(database, stream, form, what=what, **options)
    stream.seek(0)
    if form == "parquet":
        import pyarrow.parquet

        return list(pyarrow.parquet.read_table(stream).to_pylist())
    if form == "csv":
        return list(csv.DictReader(io.StringIO(stream.getvalue().decode(), newline="")))
    return [json.loads(line) for line in stream]


def exported(database: Path, form: Format = "jsonl", **options: Any) -> Path:
    """Export to a file beside the database."""
    file = database.with_name(f"{database.stem}-export{SUFFIX[form]}")
    write_file(database, file, form, **options)
    return file


def imported(database: Path, *files: Path, **options: Any) -> list[Imported]:
    """Import files."""
    return import_files(database, files, **options)[1]


def is_empty(database: Path) -> bool:
    """Return whether nothing was stored, or not even a database made."""
    return not database.exists() or export(database, what="runs") == []


def without_origin(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Leave out what says how a run came into a database."""
    return [{k: v for k, v in row.items() if k not in ("origin", "imported_utc")} for row in rows]


def measured(uid: str, key: str, database: Path, hour: int = 1, **changes: Any) -> None:
    """Store a run of two candidates."""
    timings = tuple(
        Sample(Candidate(None if k % 2 else 4), k // 2, k, 10_000_000 - 1_000_000 * (k % 2 == 0))
        for k in range(24)
    )
    run = Run(
        state="complete", finished=NOON.replace(hour=hour), uid=uid, samples=timings, **changes
    )
    save_run(database, key, run)


def execute(database: Path, *statements: str) -> None:
    """Change a database as somebody else might."""
    with closing(sqlite3.connect(database)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()


def all_rows(database: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Read every table."""
    with closing(sqlite3.connect(database)) as connection:
        names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        return {
            name: connection.execute(f'SELECT * FROM "{name}"').fetchall()
            for (name,) in names.fetchall()
        }
