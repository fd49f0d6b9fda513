"""Upgrades a database file to the schema that this code knows; migrations alone create it.

The write lock is taken before the file's revision is read: of many processes that find an old
file one upgrades it, and the others wait, look again and find nothing to do.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from datetime import UTC, datetime
from filecmp import cmp
from pathlib import Path

import sqlalchemy as sa

from tuner.errors import DatabaseError
from tuner.store.database import back_up, writing
from tuner.store.sqlite import (
    OLDER_REVISIONS,
    REVISION,
    exists,
    file_revision,
    is_ours,
    other_revision,
    something_else,
)

_one_at_a_time = threading.Lock()
"""Alembic keeps its context in module globals: simultaneous upgrades in threads of one process
have crashed the interpreter."""


ANYTHING = "SELECT count(*) FROM sqlite_master"


def migrations_folder() -> Path:
    """Find the migrations: inside an installed package, or at the root of a checkout."""
    package = Path(__file__).parents[1]
    for folder in (package / "migrations", package.parent / "migrations"):
        if (folder / "env.py").is_file():
            return folder
    raise DatabaseError(
        f"the migrations are missing from the installation in {package}: reinstall tuner"
    )


def make_folder(database: Path) -> None:
    """Create the folder of a database, accessible to its owner only.

    Raises:
        DatabaseError: if that fails.
    """
    try:
        database.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise DatabaseError(
            f"cannot make the folder {database.parent} for the tuning database: "
            f"{error.strerror}; make it, or name another place with TUNER_DATABASE"
        ) from error


def stored_revision(connection: sa.Connection) -> str | None:
    """Read which schema a file has; None for an empty one. Does not write."""
    if not sa.inspect(connection).has_table("alembic_version"):
        return None
    return connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()


def upgrade(database: Path) -> tuple[str | None, str]:
    """Upgrade a file to the schema of this code, creating it if it is missing.

    An older file is copied first, to `tuning.db.schema-0001-...` beside it.

    Returns:
        The revision before (None for a new file) and the revision now.

    Raises:
        SchemaError: if the file was written by a newer tuner; it is unchanged.
        DatabaseError: if the file cannot be opened or written.
    """
    if exists(database) and file_revision(database) == REVISION:
        return REVISION, REVISION
    make_folder(database)
    with _one_at_a_time, writing(database) as connection:
        before = stored_revision(connection)
        if before == REVISION:
            return before, REVISION
        if before is not None and before not in OLDER_REVISIONS:
            raise other_revision(database, before)
        if before is None and connection.exec_driver_sql(ANYTHING).scalar():
            raise something_else(database)
        if before is not None:
            if not is_ours(database):
                raise something_else(database)
            # A read-only file fails at the first change: now, not after the copy.
            connection.exec_driver_sql("UPDATE alembic_version SET version_num = version_num")
            _keep_copy(database, before)
        _run_alembic(connection)
    return before, REVISION


def make_empty(database: Path, revision: str) -> None:
    """Create a database of a released revision."""
    with _one_at_a_time, writing(database) as connection:
        _run_alembic(connection, revision)


def _keep_copy(database: Path, revision: str) -> None:
    """Keep a copy of a file before it is upgraded.

    Every job tries a failed upgrade again: an unchanged file is copied once.
    """
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%fZ")
    prefix = f"{database.name}.schema-{revision}-"
    copy = database.with_name(prefix + stamp)
    back_up(database, copy)
    with contextlib.suppress(OSError):  # two copies do no harm
        for other in database.parent.iterdir():
            earlier = other.name.startswith(prefix) and other != copy and other.is_file()
            if earlier and cmp(other, copy, shallow=False):
                copy.unlink()
                break


def _run_alembic(connection: sa.Connection, revision: str = "head") -> None:
    from alembic import command  # 0.6 s to import, and needed once in a file's life
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(migrations_folder()).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    logger = logging.getLogger("alembic")  # its lines about each step do not belong in a job's log
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        command.upgrade(config, revision)
    finally:
        logger.setLevel(level)
