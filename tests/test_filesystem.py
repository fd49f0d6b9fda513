"""Which file system a path lies on, from tables of mounts like the kernel's."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner.filesystem import filesystem_type, is_network

TABLE = r"""
22 27 0:21 / /proc rw - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
40 27 0:40 / {base}/home rw,relatime shared:5 - nfs4 server:/home rw
41 27 0:41 / {base}/home/scratch rw - xfs /dev/sdb rw
42 27 0:42 / {base}/with\040space rw - fuse.sshfs me@there: rw
43 27 0:43 / {base}/twice rw - ext4 /dev/sdc rw
44 27 0:44 / {base}/twice rw - 9p share rw
45 27 0:45 / {base}/ho rw - tmpfs tmpfs rw
nonsense
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("home/user/tuning.db", "nfs4"),
        ("home", "nfs4"),
        ("home/scratch/a/b/c.db", "xfs"),
        ("homes/x", "ext4"),
        ("with space/x", "fuse.sshfs"),
        ("twice/x", "9p"),
        ("elsewhere", "ext4"),
    ],
)
def test_the_innermost_mount_counts(tmp_path: Path, path: str, kind: str) -> None:
    for folder in ("home/scratch", "with space", "twice", "ho", "homes"):
        (tmp_path / folder).mkdir(parents=True)
    table = tmp_path / "mountinfo"
    table.write_text(TABLE.format(base=tmp_path))
    assert filesystem_type(tmp_path / path, table) == kind


def test_a_link_counts_where_it_points(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "home")
    table = tmp_path / "mountinfo"
    table.write_text(TABLE.format(base=tmp_path))
    assert filesystem_type(tmp_path / "link" / "tuning.db", table) == "nfs4"


def test_a_system_without_the_table_does_not_tell(tmp_path: Path) -> None:
    assert filesystem_type(tmp_path, tmp_path / "missing") is None


def test_this_machine_tells() -> None:
    assert filesystem_type(Path("/proc/self")) == "proc"


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "smb3", "lustre", "9p", "fuse", "fuse.sshfs"])
def test_networks_are_networks(kind: str) -> None:
    assert is_network(kind)


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "tmpfs", "overlay", "zfs", None])
def test_local_file_systems_are_not(kind: str | None) -> None:
    assert not is_network(kind)
