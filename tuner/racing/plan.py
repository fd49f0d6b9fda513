"""Plans a race: from the samples so far, which candidates to time next, or stop.

Pure: no clock, no pool, no state of its own. The same samples and seed give the same plan.

A race has two kinds of blocks. An exploring block times the candidates from which most can
still be hoped for, beside the leader, in random order. A duel block times the leader and the
native default in turn; only duels prove anything (see `tuner.racing.comparison`). Exploring ends
when it can be expected to gain too little; a duel ends when it has proven the leader faster, or
when too little is left to hope for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from tuner.racing.comparison import (
    NO_DUEL,
    WORTH,
    Evidence,
    Work,
    expected_excess,
    usable_samples,
    weigh,
)
from tuner.racing.costs import ITERATIONS, Learned
from tuner.racing.meta_analysis import Report, Timings, pool_reports, report
from tuner.records import NATIVE_DEFAULT, Candidate, Sample

if TYPE_CHECKING:
    from collections.abc import Sequence

FURTHER_ITERATIONS = 3
"""Of the fit, for a plan that goes on from where the last block's ended: the scales settle over the
blocks, and to find them more exactly each time would take longer than a light step."""
FIRST_BLOCK = 5
"""Candidates beside the default in the first block, spread over the range."""
FIRST_LIKELY = 1
"""The same beside likely winners and their neighbours, to see that the past still holds."""
EXPLORE_BLOCK = 3
"""Hopeful candidates in a later block, beside the leader."""
HOPE = 0.0015
"""Exploring goes on while a block is expected to improve the choice by this much."""
LIKELY_HOPE = 0.05
"""The same while the leader is one that history called a likely winner, and it may be right."""
DUEL_HOPE = 0.002
"""A duel goes on while the leader is expected to gain this much more than is worth it."""
LIKELY_DUEL_HOPE = 0.0085
"""The same for a likely winner: a gain too small to be proven fast is left alone."""
DENIED = 0.5
"""A likely winner that probably gains less than this share of what it gained there is none here."""
DUEL_PAIRS = 60
"""A duel undecided after so many pairs is given up."""
MANY_TIMINGS = 100
"""With a budget of so many timings every candidate is timed once."""
LOOK_WITHIN = 0.05
"""With a smaller one, those predicted to be less than this much slower than the leader."""
LATE = 0.1
"""A candidate timed once and this much slower than its neighbours was more likely late."""
MOST_EXPLORED = 50
"""Timings after which exploring ends, earlier runs' among them: what is still close is close."""
REPEATS = 0.1
"""Variance of what a few timings of a candidate tell, over that of one: some ten of them.

Looking one timing ahead, a noisy one never promises anything."""
CONFIRM_PAIRS = 8
"""Pairs in which an old winner can confirm itself, at most: sixteen timings."""
DUEL_GROWTH = 8
"""A duel of this many pairs goes on by blocks of twice the length, and so forth."""
MOST_SAMPLES = 240
"""A race that has taken so many samples ends."""


@dataclass(frozen=True, slots=True)
class Field:
    """Who is in the race."""

    candidates: tuple[Candidate, ...]
    """Without the native default, without its twin, without those that failed."""
    work: Work
    likely: tuple[Candidate, ...] = ()
    """Likely winners, from a relative's history; the native default may be among them."""
    likely_gain: float | None = None
    """What the first of them gained there over the default, as a share of the default's time."""
    confirm: Candidate | None = None
    """An old winner, to be confirmed before anything else is looked at."""
    earlier: tuple[Report, ...] = ()
    """What earlier runs say, in the order they finished."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a planned block is based on."""

    block: tuple[Candidate, ...]
    """Candidates to time, in order; empty to stop."""
    hopeful: int
    """Candidates that may still win."""
    leader: Candidate
    relative: tuple[float, float, float]
    """The leader's time over the default's, with the ends of a 95 % interval."""
    learned: Learned | None = None
    """What the fit found out about the machine and the candidates."""
    cut_short: bool = False
    """It stops, and with more time left it would not have."""


STOP: tuple[Candidate, ...] = ()


def next_block(
    field: Field,
    samples: Sequence[Sample],
    rng: np.random.Generator,
    timings_left: float,
    before: Outlook | None = None,
) -> Outlook:
    """Plan the next block.

    Args:
        field: who is in the race.
        samples: all samples so far, in any order.
        rng: the only source of randomness.
        timings_left: how many timings of the default the budget still holds.
        before: the plan of the last block; what its fit learned shortens this one's.
    """
    usable = usable_samples(samples, field.work.native_chunk)
    evidence, own = _evidence(field, usable, before)
    everyone = (NATIVE_DEFAULT, *field.candidates)
    if evidence is not None and not field.candidates:
        return Outlook(STOP, 1, NATIVE_DEFAULT, (1.0, 1.0, 1.0))
    timed = 0 if evidence is None else sum(count > 0 for count in evidence.counts)
    winner = next((c for c in field.likely if c in field.candidates), None)
    if winner and evidence is None:
        # What history says is tried first, and in a way that can prove it.
        return Outlook(_duel_block(winner, 0), len(everyone), NATIVE_DEFAULT, (1.0, 1.0, 1.0))
    gain = field.likely_gain if winner in field.likely[:1] else None
    denied = winner and evidence and _is_denied(winner, gain, evidence)
    only_it = bool(winner) and timed == 2 and len(field.candidates) > 1
    if field.confirm and evidence and only_it and not denied:
        outlook = _confirming(field.confirm, evidence, everyone)
        if outlook:
            return outlook
    if evidence is None or timed < 2 or only_it:
        first = _first_block(field, timings_left)
        if only_it:
            first.remove(NATIVE_DEFAULT)  # it was timed beside the winner, who is in the block
        order = tuple(first[k] for k in rng.permutation(len(first)))
        return Outlook(order, len(everyone), NATIVE_DEFAULT, (1.0, 1.0, 1.0))
    # From here on who is likely is believed to win; that the default was kept says less.
    field = replace(field, likely=(winner,) if winner and not denied else ())
    hopes = _Hopes.of(evidence, everyone, field.likely)
    if len(usable) >= MOST_SAMPLES:
        block, cut_short = STOP, False
    else:
        # A small budget is for what probably wins, not for a look at everything.
        ample = len(usable) + timings_left >= MANY_TIMINGS
        look_within = math.inf if ample else LOOK_WITHIN
        block = _block(field, evidence, own, hopes, timings_left, look_within)
        cut_short = not block and bool(_block(field, evidence, own, hopes, math.inf, look_within))
    if block and not _is_duel(block):
        block = tuple(block[k] for k in rng.permutation(len(block)))
    return Outlook(block, hopes.hopeful, hopes.leader, hopes.relative, evidence.learned, cut_short)


@dataclass(frozen=True, slots=True)
class _Own:
    """What this run has taken so far."""

    explored: int
    """Timings outside duels."""
    pairs: dict[Candidate, int]
    """Of each one's duel."""

    @classmethod
    def of(cls, timings: int, pairs: dict[Candidate, int]) -> _Own:
        return cls(timings - 2 * sum(pairs.values()), pairs)


def _evidence(
    field: Field, usable: Sequence[Sample], before: Outlook | None
) -> tuple[Evidence | None, _Own]:
    """What is known by now, earlier runs included, and how much of it this run has taken."""
    if not field.earlier:
        learned = before.learned if before else None
        evidence = weigh(
            usable,
            field.work,
            field.candidates,
            iterations=FURTHER_ITERATIONS if learned else ITERATIONS,
            learned=learned,
        )
        duels = evidence.duels.items() if evidence else ()
        return evidence, _Own.of(len(usable), {c: duel.pairs for c, duel in duels})
    own = report(Timings.of(usable), field.work)
    reports = [*field.earlier, own] if own else field.earlier
    pairs = {c: len(d) for c, d in own.pairs.items()} if own else {}
    evidence = pool_reports(reports, field.work, field.candidates).evidence
    return evidence, _Own.of(len(usable), pairs)


def _is_denied(winner: Candidate, gain: float | None, evidence: Evidence) -> bool:
    """Tell whether a likely winner probably gains much less here than where it won."""
    if gain is None or not 0 < gain < 1:
        return False
    k = evidence.candidates.index(winner)
    doubt = math.sqrt(max(float(evidence.fit.covariance[k, k]), 0.0))
    return float(evidence.fit.mean[k]) - doubt > DENIED * math.log1p(-gain)


def _confirming(
    winner: Candidate, evidence: Evidence, everyone: tuple[Candidate, ...]
) -> Outlook | None:
    """A short duel of an old winner, to stop if it is proven; None if it has not come true."""
    duel, hopes = evidence.duels.get(winner, NO_DUEL), _Hopes.of(evidence, everyone)
    if duel.proven:
        block = STOP
    elif duel.pairs < CONFIRM_PAIRS and (not duel.pairs or hopes.leader == winner):
        block = _duel_block(winner, duel.pairs)
    else:
        return None
    return Outlook(block, hopes.hopeful, hopes.leader, hopes.relative, evidence.learned)


def _block(
    field: Field,
    evidence: Evidence,
    own: _Own,
    hopes: _Hopes,
    timings_left: float,
    look_within: float,
) -> tuple[Candidate, ...]:
    """Explore while that pays, then duel while that pays, then stop."""
    leader, duel = hopes.leader, evidence.duels.get(hopes.leader, NO_DUEL)
    explored = sum(evidence.counts) - 2 * sum(d.pairs for d in evidence.duels.values())
    pairs = own.pairs.get(leader, 0)
    # Half of the budget at most: what is found has to be proven.
    if explored < MOST_EXPLORED and own.explored < timings_left:
        picks = hopes.picks()
        enough = LIKELY_HOPE if leader in field.likely else HOPE
        promising = sum(gain for _, gain in picks) > enough
        # Where earlier runs ended too soon to look at all, that comes first.
        unseen: tuple[Candidate, ...] = ()
        if field.earlier or not promising:
            unseen = _unseen(field, evidence, leader, look_within)
        if unseen:
            return (leader, *unseen)
        if promising:
            return tuple(dict.fromkeys([leader, *(c for c, _ in picks)]))
    if leader == NATIVE_DEFAULT or duel.proven or pairs >= DUEL_PAIRS:
        return STOP
    if hopes.over_default < (LIKELY_DUEL_HOPE if leader in field.likely else DUEL_HOPE):
        return STOP
    return _duel_block(leader, pairs)


def _duel_block(rival: Candidate, pairs: int) -> tuple[Candidate, ...]:
    """Quartets in which the two take turns to be first: a block's first timing runs on a cold pool.

    The longer a duel has lasted, the less four more timings can change it, so the more it takes.
    """
    block: list[Candidate] = []
    for quartet in range(pairs // 2, pairs // 2 + 1 + pairs // DUEL_GROWTH):
        a, b = (rival, NATIVE_DEFAULT) if quartet % 2 else (NATIVE_DEFAULT, rival)
        block += [a, b, b, a]
    return tuple(block)


def _is_duel(block: tuple[Candidate, ...]) -> bool:
    return len(block) >= 4 and len(set(block)) == 2


def _unseen(
    field: Field, evidence: Evidence, leader: Candidate, look_within: float
) -> tuple[Candidate, ...]:
    """Candidates no timing has seen that it would be careless to pass over, the likeliest first.

    These are the leader's neighbours on either side, and all that the curve predicts to be
    little slower than the leader: real curves have kinks and steps, and lone winners exist.
    """
    size = leader.chunk_size or field.work.native_chunk or 0
    sizes = [(c.chunk_size or 0, c) for c in field.candidates if c != leader]
    below = max(((k, c) for k, c in sizes if k < size), default=(0, None))[1]
    above = min(((k, c) for k, c in sizes if k > size), default=(0, None))[1]
    means = dict(zip(evidence.candidates, evidence.fit.mean, strict=True))
    late: list[Candidate] = []
    if leader in field.likely:  # history has looked at the others before
        look_within = 0.0
    elif look_within > LOOK_WITHIN:
        late = _perhaps_late(evidence)
    limit = means[leader] + look_within
    unseen = [
        c
        for c, count in zip(evidence.candidates, evidence.counts, strict=True)
        if not count and (c in (below, above) or means[c] < limit)
    ]
    return tuple(sorted([*unseen, *late], key=lambda c: float(means[c])))[:EXPLORE_BLOCK]


def _perhaps_late(evidence: Evidence) -> list[Candidate]:
    """Candidates timed once that stand out from both their neighbours, the default left aside.

    Lone winners exist; a lone loser is rather one that was held up when it was timed.
    """
    mean = [-math.inf, *evidence.fit.mean[1:].tolist(), -math.inf]
    return [
        c
        for k, (c, count) in enumerate(zip(evidence.candidates, evidence.counts, strict=True))
        if k and count == 1 and mean[k] > LATE + max(mean[k - 1], mean[k + 1])
    ]


def _first_block(field: Field, timings_left: float) -> list[Candidate]:
    """The default and a few candidates spread over the range, the likely ones first."""
    sizes = sorted(field.candidates, key=lambda c: c.chunk_size or 0)
    chosen = _around(field, sizes)
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


def _around(field: Field, sizes: Sequence[Candidate]) -> list[Candidate]:
    """Each likely winner that is in the race, with the neighbours on either side."""
    found: list[Candidate] = []
    for c in field.likely:
        if c in sizes:
            k = sizes.index(c)
            found += sizes[max(k - 1, 0) : k + 2]
        elif c == NATIVE_DEFAULT:
            native = field.work.native_chunk or 0
            k = sum((other.chunk_size or 0) < native for other in sizes)
            found += sizes[max(k - 1, 0) : k + 1]
    return found


@dataclass(frozen=True, slots=True)
class _Hopes:
    """What may still be gained, by candidates in the race."""

    candidates: tuple[Candidate, ...]
    improvement: tuple[float, ...]
    """How much a few more timings of each are expected to improve the choice."""
    over_default: float
    """Expected gain of the leader over the default, where it is more than is worth it."""
    leader: Candidate
    relative: tuple[float, float, float]

    @classmethod
    def of(
        cls, evidence: Evidence, everyone: Sequence[Candidate], likely: Sequence[Candidate] = ()
    ) -> _Hopes:
        index = {c: k for k, c in enumerate(evidence.candidates)}
        place = [index[c] for c in everyone]
        mean, variance = evidence.fit.mean.tolist(), evidence.fit.covariance.diagonal().tolist()
        lead = min((k for k in place if evidence.counts[k]), key=mean.__getitem__)
        covariance = evidence.fit.covariance
        for k in (index[c] for c in likely):
            # An old winner is believed until the timings speak against it: it has its duel yet.
            doubt = math.sqrt(max(variance[k] + variance[lead] - 2 * covariance[lead, k], 0.0))
            if evidence.counts[k] and mean[k] - mean[lead] <= doubt:
                lead = k
                break
        with_lead = covariance[lead].tolist()
        improvement = []
        for k in place:
            gap = max(variance[k] + variance[lead] - 2 * with_lead[k], 0.0)
            # What timings can teach: all of the doubt if they were exact, less if they are noisy.
            learnt = gap / math.sqrt(gap + REPEATS * evidence.fit.noise**2 + 1e-12)
            improvement.append(expected_excess(mean[lead] - mean[k], learnt) if k != lead else 0.0)
        spread = math.sqrt(max(variance[lead], 0.0))
        return cls(
            candidates=tuple(everyone),
            improvement=tuple(improvement),
            over_default=expected_excess(-mean[lead] - WORTH, spread),
            leader=evidence.candidates[lead],
            relative=(
                math.exp(mean[lead]),
                math.exp(mean[lead] - 1.96 * spread),
                math.exp(mean[lead] + 1.96 * spread),
            ),
        )

    @property
    def hopeful(self) -> int:
        """Candidates, the leader among them, that may still be worth choosing."""
        return 1 + sum(gain > HOPE / 10 for gain in self.improvement)

    def picks(self) -> list[tuple[Candidate, float]]:
        """Those whose timing promises most, with what it promises."""
        promising = zip(self.candidates, self.improvement, strict=True)
        ordered = sorted(promising, key=lambda pair: pair[1], reverse=True)[:EXPLORE_BLOCK]
        return [(c, gain) for c, gain in ordered if gain > HOPE / 10]
