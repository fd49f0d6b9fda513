"""What an earlier measurement is worth to a later process: resumed, outdated, near, adopted."""

from __future__ import annotations

import math
import sqlite3
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import mujoco  # noqa: F401 - its version is a part of the environment
import numpy as np
import pytest

from tests.support.facts import MODEL, ClockworkPool, SleepingPool, a_key
from tests.support.resolving import NTHREAD, NUM_ENVS, its_key, resolve
from tuner import device_fingerprint, load_cache, store_cache
from tuner.api import explain
from tuner.environment import PROTOCOL, environment_of
from tuner.lock import measuring_turn
from tuner.racing import race
from tuner.store.lookup import Answer, find_answer
from tuner.store.maintenance import check
from tuner.store.queries import read_key
from tuner.tuning import Request, StepInputs, answer_key

FAST = 10
"""The chunk size that the pools here step fastest with."""


class NoisyPool(ClockworkPool):
    """A pool with noise, on a clock of its own, fastest with one chunk size.

    Its owner presses Ctrl-C after so many seconds of its clock.
    """

    def __init__(
        self,
        *,
        seconds: float = 0.02,
        noise: float = 0.02,
        seed: int = 0,
        best: int = FAST,
        stopped_after: float = math.inf,
    ) -> None:
        super().__init__(NUM_ENVS, NTHREAD, seconds)
        self.noise, self.best, self.stopped_after = noise, best, stopped_after
        self.draw = np.random.default_rng(seed)

    def cost(self, chunk_size: int | None) -> float:
        if self.now >= self.stopped_after:
            raise KeyboardInterrupt
        size = 3 if chunk_size is None else chunk_size
        slower = 0.1 * abs(math.log2(size / self.best))
        return self.seconds * (1.0 + slower) * math.exp(self.noise * self.draw.standard_normal())


def ask(pool: ClockworkPool, database: Path, **changes: Any) -> int | None:
    """Ask as a job asks, with a budget of two seconds on the pool's own clock."""
    arguments = {"clock": pool.clock, "seed": 1, "time_budget_s": 2.0} | changes
    return resolve(pool, database, **arguments)


def verdict_of(database: Path) -> Answer:
    found = find_answer(database, its_key(), NUM_ENVS)
    assert isinstance(found, Answer)
    return found


def runs_of(database: Path) -> list[dict[str, Any]]:
    runs: list[dict[str, Any]] = read_key(database, str(its_key()))["runs"]
    return runs


def execute(database: Path, statement: str) -> None:
    with closing(sqlite3.connect(database)) as connection:
        connection.execute(statement)
        connection.commit()


# --- resumed --------------------------------------------------------------------------------


def test_an_undecided_key_is_taken_up_until_it_is_decided_and_then_left_alone(
    database: Path,
) -> None:
    ask(NoisyPool(), database, time_budget_s=0.1)
    assert not verdict_of(database).decided
    for seed in range(1, 40):
        pool = NoisyPool(seed=seed)
        answer = ask(pool, database, seed=seed)
        assert pool.now <= 2.0 * 0.1 + 2 * pool.seconds
        if verdict_of(database).decided:
            break
    assert verdict_of(database).decided
    runs = runs_of(database)
    assert [run["occasion"] for run in runs] == ["new"] + ["resumed"] * (len(runs) - 1)
    assert answer == verdict_of(database).chunk_size

    later = NoisyPool(seed=99)
    assert ask(later, database) == answer
    assert later.chunks == []
    assert check(database) == []


def test_what_is_resumed_goes_on_from_the_stored_samples(database: Path) -> None:
    ask(NoisyPool(), database, time_budget_s=0.2)
    first = verdict_of(database)
    assert not first.decided
    ask(NoisyPool(seed=1), database)
    second = verdict_of(database)
    assert second.samples > first.samples
    assert set(first.per_candidate_ms) <= set(second.per_candidate_ms)


def test_what_cannot_be_told_apart_is_decided_by_the_rule_when_the_total_is_spent(
    database: Path,
) -> None:
    class Alike(NoisyPool):
        def cost(self, chunk_size: int | None) -> float:
            return self.seconds * math.exp(0.3 * self.draw.standard_normal())

    for seed in range(200):
        ask(Alike(seed=seed), database, seed=seed)
        if verdict_of(database).decided:
            break
    verdict = verdict_of(database)
    assert verdict.decided
    assert verdict.chunk_size is None
    if verdict.reason == "tie":
        runs = runs_of(database)
        spent = sum(run["pool_seconds"] for run in runs)
        assert spent >= 30.0 or verdict.samples >= 1440 or len(runs) == 20


def test_nobody_waits_for_an_answer_that_somebody_else_is_making_better(database: Path) -> None:
    ask(NoisyPool(), database, time_budget_s=0.1)
    with measuring_turn(1.0, unless=lambda: False):
        pool = NoisyPool(seed=1)
        ask(pool, database)
    assert pool.chunks == []
    assert len(runs_of(database)) == 1


def test_steps_too_long_for_the_small_budget_are_not_begun(database: Path) -> None:
    slow = NoisyPool(seconds=0.2)
    ask(slow, database, time_budget_s=1.0)
    again = NoisyPool(seconds=0.2, seed=1)
    ask(again, database, time_budget_s=1.0)
    assert again.chunks == []


def test_a_pool_that_fails_while_it_is_resumed_leaves_the_stored_answer(
    database: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ask(NoisyPool(), database, time_budget_s=0.1)
    execute(database, "UPDATE verdict SET chunk_size = 5")

    broken = NoisyPool()
    broken.best = 0  # no logarithm, no step
    assert ask(broken, database) == 5
    assert "cannot step" in caplog.text
    assert [run["state"] for run in runs_of(database)].count("failed") == 1


def test_an_error_of_no_kind_we_know_leaves_the_stored_answer(
    database: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(NoisyPool(), database, time_budget_s=0.1)
    execute(database, "UPDATE verdict SET chunk_size = 5")

    def fail(*_: object, **__: object) -> None:
        raise ArithmeticError("singular matrix")

    monkeypatch.setattr(race, "race_chunk_sizes", fail)
    assert ask(NoisyPool(), database) == 5
    assert "cannot measure further, using the stored answer: singular matrix" in caplog.text


def test_a_database_that_cannot_be_written_still_answers_what_is_undecided(
    database: Path,
) -> None:
    ask(NoisyPool(), database, time_budget_s=0.1)
    execute(database, "UPDATE verdict SET chunk_size = 5")
    execute(
        database,
        "CREATE TRIGGER no BEFORE UPDATE ON alembic_version BEGIN "
        "SELECT raise(ABORT, 'read-only'); END",
    )
    pool = NoisyPool(seed=1)
    assert ask(pool, database) == 5
    assert pool.chunks == []


# --- interrupted ----------------------------------------------------------------------------


def interrupt(database: Path, after: float, **options: Any) -> None:
    pool = NoisyPool(stopped_after=after, **options)
    with pytest.raises(KeyboardInterrupt):
        ask(pool, database)


def test_what_was_timed_before_an_interrupt_is_kept_and_gone_on_from(database: Path) -> None:
    interrupt(database, 0.2)
    (kept,) = runs_of(database)
    assert (kept["state"], kept["message"]) == ("cut short", "interrupted")
    before = verdict_of(database)
    assert not before.decided

    pool = NoisyPool(seed=1)
    ask(pool, database)
    assert verdict_of(database).samples > before.samples
    assert verdict_of(database).decided  # it had what the interrupted run had left, not a tenth
    assert pool.now <= 2.0 - 0.2 + 2 * pool.seconds
    assert [run["occasion"] for run in runs_of(database)] == ["new", "resumed"]
    assert check(database) == []


def test_what_an_interrupt_left_is_no_more_than_the_next_one_would_spend(database: Path) -> None:
    interrupt(database, 0.1)
    pool = NoisyPool(seed=1)
    ask(pool, database, time_budget_s=1.5)
    assert 0.1 * 1.5 < pool.now <= 1.5


def test_an_interrupted_run_that_nobody_would_go_on_with_is_not_kept(database: Path) -> None:
    interrupt(database, 1.0, seconds=0.2)
    assert load_cache(database) == {}
    pool = NoisyPool(seconds=0.2, seed=1)
    ask(pool, database)
    assert pool.now > 1.0


def test_an_interrupted_check_of_a_choice_is_not_kept(database: Path) -> None:
    ask(NoisyPool(), database, time_budget_s=10.0)
    before = verdict_of(database)
    pool = NoisyPool(stopped_after=0.1, seed=1)
    with pytest.raises(KeyboardInterrupt):
        answer_key(
            Request(
                its_key(),
                database,
                environment_of(pool),
                lambda: nullcontext(StepInputs(pool, np.zeros((NUM_ENVS, 3)), None, "a test's")),
                trigger="verify",
                time_budget_s=2.0,
                clock=pool.clock,
            )
        )
    assert verdict_of(database) == before
    assert len(runs_of(database)) == 1


# --- outdated: another software stack ----------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "value", "again"),
    [
        ("mujoco_version", "3.3.0", True),
        ("mujoco_version", None, False),
        ("method", "race 0", True),
        ("pool", "another.Pool", True),
    ],
)
def test_a_verdict_of_another_stack_is_measured_again_from_its_winner(
    database: Path, column: str, value: str | None, again: bool
) -> None:
    ask(NoisyPool(), database, time_budget_s=10.0)
    first = verdict_of(database)
    assert (first.chunk_size, first.decided) == (FAST, True)
    text = "NULL" if value is None else f"'{value}'"
    execute(database, f"UPDATE verdict SET {column} = {text}")
    execute(database, f"UPDATE run SET {column} = {text}")
    pool = NoisyPool(seed=1)
    assert ask(pool, database, time_budget_s=10.0) == FAST
    assert bool(pool.chunks) == again
    runs = runs_of(database)
    assert [run["occasion"] for run in runs] == (["new", "outdated"] if again else ["new"])
    if again:
        assert runs[1]["near_key"] == its_key()
        # Each stack has its verdict; neither undoes the other's.
        with closing(sqlite3.connect(database)) as connection:
            stacks = connection.execute("SELECT stack, runs FROM verdict ORDER BY stack").fetchall()
        assert [number for _, number in stacks] == [1, 1]
        later = NoisyPool(seed=2)
        assert ask(later, database) == FAST
        assert later.chunks == []


def test_a_policy_that_is_data_lets_an_older_verdict_answer(database: Path) -> None:
    ask(NoisyPool(), database, time_budget_s=10.0)
    execute(database, "UPDATE verdict SET method = 'race 0'")
    execute(database, "UPDATE validator SET policy = 'ignore' WHERE name = 'method'")
    pool = NoisyPool(seed=1)
    assert ask(pool, database) == FAST
    assert pool.chunks == []


def test_runs_of_one_stack_make_one_verdict(database: Path) -> None:
    for seed in (1, 2, 3):
        ask(NoisyPool(seed=seed), database, time_budget_s=10.0, seed=seed)
        execute(database, "UPDATE verdict SET decided = 0, reason = 'noise'")
    with closing(sqlite3.connect(database)) as connection:
        rows = connection.execute("SELECT method, runs, decided FROM verdict").fetchall()
    assert [(method, runs) for method, runs, _ in rows] == [(PROTOCOL, 3)]


# --- near and adopted ----------------------------------------------------------------------------


def steps_of(pool: ClockworkPool) -> int:
    return len(pool.chunks)


def test_a_near_relative_shortens_the_measuring_and_is_named(
    database: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fresh = NoisyPool(seed=1)
    other = database.with_name("other.db")
    ask(fresh, other, time_budget_s=10.0, bench_nsteps=5)

    ask(NoisyPool(), database, time_budget_s=10.0)
    caplog.set_level("INFO", logger="tuner")
    helped = NoisyPool(seed=1)
    assert ask(helped, database, time_budget_s=10.0, bench_nsteps=5) == FAST
    assert steps_of(helped) < steps_of(fresh)
    assert f"warm-started by key {its_key()[:11]}" in caplog.text
    with closing(sqlite3.connect(database)) as connection:
        rows = connection.execute("SELECT occasion, near_key FROM run ORDER BY run_id").fetchall()
    assert rows == [("new", None), ("near", its_key())]


def test_a_misleading_relative_does_not_decide(database: Path) -> None:
    ask(NoisyPool(best=2), database, time_budget_s=10.0)
    pool = NoisyPool(seed=1)
    assert ask(pool, database, time_budget_s=10.0, bench_nsteps=5) == FAST


def from_before_a_field_was_known(database: Path) -> None:
    ask(NoisyPool(noise=0.005), database, time_budget_s=10.0)
    # As a file of revision 0001 has it: the device's first three facts, under their key.
    execute(
        database,
        "UPDATE device SET cpu_model = NULL, usable_cpus = NULL, cpu_quota = NULL, "
        "threads_per_core = NULL, unequal_cores = NULL, numa_nodes = NULL, digest = 'd1_old'",
    )
    execute(database, "PRAGMA foreign_keys = OFF")
    execute(database, "UPDATE tuning_key SET digest = 'k1_old'")
    execute(database, "UPDATE verdict SET key_digest = 'k1_old'")


def test_a_row_from_before_a_field_was_known_is_confirmed_by_a_short_duel(database: Path) -> None:
    from_before_a_field_was_known(database)
    pool = NoisyPool(seed=1, noise=0.005)
    assert ask(pool, database, time_budget_s=10.0) == FAST
    timed = [chunk for chunk in pool.chunks if chunk is not None]
    assert set(timed) == {FAST}
    assert steps_of(pool) <= 20
    run = runs_of(database)[0]
    assert (run["occasion"], run["near_key"]) == ("adopted", "k1_old")
    assert load_cache(database)["k1_old"]["chunk_size"] == FAST
    assert check(database) == []


def test_an_old_winner_that_gains_much_less_than_it_did_is_not_adopted(database: Path) -> None:
    from_before_a_field_was_known(database)
    execute(database, "UPDATE verdict SET gain = 0.9, gain_low = 0.8, gain_high = 0.95")
    pool = NoisyPool(seed=1, noise=0.005)
    assert ask(pool, database, time_budget_s=10.0) == FAST
    assert len(set(pool.chunks)) > 2


def test_an_old_winner_that_is_none_any_more_is_not_adopted(database: Path) -> None:
    device = {name: device_fingerprint()[name] for name in ("system", "machine", "cpu_count")}
    store_cache(
        database, a_key(num_envs=NUM_ENVS, nthread=NTHREAD, device=device), {"chunk_size": 2}
    )
    pool = NoisyPool(seed=1)
    assert ask(pool, database, time_budget_s=10.0) == FAST
    assert runs_of(database)[0]["occasion"] == "adopted"


def test_explain_says_what_the_next_job_then_does(database: Path) -> None:
    def kind(**changes: Any) -> str:
        facts: dict[str, Any] = {
            "model": MODEL,
            "n_variants": 1,
            "num_envs": NUM_ENVS,
            "nthread": NTHREAD,
            "dtype": np.float32,
            "post_step_forward_sensor": False,
            "bench_nsteps": 4,
            "pool": NoisyPool(),
            "database": database,
            "time_budget_s": 2.0,
        }
        return explain(**(facts | changes)).kind

    assert kind() == "miss"
    ask(NoisyPool(), database, time_budget_s=0.1)
    assert kind() == "resumed"
    ask(NoisyPool(), database, time_budget_s=100.0)
    assert kind() == "hit"
    assert kind(bench_nsteps=5) == "near"
    assert kind(pool=SleepingPool(1, 1)) == "outdated"
