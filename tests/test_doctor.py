"""The doctor: one screen, a next step for each problem, and hands off everything."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from pathlib import Path

import pytest

from tests.golden.make import FOLDER
from tests.test_cli import tuner
from tuner import doctor, store_cache
from tuner.doctor import Reading, examine


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
