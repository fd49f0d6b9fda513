import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks.simulation import Problem
from tests.support.facts import ClockworkPool
from tests.support.races import COSTS, Wrapped, quiet_pool, run, stored
from tests.support.stored import a_run
from tuner.budget import RESUME_SHARE
from tuner.errors import ArgumentError
from tuner.racing.meta_analysis import judge_runs
from tuner.records import Candidate, Run


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


def test_a_race_with_nothing_left_to_time_compares_once_more() -> None:
    whole = run(quiet_pool(COSTS), [1, 4, 9, 20, 64])
    again = run(quiet_pool(COSTS, 1), [1, 4, 9, 20, 64], earlier=[stored(whole)])
    assert [s.candidate.chunk_size for s in again.samples if s.block] == [None, 4, 4, None]
    assert stored(again).state == "complete"
    verdict = judge_runs([stored(whole), stored(again, 1)], num_envs=1024, nthread=8)
    assert verdict.candidate == whole.verdict.candidate


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


@pytest.mark.parametrize("noise", ["2 %", "spikes", "6 %", "two speeds"])
@pytest.mark.parametrize("landscape", ["equal", "flat", "rugged", "lone winner"])
@pytest.mark.parametrize("budget", [0.5, 5.0])
def test_every_call_adds_evidence_until_the_key_is_decided(
    landscape: str, noise: str, budget: float
) -> None:
    problem = Problem(landscape, noise, 1024, 8, 3, step_seconds=0.01)
    runs: list[Run] = []
    for call in range(25):
        race = run(
            problem.pool(call),
            problem.candidates(),
            time_budget_s=RESUME_SHARE * budget if call else budget,
            seed=call,
            earlier=runs,
        )
        assert not all(sample.warm_up for sample in race.samples)
        runs.append(stored(race, call))
        if judge_runs(runs, num_envs=1024, nthread=8).decided:
            return
    pytest.fail("undecided after 25 calls")
