"""What a training job gets: an answer, or the native default and one line. Never an exception."""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.facts import MODEL, ClockworkPool, SleepingPool
from tests.support.resolving import NTHREAD, NUM_ENVS, its_key, no_logging, resolve
from tuner import load_cache, store_cache, tune_pool


@pytest.fixture
def pool() -> SleepingPool:
    """Make a pool that sleeps instead of doing physics."""
    return SleepingPool(NUM_ENVS, NTHREAD)


def test_a_manual_value_wins_and_touches_nothing(pool: SleepingPool, database: Path) -> None:
    assert resolve(pool, database, manual_chunk_size=5, adaptive=False) == 5
    given = resolve(pool, database, manual_chunk_size=np.int64(999))
    assert (given, type(given)) == (999, int)
    assert pool.chunks == []
    assert not database.exists()


@pytest.mark.parametrize("manual", [0, -1, True, False, 2.5, "4"])
def test_a_manual_value_that_is_no_chunk_size_is_a_value_error(
    pool: SleepingPool, database: Path, manual: Any
) -> None:
    with pytest.raises(ValueError, match="manual_chunk_size"):
        resolve(pool, database, manual_chunk_size=manual)
    assert pool.chunks == []


@pytest.mark.parametrize("changes", [{"adaptive": False}, {"nthread": NUM_ENVS}])
def test_where_there_is_nothing_to_tune_nothing_is_touched(
    pool: SleepingPool, database: Path, capfd: pytest.CaptureFixture[str], changes: dict[str, Any]
) -> None:
    assert resolve(pool, database, **changes) is None
    assert pool.chunks == []
    assert not database.parent.joinpath(database.name).exists()
    assert capfd.readouterr() == ("", "")


def test_a_miss_is_measured_stored_and_then_a_hit(database: Path) -> None:
    pool = ClockworkPool(NUM_ENVS, NTHREAD)
    first = resolve(pool, database, clock=pool.clock)
    steps = len(pool.chunks)
    assert steps > 4
    assert load_cache(database)[its_key()]["chunk_size"] == first
    assert resolve(pool, database, clock=pool.clock) == first
    assert len(pool.chunks) == steps


def test_a_stored_answer_is_used_and_no_pool_is_stepped(database: Path) -> None:
    store_cache(database, its_key(), {"chunk_size": 7})
    assert resolve(None, database) == 7
    store_cache(database, its_key(), {"chunk_size": None})
    assert resolve(None, database) is None


def test_the_callers_state_is_never_handed_to_the_pool(pool: SleepingPool, database: Path) -> None:
    state = np.ones((NUM_ENVS, 3))
    resolve(pool, database, state=state)
    assert (state == 1).all()
    assert all(given is not state for given in pool.states)


def test_a_run_says_what_was_timed_and_under_which_circumstances(
    pool: SleepingPool, database: Path
) -> None:
    resolve(pool, database, seed=3)
    connection = sqlite3.connect(database)
    connection.row_factory = sqlite3.Row
    run = dict(connection.execute("SELECT * FROM run").fetchone())
    samples = connection.execute("SELECT * FROM sample ORDER BY sample_order").fetchall()
    connection.close()
    assert (run["state"], run["plan"], run["seed"]) == ("complete", "race", 3) or (
        run["state"] == "cut short"
    )
    assert run["pid"] == os.getpid()
    assert run["model_file"] == "robot.xml"
    assert run["pool"].endswith("SleepingPool")
    assert "zero controls" in run["work"]
    assert run["started_utc"] <= run["finished_utc"]
    assert [row["sample_order"] for row in samples] == list(range(len(samples)))
    assert sum(row["steps"] for row in samples) == len(pool.chunks)


def test_one_line_says_what_happened(database: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pool = ClockworkPool(NUM_ENVS, NTHREAD)
    with no_logging():
        resolve(pool, database, clock=pool.clock)
        measured = capfd.readouterr()
        resolve(pool, database, clock=pool.clock)
        hit = capfd.readouterr()
    assert measured.out == hit.out == ""
    line, timings = measured.err.splitlines()
    assert line.startswith("tuner: measured: using ")
    assert timings.startswith("tuner: measured because there is no database yet; ms per step: ")
    assert hit.err == line.replace("measured", "hit") + "\n"
    assert "using the default, " in line
    assert "next: " not in line
    assert "environment-steps per second" in line


def test_a_hit_tells_its_timings_at_debug_level_only(
    database: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pool = ClockworkPool(NUM_ENVS, NTHREAD)
    resolve(pool, database, clock=pool.clock)
    caplog.clear()
    with caplog.at_level(logging.DEBUG, logger="tuner"):
        resolve(pool, database, clock=pool.clock)
    line, *details = caplog.records
    assert (line.levelname, {record.levelname for record in details}) == ("INFO", {"DEBUG"})
    assert any("ms per step: default " in record.message for record in details)
    assert any(str(database) in record.message for record in details)


def test_a_pool_tells_what_the_short_way_in_leaves_out(database: Path) -> None:
    pool = ClockworkPool(NUM_ENVS, NTHREAD)
    state = np.zeros((NUM_ENVS, 3), dtype=np.float32)
    options: dict[str, Any] = {"database": database, "time_budget_s": 0.3, "clock": pool.clock}
    first = tune_pool(pool, state, model=MODEL, nstep=4, **options)
    assert load_cache(database)[its_key()]["chunk_size"] == first
    steps = len(pool.chunks)
    assert tune_pool(pool, state, model=MODEL, nstep=4, **options) == first
    assert len(pool.chunks) == steps
    assert tune_pool(pool, state, model=MODEL, nstep=4, manual_chunk_size=5) == 5


def test_a_pool_without_threads_gets_the_default_and_one_line(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with no_logging():
        assert tune_pool(object(), np.zeros((4, 3)), model=MODEL, nstep=4, num_envs=4) is None
    err = capfd.readouterr().err
    assert err.count("\n") == 1
    assert "nthread" in err


def test_the_line_goes_through_logging_where_there_is_logging(
    pool: SleepingPool,
    database: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    with caplog.at_level(logging.INFO, logger="tuner"):
        resolve(pool, database)
    assert {record.name for record in caplog.records} == {"tuner"}
    assert capfd.readouterr().err == ""
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        resolve(pool, database)
    assert caplog.records == []
    assert capfd.readouterr().err == ""


class Broken(SleepingPool):
    """A pool that cannot step."""

    def step(self, state: Any, **_: Any) -> Any:
        raise RuntimeError("no such GPU")


def test_a_candidate_on_which_the_pool_raises_is_named_with_the_run(database: Path) -> None:
    class Choosy(SleepingPool):
        def step(self, state: Any, *, chunk_size: int | None = None, **options: Any) -> Any:
            if chunk_size is not None and chunk_size > 4:
                raise MemoryError
            return super().step(state, chunk_size=chunk_size, **options)

    answer = resolve(Choosy(NUM_ENVS, NTHREAD), database)
    assert answer is None or answer <= 4
    connection = sqlite3.connect(database)
    failed, message = connection.execute("SELECT failed_chunk_sizes, message FROM run").fetchone()
    connection.close()
    assert json.loads(failed)
    assert all(chunk > 4 for chunk in json.loads(failed))
    assert "MemoryError" in message


def test_a_pool_that_cannot_step_gives_the_default_one_line_and_a_failed_run(
    database: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with no_logging():
        assert resolve(Broken(NUM_ENVS, NTHREAD), database) is None
    err = capfd.readouterr().err
    assert err.count("\n") == 1
    assert "no such GPU" in err
    assert "native default" in err
    connection = sqlite3.connect(database)
    assert connection.execute("SELECT state FROM run").fetchall() == [("failed",)]
    assert "no such GPU" in connection.execute("SELECT message FROM run").fetchone()[0]
    connection.close()
    assert load_cache(database) == {}


@pytest.mark.parametrize(
    "changes",
    [
        {"model": object()},
        {"dtype": "float33"},
        {"state": np.zeros((3, 3))},
        {"state": None},
        {"state": np.full((NUM_ENVS, 3), np.nan)},
        {"control": np.full((NUM_ENVS, 4, 2), np.inf)},
        {"num_envs": "many"},
        {"nthread": 0},
        {"database": "postgresql://host/db"},
        {"database": "/proc/no/such/folder/tuning.db"},
        {"database": "/dev/null/tuning.db"},
    ],
)
def test_whatever_is_wrong_the_job_gets_the_default_and_one_line(
    pool: SleepingPool, database: Path, capfd: pytest.CaptureFixture[str], changes: dict[str, Any]
) -> None:
    with no_logging():
        assert resolve(pool, database, **changes) is None
    err = capfd.readouterr().err
    assert err.count("\n") == 1
    assert err.startswith("tuner: using the native default")


def test_a_file_that_is_no_database_gives_the_default_and_is_left_alone(
    pool: SleepingPool, database: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    database.write_text("precious")
    with no_logging():
        assert resolve(pool, database) is None
    err = capfd.readouterr().err
    assert err.count("\n") == 1
    assert str(database) in err
    assert database.read_text() == "precious"
    assert pool.chunks == []


@pytest.mark.parametrize("stored", [0, -4, NUM_ENVS + 1])
def test_a_stored_value_that_would_kill_the_process_is_not_an_answer(
    pool: SleepingPool, database: Path, stored: int
) -> None:
    store_cache(database, its_key(), {"chunk_size": 4})
    connection = sqlite3.connect(database)
    connection.execute("PRAGMA ignore_check_constraints = ON")
    connection.execute("UPDATE verdict SET chunk_size = ?", (stored,))
    connection.commit()
    connection.close()
    answer = resolve(pool, database)
    assert answer is None or 1 <= answer <= NUM_ENVS
    assert len(pool.chunks) > 4
    assert stored not in pool.chunks


@pytest.mark.parametrize(
    "odd",
    [
        {"model_file": Path("/models/robot.xml")},
        {"model_file": "\udcff.xml"},
        {"seed": np.int64(3)},
        {"time_budget_s": np.float32(0.2)},
        {"bench_nsteps": np.int32(4)},
        {"backend_type": "\udc80"},
    ],
)
def test_an_odd_but_usable_argument_is_stored_and_found_again(
    database: Path, odd: dict[str, Any]
) -> None:
    pool = ClockworkPool(NUM_ENVS, NTHREAD)
    first = resolve(pool, database, clock=pool.clock, **odd)
    steps = len(pool.chunks)
    assert resolve(pool, database, clock=pool.clock, **odd) == first
    assert len(pool.chunks) == steps > 4


@pytest.mark.parametrize("odd", [{"seed": 2**63}, {"seed": -1}, {"bench_nsteps": 0}])
def test_an_argument_that_could_not_be_stored_is_refused_before_anything_is_timed(
    pool: SleepingPool, database: Path, odd: dict[str, Any]
) -> None:
    assert resolve(pool, database, **odd) is None
    assert pool.chunks == []


def test_without_a_stderr_the_line_goes_nowhere(database: Path) -> None:
    program = f"""
from tests.support.resolving import *
from tests.support.facts import SleepingPool
import sys
sys.stderr = None
resolve(SleepingPool(NUM_ENVS, NTHREAD), Path({str(database)!r}))
"""
    child = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert child.stdout == b""


@pytest.mark.parametrize("signal", [KeyboardInterrupt, SystemExit])
def test_the_user_can_still_stop_the_job(database: Path, signal: type[BaseException]) -> None:
    class Stopped(SleepingPool):
        def step(self, state: Any, **_: Any) -> Any:
            raise signal

    with pytest.raises(signal):
        resolve(Stopped(NUM_ENVS, NTHREAD), database)
    assert load_cache(database) == {}


def test_a_spawned_child_without_logging_says_its_line_on_stderr(database: Path) -> None:
    program = f"""
from tests.support.resolving import *
from tests.support.facts import SleepingPool
import sys
resolve(SleepingPool(NUM_ENVS, NTHREAD), Path({str(database)!r}))
"""
    child = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert child.stdout == ""
    assert child.stderr.startswith("tuner: measured: ")
    assert child.stderr.count("\n") == 2


def test_migrations_do_not_speak_in_a_jobs_log(
    database: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pool = ClockworkPool(NUM_ENVS, NTHREAD)
    with caplog.at_level(logging.INFO):
        resolve(pool, database, clock=pool.clock)
    assert {record.name for record in caplog.records} == {"tuner"}
