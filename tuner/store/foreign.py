"""Opens a database of another machine: a copy of it, checked, then brought to this schema.

A file from elsewhere is hostile until proven otherwise. SQLite opens nothing but the copy, and
not even that is upgraded before its tables are the ones that the migrations make, to the
letter: no generated column, no virtual table, no view under a table's name. Triggers, views and
indexes of others are dropped from it unread.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from tuner.errors import DatabaseError, SchemaError
from tuner.store.exporting import Snapshot, keeping_ours
from tuner.store.maintenance import fresh_schema
from tuner.store.migrate import upgrade
from tuner.store.sqlite import FIRST_TABLES, OLDER_REVISIONS, REVISION, open_untrusted

RELEASED = (*OLDER_REVISIONS, REVISION)
MOST_OBJECTS = 1000
"""Tables, indexes, views and triggers of a file."""
ATTEMPTS = 3
JOURNAL_MAGIC = bytes.fromhex("d9d505f920a163d7")
"""What a rollback journal begins with that still has to be played back."""


@contextmanager
def foreign_shelf(file: Path) -> Iterator[Snapshot]:
    """Open a copy of a foreign database for reading. The file itself is left alone.

    Raises:
        SchemaError: if it has a schema that no released tuner made.
        DatabaseError: if it cannot be read, or is no tuning database.
    """
    with tempfile.TemporaryDirectory(prefix="tuner-") as folder:
        copy = Path(folder) / "foreign.db"
        try:
            _copy(file, copy)
            with closing(open_untrusted(copy, "rw")) as connection:
                revision = _checked_schema(file, connection)
            if revision != REVISION:
                _upgrade(file, copy)
            with closing(open_untrusted(copy)) as connection:
                yield Snapshot(connection)
        except (sqlite3.Error, MemoryError) as error:
            raise DatabaseError(
                f"cannot read the database {file}: {_in_words(error)}; it is left as it is: "
                f"`tuner db check --database {file}` looks closer"
            ) from error
        except OSError as error:
            raise DatabaseError(
                f"cannot copy {file} to read it: {error.strerror}; "
                "make room, or name another folder with TMPDIR"
            ) from error


def read_foreign_run(
    shelf: Snapshot, run_id: int, most: int
) -> tuple[dict[str, Any], list[tuple[Any, ...]]]:
    """Read a run and its samples, no more than `most`.

    Raises:
        DatabaseError: if that one cannot be read; others may.
    """
    try:
        return shelf.run(run_id), shelf.samples(run_id, most)
    except (sqlite3.Error, MemoryError) as error:
        raise DatabaseError(f"run {run_id} cannot be read: {_in_words(error)}") from error


def _in_words(error: Exception) -> str:
    return str(error) or "it takes more memory than a file of others is given"


def _copy(file: Path, copy: Path) -> None:
    """Copy the bytes of a database at rest, with its write-ahead log if it has one."""
    log, log_copy = _beside(file, "-wal"), _beside(copy, "-wal")
    for _ in range(ATTEMPTS):
        before = _state(file)
        if _is_interrupted(file):
            raise DatabaseError(
                f"a write to {file} is under way or was interrupted: wait for it, or let "
                f"`tuner list --database {file}` roll it back, and import it again"
            )
        shutil.copyfile(file, copy)
        log_copy.unlink(missing_ok=True)
        if log.is_file():
            shutil.copyfile(log, log_copy)
        if _state(file) == before:
            return
    raise DatabaseError(
        f"{file} is being written to: take a copy with `tuner db backup` and import that"
    )


def _beside(file: Path, suffix: str) -> Path:
    return file.with_name(file.name + suffix)


def _state(file: Path) -> list[tuple[int, int] | None]:
    found: list[tuple[int, int] | None] = []
    for part in (file, _beside(file, "-wal"), _beside(file, "-journal")):
        try:
            status = os.stat(part)
            found.append((status.st_size, status.st_mtime_ns))
        except FileNotFoundError:
            found.append(None)
    return found


def _is_interrupted(file: Path) -> bool:
    """Tell whether a journal waits beside it.

    It is never played back here: a journal can name further files to be deleted.
    """
    journal = _beside(file, "-journal")
    if not journal.is_file():
        return False
    with journal.open("rb") as opened:
        return opened.read(len(JOURNAL_MAGIC)) == JOURNAL_MAGIC


def _checked_schema(file: Path, connection: sqlite3.Connection) -> str:
    """Check that all tables are ours to the letter, and drop what is not a table.

    Returns:
        The file's revision.
    """
    found = connection.execute(
        "SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL LIMIT ?",
        (MOST_OBJECTS + 1,),
    ).fetchall()
    if len(found) > MOST_OBJECTS:
        raise DatabaseError(f"{file} has more than {MOST_OBJECTS} tables and the like: not ours")
    here = {f"{kind} {name}": " ".join(sql.split()) for kind, name, sql in found}
    tables = {name for kind, name, _ in found if kind == "table"}
    if len(tables & FIRST_TABLES) <= len(FIRST_TABLES) / 2:
        raise DatabaseError(f"{file} is a database of something else: there is nothing to import")
    fresh = fresh_schema()
    version_table = "table alembic_version"
    if here.get(version_table) != fresh[version_table]:
        raise SchemaError(f"{file} does not say which schema it has: there is no telling its rows")
    revisions = connection.execute("SELECT version_num FROM alembic_version LIMIT 2").fetchall()
    revision = str(revisions[0][0])[:40] if len(revisions) == 1 else "none"
    if revision not in RELEASED:
        raise SchemaError(
            f"{file} has schema {revision!r}, this tuner knows {', '.join(RELEASED)}: upgrade tuner"
        )
    ours = fresh if revision == REVISION else fresh_schema(revision)
    for what, sql in ours.items():
        if what.startswith("table ") and here.get(what) != sql:
            raise SchemaError(
                f"{file}: {what} is not as tuner makes it, so nothing of it is read: "
                "import an export of it instead (`tuner export`)"
            )
    for statement in keeping_ours(here, ours, ("trigger", "view", "index")):
        connection.execute(statement)
    return revision


def _upgrade(file: Path, copy: Path) -> None:
    try:
        upgrade(copy)
    except DatabaseError as error:
        raise DatabaseError(f"a copy of {file} cannot be upgraded: {error}") from error
