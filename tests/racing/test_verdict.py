import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.racing.comparison import PoolShape, paired_differences, t95
from tuner.racing.verdict import judge, select_chunk_size
from tuner.records import NATIVE_DEFAULT, Candidate, Sample

Blocks = Sequence[Sequence[int | None]]

times = st.floats(1e-6, 10.0)
sizes = st.integers(1, 256)


def taken(
    blocks: Blocks,
    costs: dict[int | None, float],
    *,
    noise: float = 0.0,
    seed: int = 0,
    steps: int = 1,
) -> list[Sample]:
    """Samples of `blocks` (lists of chunk sizes) at these costs in seconds, by chunk size."""
    rng = np.random.default_rng(seed)
    found: list[Sample] = []
    for number, block in enumerate(blocks):
        for c in block:
            seconds = costs[c] * math.exp(noise * rng.standard_normal()) * steps
            found.append(
                Sample(Candidate(c), number, len(found), round(seconds * 1e9), repeats=steps)
            )
    return found


def one_after_another(first: list[Sample], second: list[Sample]) -> list[Sample]:
    round_, order = 1 + first[-1].block, 1 + first[-1].order
    return first + [replace(s, block=s.block + round_, order=s.order + order) for s in second]


def duel(c: int | None, quartets: int) -> list[list[int | None]]:
    return [[None, c, c, None]] * quartets


# --- select_chunk_size ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("timings", "expected"),
    [
        ({}, None),
        ({None: 1.0}, None),
        ({4: 0.5, 8: 0.4}, None),  # nothing to compare with
        ({None: math.nan, 4: 0.5}, None),
        ({None: 0.0, 4: 0.5}, None),
        ({None: 1.0, 4: 0.98}, None),
        ({None: 1.0, 4: 0.97}, 4),  # exactly the margin
        ({None: 0.1, 4: 0.1 * 0.97}, 4),
        ({None: 1.0, 4: math.nan, 8: 0.9}, 8),
        ({None: 1.0, 4: 0.0, 8: -1.0, 16: math.inf}, None),
        ({None: 1.0, 4: 0.90, 12: 0.91}, 12),  # a tie: nearest the base
        ({None: 1.0, 4: 0.80, 12: 0.91}, 4),
        ({None: 1.0, 8: 0.9, 12: 0.9}, 8),  # equally near 10: the smaller
        ({None: 1.0, 4: 0.96, 10: 0.975}, 4),  # a tie must clear the margin itself
    ],
)
def test_fixed_plan_choice(timings: Any, expected: Any) -> None:
    assert select_chunk_size(timings, 10) == expected


@given(
    default=times, rest=st.dictionaries(sizes, times), base=sizes, scale=st.sampled_from([0.5, 4.0])
)
def test_fixed_plan_choice_is_given_faster_and_free_of_units(
    default: Any, rest: Any, base: Any, scale: Any
) -> None:
    timings: dict[int | None, float] = {None: default, **rest}
    choice = select_chunk_size(timings, base)
    assert choice is None or timings[choice] <= default * 0.97 * (1 + 1e-6)
    assert choice == select_chunk_size({c: t * scale for c, t in timings.items()}, base)


# --- judge ----------------------------------------------------------------------------------


def test_no_samples_is_undecided() -> None:
    verdict = judge([])
    assert verdict.candidate == NATIVE_DEFAULT
    assert (verdict.decided, verdict.reason) == (False, "too few")
    assert judge([], cut_short=True).reason == "budget"


def test_only_warm_ups_is_undecided() -> None:
    assert judge([Sample(NATIVE_DEFAULT, 0, 0, 1000, warm_up=True)]).reason == "too few"


def test_samples_without_the_default_decide_nothing() -> None:
    assert not judge(taken([[4, 8, 4, 8]] * 5, {4: 1.0, 8: 0.5})).decided


def test_a_duel_proves_a_clear_winner() -> None:
    costs = {None: 1.0, 4: 0.9, 8: 1.3}
    verdict = judge(taken([[None, 4, 8], *duel(4, 4)], costs, noise=0.003))
    assert verdict.chunk_size == 4
    assert verdict.decided
    assert verdict.reason is None
    assert verdict.gain is not None
    assert verdict.gain_low is not None
    assert verdict.gain_high is not None
    assert verdict.gain_low < verdict.gain < verdict.gain_high
    assert verdict.gain == pytest.approx(0.1, abs=0.01)
    assert [e.candidate.chunk_size for e in verdict.estimates] == [None, 4, 8]
    assert verdict.estimates[0].relative == 1.0
    assert verdict.estimates[2].relative == pytest.approx(1.3, abs=0.05)


def test_exploring_alone_proves_nothing() -> None:
    verdict = judge(taken([[None, 4, 8]] * 6, {None: 1.0, 4: 0.8, 8: 1.3}, noise=0.003))
    assert verdict.chunk_size is None
    assert not verdict.decided


def test_timings_one_candidate_after_another_prove_nothing() -> None:
    blocks: Blocks = [[None] * 20, [4] * 20]
    assert judge(taken(blocks, {None: 1.0, 4: 0.8}, noise=0.01)).chunk_size is None


def test_the_gain_rests_on_the_duel_alone() -> None:
    lucky = taken([[None, 4]] * 1, {None: 1.0, 4: 0.5})
    fair = taken(duel(4, 4), {None: 1.0, 4: 0.9}, noise=0.001)
    both = one_after_another(taken([[None, 4, 8]], {None: 1.0, 4: 0.5, 8: 1.0}), fair)
    assert judge(both).gain == pytest.approx(0.1, abs=0.01)
    assert lucky  # a single pair is a duel too short to prove anything
    assert judge(lucky).chunk_size is None


def test_the_twin_of_the_default_shares_its_samples_and_never_wins() -> None:
    costs = {None: 1.0, 12: 0.7, 4: 1.2}
    samples = taken([*duel(12, 6), [None, 12, 4]], costs)
    verdict = judge(samples, num_envs=1024, nthread=8)
    assert verdict.chunk_size is None
    assert [e.candidate.chunk_size for e in verdict.estimates] == [None, 4]
    assert verdict.estimates[0].samples == 26


def test_one_spiked_pair_does_not_hide_a_winner() -> None:
    samples = taken([[None, 4, 8], *duel(4, 6)], {None: 1.0, 4: 0.9, 8: 1.3}, noise=0.002)
    late = samples[4]
    samples[4] = Sample(late.candidate, late.block, late.order, late.nanoseconds * 2)
    assert judge(samples).chunk_size == 4


def test_a_slow_machine_in_one_half_of_the_run_does_not_matter() -> None:
    fast = taken([[None, 4, 8], *duel(4, 3)], {None: 1.0, 4: 0.93, 8: 1.1}, noise=0.003)
    slow = taken(duel(4, 3), {None: 1.6, 4: 1.6 * 0.93}, noise=0.003, seed=1)
    verdict = judge(one_after_another(fast, slow))
    assert verdict.chunk_size == 4
    assert verdict.gain == pytest.approx(0.07, abs=0.01)


def test_among_equals_the_one_nearest_the_native_rule() -> None:
    # 1024 environments on 8 threads: the native rule gives 12.
    costs = {None: 1.0, 4: 0.9, 9: 0.9, 38: 0.9}
    samples = taken([*duel(4, 5), *duel(9, 5), *duel(38, 5)], costs)
    assert judge(samples, num_envs=1024, nthread=8).chunk_size == 9
    assert judge(samples).chunk_size == 4  # rule unknown: the smaller


def test_cut_short_is_never_decided() -> None:
    samples = taken([[None, 4, 8], *duel(4, 4)], {None: 1.0, 4: 0.9, 8: 1.3}, noise=0.003)
    verdict = judge(samples, cut_short=True)
    assert verdict.chunk_size == 4
    assert (verdict.decided, verdict.reason) == (False, "budget")


def test_the_order_in_which_samples_are_handed_over_does_not_matter() -> None:
    samples = taken([[None, 4, 8], *duel(4, 4)], {None: 1.0, 4: 0.9, 8: 1.3}, noise=0.01)
    assert judge(samples) == judge(list(reversed(samples)))


def test_steps_inside_a_sample_are_divided_out() -> None:
    once = judge(taken(duel(4, 4), {None: 1.0, 4: 0.9}))
    often = judge(taken(duel(4, 4), {None: 1.0, 4: 0.9}, steps=8))
    assert often.gain == pytest.approx(once.gain)
    assert often.estimates[0].milliseconds == pytest.approx(once.estimates[0].milliseconds)


costs_by_size = st.dictionaries(sizes, st.floats(0.5, 2.0), min_size=1, max_size=6)


@settings(max_examples=40, deadline=None)
@given(rest=costs_by_size, scale=st.sampled_from([0.25, 1000.0]), seed=st.integers(0, 99))
def test_verdict_does_not_depend_on_the_unit_of_time(rest: Any, scale: Any, seed: Any) -> None:
    costs = {None: 1.0, **rest}
    blocks = [list(costs), *(quartet for c in rest for quartet in duel(c, 3))]
    one = judge(taken(blocks, costs, noise=0.02, seed=seed))
    other = judge(taken(blocks, {c: t * scale for c, t in costs.items()}, noise=0.02, seed=seed))
    assert one.candidate == other.candidate
    assert one.candidate.chunk_size in costs
    assert one.gain == pytest.approx(other.gain, abs=1e-4)


@settings(max_examples=40, deadline=None)
@given(rest=costs_by_size)
def test_without_noise_the_choice_is_never_slower_than_the_default(rest: Any) -> None:
    costs = {None: 1.0, **rest}
    blocks = [list(costs), *(quartet for c in rest for quartet in duel(c, 3))]
    verdict = judge(taken(blocks, costs), num_envs=256, nthread=2)
    assert verdict.chunk_size != 12
    assert costs[verdict.chunk_size] <= 1.0


# --- the parts ------------------------------------------------------------------------------


def test_pairs_are_neighbours_of_one_round() -> None:
    which = [0, 1, 1, 0, 0, 1, 2, 1, 1, 0]
    rounds = [0, 0, 0, 0, 1, 1, 1, 2, 2, 2]
    logs = [math.log([1.0, 0.5, 1.0][k]) for k in which]
    found = paired_differences(which, rounds, list(range(10)), logs)
    assert found == {1: [pytest.approx(math.log(0.5))] * 3}
    assert paired_differences(which, rounds, list(range(0, 20, 2)), logs) == {}


def test_t_quantiles_against_published_ones() -> None:
    published = {1: 12.706, 4: 2.776, 12: 2.179, 13: 2.160, 20: 2.086, 30: 2.042, 120: 1.980}
    for freedom, quantile in published.items():
        assert t95(freedom) == pytest.approx(quantile, abs=0.005)
    assert t95(0) == math.inf


def test_idle_threads_of_the_last_round() -> None:
    work = PoolShape(num_envs=1024, nthread=8)
    assert work.native_chunk == 12
    assert work.idle(128) == 0.0
    assert work.idle(127) == pytest.approx(math.log(2 * 127 * 8 / 1024))
    assert PoolShape(1024, None).idle(127) == 0.0
    assert PoolShape(1024, None).native_chunk is None
