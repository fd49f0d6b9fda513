"""Which database is meant, wrong calls, and outputs that cannot be written."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.facts import a_key
from tests.support.process import QUADRUPED as MODEL
from tests.support.process import tuner
from tuner import store_cache


@pytest.fixture
def imported(database: Path) -> Path:
    """Make a database with two keys that were never measured here."""
    store_cache(
        database,
        a_key(),
        {"chunk_size": 4, "per_candidate_ms": {"None": 10, "4": 9}, "model_file": "/m/robot.xml"},
    )
    store_cache(database, a_key(nthread=4), {"chunk_size": None})
    return database


def test_the_database_can_be_named_in_three_places(database: Path) -> None:
    assert tuner("db", "path", "--database", "/x/a.db").stdout == "/x/a.db\n"
    assert tuner("--database", "/x/a.db", "db", "path").stdout == "/x/a.db\n"
    assert tuner("db", "path", TUNER_DATABASE="/x/e.db").stdout == "/x/e.db\n"
    both = tuner("--database", "/x/a.db", "db", "path", "--database", "/x/b.db")
    assert both.stdout == "/x/b.db\n"
    assert not database.exists()


def test_db_path_makes_nothing(home_of_its_own: Path) -> None:
    path = Path(tuner("db", "path").stdout.strip())
    assert path.is_relative_to(home_of_its_own)
    assert list(home_of_its_own.iterdir()) == []


def test_db_upgrade_makes_the_database_and_then_finds_it_done(database: Path) -> None:
    made = tuner("db", "upgrade", "--database", str(database))
    assert (made.returncode, made.stdout) == (0, f"{database}: schema none -> 0002\n")
    again = tuner("db", "upgrade", "--database", str(database))
    assert (again.returncode, again.stdout) == (0, f"{database} has schema 0002 already\n")


def test_reading_commands_never_write(imported: Path) -> None:
    before = imported.read_bytes()
    imported.chmod(0o444)
    for command in (("list",), ("show", a_key()[:9]), ("db", "path")):
        assert tuner(*command, "--database", str(imported)).returncode == 0
    assert imported.read_bytes() == before
    assert [file.name for file in imported.parent.iterdir()] == [imported.name]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("tune", "missing.xml", "--num-envs", "8"), 1, "missing.xml"),
        (("tune", "BROKEN", "--num-envs", "8"), 1, "is not a MuJoCo model"),
        (("tune", str(MODEL)), 2, "--num-envs"),
        (("tune", str(MODEL), "--num-envs", "-4"), 2, "-4"),
        (("tune", str(MODEL), "--num-envs", "8", "--nthread", "0"), 2, "nthread"),
        (("tune", str(MODEL), "--num-envs", "8", "--nstep", "none"), 2, "nstep"),
        (("tune", str(MODEL), "--num-envs", "8", "--time-budget", "-1"), 2, "time-budget"),
        (("tune", str(MODEL), "--num-envs", "8", "--pool", "gpu"), 2, "rollout"),
        (("tune", str(MODEL), "--num-envs", "9" * 30), 2, "num-envs"),
        (("tune", str(MODEL), "--num-envs", "8", "--nstep", "9" * 20), 2, "nstep"),
        (("tune", str(MODEL), "--num-envs", "8", "--seed", str(2**63)), 2, "seed"),
        (("tune", "\udcff.xml", "--num-envs", "8"), 1, "xml"),
        (("list", "--database", "x" * 5000), 1, "name too long"),
        (("list", "--database", "."), 1, "folder"),
        (("show", "k1_0"), 1, "tuner tune"),
        (("list",), 1, "tuner tune"),
        (("shew",), 2, "shew"),
    ],
)
def test_a_wrong_call_is_one_clear_line_and_writes_nothing(
    tmp_path: Path, database: Path, arguments: tuple[str, ...], code: int, words: str
) -> None:
    broken = tmp_path / "broken.xml"
    broken.write_text("<mujoco><worldbody><geom/></worldbody>")
    told = tuner(
        *(str(broken) if a == "BROKEN" else a for a in arguments), TUNER_DATABASE=str(database)
    )
    assert told.returncode == code, told.stderr
    assert told.stdout == ""
    assert words in told.stderr
    assert "Traceback" not in told.stderr
    if code == 1:
        assert told.stderr.count("\n") == 1
    assert not database.exists()


def test_an_empty_file_holds_no_tuning_yet(database: Path) -> None:
    database.touch()
    for command in (("list",), ("show", "k1")):
        told = tuner(*command, "--database", str(database))
        assert (told.returncode, told.stderr.count("\n")) == (1, 1)
        assert "no tuning" in told.stderr


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_whatever_the_terminal_can_show_the_list_is_shown(database: Path, encoding: str) -> None:
    store_cache(database, "key", {"chunk_size": 4, "model_file": "数.xml"})
    shown = tuner("list", "--database", str(database), PYTHONIOENCODING=encoding)
    assert shown.returncode == 0, shown.stderr
    assert ("\\u6570.xml" if encoding == "latin-1" else "数.xml") in shown.stdout


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("command", [("list",), ("list", "--json"), ("db", "path")])
def test_an_output_that_cannot_be_written_is_one_clear_line(
    imported: Path, command: tuple[str, ...]
) -> None:
    with open("/dev/full", "w") as full:
        told = subprocess.run(
            [sys.executable, "-m", "tuner", *command, "--database", str(imported)],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert told.returncode == 1
    assert told.stderr.startswith("tuner: OSError: ")
    assert "Traceback" not in told.stderr
