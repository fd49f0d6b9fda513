"""What kind of file system a path lies on, told from the mounts. Opens nothing, never raises."""

from __future__ import annotations

import os
import re
from pathlib import Path

MOUNTS = Path("/proc/self/mountinfo")

NETWORK = frozenset(
    (
        *("nfs", "nfs4", "cifs", "smb2", "smb3", "smbfs", "afs", "coda", "ncpfs"),
        *("lustre", "gpfs", "beegfs", "fhgfs", "ceph", "glusterfs", "orangefs", "pvfs2"),
        *("panfs", "wekafs", "ocfs2", "9p", "virtiofs", "vboxsf", "vmhgfs"),
    )
)
"""File systems that several machines may see, whose locks cannot be counted on.

By name and not by statfs's numbers, which lie on 9p."""


def filesystem_type(path: Path, mounts: Path = MOUNTS) -> str | None:
    """Name the file system of a path, or of its first parent that exists.

    Args:
        path: The file or folder; it need not exist.
        mounts: The kernel's table of mounts.

    Returns:
        The kernel's name, "ext4" or "fuse.sshfs" say; None where the system does not tell.
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
        # Of mounts on one point the last hides the others, hence >=.
        if _is_below(place, mount) and (found is None or len(mount) >= found[0]):
            found = (len(mount), kinds[0])
    return found[1] if found else None


def is_network(filesystem: str | None) -> bool:
    """Tell whether a file system's locks cannot be counted on: a network's, or FUSE."""
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
