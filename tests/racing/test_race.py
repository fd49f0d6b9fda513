import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest

from benchmarks.simulation import Problem, SimulatedPool, quiet
from tests.support.facts import ClockworkPool
from tests.support.stored import a_run
from tuner.errors import ArgumentError, MeasuringError
from tuner.racing.meta_analysis import judge_runs
from tuner.racing.race import Progress, race_chunk_sizes
from tuner.racing.verdict import judge
from tuner.records import NATIVE_DEFAULT, Candidate, Race, Run


def quiet_pool(costs: dict[int | None, float], seed: int = 0) -> SimulatedPool:
    return SimulatedPool(costs, quiet(np.random.default_rng(seed), 0.01), seed)


def run(pool: Any, candidates: Iterable[Any], *, num_envs: int = 1024, **options: Any) -> Race:
    options.setdefault("clock", getattr(pool, "clock", None))
    options.setdefault("seed", 0)
    options.setdefault("nthread", 8)
    state = np.zeros((num_envs, 3))
    return race_chunk_sizes(
        pool, state, 5, candidates, control=None, post_step_forward_sensor=False, **options
    )


COSTS = {None: 0.01, 1: 0.025, 4: 0.0092, 9: 0.0097, 12: 0.01, 20: 0.011, 64: 0.014}


class Wrapped:
    """A pool with something between it and the race."""

    nthread = 8

    def __init__(
        self, pool: SimulatedPool, before: Callable[[Any], object] = lambda _arguments: None
    ) -> None:
        self.pool, self.before = pool, before
        self.seen: list[tuple[Any, dict[str, Any]]] = []

    def step(self, state: Any, **arguments: Any) -> None:
        self.seen.append((state, arguments))
        self.before(arguments)
        self.pool.step(state, **arguments)


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


@pytest.mark.parametrize("reading", [lambda: math.nan, lambda: 5.0])
def test_a_clock_that_stands_still_or_knows_nothing(reading: Any) -> None:
    pool = quiet_pool(COSTS)
    with pytest.raises(MeasuringError, match="clock"):
        run(pool, [4, 9], clock=reading)
    assert pool.calls < 100


def test_a_clock_that_goes_back_now_and_then() -> None:
    pool = quiet_pool(COSTS)
    reads = 0

    def clock() -> float:
        nonlocal reads
        reads += 1
        return pool.now - (0.5 if reads % 14 == 0 else 0.0)

    race = run(pool, [1, 4, 9, 20, 64], clock=clock)
    assert all(s.nanoseconds > 0 for s in race.samples)
    assert race.verdict.chunk_size in {None, 4}


def test_a_clock_that_always_goes_back_for_one_candidate() -> None:
    pool = quiet_pool(COSTS)
    back: Any = Wrapped(pool)

    def step(state: Any, **arguments: Any) -> None:
        pool.step(state, **arguments)
        if arguments["chunk_size"] == 4:
            pool.now -= 1.0

    back.step = step
    race = run(back, [4, 9], clock=pool.clock)
    assert race.verdict.chunk_size != 4
    assert Candidate(4) not in {s.candidate for s in race.samples}


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


def _with_history(problem: Problem, prior: Sequence[int | None] | None) -> tuple[int, float, float]:
    """Race, the first likely winner having gained elsewhere what the best one gains here."""
    pool = problem.pool()
    gain = 1 - min(pool.costs.values()) / pool.costs[None]
    race = run(pool, problem.candidates(), prior=prior, prior_gain=gain, seed=problem.seed)
    regret = pool.costs[race.verdict.chunk_size] / min(pool.costs.values()) - 1
    return len(race.samples), race.pool_seconds, regret


def test_history_shortens_the_race_and_does_little_harm_when_it_misleads() -> None:
    plain, good, misled = [], [], []  # each: timings, pool seconds, regret
    landscapes, noises = ("convex", "rugged", "steps"), ("quiet", "2 %", "warm-up", "neighbour")
    for landscape, noise, seed in itertools.product(landscapes, noises, (300, 301, 302)):
        problem = Problem(landscape, noise, 1024, 8, seed)
        costs, order = problem.pool().costs, problem.candidates()
        best = min(order, key=lambda c: costs[c])
        far = order[(order.index(best) + 8) % len(order)]
        plain.append(_with_history(problem, None))
        good.append(_with_history(problem, [best, None]))
        misled.append(_with_history(problem, [far]))
    assert np.median([n for n, _, _ in good]) <= 24
    ratios = [slow / usual for (_, slow, _), (_, usual, _) in zip(misled, plain, strict=True)]
    assert np.median(ratios) <= 1.25
    assert np.mean([r for _, _, r in misled]) <= 0.005


# --- earlier runs of the same work ----------------------------------------------------------


def stored(race: Race, hour: int = 0, **fields: Any) -> Run:
    fields.setdefault("state", "cut short" if race.verdict.reason == "budget" else "complete")
    finished = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(hours=hour)
    return Run(finished=finished, samples=race.samples, failed=tuple(race.failures), **fields)


def test_a_race_goes_on_from_earlier_ones() -> None:
    problem = Problem("convex", "2 %", 1024, 8, 5, step_seconds=0.05)
    runs: list[Run] = []
    for hour in range(12):
        race = run(
            problem.pool(hour), problem.candidates(), time_budget_s=1.0, seed=hour, earlier=runs
        )
        assert [s.order for s in race.samples] == list(range(len(race.samples)))
        assert race.samples[0].block == 0
        assert race.pool_seconds < 1.2
        runs.append(stored(race, hour))
        verdict = judge_runs(runs, num_envs=1024, nthread=8)
        if verdict.decided:
            break
    costs = problem.pool().costs
    assert verdict.decided
    assert costs[verdict.chunk_size] <= 1.01 * min(costs.values())
    first, second = ({s.candidate for s in r.samples} for r in runs[:2])
    assert second - first  # it does not begin from the start


def test_a_race_with_nothing_left_to_time_returns_at_once() -> None:
    whole = run(quiet_pool(COSTS), [1, 4, 9, 20, 64])
    again = run(quiet_pool(COSTS, 1), [1, 4, 9, 20, 64], earlier=[stored(whole)])
    assert all(s.candidate == NATIVE_DEFAULT and s.block == 0 for s in again.samples)
    assert stored(again).state == "complete"
    verdict = judge_runs([stored(whole), stored(again, 1)], num_envs=1024, nthread=8)
    assert verdict == judge_runs([stored(whole)], num_envs=1024, nthread=8)


def test_a_race_takes_up_where_one_was_cut_short() -> None:
    cut = run(quiet_pool(COSTS), [1, 4, 9, 20, 64], time_budget_s=0.1)
    assert stored(cut).state == "cut short"
    rest = run(quiet_pool(COSTS, 1), [1, 4, 9, 20, 64], earlier=[stored(cut)])
    whole = run(quiet_pool(COSTS, 1), [1, 4, 9, 20, 64])
    assert len(rest.samples) < len(whole.samples)
    verdict = judge_runs([stored(cut), stored(rest, 1)], num_envs=1024, nthread=8)
    assert verdict.chunk_size == 4
    assert verdict.decided


def test_what_failed_in_an_earlier_run_is_not_tried_again() -> None:
    whole = run(quiet_pool(COSTS), [1, 4, 9, 20, 64])
    earlier = stored(whole, state="cut short")
    failing = stored(run(quiet_pool(COSTS), [20]), 1)
    failing = replace(failing, failed=(Candidate(4),))
    race = run(quiet_pool(COSTS, 1), [1, 4, 9, 20, 64], earlier=[earlier, failing])
    assert Candidate(4) not in {s.candidate for s in race.samples}


def test_failed_and_imported_runs_are_no_reason_to_time_less() -> None:
    whole = run(quiet_pool(COSTS), [1, 4, 9, 20, 64])
    for state in ("failed", "imported"):
        again = run(quiet_pool(COSTS), [1, 4, 9, 20, 64], earlier=[stored(whole, state=state)])
        assert again == whole


# --- relatives ------------------------------------------------------------------------------


def test_an_old_winner_is_confirmed_by_a_short_duel() -> None:
    race = run(quiet_pool(COSTS), [1, 4, 9, 20, 64], confirm=4)
    assert {s.candidate.chunk_size for s in race.samples} == {None, 4}
    assert sum(not s.warm_up for s in race.samples) <= 16
    assert race.verdict.chunk_size == 4
    assert race.verdict.decided
    assert judge_runs([stored(race)], num_envs=1024, nthread=8) == race.verdict


@pytest.mark.parametrize("old", [1, 20, 64])
def test_an_old_winner_that_wins_no_more_is_only_a_start(old: Any) -> None:
    plain = run(quiet_pool(COSTS), [1, 4, 9, 20, 64])
    race = run(quiet_pool(COSTS), [1, 4, 9, 20, 64], confirm=old)
    assert race.verdict.chunk_size == 4
    assert race.verdict.decided
    assert len(race.samples) <= len(plain.samples) + 16


@pytest.mark.parametrize("old", [12, 7])
def test_an_old_winner_that_is_no_candidate_is_not_timed(old: Any) -> None:
    race = run(quiet_pool(COSTS), [1, 4, 9, 20, 64], confirm=old)
    assert Candidate(old) not in {s.candidate for s in race.samples}
    assert race.verdict.chunk_size == 4


def test_an_old_winner_that_the_pool_refuses_is_out() -> None:
    def refuse(arguments: Any) -> None:
        if arguments["chunk_size"] == 20:
            raise RuntimeError("no")

    pool = Wrapped(quiet_pool(COSTS), refuse)
    race = run(pool, [1, 4, 9, 20, 64], clock=pool.pool.clock, confirm=20)
    assert set(race.failures) == {Candidate(20)}
    assert race.verdict.chunk_size == 4


def test_a_likely_winner_is_first_held_against_the_default() -> None:
    for history in ({"prior": [20]}, {"prior": [None, 20]}, {"confirm": 20}):
        race = run(quiet_pool(COSTS), [1, 4, 9, 20, 64], **history)
        counted = [s.candidate.chunk_size for s in race.samples if not s.warm_up]
        assert counted[:4] == [None, 20, 20, None]
        assert race.verdict.chunk_size == 4


CHANGED: dict[int | None, float] = {None: 0.01, 1: 0.02, 3: 0.012, 9: 0.0096, 20: 0.011, 64: 0.0085}
"""Seconds of a step where 9, the winner elsewhere, gains 4 % and the best 15 %."""


@pytest.mark.parametrize("history", [{"prior": [9]}, {"confirm": 9}])
def test_a_likely_winner_that_gains_much_less_than_it_did_is_believed_no_longer(
    history: dict[str, Any],
) -> None:
    sizes = [c for c in CHANGED if c]
    kept = run(quiet_pool(CHANGED), sizes, **history, prior_gain=0.04)
    assert kept.verdict.chunk_size == 9
    assert len(kept.samples) <= 24
    doubted = run(quiet_pool(CHANGED), sizes, **history, prior_gain=0.15)
    assert doubted.verdict.chunk_size == 64


def test_the_gain_is_of_the_first_likely_winner_and_of_no_other() -> None:
    sizes = [c for c in CHANGED if c]
    histories: tuple[list[int | None], ...] = ([None, 9], [5, 9])  # 5 is no candidate here
    for history in histories:
        told = run(quiet_pool(CHANGED), sizes, prior=history, prior_gain=0.9)
        assert told == run(quiet_pool(CHANGED), sizes, prior=history)


@pytest.mark.parametrize("gain", [None, 0.0, -0.5, 1.0, 7.0, math.nan])
def test_a_gain_that_says_nothing_is_as_good_as_none(gain: float | None) -> None:
    race = run(quiet_pool(COSTS), [1, 4, 9, 20, 64], confirm=4, prior_gain=gain)
    assert race == run(quiet_pool(COSTS), [1, 4, 9, 20, 64], confirm=4)


def test_an_old_winner_must_be_a_chunk_size() -> None:
    with pytest.raises(ArgumentError):
        run(quiet_pool(COSTS), [4], confirm=2000)


def test_a_relative_that_kept_its_default_says_where_to_look_first() -> None:
    costs: dict[int | None, float] = {None: 0.01, 12: 0.01}
    costs |= {c: 0.01 * (1 + 0.03 * abs(math.log(c / 12))) for c in (1, 3, 6, 9, 20, 40, 64, 128)}
    candidates = [c for c in costs if c]
    told = [run(quiet_pool(costs, k), candidates, seed=k, prior=[None]) for k in range(5)]
    assert {r.verdict.chunk_size for r in told} == {None}
    for race in told:
        assert {None, 9, 20} <= {s.candidate.chunk_size for s in race.samples if s.block == 1}


def test_earlier_runs_lead_no_race_to_a_size_that_the_pool_cannot_take() -> None:
    costs = {None: 9.4, 2: 9.3, 3: 9.2, 4: 9.1, 8: 9.0, 500: 30.0, 600: 9.0}
    pool = ClockworkPool(64, 2)
    run(pool, [2, 3, 4, 8], num_envs=64, nthread=2, earlier=[a_run(1, costs, pairs=0)])
    assert {chunk for chunk in pool.chunks if chunk} <= {2, 3, 4, 8}
