import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from benchmarks.simulation import Problem
from tests.support.races import COSTS, Wrapped, quiet_pool, run
from tuner.errors import ArgumentError, MeasuringError
from tuner.racing.race import Progress, race_chunk_sizes
from tuner.racing.verdict import judge
from tuner.records import NATIVE_DEFAULT, Candidate, Race


def test_the_fastest_wins_and_the_verdict_says_so() -> None:
    race = run(quiet_pool(COSTS), [1, 4, 9, 20, 64])
    assert race.verdict.chunk_size == 4
    assert race.verdict.decided
    assert race.verdict.gain == pytest.approx(0.08, abs=0.01)
    assert race.verdict.gain_low is not None
    assert race.verdict.gain_high is not None
    assert race.verdict.gain_low < 0.08 < race.verdict.gain_high
    assert [s.order for s in race.samples] == list(range(len(race.samples)))
    assert race.samples[0].warm_up
    assert race.pool_seconds == pytest.approx(sum(s.nanoseconds for s in race.samples) / 1e9)


def test_the_same_seed_replays_exactly() -> None:
    problem = Problem("rugged", "spikes", 1024, 8, 3)

    def once(seed: int) -> Race:
        return run(problem.pool(), problem.candidates(), seed=seed)

    assert once(1) == once(1)
    assert [s.candidate for s in once(1).samples] != [s.candidate for s in once(2).samples]


def test_the_verdict_can_be_made_again_from_the_samples() -> None:
    problem = Problem("convex", "2 %", 1024, 8, 5)
    race = run(problem.pool(), problem.candidates())
    assert judge(race.samples, num_envs=1024, nthread=8) == race.verdict


def test_the_twin_of_the_default_is_never_timed() -> None:
    pool = Wrapped(quiet_pool({**COSTS, 12: 1e-9}))
    race = run(pool, [4, 12, None], clock=pool.pool.clock, nthread=None)
    assert {arguments["chunk_size"] for _, arguments in pool.seen} == {None, 4}
    assert race.verdict.chunk_size == 4


def test_threads_unknown_so_no_candidate_is_taken_for_the_default() -> None:
    pool = quiet_pool(COSTS)
    race = run(pool, [4, 12], nthread=None)
    assert Candidate(12) in {s.candidate for s in race.samples}


@pytest.mark.parametrize("bad", [0, -1, 1025, True, np.int64(0), 4.0, "4"])
def test_a_bad_candidate_is_refused_before_the_pool_sees_it(bad: Any) -> None:
    pool = Wrapped(quiet_pool(COSTS))
    with pytest.raises(ArgumentError, match="chunk_size"):
        run(pool, [4, bad], clock=pool.pool.clock)
    with pytest.raises(ArgumentError):
        run(pool, [4], prior=[bad], clock=pool.pool.clock)
    assert not pool.seen


@pytest.mark.parametrize("calls", [0, 1, 2, 6, 11, 20])
def test_a_candidate_on_which_the_pool_failed_is_never_chosen(calls: int) -> None:
    failures = 0
    for seed in range(6):
        left = itertools.count(calls, -1)

        def before(arguments: dict[str, Any], left: Iterator[int] = left) -> None:
            if arguments["chunk_size"] == 4 and next(left) <= 0:
                raise MemoryError

        pool = Wrapped(quiet_pool({None: 0.01, 4: 0.008, 9: 0.009, 20: 0.011}, seed), before)
        race = run(pool, [4, 9, 20], clock=pool.pool.clock, seed=seed)
        if race.failures:
            failures += 1
            assert race.verdict.chunk_size != 4
            assert Candidate(4) not in race.verdict.ties
    assert failures or calls > 2


def test_a_slow_first_step_does_not_keep_a_light_pool_from_repeating() -> None:
    inner = quiet_pool({None: 2e-5, 4: 1.8e-5})
    first = [6e-4]

    def clock() -> float:
        return inner.clock() + (first[0] if inner.calls else 0.0)

    race = run(inner, [4], clock=clock)
    assert {sample.repeats for sample in race.samples if not sample.warm_up} != {1}


@pytest.mark.parametrize("budget", [math.nan])
def test_a_budget_that_is_no_number_is_refused_before_the_pool_sees_anything(
    budget: float,
) -> None:
    pool = quiet_pool(COSTS)
    with pytest.raises(ArgumentError, match="time_budget_s"):
        run(pool, [4], time_budget_s=budget)
    assert pool.calls == 0


def test_no_candidates_is_the_default() -> None:
    race = run(quiet_pool(COSTS), [])
    assert race.verdict.chunk_size is None
    assert race.verdict.decided
    assert {s.candidate for s in race.samples} == {NATIVE_DEFAULT}


@pytest.mark.parametrize(("cost", "choice"), [(0.009, 4), (0.01, None), (0.02, None)])
def test_one_candidate(cost: Any, choice: Any) -> None:
    race = run(quiet_pool({None: 0.01, 4: cost}), [4])
    assert race.verdict.chunk_size == choice
    assert race.verdict.decided


def test_two_candidates() -> None:
    assert run(quiet_pool(COSTS), [4, 9]).verdict.chunk_size == 4


def test_arguments_reach_the_pool_and_the_state_does_not() -> None:
    pool: Any = Wrapped(quiet_pool(COSTS))
    state, control = np.ones((1024, 3)), object()

    def spoil(state: Any, **arguments: Any) -> None:
        assert (state == 1.0).all()
        assert arguments["control"] is control
        assert arguments["nstep"] == 7
        assert arguments["return_sensor"] is True
        assert arguments["post_step_forward_sensor"] is True
        pool.pool.step(state, **arguments)
        state[:] = -1.0

    pool.step = spoil
    race_chunk_sizes(
        pool,
        state,
        7,
        [4],
        control=control,
        post_step_forward_sensor=True,
        clock=pool.pool.clock,
        seed=0,
    )
    assert (state == 1.0).all()


def test_one_scratch_state_for_the_whole_race() -> None:
    pool = Wrapped(quiet_pool(COSTS))
    run(pool, [1, 4, 9, 20], clock=pool.pool.clock)
    assert len({id(state) for state, _ in pool.seen}) == 1


def test_a_pool_that_raises_on_one_candidate() -> None:
    def refuse(arguments: Any) -> None:
        if arguments["chunk_size"] == 9:
            raise RuntimeError("no nines")

    pool = Wrapped(quiet_pool(COSTS), refuse)
    race = run(pool, [1, 4, 9, 20, 64], clock=pool.pool.clock)
    assert race.failures == {Candidate(9): "RuntimeError: no nines"}
    assert race.verdict.chunk_size == 4
    assert sum(arguments["chunk_size"] == 9 for _, arguments in pool.seen) == 1


def test_a_pool_that_raises_on_every_candidate_but_the_default() -> None:
    def refuse(arguments: Any) -> None:
        if arguments["chunk_size"] is not None:
            raise RuntimeError("no")

    pool = Wrapped(quiet_pool(COSTS), refuse)
    race = run(pool, [1, 4], clock=pool.pool.clock)
    assert race.verdict.chunk_size is None
    assert set(race.failures) == {Candidate(1), Candidate(4)}


def test_a_pool_that_raises_on_the_default() -> None:
    def refuse(_arguments: Any) -> None:
        raise RuntimeError("broken")

    pool = Wrapped(quiet_pool(COSTS), refuse)
    with pytest.raises(MeasuringError, match="broken"):
        run(pool, [4], clock=pool.pool.clock)


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_passes_through(stop: Any) -> None:
    def interrupt(arguments: Any) -> None:
        if arguments["chunk_size"] == 4:
            raise stop

    pool = Wrapped(quiet_pool(COSTS), interrupt)
    told: list[Race] = []
    with pytest.raises(stop):
        run(pool, [4], clock=pool.pool.clock, stopped=told.append)
    (race,) = told
    assert {s.candidate for s in race.samples} == {NATIVE_DEFAULT}
    assert not race.verdict.decided


@pytest.mark.parametrize("steps", range(6))
def test_an_interrupt_at_any_step_tells_what_was_timed_before_it(steps: int) -> None:
    taken = 0

    def interrupt(_arguments: Any) -> None:
        nonlocal taken
        if taken == steps:
            raise KeyboardInterrupt
        taken += 1

    pool = Wrapped(quiet_pool(COSTS), interrupt)
    told: list[Race] = []
    with pytest.raises(KeyboardInterrupt):
        run(pool, [4, 9], clock=pool.pool.clock, stopped=told.append)
    assert sum(s.repeats for race in told for s in race.samples) == steps


def test_no_budget_is_undecided_after_one_sample() -> None:
    race = run(quiet_pool(COSTS), [1, 4, 9], time_budget_s=0.0)
    assert len(race.samples) == 1
    assert race.verdict.chunk_size is None
    assert (race.verdict.decided, race.verdict.reason) == (False, "budget")


@pytest.mark.parametrize("seconds", [0.9, 4.0, 30.0])
def test_a_heavy_model_keeps_to_the_budget_and_says_so(seconds: Any) -> None:
    costs = {c: t * 100 * seconds for c, t in COSTS.items()}
    race = run(quiet_pool(costs), [1, 4, 9, 20, 64])
    assert race.pool_seconds <= max(10.0, 1.1 * seconds) + 1.5 * seconds
    assert (race.verdict.decided, race.verdict.reason) == (False, "budget")


def test_a_light_pool_repeats_the_step_inside_a_sample() -> None:
    costs = {c: t / 1000 for c, t in COSTS.items()}
    race = run(quiet_pool(costs), [4, 9, 20])
    counted = [s for s in race.samples if not s.warm_up]
    assert min(s.nanoseconds for s in counted) > 0.8e6
    assert {s.repeats for s in counted} > {1} or min(s.repeats for s in counted) > 1
    assert race.verdict.chunk_size == 4


def test_progress_is_told_once_a_block() -> None:
    seen: list[Progress] = []
    race = run(quiet_pool(COSTS), [1, 4, 9, 20, 64], progress=seen.append)
    assert all(isinstance(p, Progress) for p in seen)
    assert len(seen) == 1 + race.samples[-1].block
    assert [p.seconds for p in seen] == sorted(p.seconds for p in seen)
    assert seen[-1].leader == race.verdict.candidate
    assert seen[-1].low <= seen[-1].relative <= seen[-1].high
    assert seen[-1].budget_s == 10.0
