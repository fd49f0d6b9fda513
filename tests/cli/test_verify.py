"""`tuner verify` on a real model: a choice holds, is withdrawn, or cannot be verified."""

from __future__ import annotations

import functools
import json
import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.facts import ClockworkPool, a_key
from tests.support.process import QUADRUPED, tuner
from tests.support.stored import FASTER, Shell, a_run, contents, rows_of, store
from tuner import store_cache, tuning
from tuner.cli.work import Asked, asked
from tuner.environment import PROTOCOL, environment_of
from tuner.pools import POOLS, RolloutPool
from tuner.store import runs
from tuner.store.maintenance import check
from tuner.store.migrate import upgrade
from tuner.workload import key_of

STEP_S = 8e-3
COSTS: dict[int | None, float] = {}
"""Share of the default's time that a step takes on the pool of the day, by chunk size."""


class Pool(ClockworkPool):
    """A pool on a clock of its own that passes for the real one."""

    last: Pool

    def __init__(self, model: Any, *, nbatch: int, nthread: int) -> None:
        super().__init__(nbatch, nthread, STEP_S)
        Pool.last = self

    def cost(self, chunk_size: int | None) -> float:
        return self.seconds * COSTS.get(chunk_size, 1.0)

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        pass


Pool.__module__, Pool.__qualname__ = RolloutPool.__module__, RolloutPool.__qualname__


def work(model_file: Path = QUADRUPED, num_envs: int = 32) -> Asked:
    """Make the work that a user asks for."""
    return asked(
        model_file=model_file,
        num_envs=num_envs,
        nthread=2,
        nstep=1,
        dtype="float64",
        post_step_forward_sensor=False,
        pool_name="rollout",
    )


def chosen(database: Path, what: Asked, number: int = 1, **changes: Any) -> str:
    """Store a run after which a key has chosen 4."""
    facts = {"pairs": 24, "environment": what.here, "model_file": str(what.model_file)}
    verdict = store(database, what.key, a_run(number, FASTER, **facts | changes))
    assert verdict is not None
    assert (verdict.chunk_size, verdict.decided) == (4, True)
    return str(what.key)


@pytest.fixture
def on_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the command line step pools on a clock of their own."""
    monkeypatch.setitem(POOLS, "rollout", Pool)
    monkeypatch.setattr(
        sys.modules["tuner.cli.work"],
        "Request",
        functools.partial(tuning.Request, clock=lambda: Pool.last.clock()),
    )
    COSTS.clear()


def verified(shell: Shell, database: Path, *options: object, code: int) -> list[dict[str, Any]]:
    """Verify; what is told as JSON."""
    told = shell("verify", *options, "--json", "--database", database)
    assert told.code == code, told
    assert check(database) == []
    found: list[dict[str, Any]] = json.loads(told.out)
    return found


@pytest.mark.usefixtures("on_the_clock")
def test_a_choice_that_is_still_faster_holds(database: Path, shell: Shell) -> None:
    COSTS.update({4: 0.85})
    key = chosen(database, work())
    [line] = verified(shell, database, key[:20], code=0)
    assert (line["key"], line["verified"], line["held"]) == (key, True, True)
    assert (line["was"], line["chunk_size"], line["decided"]) == (4, 4, True)
    assert line["gain"] == pytest.approx(0.15, abs=0.02)
    assert set(Pool.last.chunks) == {None, 4}  # the choice against the default, nothing else
    runs = rows_of(database, "SELECT occasion, plan, chosen_chunk_size, model_file FROM run "
                   "ORDER BY run_id")  # fmt: skip
    assert runs[1:] == [("verify", "verify", 4, str(QUADRUPED))]
    words = shell("verify", key, "--database", database)
    assert words.code == 0
    assert words.out.startswith(f"{key}: 4 holds, 1")
    assert words.out.endswith(" %\n")


@pytest.mark.usefixtures("on_the_clock")
def test_a_choice_that_has_lost_its_gain_is_withdrawn(database: Path, shell: Shell) -> None:
    COSTS.update({4: 1.3})
    key = chosen(database, work())
    words = shell("verify", key, "--database", database)
    assert words.code == 3
    assert words.out.startswith(f"{key}: 4 is withdrawn: using the default")
    [(chunk, runs)] = rows_of(database, "SELECT chunk_size, runs FROM verdict")
    assert (chunk, runs) == (None, 2)
    assert rows_of(database, "SELECT count(*) FROM run") == [(2,)]
    assert check(database) == []
    line = shell.refused("verify", key, "--database", database)
    assert "nothing to verify" in line
    assert "default" in line


@pytest.mark.usefixtures("on_the_clock")
def test_a_choice_that_gives_way_to_another_has_not_held(database: Path, shell: Shell) -> None:
    costs: dict[int | None, float] = {None: 9.4, 4: 9.3, 8: 8.05, 32: 12.0}
    COSTS.update({4: 1.3})
    what = work()
    for number in (1, 2):
        run = a_run(number, costs, pairs=40, environment=what.here, model_file=str(QUADRUPED))
        store(database, what.key, run)
    rows_of(database, "UPDATE verdict SET chunk_size = 4, decided = 1, reason = NULL")
    [line] = verified(shell, database, what.key, code=3)
    assert line["was"] == 4
    assert (line["chunk_size"], line["held"]) == (8, False)


@pytest.mark.usefixtures("on_the_clock")
def test_without_a_key_all_choices_are_verified_and_what_cannot_be_is_told(
    database: Path, shell: Shell, tmp_path: Path
) -> None:
    COSTS.update({4: 0.85})
    good, other = work(), work(num_envs=64)
    texts = QUADRUPED.read_text()
    gone, different = tmp_path / "gone.xml", tmp_path / "different.xml"
    for file in (gone, different):
        file.write_text(texts)
    expected = {chosen(database, good, 1): "", chosen(database, other, 2): ""}
    expected[chosen(database, work(gone, 48), 3)] = "there is no model file"
    gone.unlink()
    expected[chosen(database, work(different, 40), 4)] = "has changed"
    different.write_text("<mujoco><worldbody/></mujoco>")
    facts = good.key.workload
    theirs = key_of(facts._replace(device=facts.device | {"machine": "z80"}))
    elsewhere = {chosen(database, good._replace(key=theirs), 5): "another machine"}
    pool = work(num_envs=56)
    stack = pool.here._replace(pool="their.Pool", pool_version=None)
    expected[chosen(database, pool, 6, environment=stack)] = "their.Pool, which only its own job"
    uni = work(num_envs=60)
    stack = uni.here._replace(mujoco_version="0.1.2")
    expected[chosen(database, uni, 7, environment=stack)] = (
        "nothing to verify: its verdict is of mujoco"
    )
    store_cache(database, "a key of somebody's own", {"chunk_size": 16})
    elsewhere["a key of somebody's own"] = "its facts are not known"
    store_cache(database, a_key(), {"chunk_size": None})  # the default: not asked
    chosen(database, work(num_envs=44), 8)
    runs.pin(database, work(num_envs=44).key, 8, "so")  # pinned: not asked either

    lines = {line["key"]: line for line in verified(shell, database, code=3)}
    assert lines.keys() == expected.keys()
    for key, why in expected.items():
        assert lines[key]["verified"] is not bool(why), lines[key]
        assert why in lines[key].get("what", "")
    assert rows_of(database, "SELECT count(*) FROM run WHERE occasion = 'verify'") == [(2,)]
    words = shell("verify", "--database", database)
    assert words.code == 3
    assert len(words.out.splitlines()) == len(expected)
    assert sum(": not verified: " in line for line in words.out.splitlines()) == 4
    for key, why in (expected | elsewhere).items():  # of other machines only when asked for
        if why:
            assert why in shell.refused("verify", key, "--database", database)


@pytest.mark.usefixtures("on_the_clock")
def test_a_model_that_lies_elsewhere_now_can_be_named(
    database: Path, shell: Shell, tmp_path: Path
) -> None:
    COSTS.update({4: 0.85})
    moved = tmp_path / "moved.xml"
    key = chosen(database, work(), model_file="a/path/of/the/job.xml")
    assert "name it with KEY and --model-file" in shell.refused(
        "verify", key, "--database", database
    )
    moved.write_text(QUADRUPED.read_text())
    held = shell("verify", key, "--model-file", moved, "--database", database)
    assert (held.code, "holds" in held.out) == (0, True)
    moved.write_text("<mujoco><worldbody/></mujoco>")
    told = shell.refused("verify", key, "--model-file", moved, "--database", database)
    assert "has changed" in told
    assert "needs KEY" in shell.refused("verify", "--model-file", moved, code=2)


@pytest.mark.usefixtures("on_the_clock")
def test_a_file_that_is_no_model_any_more_and_a_pool_that_raises_stop_no_other_check(
    database: Path, shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    COSTS.update({4: 0.85})
    file = tmp_path / "broken.xml"
    file.write_text(QUADRUPED.read_text())
    broken = chosen(database, work(file, 48), 1)
    file.write_text("<mujoco")
    raising = chosen(database, work(num_envs=64), 2)
    good = chosen(database, work(), 3)
    real = Pool.cost

    def cost(pool: Pool, chunk_size: int | None) -> float:
        if pool.nbatch == 64:
            raise RuntimeError("the pool is broken")
        return real(pool, chunk_size)

    monkeypatch.setattr(Pool, "cost", cost)
    lines = {line["key"]: line for line in verified(shell, database, code=3)}
    assert "is not a MuJoCo model" in lines[broken]["what"]
    assert "the pool is broken" in lines[raising]["what"]
    assert lines[good]["held"] is True
    assert rows_of(database, "SELECT state FROM run WHERE occasion = 'verify' ORDER BY state") == [
        ("complete",),
        ("failed",),
    ]
    # A run that failed leaves the verdict as it was.
    kept = "SELECT chunk_size, runs FROM verdict WHERE key_digest = ?"
    assert rows_of(database, kept, raising) == [(4, 1)]


@pytest.mark.usefixtures("on_the_clock")
def test_a_pinned_key_is_not_verified(database: Path, shell: Shell) -> None:
    key = chosen(database, work())
    runs.pin(database, key, 8, "so")
    before = contents(database.parent)
    line = shell.refused("verify", key, "--database", database)
    assert "pinned" in line
    assert "tuner unpin" in line
    assert contents(database.parent) == before
    told = shell("verify", "--database", database)
    assert (told.code, told.err) == (0, "")
    assert "nothing to verify" in told.out


@pytest.mark.usefixtures("on_the_clock")
def test_a_database_that_may_not_be_written_is_found_out_before_anything_is_timed(
    database: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = chosen(database, work())
    monkeypatch.setattr("tuner.store.database.READ_BUSY_SECONDS", 0.05)
    holder = sqlite3.connect(database, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    told = shell("verify", key, "--database", database)
    holder.execute("ROLLBACK")
    holder.close()
    assert told.code == 1
    assert "another process holds it" in told.err
    assert Pool.last.chunks == []


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (("k1_zz",), 1),
        (("--time-budget", "-1"), 2),
        (("--time-budget", "nan"), 2),
        (("--time-budget", "inf"), 2),
        (("one", "two"), 2),
    ],
)
def test_a_wrong_call_verifies_nothing(
    database: Path, shell: Shell, options: tuple[str, ...], code: int
) -> None:
    chosen(database, work())
    before = contents(database.parent)
    shell.refused("verify", *options, "--database", database, code=code)
    assert contents(database.parent) == before


def test_where_no_key_has_a_choice_there_is_nothing_to_verify(database: Path, shell: Shell) -> None:
    upgrade(database)
    assert verified(shell, database, code=0) == []
    told = shell("verify", "--database", database)
    assert (told.code, "nothing to verify" in told.out) == (0, True)


def test_on_a_real_pool_the_exit_code_says_what_was_found(
    database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    what = work()
    with RolloutPool(what.model, nbatch=32, nthread=2) as pool:
        assert environment_of(pool) == what.here
    assert what.here.method == PROTOCOL
    key = chosen(database, what)
    monkeypatch.chdir(tmp_path)  # the model's file is known by its whole path
    before = set(tmp_path.iterdir())
    told = tuner("verify", key, "--time-budget", "0.3", "--json", "--database", str(database))
    [line] = json.loads(told.stdout)
    assert line["verified"] is True
    assert told.returncode == (0 if line["held"] else 3)
    assert line["held"] == (line["decided"] and line["chunk_size"] == 4)
    assert set(tmp_path.iterdir()) - before <= {database}
    assert check(database) == []
    [choices] = rows_of(database, "SELECT group_concat(DISTINCT coalesce(chunk_size, 0)) "
                        "FROM sample WHERE run_id = 2")  # fmt: skip
    assert set(choices[0].split(",")) == {"0", "4"}
