"""Checks the installation and suggests fixes: the database, its place, the machine, its load.

Writes nothing and times nothing. Every problem comes with a next step.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from tuner.device import governors, processors
from tuner.errors import TunerError
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

CHART_LIBRARIES = ("altair", "jinja2", "vl_convert")
"""Modules that `tuner plot` and `tuner report` import."""

MOUNTS = Path("/proc/self/mountinfo")

NETWORK = frozenset(
    (
        *("nfs", "nfs4", "cifs", "smb2", "smb3", "smbfs", "afs", "coda", "ncpfs"),
        *("lustre", "gpfs", "beegfs", "fhgfs", "ceph", "glusterfs", "orangefs", "pvfs2"),
        *("panfs", "wekafs", "ocfs2", "9p", "virtiofs", "vboxsf", "vmhgfs"),
    )
)
"""File systems that several machines may share, whose locks are unreliable."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One thing that was examined."""

    name: str
    value: str
    problem: str | None = None
    """What is wrong with it, if anything."""
    next_step: str | None = None


def examine(database: Path) -> list[Reading]:
    """Examine everything that can prevent tuning: the database first. Raises nothing."""
    looks = (_place, _file_system, _content, _folder)
    readings = [reading for look in looks for reading in _seen(look, database)]
    return [*readings, *_seen(_lock, measuring_lock_path()), *_versions(), *_machine()]


def _seen(look: Callable[[Path], Iterable[Reading]], path: Path) -> list[Reading]:
    """Report a place that may not be examined as a finding."""
    try:
        return list(look(path))
    except OSError as error:
        name = look.__name__.strip("_").replace("_", " ")
        problem = f"cannot be looked at: {error.strerror}"
        return [Reading(name, str(path)[:LONGEST_NAME], problem, "check the path's permissions")]


def _place(database: Path) -> Iterator[Reading]:
    try:
        made = "" if exists(database) else " (not made yet: the first tuning creates it)"
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
            "a network file system: locks between machines are unreliable",
            "name a local file with TUNER_DATABASE; the rollback journal keeps this one safe "
            "as long as one machine at a time writes",
        )
    else:
        yield Reading("file system", kind or "unknown")


def filesystem_type(path: Path, mounts: Path = MOUNTS) -> str | None:
    """Name the file system of a path, or of its first parent that exists.

    Args:
        path: A file or folder, which need not exist.
        mounts: The kernel's table of mounts. (statfs misreports 9p.)

    Returns:
        The kernel's name, such as "ext4" or "fuse.sshfs"; None if the system does not tell.
    """
    try:
        table = mounts.read_text(errors="surrogateescape")
    except OSError:
        return None
    place = _existing(path)
    found: tuple[int, str] | None = None
    for line in table.splitlines():
        before, _, after = line.partition(" - ")
        fields, kinds = before.split(" "), after.split(" ")
        if len(fields) < 5 or not kinds[0]:
            continue
        mount = _unescaped(fields[4])
        # The last of several mounts on one point hides the others, hence >=.
        if _is_below(place, mount) and (found is None or len(mount) >= found[0]):
            found = (len(mount), kinds[0])
    return found[1] if found else None


def is_network(filesystem: str | None) -> bool:
    """Tell whether a file system's locks are unreliable: network file systems and FUSE."""
    return filesystem is not None and (filesystem in NETWORK or filesystem.startswith("fuse"))


def _existing(path: Path) -> str:
    place = os.path.realpath(path)
    while not os.path.exists(place) and place != os.path.dirname(place):
        place = os.path.dirname(place)
    return place


def _is_below(place: str, mount: str) -> bool:
    return mount == "/" or place == mount or place.startswith(mount + "/")


def _unescaped(field: str) -> str:
    """Undo the kernel's octal escapes of spaces and the like."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), field)


def _content(database: Path) -> Iterator[Reading]:
    try:
        if not exists(database) or is_empty(database):
            yield Reading("schema", f"none yet, this tuner creates {REVISION}")
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
        return  # reported as the database's place
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
            "another program set it: a WAL file cannot be read in a read-only folder, and SQLite "
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
            "cannot open or create the file: nothing is measured",
            "remove it if it is not a file, or name a folder that all users of this machine can "
            "write to with TUNER_LOCK_FOLDER",
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
    missing = ", ".join(name for name in CHART_LIBRARIES if find_spec(name) is None)
    hint = f"{missing} missing: pip install 'tuner[charts]' for `tuner plot` and `tuner report`"
    yield Reading("charts", hint if missing else "their libraries are installed")


def _machine() -> Iterator[Reading]:
    here = processors()
    yield Reading("system", f"{platform.system()} {platform.machine()}")
    yield Reading("cpu", f"{here.cpu_model or 'unknown'}, {here.cpu_count} logical CPUs")
    pinned = " (this process is pinned)" if here.usable_cpus < here.cpu_count else ""
    yield Reading("usable cpus", f"{here.usable_cpus}{pinned}")
    quota = "unknown" if here.cpu_quota is None else f"{here.cpu_quota:g} CPUs"
    if here.cpu_quota and here.cpu_quota < here.usable_cpus:
        yield Reading(
            "cpu quota",
            quota,
            "the control group stops the pool's threads once their share is used up",
            f"give the pool {counted(max(1, int(here.cpu_quota)), 'thread')}, or raise the quota",
        )
    else:
        yield Reading("cpu quota", "none" if here.cpu_quota == 0 else quota)
    yield Reading("threads per core", f"{here.threads_per_core or 'unknown'}")
    yield Reading("unequal cores", {None: "unknown", True: "yes", False: "no"}[here.unequal_cores])
    yield Reading("numa nodes", f"{here.numa_nodes or 'unknown'}")
    yield Reading("clock governor", ", ".join(sorted(governors())) or "unknown")
    yield _load(here.usable_cpus)


def _load(usable_cpus: int) -> Reading:
    if not hasattr(os, "getloadavg"):
        return Reading("load", "unknown")
    load = os.getloadavg()[0]
    value = f"{load:.2f} over the last minute"
    if load > QUIET_LOAD_PER_CPU * usable_cpus:
        return Reading(
            "load",
            value,
            "other programs are running: measuring takes longer and may stay undecided",
            "tune when the machine is quiet",
        )
    return Reading("load", value)
