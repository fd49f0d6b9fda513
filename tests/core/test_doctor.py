"""The doctor: one screen, a next step for each problem, and hands off everything."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from pathlib import Path

import pytest

from tests.golden.make import FOLDER
from tests.support.processes import tuner
from tuner import doctor, store_cache
from tuner.doctor import Reading, examine, filesystem_type, is_network


def readings(database: Path) -> dict[str, Reading]:
    """Examine, by name."""
    return {reading.name: reading for reading in examine(database)}


def test_a_healthy_database_is_healthy_and_untouched(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    store_cache(database, "key", {"chunk_size": 4})
    content = database.read_bytes()
    found = readings(database)
    assert [name for name, reading in found.items() if reading.problem] == []
    assert found["schema"].value.startswith("0002")
    assert found["journal mode"].value.startswith("delete")
    assert sqlite3.sqlite_version in found["sqlite"].value
    assert database.read_bytes() == content


def test_looking_makes_nothing(database: Path) -> None:
    assert "not made yet" in readings(database)["database"].value
    assert not database.exists()


def test_every_problem_has_a_next_step(
    tmp_path: Path, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (99.0, 0.0, 0.0))
    monkeypatch.setattr(doctor, "filesystem_type", lambda _: "nfs4")
    monkeypatch.setenv("TUNER_LOCK_FOLDER", str(tmp_path / "missing"))
    database.write_text("no database at all")
    problems = {name for name, reading in readings(database).items() if reading.problem}
    assert problems >= {"schema", "file system", "measuring lock", "load"}
    for reading in examine(database):
        assert bool(reading.problem) == bool(reading.next_step)


@pytest.mark.parametrize("place", ["folder", "wal", "future", "/dev/null", "/proc/nothing/x.db"])
def test_what_is_wrong_is_found(tmp_path: Path, place: str) -> None:
    database = tmp_path / "tuning.db"
    if place == "folder":
        database.mkdir()
    elif place.startswith("/"):
        database = Path(place)
    else:
        store_cache(database, "key", {"chunk_size": 4})
        connection = sqlite3.connect(database)
        connection.execute(
            "PRAGMA journal_mode = WAL"
            if place == "wal"
            else "UPDATE alembic_version SET version_num = '9999'"
        )
        connection.commit()
        connection.close()
    names = {"folder": "database", "wal": "journal mode", "future": "schema"}
    found = readings(database)
    assert found[names.get(place, "writable" if "proc" in place else "database")].problem


def test_an_older_schema_is_to_be_upgraded(database: Path) -> None:
    shutil.copy(FOLDER / "0001.db", database)
    schema = readings(database)["schema"]
    assert (schema.value, schema.next_step) == ("0001", "`tuner db upgrade`")


def test_the_command_tells_people_and_programs(database: Path) -> None:
    store_cache(database, "key", {"chunk_size": 4})
    shown = tuner("doctor", "--database", str(database))
    told = json.loads(tuner("doctor", "--database", str(database), "--json").stdout)
    assert shown.returncode in (0, 3)  # 3 where this machine is busy just now
    assert str(database) in shown.stdout
    assert len(shown.stdout.splitlines()) <= 30
    assert {"name", "value", "problem", "next_step"} == set(told[0])
    broken = tuner("doctor", "--database", "/dev/null")
    assert broken.returncode == 3
    assert "Traceback" not in broken.stderr


MOUNT_TABLE = r"""
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
    table.write_text(MOUNT_TABLE.format(base=tmp_path))
    assert filesystem_type(tmp_path / path, table) == kind


def test_a_link_counts_where_it_points(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "home")
    table = tmp_path / "mountinfo"
    table.write_text(MOUNT_TABLE.format(base=tmp_path))
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
