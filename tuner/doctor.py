"""Checks the installation and suggests fixes: the database, its place, the machine, its load.

Writes nothing and times nothing. Every problem comes with a next step.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
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
    VERSION,
    exists,
    explaining,
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
    problem = step = None
    if is_network(kind):
        problem = "a network file system: locks between machines are unreliable"
        step = (
            "name a local file with TUNER_DATABASE; the rollback journal keeps this one safe "
            "as long as one machine at a time writes"
        )
    yield Reading("file system", kind or "unknown", problem, step)


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
    place = _existing(Path(os.path.realpath(path)))
    kinds: dict[Path, str] = {}
    for line in table.splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        if len(fields) > 4 and after:
            # The kernel escapes spaces and the like. The last mount on a place hides the others.
            mount = re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), fields[4])
            kinds[Path(mount)] = after.split(" ")[0]
    return next((kinds[folder] for folder in (place, *place.parents) if folder in kinds), None)


def is_network(filesystem: str | None) -> bool:
    """Tell whether a file system's locks are unreliable: network file systems and FUSE."""
    return filesystem is not None and (filesystem in NETWORK or filesystem.startswith("fuse"))


def _existing(path: Path) -> Path:
    """The path, or its first parent that exists."""
    return next((place for place in (path, *path.parents) if place.exists()), path)


def _content(database: Path) -> Iterator[Reading]:
    try:
        if not exists(database) or is_empty(database):
            yield Reading("schema", f"none yet, this tuner creates {REVISION}")
            return
    except TunerError:
        return  # reported as the database's place
    try:
        with explaining(database):
            ((mode,),) = query(database, "PRAGMA journal_mode")
            revision = file_revision(database)
            for table in [] if revision in OLDER_REVISIONS else sorted(OUR_TABLES):
                query(database, f"SELECT * FROM {table} LIMIT 1")
    except TunerError as error:
        yield Reading("schema", "unreadable", str(error), "`tuner db check`")
        return
    yield _journal(mode)
    if revision == REVISION:
        yield Reading("schema", f"{revision}, as this tuner expects")
    elif revision in OLDER_REVISIONS:
        yield Reading("schema", f"{revision}", f"older than {REVISION}", "`tuner db upgrade`")
    else:
        yield Reading("schema", f"{revision}", f"this tuner knows {REVISION}", "upgrade tuner")


def _journal(mode: str) -> Reading:
    if mode != "wal":
        return Reading("journal mode", f"{mode}: the rollback journal is safe on any file system")
    return Reading(
        "journal mode",
        "wal",
        "another program set it: a WAL file cannot be read in a read-only folder, and SQLite "
        "before 3.51.3 can lose committed pages in it",
        "while nobody uses the file: sqlite3 FILE 'PRAGMA journal_mode = DELETE'",
    )


def _folder(database: Path) -> Iterator[Reading]:
    folder = _existing(database.parent)
    target = database if database.is_file() else folder
    if not os.access(folder, os.W_OK | os.X_OK) or not os.access(target, os.W_OK):
        problem = f"{target} cannot be written: stored answers are used, nothing new is measured"
        step = "check its owner and permissions, or name another file with TUNER_DATABASE"
        yield Reading("writable", "no", problem, step)
        return
    free = shutil.disk_usage(folder).free
    full = ("the disk is almost full", "make room") if free < LEAST_FREE_BYTES else ()
    yield Reading("writable", f"yes, {free / 2**30:.1f} GiB free", *full)


def _lock(path: Path) -> Iterator[Reading]:
    if os.path.lexists(path):
        usable = path.is_file() and not path.is_symlink() and os.access(path, os.R_OK)
    else:
        usable = path.parent.is_dir() and os.access(path.parent, os.W_OK)
    problem = (
        "cannot open or create the file: nothing is measured",
        "remove it if it is not a file, or name a folder that all users of this machine can "
        "write to with TUNER_LOCK_FOLDER",
    )
    yield Reading("measuring lock", str(path), *(() if usable else problem))


def _versions() -> Iterator[Reading]:
    yield Reading("tuner", metadata.version("tuner"))
    yield Reading("python", platform.python_version())
    yield Reading("sqlite", VERSION)
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
    quota = here.cpu_quota
    problem = step = None
    if quota and quota < here.usable_cpus:
        problem = "the control group stops the pool's threads once their share is used up"
        step = f"give the pool {counted(max(1, int(quota)), 'thread')}, or raise the quota"
    value = "unknown" if quota is None else f"{quota:g} CPUs" if quota else "none"
    yield Reading("cpu quota", value, problem, step)
    yield Reading("threads per core", f"{here.threads_per_core or 'unknown'}")
    yield Reading("unequal cores", {None: "unknown", True: "yes", False: "no"}[here.unequal_cores])
    yield Reading("numa nodes", f"{here.numa_nodes or 'unknown'}")
    yield Reading("clock governor", ", ".join(sorted(governors())) or "unknown")
    yield _load(here.usable_cpus)


def _load(usable_cpus: int) -> Reading:
    load = os.getloadavg()[0]
    problem = step = None
    if load > QUIET_LOAD_PER_CPU * usable_cpus:
        problem = "other programs are running: measuring takes longer and may stay undecided"
        step = "tune when the machine is quiet"
    return Reading("load", f"{load:.2f} over the last minute", problem, step)
