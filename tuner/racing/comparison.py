"""Analyses samples: a cost fit of all of them, and paired comparisons with the default.

Pure numpy: no clock, no database, no randomness, no decision.

A paired comparison is a block that times the native default and one candidate in turn (default,
candidate, candidate, default). Only these timings can prove a candidate faster; the exploring
timings that made it look good cannot, which avoids selecting the luckiest of sixteen.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tuner.candidates import native_chunk_size
from tuner.racing.costs import ITERATIONS, Costs, FitScales, fit
from tuner.records import NATIVE_DEFAULT, Candidate, Sample

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

MIN_GAIN = 0.002
"""The smallest gain worth leaving the default for, as a share of the default's time."""
FEWEST_PAIRS = 4
"""Pairs that a paired comparison needs to prove anything."""
ALPHA = 0.1
"""Two-sided error of all looks at a comparison together; half of it on the side that matters."""
RHO = 8.0
"""Number of pairs at which the confidence sequence is tightest, roughly."""
OUTLIER = 4.5
"""A pair this many standard deviations from the median pair is set aside."""
NOISE_WEIGHT = 4
"""Degrees of freedom that the noise of all the run's timings adds to a paired comparison."""

_T95 = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179)


def t95(freedom: int) -> float:
    """The 97.5 % quantile of Student's t: half a two-sided 95 % interval, in standard errors."""
    if freedom < 1:
        return math.inf
    if freedom <= len(_T95):
        return _T95[freedom - 1]
    return 1.96 + 2.4 / freedom + 3.0 / freedom**2


@dataclass(frozen=True, slots=True)
class PairedComparison:
    """One candidate against the default: log(time / default's time) with its 95 % interval.

    The race looks after every block and stops at a proof, so the interval is that of a confidence
    sequence (Robbins 1970, normal mixture), valid for all looks together.
    """

    pairs: int
    mean: float
    low: float
    high: float

    @property
    def proven(self) -> bool:
        """Whether the candidate is faster by more than `MIN_GAIN`, with 95 % confidence."""
        return self.pairs >= FEWEST_PAIRS and self.high < math.log1p(-MIN_GAIN)

    @property
    def error(self) -> float:
        """Standard error of the mean."""
        return (self.high - self.mean) / looks_z(self.pairs)


def looks_z(pairs: int) -> float:
    """Half the width of a confidence sequence's interval, in standard errors."""
    n = max(pairs, 1)
    return math.sqrt((n + RHO) / n * math.log((n + RHO) / (RHO * ALPHA**2)))


NO_COMPARISON = PairedComparison(0, 0.0, -math.inf, math.inf)


@dataclass(frozen=True, slots=True)
class Analysis:
    """A cost fit and the paired comparisons of some samples."""

    candidates: tuple[Candidate, ...]
    """The native default first."""
    counts: tuple[int, ...]
    """Samples of each."""
    fit: Costs
    comparisons: dict[Candidate, PairedComparison]
    scales: FitScales | None = None
    """Starting point for a fit of more timings."""
    contradicted: frozenset[Candidate] = frozenset()
    """Candidates clearly faster by one run's comparison and clearly not by another's."""


def usable_samples(
    samples: Iterable[Sample], native_chunk: int | None, failed: Collection[Candidate] = ()
) -> list[Sample]:
    """The samples that count, in the order taken.

    Samples of the native rule's own chunk size become the default's; samples of candidates on
    which the pool failed are left out.
    """
    twin = Candidate(native_chunk)
    return [
        replace(s, candidate=NATIVE_DEFAULT) if s.candidate == twin else s
        for s in sorted(samples, key=lambda s: s.order)
        if not s.warm_up and s.nanoseconds > 0 and s.candidate not in failed
    ]


@dataclass(frozen=True, slots=True)
class PoolShape:
    """How many environments are cut into chunks, for how many threads."""

    num_envs: int | None = None
    nthread: int | None = None

    @property
    def native_chunk(self) -> int | None:
        """The chunk size of the pool's own rule; None if unknown."""
        if not self.num_envs or not self.nthread:
            return None
        return native_chunk_size(self.num_envs, self.nthread)

    def idle(self, chunk_size: float) -> float:
        """Log of how much longer a step takes because the last round of chunks is not full."""
        if not self.num_envs or not self.nthread or not chunk_size >= 1:
            return 0.0
        rounds = math.ceil(math.ceil(self.num_envs / chunk_size) / self.nthread)
        return math.log(rounds * chunk_size * self.nthread / self.num_envs)

    def axes(self, candidates: Iterable[Candidate]) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Chunk size and idle share of each candidate: the inputs of the cost fit."""
        sizes = [float(c.chunk_size or self.native_chunk or math.nan) for c in candidates]
        return tuple(sizes), tuple([self.idle(size) for size in sizes])


def analyse(
    samples: Sequence[Sample],
    shape: PoolShape,
    others: Iterable[Candidate] = (),
    *,
    iterations: int = ITERATIONS,
    scales: FitScales | None = None,
) -> Analysis | None:
    """Fit the samples and add up the paired comparisons; None if the default has no sample.

    Args:
        samples: as `usable_samples` gives them.
        shape: what the samples timed.
        others: candidates without samples, for which the fit predicts.
        iterations: of the fit's scales.
        scales: found by a fit of all but the latest samples.
    """
    counts = {NATIVE_DEFAULT: 0, **dict.fromkeys(others, 0)}
    for s in samples:
        counts[s.candidate] = counts.get(s.candidate, 0) + 1
    if not counts[NATIVE_DEFAULT]:
        return None
    rest = sorted((c for c in counts if c != NATIVE_DEFAULT), key=lambda c: c.chunk_size or 0)
    candidates = (NATIVE_DEFAULT, *rest)
    index = {c: k for k, c in enumerate(candidates)}
    which = [index[s.candidate] for s in samples]
    logs = [math.log(s.nanoseconds / s.repeats) for s in samples]
    fitted = fit(
        *shape.axes(candidates),
        which,
        logs,
        iterations=iterations,
        scales=scales,
    )
    pairs = paired_differences(which, [s.block for s in samples], [s.order for s in samples], logs)
    return Analysis(
        candidates=candidates,
        counts=tuple(counts[c] for c in candidates),
        fit=fitted,
        comparisons={candidates[k]: compare_pairs(d, fitted.noise) for k, d in pairs.items()},
        scales=fitted.scales,
    )


def paired_differences(
    which: Sequence[int], rounds: Sequence[int], orders: Sequence[int], logs: Sequence[float]
) -> dict[int, list[float]]:
    """log(time / default's) of neighbouring pairs, by candidate, from comparison blocks.

    Args:
        which: index of the candidate of each timing; the native default's is 0.
        rounds: its round.
        orders: its place in the run; ascending.
        logs: log of the time of one step.
    """
    kinds: dict[int, set[int]] = defaultdict(set)
    for k, number in zip(which, rounds, strict=True):
        kinds[number].add(k)
    found: dict[int, list[float]] = defaultdict(list)
    waiting: tuple[int, int, int, float] | None = None
    for at in zip(which, rounds, orders, logs, strict=True):
        k, number, order, log = at
        if len(kinds[number]) != 2 or 0 not in kinds[number]:
            continue
        if waiting is None or waiting[0] == k or waiting[1:3] != (number, order - 1):
            waiting = at
            continue
        found[k or waiting[0]].append(log - waiting[3] if k else waiting[3] - log)
        waiting = None
    return dict(found)


def compare_pairs(pairs: Sequence[float], noise: float) -> PairedComparison:
    """The mean difference with its 95 % interval, far-off pairs set aside."""
    ordered, n = sorted(pairs), len(pairs)
    median = (ordered[(n - 1) // 2] + ordered[n // 2]) / 2
    expected = math.sqrt(2.0) * noise
    kept = [pair for pair in ordered if abs(pair - median) <= OUTLIER * expected]
    if len(kept) < 2:
        return NO_COMPARISON
    freedom = NOISE_WEIGHT + len(kept) - 1
    mean = math.fsum(kept) / len(kept)
    squares = NOISE_WEIGHT * expected**2 + math.fsum((pair - mean) ** 2 for pair in kept)
    error = math.sqrt(squares / freedom / len(kept))
    reach = t95(freedom) / 1.96 * looks_z(len(kept)) * error
    return PairedComparison(len(kept), mean, mean - reach, mean + reach)


def expected_excess(mean: float, spread: float) -> float:
    """Expected positive part of a normal value with this mean and standard deviation."""
    spread = max(spread, 1e-12)
    z = mean / spread
    density = math.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
    return mean * 0.5 * (1 + math.erf(z / math.sqrt(2))) + spread * density
