"""Plans a race: from the samples so far, which candidates to time next, or stop.

Pure: no clock, no pool, no state of its own. The same samples and seed give the same plan.

A race has two kinds of blocks. An exploring block times the candidates from which most can
still be hoped for, beside the leader, in random order. A duel block times the leader and the
native default in turn; only duels prove anything (see `tuner.selection`). Exploring ends when
it can be expected to gain too little; a duel ends when it has proven the leader faster, or
when too little is left to hope for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tuner.records import NATIVE_DEFAULT, Candidate, Sample
from tuner.selection import NO_DUEL, WORTH, Evidence, usable_samples, weigh

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

DRAWS = 256
"""Random draws from the fit, from which hopes are averaged."""
FIRST_BLOCK = 5
"""Candidates beside the default in the first block."""
EXPLORE_BLOCK = 3
"""Hopeful candidates in a later one."""
HOPE = 0.003
"""Exploring goes on while the best candidate is expected to beat the leader by this much."""
DUEL_HOPE = 0.002
"""A duel goes on while the leader is expected to gain this much over the default."""
DUEL_PAIRS = 24
"""A duel undecided after so many pairs is given up."""
MOST_SAMPLES = 150
"""A race that has taken so many samples ends."""


@dataclass(frozen=True, slots=True)
class Field:
    """Who is in the race."""

    candidates: tuple[Candidate, ...]
    """Without the native default, without its twin, without those that failed."""
    native_chunk: int | None
    """The chunk size the native rule gives, if known."""
    likely: tuple[Candidate, ...] = ()
    """Likely winners, from a relative's history."""


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


STOP: tuple[Candidate, ...] = ()


def next_block(
    field: Field, samples: Sequence[Sample], rng: np.random.Generator, timings_left: float
) -> Outlook:
    """Plan the next block.

    Args:
        field: who is in the race.
        samples: all samples so far, in any order.
        rng: the only source of randomness.
        timings_left: how many timings of the default the budget still holds.
    """
    usable = usable_samples(samples, field.native_chunk)
    evidence = weigh(usable, field.native_chunk, field.candidates)
    everyone = (NATIVE_DEFAULT, *field.candidates)
    if evidence is None or sum(count > 0 for count in evidence.counts) < 2:
        first = _first_block(field, timings_left)
        order = tuple(first[k] for k in rng.permutation(len(first)))
        return Outlook(order, len(everyone), NATIVE_DEFAULT, (1.0, 1.0, 1.0))
    hopes = _Hopes.draw(evidence, everyone, rng)
    leader = hopes.leader
    duel = evidence.duels.get(leader, NO_DUEL)
    if len(usable) >= MOST_SAMPLES:
        block = STOP
    elif hopes.total > HOPE and timings_left > 8:
        block = hopes.explore(evidence, rng)
    elif leader == NATIVE_DEFAULT or duel.proven or hopes.over_default < DUEL_HOPE:
        block = STOP
    else:
        block = _duel_block(leader, int(rng.integers(2)))
    return Outlook(block, hopes.hopeful, leader, hopes.relative)


def _duel_block(rival: Candidate, turn: int) -> tuple[Candidate, ...]:
    a, b = (NATIVE_DEFAULT, rival) if turn else (rival, NATIVE_DEFAULT)
    return (a, b, b, a)


def _first_block(field: Field, timings_left: float) -> list[Candidate]:
    """The default and a few candidates spread over the range, the likely ones first."""
    sizes = sorted(field.candidates, key=lambda c: c.chunk_size or 0)
    count = min(FIRST_BLOCK, len(sizes), max(1, int(timings_left / 3)))
    if field.likely:
        chosen = _around(field.likely, sizes)
    elif len(sizes) <= count:
        chosen = sizes
    else:
        places = np.linspace(1, len(sizes) - 2, count)
        chosen = [sizes[round(p)] for p in places]
    return [NATIVE_DEFAULT, *dict.fromkeys(chosen)]


def _around(likely: Sequence[Candidate], sizes: Sequence[Candidate]) -> list[Candidate]:
    """Each likely winner that is in the race, with the neighbours on either side."""
    found: list[Candidate] = []
    for c in likely:
        if c in sizes:
            k = sizes.index(c)
            found += sizes[max(k - 1, 0) : k + 2]
    return found


@dataclass(frozen=True, slots=True)
class _Hopes:
    """What may still be gained, by candidates in the race."""

    candidates: tuple[Candidate, ...]
    gain: NDArray[np.float64]
    """Expected gain of each over the leader, where it is one: shape (candidates,)."""
    best: NDArray[np.float64]
    """In which share of the draws each is the best: shape (candidates,)."""
    total: float
    """Expected gain of the best candidate, whichever it is, over the leader."""
    over_default: float
    """Expected gain of the leader over the default, where it is one."""
    leader: Candidate
    relative: tuple[float, float, float]

    @classmethod
    def draw(
        cls, evidence: Evidence, everyone: Sequence[Candidate], rng: np.random.Generator
    ) -> _Hopes:
        place = [evidence.candidates.index(c) for c in everyone]
        mean = evidence.fit.mean[place]
        covariance = evidence.fit.covariance[np.ix_(place, place)]
        values, vectors = np.linalg.eigh(covariance)
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        draws = mean + rng.standard_normal((DRAWS, len(place))) @ root.T
        timed = np.array([evidence.counts[k] > 0 for k in place])
        lead = int(np.argmin(np.where(timed, mean, np.inf)))
        ahead = np.maximum(draws[:, [lead]] - draws, 0.0)
        reach = 1.96 * math.sqrt(max(float(covariance[lead, lead]), 0.0))
        return cls(
            candidates=tuple(everyone),
            gain=ahead.mean(axis=0),
            best=np.bincount(draws.argmin(axis=1), minlength=len(place)) / DRAWS,
            total=float(ahead.max(axis=1).mean()),
            over_default=float(np.maximum(-draws[:, lead], 0.0).mean()),
            leader=everyone[lead],
            relative=(
                math.exp(mean[lead]),
                math.exp(mean[lead] - reach),
                math.exp(mean[lead] + reach),
            ),
        )

    @property
    def hopeful(self) -> int:
        """Candidates, the leader among them, that may still be worth choosing."""
        return 1 + int(np.count_nonzero(self.gain > WORTH / 10))

    def explore(self, evidence: Evidence, rng: np.random.Generator) -> tuple[Candidate, ...]:
        """The leader and those from whom most can be hoped, in random order."""
        order = np.argsort(-self.gain, kind="stable")
        picks = [self.candidates[k] for k in order if self.gain[k] > 0][:EXPLORE_BLOCK]
        block = list(dict.fromkeys([self.leader, *picks]))
        del evidence
        return tuple(block[k] for k in rng.permutation(len(block)))
