"""Plans a race: from the samples so far, which candidates to time next, or stop.

Pure: no clock, no pool, no state of its own. The same samples and seed give the same plan.

A race has two kinds of blocks. An exploring block times the candidates with the largest expected
improvement, beside the leader, in random order. A comparison block times the leader and the
native default in turn; only comparisons prove anything (see `tuner.racing.comparison`).
Exploring ends when it is expected to gain too little; a comparison ends when it has proven the
leader faster, or when the expected gain is too small.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from tuner.racing.comparison import (
    MIN_GAIN,
    NO_COMPARISON,
    Analysis,
    PoolShape,
    analyse,
    expected_excess,
    usable_samples,
)
from tuner.racing.costs import ITERATIONS, FitScales
from tuner.racing.meta_analysis import RunEstimate, combine_runs, estimate_run
from tuner.racing.verdict import choose, contested
from tuner.records import NATIVE_DEFAULT, Candidate, Sample

if TYPE_CHECKING:
    from collections.abc import Sequence

FURTHER_ITERATIONS = 3
"""Of a fit that starts from the last block's scales: more would take longer than a light step."""
FIRST_BLOCK = 5
"""Candidates beside the default in the first block, spread over the range."""
FIRST_LIKELY = 1
"""The same beside likely winners and their neighbours, to check that history still holds."""
EXPLORE_BLOCK = 3
"""Contenders in a later block, beside the leader."""
MIN_EXPECTED_IMPROVEMENT = 0.0015
"""Exploring goes on while a block is expected to improve the choice by this much."""
MIN_EXPECTED_IMPROVEMENT_LIKELY = 0.05
"""The same while the leader is a likely winner by its history."""
MIN_COMPARISON_GAIN = 0.002
"""A comparison goes on while the leader is expected to gain this much more than `MIN_GAIN`."""
MIN_COMPARISON_GAIN_LIKELY = 0.0085
"""The same for a likely winner: a gain too small to be proven fast is left alone."""
MIN_RETAINED_GAIN = 0.5
"""A likely winner must probably retain this share of its earlier gain."""
MAX_COMPARISON_PAIRS = 60
"""A paired comparison that is undecided after so many pairs ends."""
MANY_TIMINGS = 100
"""With a budget of so many timings every candidate is timed once."""
LOOK_WITHIN = 0.05
"""With a smaller one, those predicted to be less than this much slower than the leader."""
OUTLIER_SLOWDOWN = 0.1
"""A candidate timed once, and this much slower than its neighbours, is probably an outlier."""
MAX_EXPLORED = 50
"""Timings, those of earlier runs included, after which exploring ends."""
REPEATS = 0.1
"""Variance of what a few timings of a candidate tell, over that of one: some ten of them.

Looking one timing ahead, a noisy one never promises anything."""
CONFIRM_PAIRS = 8
"""Pairs in which an old winner can confirm itself, at most: sixteen timings."""
COMPARISON_GROWTH = 8
"""A comparison of this many pairs continues in blocks of twice the length, and so forth."""
MAX_SAMPLES = 480
"""A race that has taken so many samples ends."""


@dataclass(frozen=True, slots=True)
class RaceState:
    """The candidates of a race and what is known of them beforehand."""

    candidates: tuple[Candidate, ...]
    """Without the native default, without its twin, without those that failed."""
    shape: PoolShape
    likely: tuple[Candidate, ...] = ()
    """Likely winners, from a relative's history; the native default may be among them."""
    likely_gain: float | None = None
    """What the first of them gained there over the default, as a share of the default's time."""
    confirm: Candidate | None = None
    """An old winner, to be confirmed before anything else is looked at."""
    earlier: tuple[RunEstimate, ...] = ()
    """What earlier runs say, in the order they finished."""


@dataclass(frozen=True, slots=True)
class BlockPlan:
    """What a planned block is based on."""

    block: tuple[Candidate, ...]
    """Candidates to time, in order; empty to stop."""
    contenders: int
    """Candidates that may still win."""
    leader: Candidate
    relative: tuple[float, float, float]
    """The leader's time over the default's, with the ends of a 95 % interval."""
    scales: FitScales | None = None
    """What the fit found out about the machine and the candidates."""
    cut_short: bool = False
    """It stops, and with more time left it would not have."""


STOP: tuple[Candidate, ...] = ()


def next_block(
    race_state: RaceState,
    samples: Sequence[Sample],
    rng: np.random.Generator,
    timings_left: float,
    before: BlockPlan | None = None,
) -> BlockPlan:
    """Plan the next block.

    Args:
        race_state: who is in the race.
        samples: all samples so far, in any order.
        rng: the only source of randomness.
        timings_left: how many timings of the default the budget still holds.
        before: the plan of the last block; what its fit scales shortens this one's.
    """
    usable = usable_samples(samples, race_state.shape.native_chunk)
    analysis, own = _evidence(race_state, usable, before)
    everyone = (NATIVE_DEFAULT, *race_state.candidates)
    if analysis is not None and not race_state.candidates:
        return BlockPlan(STOP, 1, NATIVE_DEFAULT, (1.0, 1.0, 1.0))
    timed = 0 if analysis is None else sum(count > 0 for count in analysis.counts)
    winner = next((c for c in race_state.likely if c in race_state.candidates), None)
    if winner and analysis is None:
        # History's winner comes first, in a comparison that can prove it.
        return BlockPlan(
            _comparison_block(winner, 0), len(everyone), NATIVE_DEFAULT, (1.0, 1.0, 1.0)
        )
    gain = race_state.likely_gain if winner in race_state.likely[:1] else None
    lost_gain = winner and analysis and _lost_its_gain(winner, gain, analysis)
    only_it = bool(winner) and timed == 2 and len(race_state.candidates) > 1
    if race_state.confirm and analysis and only_it and not lost_gain:
        plan = _confirming(race_state.confirm, analysis, everyone)
        if plan:
            return plan
    if analysis is None or timed < 2 or only_it:
        first = _first_block(race_state, timings_left)
        if only_it:
            first.remove(NATIVE_DEFAULT)  # it was timed beside the winner, who is in the block
        order = tuple(first[k] for k in rng.permutation(len(first)))
        return BlockPlan(order, len(everyone), NATIVE_DEFAULT, (1.0, 1.0, 1.0))
    # From here on only a likely winner other than the default matters.
    now = replace(race_state, likely=(winner,) if winner and not lost_gain else ())
    expected = ExpectedImprovement.of(analysis, everyone, now.likely)
    if len(usable) >= MAX_SAMPLES:
        block, cut_short = STOP, False
    else:
        # A small budget only times what probably wins.
        ample = len(usable) + timings_left >= MANY_TIMINGS
        look_within = math.inf if ample else LOOK_WITHIN
        block = _block(now, analysis, own, expected, timings_left, look_within)
        cut_short = not block and bool(_block(now, analysis, own, expected, math.inf, look_within))
    if not block and before and before.scales:
        # A verdict fits from the prior guesses: what it would still doubt is not the end.
        return next_block(race_state, samples, rng, timings_left)
    if not block and not usable:
        # Earlier runs leave nothing open, but none of them ended as planned: this one will.
        promising = max(range(1, len(everyone)), key=expected.improvement.__getitem__)
        leads = expected.leader != NATIVE_DEFAULT
        block = _comparison_block(expected.leader if leads else everyone[promising], 0)
    if block and not _is_comparison(block):
        block = tuple(block[k] for k in rng.permutation(len(block)))
    return BlockPlan(
        block, expected.contenders, expected.leader, expected.relative, analysis.scales, cut_short
    )


@dataclass(frozen=True, slots=True)
class _RunCounts:
    """Counts of this run's own timings."""

    explored: int
    """Samples outside comparisons."""
    pairs: dict[Candidate, int]
    """Of each one's comparison."""

    @classmethod
    def of(cls, timings: int, pairs: dict[Candidate, int]) -> _RunCounts:
        return cls(timings - 2 * sum(pairs.values()), pairs)


def _evidence(
    race_state: RaceState, usable: Sequence[Sample], before: BlockPlan | None
) -> tuple[Analysis | None, _RunCounts]:
    """What is known by now, earlier runs included, and how much of it this run has taken."""
    if not race_state.earlier:
        scales = before.scales if before else None
        analysis = analyse(
            usable,
            race_state.shape,
            race_state.candidates,
            iterations=FURTHER_ITERATIONS if scales else ITERATIONS,
            scales=scales,
        )
        comparisons = analysis.comparisons.items() if analysis else ()
        return analysis, _RunCounts.of(
            len(usable), {c: comparison.pairs for c, comparison in comparisons}
        )
    own = estimate_run(usable, race_state.shape)
    estimates = [*race_state.earlier, own] if own else race_state.earlier
    pairs = {c: len(d) for c, d in own.pairs.items()} if own else {}
    analysis = combine_runs(estimates, race_state.shape, race_state.candidates).analysis
    return analysis, _RunCounts.of(len(usable), pairs)


def _lost_its_gain(winner: Candidate, gain: float | None, analysis: Analysis) -> bool:
    """Tell whether a likely winner probably gains much less here than where it won."""
    if gain is None or not 0 < gain < 1:
        return False
    k = analysis.candidates.index(winner)
    doubt = math.sqrt(max(float(analysis.fit.covariance[k, k]), 0.0))
    return float(analysis.fit.mean[k]) - doubt > MIN_RETAINED_GAIN * math.log1p(-gain)


def _confirming(
    winner: Candidate, analysis: Analysis, everyone: tuple[Candidate, ...]
) -> BlockPlan | None:
    """Plan a short comparison of an old winner; None if it turns out not to win."""
    comparison, expected = (
        analysis.comparisons.get(winner, NO_COMPARISON),
        ExpectedImprovement.of(analysis, everyone),
    )
    if comparison.proven:
        block = STOP
    elif comparison.pairs < CONFIRM_PAIRS and (not comparison.pairs or expected.leader == winner):
        block = _comparison_block(winner, comparison.pairs)
    else:
        return None
    return BlockPlan(
        block, expected.contenders, expected.leader, expected.relative, analysis.scales
    )


def _block(
    race_state: RaceState,
    analysis: Analysis,
    own: _RunCounts,
    expected: ExpectedImprovement,
    timings_left: float,
    look_within: float,
) -> tuple[Candidate, ...]:
    """Explore while that pays, prove the leader, settle what the verdict doubts, then stop."""
    leader, comparison = expected.leader, analysis.comparisons.get(expected.leader, NO_COMPARISON)
    explored = sum(analysis.counts) - 2 * sum(d.pairs for d in analysis.comparisons.values())
    exploring = STOP
    if explored < MAX_EXPLORED:
        exploring = _exploring_block(race_state, analysis, expected, look_within)
    # Half of the budget at most, because what is found has to be proven.
    if exploring and own.explored < timings_left:
        return exploring
    worth = MIN_COMPARISON_GAIN_LIKELY if leader in race_state.likely else MIN_COMPARISON_GAIN
    unproven = leader != NATIVE_DEFAULT and not comparison.proven
    pairs = own.pairs.get(leader, 0)
    if unproven and pairs < MAX_COMPARISON_PAIRS and expected.over_default >= worth:
        return _comparison_block(leader, pairs)
    rival = contested(analysis, choose(analysis, race_state.shape.native_chunk))
    return exploring if rival is None else _comparison_block(rival, own.pairs.get(rival, 0))


def _exploring_block(
    race_state: RaceState, analysis: Analysis, expected: ExpectedImprovement, look_within: float
) -> tuple[Candidate, ...]:
    """The leader beside candidates that are worth a look or promise most; empty if none is."""
    leader, picks = expected.leader, expected.picks()
    likely = leader in race_state.likely
    enough = MIN_EXPECTED_IMPROVEMENT_LIKELY if likely else MIN_EXPECTED_IMPROVEMENT
    promising = sum(gain for _, gain in picks) > enough
    # Where earlier runs ended too soon to look at all, that comes first.
    if race_state.earlier or not promising:
        unseen = _unseen(race_state, analysis, leader, look_within)
        if unseen:
            return (leader, *unseen)
    return tuple(dict.fromkeys([leader, *(c for c, _ in picks)])) if promising else STOP


def _comparison_block(rival: Candidate, pairs: int) -> tuple[Candidate, ...]:
    """Alternate which of the two is first, because a block's first timing runs on a cold pool.

    The longer a comparison has lasted, the longer its next block is.
    """
    block: list[Candidate] = []
    for quartet in range(pairs // 2, pairs // 2 + 1 + pairs // COMPARISON_GROWTH):
        a, b = (rival, NATIVE_DEFAULT) if quartet % 2 else (NATIVE_DEFAULT, rival)
        block += [a, b, b, a]
    return tuple(block)


def _is_comparison(block: tuple[Candidate, ...]) -> bool:
    return len(block) >= 4 and len(set(block)) == 2


def _unseen(
    race_state: RaceState, analysis: Analysis, leader: Candidate, look_within: float
) -> tuple[Candidate, ...]:
    """Untimed candidates worth a look: the leader's neighbours, and those predicted to be close.

    Real cost curves have kinks and steps, and isolated winners exist.
    """
    size = leader.chunk_size or race_state.shape.native_chunk or 0
    sizes = [(c.chunk_size or 0, c) for c in race_state.candidates if c != leader]
    below = max(((k, c) for k, c in sizes if k < size), default=(0, None))[1]
    above = min(((k, c) for k, c in sizes if k > size), default=(0, None))[1]
    means = dict(zip(analysis.candidates, analysis.fit.mean, strict=True))
    late: list[Candidate] = []
    if leader in race_state.likely:  # history has looked at the others before
        look_within = 0.0
    elif look_within > LOOK_WITHIN:
        late = _possible_outliers(analysis)
    limit = means[leader] + look_within
    unseen = [
        c
        for c, count in zip(analysis.candidates, analysis.counts, strict=True)
        if not count and (c in (below, above) or means[c] < limit)
    ]
    return tuple(sorted([*unseen, *late], key=lambda c: float(means[c])))[:EXPLORE_BLOCK]


def _possible_outliers(analysis: Analysis) -> list[Candidate]:
    """Candidates timed once that are much slower than both neighbours; the default is excluded.

    Isolated winners exist; an isolated loser was probably held up when it was timed.
    """
    mean = [-math.inf, *analysis.fit.mean[1:].tolist(), -math.inf]
    return [
        c
        for k, (c, count) in enumerate(zip(analysis.candidates, analysis.counts, strict=True))
        if k and count == 1 and mean[k] > OUTLIER_SLOWDOWN + max(mean[k - 1], mean[k + 1])
    ]


def _first_block(race_state: RaceState, timings_left: float) -> list[Candidate]:
    """The default and a few candidates spread over the range, the likely ones first."""
    sizes = sorted(race_state.candidates, key=lambda c: c.chunk_size or 0)
    chosen = _around(race_state, sizes)
    count = min(
        FIRST_LIKELY if chosen else FIRST_BLOCK,
        len(sizes),
        max(1, int(min(timings_left, 99.0) / 3)),
    )
    if len(sizes) <= count:
        chosen += sizes
    else:
        # Not the very ends: they are known to be bad more often than not.
        edge = 1 if len(sizes) > count + 1 else 0
        places = np.linspace(edge, len(sizes) - 1 - edge, count)
        chosen += [sizes[round(p)] for p in places]
    return [NATIVE_DEFAULT, *dict.fromkeys(chosen)]


def _around(race_state: RaceState, sizes: Sequence[Candidate]) -> list[Candidate]:
    """Each likely winner that is in the race, with the neighbours on either side."""
    found: list[Candidate] = []
    for c in race_state.likely:
        if c in sizes:
            k = sizes.index(c)
            found += sizes[max(k - 1, 0) : k + 2]
        elif c == NATIVE_DEFAULT:
            native = race_state.shape.native_chunk or 0
            k = sum((other.chunk_size or 0) < native for other in sizes)
            found += sizes[max(k - 1, 0) : k + 1]
    return found


@dataclass(frozen=True, slots=True)
class ExpectedImprovement:
    """What further timings are expected to gain, by candidate."""

    candidates: tuple[Candidate, ...]
    improvement: tuple[float, ...]
    """How much a few more timings of each are expected to improve the choice."""
    over_default: float
    """Expected gain of the leader over the default, where it is more than is worth it."""
    leader: Candidate
    relative: tuple[float, float, float]

    @classmethod
    def of(
        cls, analysis: Analysis, everyone: Sequence[Candidate], likely: Sequence[Candidate] = ()
    ) -> ExpectedImprovement:
        """Compute it for everyone; a likely winner leads unless the timings contradict it."""
        index = {c: k for k, c in enumerate(analysis.candidates)}
        place = [index[c] for c in everyone]
        mean, variance = analysis.fit.mean.tolist(), analysis.fit.covariance.diagonal().tolist()
        lead = min((k for k in place if analysis.counts[k]), key=mean.__getitem__)
        covariance = analysis.fit.covariance
        for k in (index[c] for c in likely):
            # An old winner leads until the timings contradict it.
            doubt = math.sqrt(max(variance[k] + variance[lead] - 2 * covariance[lead, k], 0.0))
            if analysis.counts[k] and mean[k] - mean[lead] <= doubt:
                lead = k
                break
        with_lead = covariance[lead].tolist()
        improvement = []
        for k in place:
            gap = max(variance[k] + variance[lead] - 2 * with_lead[k], 0.0)
            # What timings can teach: all of the doubt if they were exact, less if they are noisy.
            learnt = gap / math.sqrt(gap + REPEATS * analysis.fit.noise**2 + 1e-12)
            improvement.append(expected_excess(mean[lead] - mean[k], learnt) if k != lead else 0.0)
        spread = math.sqrt(max(variance[lead], 0.0))
        return cls(
            candidates=tuple(everyone),
            improvement=tuple(improvement),
            over_default=expected_excess(-mean[lead] - MIN_GAIN, spread),
            leader=analysis.candidates[lead],
            relative=(
                math.exp(mean[lead]),
                math.exp(mean[lead] - 1.96 * spread),
                math.exp(mean[lead] + 1.96 * spread),
            ),
        )

    @property
    def contenders(self) -> int:
        """Candidates, the leader among them, that may still be worth choosing."""
        return 1 + sum(gain > MIN_EXPECTED_IMPROVEMENT / 10 for gain in self.improvement)

    def picks(self) -> list[tuple[Candidate, float]]:
        """Those whose timing promises most, with what it promises."""
        promising = zip(self.candidates, self.improvement, strict=True)
        ordered = sorted(promising, key=lambda pair: pair[1], reverse=True)[:EXPLORE_BLOCK]
        return [(c, gain) for c, gain in ordered if gain > MIN_EXPECTED_IMPROVEMENT / 10]
