"""`tuner tune` on a real model, in processes of its own."""

from __future__ import annotations

import itertools
import json
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

from tests.support.process import QUADRUPED as MODEL
from tests.support.process import TUNE, tuner


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
    command = ("tune", str(MODEL), *longer, "--database", str(database))
    with subprocess.Popen(
        [sys.executable, "-m", "tuner", *command], stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        lines = [line for line in itertools.islice(process.stderr, 3) if "measuring" in line]
        assert len(lines) == 2  # the second comes after two seconds of it
        process.send_signal(signal.SIGINT)
        told = process.stderr.read()
    assert process.returncode == 130
    assert "timings stored, the next job resumes the measurement" in told
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
        assert told["trigger"] in occasions
        assert told["source"] == ("measured" if told["trigger"] else "hit")
        assert told["database"] == str(database)
        assert "None" in told["per_candidate_ms"]
        assert done.returncode == (0 if told["decided"] else 3)


def test_where_there_is_one_way_to_cut_the_work_nothing_is_measured(database: Path) -> None:
    arguments = ("tune", str(MODEL), "--num-envs", "4", "--nthread", "4")
    told = tuner(*arguments, "--database", str(database))
    assert (told.returncode, told.stderr) == (0, "")
    assert "nothing to tune" in told.stdout
    assert json.loads(tuner(*arguments, "--json").stdout)["chunk_size"] is None
    assert not database.exists()


def test_a_pool_that_is_not_installed_says_what_to_install(database: Path) -> None:
    try:
        import mujoco_uni  # noqa: F401
    except ImportError:
        told = tuner(*TUNE, "--pool", "batch-env", "--database", str(database))
        assert told.returncode == 1
        assert "tuner[uni]" in told.stderr
        assert told.stderr.count("\n") == 1


def test_several_models_are_tuned_and_a_bad_one_stops_no_other(
    database: Path, tmp_path: Path
) -> None:
    options = ("--nthread", "2", "--nstep", "1", "--time-budget", "0.2")
    models = (str(tmp_path / "missing.xml"), str(MODEL))
    sizes = ("--num-envs", "2", "--num-envs", "32")
    told = tuner("tune", *models, *sizes, *options, "--json", "--database", str(database))
    assert told.returncode == 1
    found = json.loads(told.stdout)
    assert [line["source"] for line in found] == ["failed", "failed", "nothing to tune", "measured"]
    assert "missing.xml" in found[0]["error"]
    assert sum(line.startswith("tuner: ") for line in told.stderr.splitlines()) == 2
    words = tuner("tune", *models, *sizes, *options, "--database", str(database))
    assert words.returncode == 1
    assert "using the default" in words.stdout
    assert words.stdout.count("failed") == 2


def test_max_seconds_bounds_the_measurement_that_is_running(database: Path) -> None:
    options = ("--time-budget", "600", "--max-seconds", "3", "--database", str(database))
    told = tuner(*TUNE, *options)
    assert told.returncode in (0, 3), told.stderr
    with closing(sqlite3.connect(database)) as connection:
        ((budget,),) = connection.execute("SELECT time_budget_seconds FROM run")
    assert 0 < budget < 3


def test_until_decided_ends_with_the_time(database: Path) -> None:
    options = ("--time-budget", "0.2", "--until-decided", "--database", str(database))
    none = tuner(*TUNE, *options, "--max-seconds", "0")
    assert (none.returncode, none.stdout) == (3, "not measured: --max-seconds is over\n")
    told = tuner(*TUNE, *options, "--max-seconds", "3")
    assert told.returncode in (0, 3), told.stderr
    assert ("provisional" in told.stdout) == (told.returncode == 3)
    assert ("\nnext:     tuner tune " in told.stdout) == (told.returncode == 3)
    assert "environment-steps per second" in told.stdout
