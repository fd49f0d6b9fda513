"""The command line, as a user types it: real processes on a real model."""

from __future__ import annotations

import itertools
import json
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.facts import a_key
from tests.support.stored import Shell, commands
from tuner import __version__, store_cache

QUADRUPED = Path(__file__).parents[1] / "examples" / "quadruped.xml"
TUNE = ("tune", str(QUADRUPED), "--num-envs", "32", "--nthread", "2", "--nstep", "1")


def tuner(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "tuner", *arguments],
        capture_output=True,
        text=True,
        env=os.environ | environment,
        check=False,
    )


@pytest.fixture
def filled(database: Path) -> Path:
    """Make a database with two keys that were never measured here."""
    store_cache(
        database,
        a_key(),
        {"chunk_size": 4, "per_candidate_ms": {"None": 10, "4": 9}, "model_file": "/m/robot.xml"},
    )
    store_cache(database, a_key(nthread=4), {"chunk_size": None})
    return database


def test_tune_measures_once_and_then_hits(database: Path) -> None:
    first = tuner(*TUNE, "--time-budget", "0.5", "--database", str(database))
    assert first.returncode in (0, 3), first.stderr
    assert "measuring: " in first.stderr
    assert "measured: " in first.stdout
    assert "default" in first.stdout
    assert str(database) in first.stdout
    table = first.stdout.partition("\n\n")[0]
    assert max(map(len, table.splitlines())) <= 80

    # Decided or not is the machine's affair, and what is undecided would be taken up again.
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("UPDATE verdict SET decided = 1, reason = NULL")
        connection.commit()
    second = tuner(*TUNE, "--database", str(database))
    assert second.returncode == 0
    assert second.stderr == ""
    assert "hit: " in second.stdout
    assert second.stdout.splitlines()[0].split("  ") == ["chunk_size", "ms per step", "to default"]

    connection = sqlite3.connect(database)
    assert connection.execute("SELECT count(*) FROM run").fetchone() == (1,)
    work, pool = connection.execute("SELECT work, pool FROM run").fetchone()
    connection.close()
    assert "random controls" in work
    assert pool == "mujoco.rollout"


def test_ctrl_c_while_tuning_keeps_what_was_timed(database: Path) -> None:
    longer = ("--num-envs", "512", "--nstep", "10", "--time-budget", "60")
    command = ("tune", str(QUADRUPED), *longer, "--database", str(database))
    with subprocess.Popen(
        [sys.executable, "-m", "tuner", *command], stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        lines = [line for line in itertools.islice(process.stderr, 3) if "measuring" in line]
        assert len(lines) == 2  # the second comes after two seconds of it
        process.send_signal(signal.SIGINT)
        told = process.stderr.read()
    assert process.returncode == 130
    assert "timings kept, whoever asks next" in told
    assert "Traceback" not in told
    with closing(sqlite3.connect(database)) as connection:
        (run,) = connection.execute("SELECT state, message FROM run")
        ((samples,),) = connection.execute("SELECT count(*) FROM sample")
    assert run == ("cut short", "interrupted")
    assert samples > 0


def test_force_measures_again_and_keeps_what_was_there(database: Path) -> None:
    for force in ((), ("--force",)):
        tuner(*TUNE, "--time-budget", "0.2", *force, "--database", str(database))
    connection = sqlite3.connect(database)
    assert connection.execute("SELECT count(*) FROM run").fetchone() == (2,)
    assert connection.execute("SELECT runs FROM tuning_overview").fetchone() == (2,)
    connection.close()


def test_tune_in_json_is_for_programs(database: Path) -> None:
    for occasions in (("new",), (None, "resumed")):  # the second takes up what was undecided
        done = tuner(*TUNE, "--time-budget", "0.2", "--json", "--database", str(database))
        told = json.loads(done.stdout)
        assert told["occasion"] in occasions
        assert told["source"] == ("measured" if told["occasion"] else "hit")
        assert told["database"] == str(database)
        assert told["native_chunk_size"] == 1
        assert "None" in told["per_candidate_ms"]
        assert done.returncode == (0 if told["decided"] else 3)


def test_where_there_is_one_way_to_cut_the_work_nothing_is_measured(database: Path) -> None:
    arguments = ("tune", str(QUADRUPED), "--num-envs", "4", "--nthread", "4")
    told = tuner(*arguments, "--database", str(database))
    assert (told.returncode, told.stderr) == (0, "")
    assert "nothing to tune" in told.stdout
    assert json.loads(tuner(*arguments, "--json").stdout)["chunk_size"] is None
    assert not database.exists()


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


def test_list_shows_a_line_per_key(filled: Path) -> None:
    listed = tuner("list", "--database", str(filled))
    lines = listed.stdout.splitlines()
    assert len(lines) == 3
    assert max(map(len, lines)) <= 80
    assert {line.split()[0] for line in lines[1:]} == {a_key()[:11], a_key(nthread=4)[:11]}
    rows = json.loads(tuner("list", "--json", "--database", str(filled)).stdout)
    assert {row["tuning_key"] for row in rows} == {a_key(), a_key(nthread=4)}
    assert {row["chunk_size"] for row in rows} == {4, None}


@pytest.mark.parametrize("start", [slice(None), slice(0, 9), slice(3, 9)])
def test_show_takes_the_start_of_a_key(filled: Path, start: slice) -> None:
    shown = tuner("show", a_key()[start], "--database", str(filled))
    assert shown.returncode == 0, shown.stderr
    assert a_key() in shown.stdout
    assert "robot.xml" in shown.stdout
    assert "-10.0 %" in shown.stdout
    told = json.loads(tuner("show", a_key()[start], "--json", "--database", str(filled)).stdout)
    assert told["overview"]["chunk_size"] == 4
    assert [row["chunk_size"] for row in told["candidates"]] == [None, 4]
    assert [run["state"] for run in told["runs"]] == ["imported"]


def test_reading_commands_never_write(filled: Path) -> None:
    before = filled.read_bytes()
    filled.chmod(0o444)
    for command in (("list",), ("show", a_key()[:9]), ("db", "path")):
        assert tuner(*command, "--database", str(filled)).returncode == 0
    assert filled.read_bytes() == before
    assert [file.name for file in filled.parent.iterdir()] == [filled.name]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("tune", "missing.xml", "--num-envs", "8"), 1, "missing.xml"),
        (("tune", "BROKEN", "--num-envs", "8"), 1, "is not a MuJoCo model"),
        (("tune", str(QUADRUPED)), 2, "--num-envs"),
        (("tune", str(QUADRUPED), "--num-envs", "-4"), 2, "-4"),
        (("tune", str(QUADRUPED), "--num-envs", "8", "--nthread", "0"), 2, "nthread"),
        (("tune", str(QUADRUPED), "--num-envs", "8", "--nstep", "none"), 2, "nstep"),
        (("tune", str(QUADRUPED), "--num-envs", "8", "--time-budget", "-1"), 2, "time-budget"),
        (("tune", str(QUADRUPED), "--num-envs", "8", "--pool", "gpu"), 2, "rollout"),
        (("tune", str(QUADRUPED), "--num-envs", "9" * 30), 2, "num-envs"),
        (("tune", str(QUADRUPED), "--num-envs", "8", "--nstep", "9" * 20), 2, "nstep"),
        (("tune", str(QUADRUPED), "--num-envs", "8", "--seed", str(2**63)), 2, "seed"),
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
    filled: Path, command: tuple[str, ...]
) -> None:
    with open("/dev/full", "w") as full:
        told = subprocess.run(
            [sys.executable, "-m", "tuner", *command, "--database", str(filled)],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert told.returncode == 1
    assert told.stderr.startswith("tuner: OSError: ")
    assert "Traceback" not in told.stderr


def test_an_unknown_or_ambiguous_key_is_one_clear_line(filled: Path) -> None:
    unknown = tuner("show", "zzz", "--database", str(filled))
    assert (unknown.returncode, unknown.stderr.count("\n")) == (1, 1)
    assert "tuner list" in unknown.stderr
    ambiguous = tuner("show", "k1_", "--database", str(filled))
    assert (ambiguous.returncode, ambiguous.stderr.count("\n")) == (1, 1)
    assert "2 keys" in ambiguous.stderr


def test_a_pool_that_is_not_installed_says_what_to_install(database: Path) -> None:
    try:
        import mujoco_uni  # noqa: F401
    except ImportError:
        told = tuner(*TUNE, "--pool", "batch-env", "--database", str(database))
        assert told.returncode == 1
        assert "tuner[uni]" in told.stderr
        assert told.stderr.count("\n") == 1


def test_the_version() -> None:
    assert tuner("--version").stdout.strip() == f"tuner, version {__version__}"


@pytest.mark.parametrize("command", [(), *commands()], ids=" ".join)
def test_every_command_has_help_with_an_example_of_itself(
    command: tuple[str, ...], shell: Shell
) -> None:
    shown = shell(*command, "--help")
    assert shown.code == 0
    assert "Usage: " in shown.out
    if command != ("db",):
        example = shown.out.partition("Example:\n")[2]
        assert " ".join(("tuner", *command)) in example
    assert max(map(len, shown.out.splitlines())) <= 80
