"""Says whether all is well here: the database, the machine, and whether it is quiet enough.

Looks only: writes nothing, times nothing. Every problem comes with its next step.
"""

from __future__ import annotations

import os
import platform
import shutil
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from tuner.device import governors, processors
from tuner.errors import TunerError
from tuner.filesystem import filesystem_type, is_network
from tuner.formatting import counted
from tuner.lock import measuring_lock_path
from tuner.store.sqlite import (
    LONGEST_NAME,
    OLDER_REVISIONS,
    OUR_TABLES,
    REVISION,
    exists,
    explained,
    file_revision,
    is_empty,
    query,
)

LEAST_FREE_BYTES = 100 * 2**20
QUIET_LOAD_PER_CPU = 0.25
"""Runnable tasks per usable CPU, over the last minute, above which timings suffer."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One thing that was looked at."""

    name: str
    value: str
    problem: str | None = None
    """What is wrong with it, where something is."""
    next_step: str | None = None


def examine(database: Path) -> list[Reading]:
    """Look at everything that can stand in a tuning's way.

    Returns:
        A reading per thing, those of the database first; never raises for what it finds.
    """
    looks = (_place, _file_system, _content, _folder)
    readings = [reading for look in looks for reading in _seen(look, database)]
    return [*readings, *_seen(_lock, measuring_lock_path()), *_versions(), *_machine()]


def _seen(look: Callable[[Path], Iterable[Reading]], path: Path) -> list[Reading]:
    """Take a look; a place that may not even be looked at is a finding as well."""
    try:
        return list(look(path))
    except OSError as error:
        name = look.__name__.strip("_").replace("_", " ")
        problem = f"cannot be looked at: {error.strerror}"
        return [Reading(name, str(path)[:LONGEST_NAME], problem, "check the path's permissions")]


def _place(database: Path) -> Iterator[Reading]:
    try:
        made = "" if exists(database) else " (not made yet: the first tuning makes it)"
        yield Reading("database", f"{database}{made}")
    except TunerError as error:
        place = str(database)[:LONGEST_NAME]
        yield Reading("database", place, str(error), "name a file with TUNER_DATABASE")


def _file_system(database: Path) -> Iterator[Reading]:
    kind = filesystem_type(database)
    if is_network(kind):
        yield Reading(
            "file system",
            f"{kind}",
            "a network file system: locks between machines cannot be counted on",
            "name a local file with TUNER_DATABASE; the rollback journal keeps this one safe "
            "as long as one machine at a time writes",
        )
    else:
        yield Reading("file system", kind or "unknown")


def _content(database: Path) -> Iterator[Reading]:
    try:
        if not exists(database) or is_empty(database):
            yield Reading("schema", f"none yet, this tuner makes {REVISION}")
            return
        ((mode,),) = query(database, "PRAGMA journal_mode")
        revision = file_revision(database)
        if revision not in OLDER_REVISIONS:
            for table in sorted(OUR_TABLES):
                query(database, f"SELECT * FROM {table} LIMIT 1")
    except sqlite3.Error as error:
        yield Reading("schema", "unreadable", str(explained(database, error)), "`tuner db check`")
        return
    except TunerError:
        return  # told already, as the database's place
    yield _journal(mode)
    if revision == REVISION:
        yield Reading("schema", f"{revision}, as this tuner expects")
    elif revision in OLDER_REVISIONS:
        yield Reading("schema", f"{revision}", f"older than {REVISION}", "`tuner db upgrade`")
    else:
        yield Reading("schema", f"{revision}", f"this tuner knows {REVISION}", "upgrade tuner")


def _journal(mode: str) -> Reading:
    if mode == "wal":
        return Reading(
            "journal mode",
            "wal",
            "somebody switched it: a WAL file cannot be read in a read-only folder, and SQLite "
            "before 3.51.3 can lose committed pages in it",
            "while nobody uses the file: sqlite3 FILE 'PRAGMA journal_mode = DELETE'",
        )
    return Reading("journal mode", f"{mode}: the rollback journal is safe on every file system")


def _folder(database: Path) -> Iterator[Reading]:
    folder = database.parent
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    target = database if database.is_file() else folder
    if not os.access(folder, os.W_OK | os.X_OK) or not os.access(target, os.W_OK):
        yield Reading(
            "writable",
            "no",
            f"{target} cannot be written: stored answers are used, nothing new is measured",
            "check its owner and permissions, or name another file with TUNER_DATABASE",
        )
        return
    free = shutil.disk_usage(folder).free
    value = f"yes, {free / 2**30:.1f} GiB free"
    if free < LEAST_FREE_BYTES:
        yield Reading("writable", value, "the disk is almost full", "make room")
    else:
        yield Reading("writable", value)


def _lock(path: Path) -> Iterator[Reading]:
    if os.path.lexists(path):
        usable = path.is_file() and not path.is_symlink() and os.access(path, os.R_OK)
    else:
        usable = path.parent.is_dir() and os.access(path.parent, os.W_OK)
    if not usable:
        yield Reading(
            "measuring lock",
            str(path),
            "it is no file that can be opened, or cannot be made: nothing is measured",
            "remove it if it is no file, or name a folder that all users of this machine can "
            "write with TUNER_LOCK_FOLDER",
        )
    else:
        yield Reading("measuring lock", str(path))


def _versions() -> Iterator[Reading]:
    yield Reading("tuner", metadata.version("tuner"))
    yield Reading("python", platform.python_version())
    yield Reading("sqlite", sqlite3.sqlite_version)
    try:
        yield Reading("mujoco", metadata.version("mujoco"))
    except metadata.PackageNotFoundError:
        yield Reading("mujoco", "missing", "nothing can be measured", "pip install mujoco")


def _machine() -> Iterator[Reading]:
    here = processors()
    yield Reading("system", f"{platform.system()} {platform.machine()}")
    yield Reading("cpu", f"{here.cpu_model or 'unknown'}, {here.cpu_count} logical CPUs")
    if here.usable_cpus < here.cpu_count:
        yield Reading("usable cpus", f"{here.usable_cpus} (this process is pinned)")
    else:
        yield Reading("usable cpus", f"{here.usable_cpus}")
    if not here.cpu_quota:
        yield Reading("cpu quota", "unknown" if here.cpu_quota is None else "none")
    elif here.cpu_quota < here.usable_cpus:
        yield Reading(
            "cpu quota",
            f"{here.cpu_quota:g} CPUs",
            "the control group stops the pool's threads once their share is used up",
            f"give the pool {counted(max(1, int(here.cpu_quota)), 'thread')}, or raise the quota",
        )
    else:
        yield Reading("cpu quota", f"{here.cpu_quota:g} CPUs")
    yield Reading("threads per core", f"{here.threads_per_core or 'unknown'}")
    yield Reading("unequal cores", {None: "unknown", True: "yes", False: "no"}[here.unequal_cores])
    yield Reading("numa nodes", f"{here.numa_nodes or 'unknown'}")
    yield Reading("clock governor", ", ".join(sorted(governors())) or "unknown")
    yield _quiet(here.usable_cpus)


def _quiet(usable_cpus: int) -> Reading:
    if not hasattr(os, "getloadavg"):
        return Reading("load", "unknown")
    load = os.getloadavg()[0]
    value = f"{load:.2f} over the last minute"
    if load > QUIET_LOAD_PER_CPU * usable_cpus:
        return Reading(
            "load",
            value,
            "other work runs on this machine: measuring takes longer and may stay undecided",
            "tune when it is quiet",
        )
    return Reading("load", value)
