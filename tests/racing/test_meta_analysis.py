import math
import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.history import (
    CLEAR,
    Added,
    coverage,
    main,
    repeated,
    short_runs,
    verdict_seconds,
)
from benchmarks.simulation import SIZES, Problem
from tuner.racing.comparison import PoolShape
from tuner.racing.meta_analysis import (
    ENOUGH_SAMPLES,
    ENOUGH_SECONDS,
    combine_runs,
    estimate_run,
    judge_runs,
)
from tuner.racing.verdict import judge
from tuner.records import NATIVE_DEFAULT, Candidate, Run, Sample, Verdict

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
COSTS: dict[int | None, float] = {None: 1.0, 4: 0.95, 9: 0.98, 20: 1.03, 64: 1.2}
EXPLORED: list[list[int | None]] = [[None, 4, 9, 20, 64], [4, None, 9, 20], [9, 4, None, 64]]


def duel(c: int | None, quartets: int) -> list[list[int | None]]:
    return [[None, c, c, None]] * quartets


def run_of(
    blocks: Sequence[Sequence[int | None]],
    *,
    hour: int = 0,
    costs: dict[int | None, float] | None = None,
    noise: float = 0.01,
    ms: float = 10.0,
    **fields: Any,
) -> Run:
    """A run that finished at this hour; the hour also draws its noise and its machine's speed."""
    rng = np.random.default_rng(hour)
    costs = COSTS | (costs or {})
    speed = math.exp(0.2 * rng.standard_normal())
    samples: list[Sample] = []
    for number, block in enumerate(blocks):
        for c in block:
            time = speed * costs[c] * math.exp(noise * rng.standard_normal())
            samples.append(Sample(Candidate(c), number, len(samples), round(time * ms * 1e6)))
    fields.setdefault("state", "complete")
    return Run(
        finished=EPOCH + timedelta(hours=hour), uid=f"{hour:032x}", samples=tuple(samples), **fields
    )


FULL = [*EXPLORED, *duel(4, 8)]


def verdict_of(*runs: Run) -> Verdict:
    return judge_runs(runs, num_envs=1024, nthread=8)


# --- how many runs there are ----------------------------------------------------------------


def test_no_run_says_nothing() -> None:
    verdict = verdict_of()
    assert (verdict.candidate, verdict.decided) == (NATIVE_DEFAULT, False)
    assert verdict.between_runs is None
    assert verdict.expected_loss is None


@pytest.mark.parametrize("state", ["complete", "cut short"])
def test_one_run_is_judged_as_ever(state: Any) -> None:
    run = run_of(FULL, state=state, failed=(Candidate(9),))
    alone = judge(
        run.samples, num_envs=1024, nthread=8, cut_short=state == "cut short", failed=run.failed
    )
    assert verdict_of(run) == alone
    assert alone.between_runs is None


def test_runs_without_timings_and_failed_ones_say_nothing() -> None:
    run = run_of(FULL)
    lied = run_of(FULL, hour=1, costs={4: 2.0}, state="failed")
    assert verdict_of(run, lied, run_of([], hour=2)) == verdict_of(run)


def test_two_runs_that_agree_do_not_take_back_what_one_proved() -> None:
    one, both = verdict_of(run_of(FULL)), verdict_of(run_of(FULL), run_of(FULL, hour=1))
    assert one.chunk_size == both.chunk_size == 4
    assert both.decided
    assert both.gain == pytest.approx(0.05, abs=0.01)
    assert both.between_runs is not None
    assert 0 < both.between_runs < 0.01
    assert {e.candidate: e.samples for e in both.estimates} == {
        e.candidate: 2 * e.samples for e in one.estimates
    }


def test_short_runs_add_up_to_a_proof() -> None:
    short = [run_of([[None, 4, 9, 20], *duel(4, 1)], hour=k, noise=0.005) for k in range(6)]
    assert verdict_of(short[0]).chunk_size is None
    assert verdict_of(*short).chunk_size == 4


def test_ten_runs_know_more_than_two() -> None:
    runs = [run_of(FULL, hour=k, noise=0.02) for k in range(10)]

    def width(verdict: Verdict) -> float:
        estimate = next(e for e in verdict.estimates if e.candidate.chunk_size == 4)
        return estimate.high - estimate.low

    assert width(verdict_of(*runs)) < width(verdict_of(*runs[:2]))


def test_the_twin_of_the_default_and_failed_candidates_are_out() -> None:
    blocks = [[None, 4, 9, 12], *duel(12, 4), *duel(4, 4)]
    runs = [run_of(blocks, hour=k, costs={12: 0.5}) for k in range(2)]
    assert [e.candidate.chunk_size for e in verdict_of(*runs).estimates] == [None, 4, 9]
    failing = run_of(FULL, hour=5, failed=(Candidate(4),))
    verdict = verdict_of(*runs, failing)
    assert verdict.chunk_size != 4
    assert Candidate(4) not in {e.candidate for e in verdict.estimates}


def test_runs_without_the_default_still_tell_the_others_apart() -> None:
    runs = [run_of(FULL), run_of([[4, 9, 20, 64]] * 3, hour=1, state="cut short")]
    verdict = verdict_of(*runs)
    assert verdict.chunk_size == 4
    assert verdict.decided
    assert judge_runs([runs[1], runs[1]]).candidate == NATIVE_DEFAULT


# --- order, and the unit of time ------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(
    gains=st.lists(st.floats(-0.1, 0.1), min_size=2, max_size=5),
    noise=st.sampled_from([0.0, 0.005, 0.03]),
    shuffle=st.randoms(use_true_random=False),
)
def test_the_order_in_which_runs_come_does_not_matter(
    gains: list[float], noise: float, shuffle: random.Random
) -> None:
    runs = [
        run_of(FULL[: 3 + k], hour=k, costs={4: 1 - gain}, noise=noise)
        for k, gain in enumerate(gains)
    ]
    shuffled = list(runs)
    shuffle.shuffle(shuffled)
    first = verdict_of(*runs)
    assert repr(first) == repr(verdict_of(*shuffled))  # to the last bit
    if first.decided:
        assert first.chunk_size in {None, 4}
    assert first.gain is not None
    assert first.gain >= 0


@settings(max_examples=15, deadline=None)
@given(scale=st.sampled_from([0.5, 64.0]))
def test_the_unit_of_time_does_not_matter(scale: float) -> None:
    runs = [run_of(FULL, hour=k, ms=10.0) for k in range(3)]
    scaled = [run_of(FULL, hour=k, ms=10.0 * scale) for k in range(3)]
    one, other = verdict_of(*runs), verdict_of(*scaled)
    assert one.candidate == other.candidate
    assert one.gain == pytest.approx(other.gain, abs=1e-4)


# --- runs that differ -----------------------------------------------------------------------


def test_the_spread_between_runs_grows_with_what_they_disagree() -> None:
    spreads = []
    for off in (0.0, 0.01, 0.03, 0.1):
        runs = [
            run_of(FULL, hour=k, costs={4: 0.95 + (off if k % 2 else -off)}, noise=0.003)
            for k in range(4)
        ]
        spreads.append(verdict_of(*runs).between_runs or 0.0)
    assert spreads == sorted(spreads)
    assert spreads[0] < 0.005
    assert spreads[-1] > 0.02


def test_what_runs_disagree_on_widens_the_interval_of_the_gain() -> None:
    def width(off: float) -> float:
        runs = [
            run_of(FULL, hour=k, costs={4: 0.9 + (off if k % 2 else -off)}, noise=0.003)
            for k in range(6)
        ]
        verdict = verdict_of(*runs)
        assert verdict.chunk_size == 4
        assert verdict.gain_low is not None
        assert verdict.gain_high is not None
        return verdict.gain_high - verdict.gain_low

    assert width(0.02) > 2 * width(0.0)


@pytest.mark.parametrize(("late", "noisy"), [(0.02, False), (0.2, True), (0.3, True), (0.5, True)])
def test_a_few_late_timings_are_no_noise_and_many_are(late: float, noisy: bool) -> None:
    # As on a machine that is busy with others: each timing is late, by nine tenths, or is not.
    draw = np.random.default_rng(1)
    blocks = [*EXPLORED * 4, *duel(4, 16)]
    even = run_of(blocks, costs=dict.fromkeys(COSTS, 1.0))
    runs = [
        replace(
            even,
            samples=tuple(
                replace(s, nanoseconds=round(s.nanoseconds * (1.9 if draw.random() < late else 1)))
                for s in even.samples
            ),
        )
        for _ in range(2)
    ]
    reports = [estimate_run(run.samples, PoolShape(1024, 8)) for run in runs]
    noise = combine_runs([r for r in reports if r], PoolShape(1024, 8)).analysis.fit.noise
    assert noise < 0.03 if not noisy else 0.1 < noise < 0.5


def test_runs_that_contradict_each_other_are_undecided() -> None:
    faster, slower = run_of(FULL), run_of(FULL, hour=1, costs={4: 1.05})
    verdict = verdict_of(faster, slower)
    assert verdict.candidate == NATIVE_DEFAULT
    assert (verdict.decided, verdict.reason) == (False, "contradiction")
    assert verdict_of(faster).chunk_size == 4


def test_a_choice_that_lost_its_gain_is_withdrawn() -> None:
    old = [run_of(FULL, hour=k) for k in range(4)]
    assert verdict_of(*old).chunk_size == 4
    gone = run_of(duel(4, 4), hour=9, costs={4: 1.0}, strategy="verify")
    verdict = verdict_of(*old, gone)
    assert verdict.candidate == NATIVE_DEFAULT
    assert (verdict.decided, verdict.reason) == (False, "contradiction")


def test_a_choice_that_is_verified_stays() -> None:
    held = run_of(duel(4, 4), hour=9, strategy="verify")
    verdict = verdict_of(run_of(FULL), held)
    assert verdict.chunk_size == 4
    assert verdict.decided


# --- what makes it decided ------------------------------------------------------------------


def test_runs_cut_short_are_undecided_until_one_completes() -> None:
    cut = [run_of(FULL, hour=k, state="cut short") for k in range(2)]
    verdict = verdict_of(*cut)
    assert verdict.chunk_size == 4
    assert (verdict.decided, verdict.reason) == (False, "budget")
    assert verdict_of(*cut, run_of(FULL, hour=2)).decided


def test_a_verify_run_does_not_stand_for_having_looked_at_all() -> None:
    cut = run_of(FULL, state="cut short")
    verify = run_of(duel(4, 4), hour=1, strategy="verify")
    assert verdict_of(cut, verify).reason == "budget"


def test_two_candidates_are_not_all_unless_a_run_went_on_from_others() -> None:
    only_two = run_of(duel(4, 4), state="complete")
    cut = run_of(EXPLORED, hour=1, state="cut short")
    assert verdict_of(only_two).decided
    assert verdict_of(only_two, cut).reason == "budget"
    went_on = run_of(duel(4, 4), hour=2)
    assert verdict_of(cut, went_on).decided


def test_a_resumed_run_that_had_nothing_left_to_time_completes() -> None:
    cut = run_of(FULL, state="cut short")
    nothing = Run("complete", EPOCH + timedelta(hours=3), samples=(_warm_up(),))
    assert verdict_of(cut).reason == "budget"
    assert verdict_of(cut, nothing).decided


def _warm_up() -> Sample:
    return Sample(NATIVE_DEFAULT, 0, 0, 10_000_000, warm_up=True)


def test_when_all_time_is_spent_the_rule_for_ties_decides() -> None:
    def undecided(ms: float, hour: int) -> Run:
        return run_of(EXPLORED, hour=hour, costs={4: 1.0}, noise=0.1, ms=ms, state="cut short")

    few = [undecided(10.0, k) for k in range(3)]
    assert not verdict_of(*few).decided
    taken = len(few[0].samples)
    long = [undecided(1.5e3 * ENOUGH_SECONDS / taken, k) for k in range(3)]
    many = [undecided(1.0, k) for k in range(1 + ENOUGH_SAMPLES // taken)]
    for runs in (long, many):
        verdict = verdict_of(*runs)
        assert verdict.candidate == NATIVE_DEFAULT
        assert (verdict.decided, verdict.reason) == (True, "tie")


# --- stated choices -------------------------------------------------------------------------


def stated(c: int | None, hour: int) -> Run:
    return run_of([[None, 4]], hour=hour, state="imported", choice=Candidate(c))


def test_the_latest_stated_choice_stands_where_nothing_was_measured() -> None:
    verdict = verdict_of(stated(20, 5), stated(9, 3))
    assert verdict == Verdict(Candidate(20), True, None, None, None, None)
    assert verdict_of(stated(None, 6), stated(9, 3)).candidate == NATIVE_DEFAULT


def test_a_decided_measurement_beats_a_stated_choice_and_an_undecided_one_does_not() -> None:
    assert verdict_of(stated(9, 5), run_of(FULL)).chunk_size == 4
    assert verdict_of(stated(9, 5), run_of(FULL, state="cut short")).chunk_size == 9


def test_samples_of_an_imported_run_are_no_evidence() -> None:
    run = run_of(FULL)
    imported = run_of(FULL, hour=1, costs={4: 2.0}, state="imported")
    assert verdict_of(run, imported) == verdict_of(run)


# --- promises in numbers: the same code as the benchmark ------------------------------------


@pytest.fixture(scope="module")
def added() -> list[Added]:
    """Short runs and long ones, where a step is so slow that a short run cannot do it all."""
    todo = [
        Problem(landscape, noise, 1024, 8, seed, step_seconds=0.1)
        for landscape in ("convex", "rugged")
        for noise in ("2 %", "neighbour")
        for seed in (1, 2)
    ]
    return [row for p in todo for row in short_runs((p, 0.0))]


def test_ten_short_runs_are_worth_one_long_one(added: list[Added]) -> None:
    last = [row for row in added if row.runs == 10]
    first = [row for row in added if row.runs == 1]
    assert np.mean([r.short for r in last]) <= np.mean([r.long for r in last]) + 0.002
    assert np.mean([r.short for r in last]) <= np.mean([r.short for r in first])
    assert not any(r.harm for r in added)
    assert np.mean([r.decided for r in last]) >= 0.7


def test_where_days_differ_the_spread_between_runs_is_what_covers_the_truth() -> None:
    rows = [
        row
        for landscape in ("convex", "steps")
        for noise in ("quiet", "2 %", "drift")
        for row in coverage(Problem(landscape, noise, 1024, 8, 3, step_seconds=0.01))
        if row.runs == 10
    ]
    assert np.mean([r.pooled for r in rows]) >= 0.8
    assert np.mean([r.joined for r in rows]) < np.mean([r.pooled for r in rows])


def test_repeated_tunes_agree_where_one_candidate_clearly_leads() -> None:
    flips = [
        repeated(Problem("steps", noise, n, t, 0)) for noise in ("quiet", "2 %") for n, t in SIZES
    ]
    clear = [f.differing for f in flips if f.lead > CLEAR]
    assert clear
    assert np.mean(clear) <= 0.05


def test_the_script_prints_its_tables(monkeypatch: Any, capsys: Any) -> None:
    few = [Problem("convex", "quiet", 256, 2, 0, step_seconds=0.01)]
    monkeypatch.setattr("benchmarks.history.problems", lambda _seeds: few)
    monkeypatch.setattr("benchmarks.history.verdict_seconds", lambda: verdict_seconds(3, 60))
    assert main([]) == 0
    printed = capsys.readouterr().out
    for heading in ("short runs", "lead over the runner-up", "relative", "cover, joined"):
        assert heading in printed


def test_what_the_pool_cannot_take_is_never_chosen() -> None:
    costs = COSTS | {500: 0.5}
    blocks = [*EXPLORED, [None, 500], *duel(500, 6)]
    runs = [run_of(blocks, hour=hour, costs=costs) for hour in range(3)]
    for some in (runs[:1], runs):
        assert judge_runs(some, num_envs=64, nthread=2).chunk_size in (None, 4, 9, 20, 64)
        assert judge_runs(some, num_envs=1024, nthread=2).chunk_size == 500


def test_a_stated_choice_that_the_pool_cannot_take_does_not_stand() -> None:
    stated = [
        Run(state="imported", finished=EPOCH, choice=Candidate(chunk)) for chunk in (16, 5000)
    ]
    assert judge_runs(stated, num_envs=64, nthread=2).chunk_size == 16
    assert not judge_runs(stated[1:], num_envs=64, nthread=2).decided
    assert judge_runs(stated[1:]).chunk_size == 5000


def test_a_process_that_stood_still_has_not_spent_what_a_key_is_worth() -> None:
    run = run_of(EXPLORED[:1])
    late = replace(run.samples[2], nanoseconds=round(2 * ENOUGH_SECONDS * 1e9))
    samples = (*run.samples[:2], late, *run.samples[3:])
    stopped = replace(run, state="cut short", samples=samples)
    assert not judge_runs([stopped], num_envs=1024, nthread=8).decided
