"""From samples to a verdict. Pure numpy: no clock, no database, no randomness.

`judge` needs only the samples and the pool's shape, so every process can repeat a verdict from
the database. A candidate replaces the native default only if a paired comparison proves it faster.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from tuner.racing.comparison import (
    FEWEST_PAIRS,
    MIN_GAIN,
    NO_COMPARISON,
    NOISE_WEIGHT,
    Analysis,
    PoolShape,
    analyse,
    expected_excess,
    t95,
    usable_samples,
)
from tuner.records import NATIVE_DEFAULT, Candidate, Estimate, Sample, Verdict

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from tuner.records import Reason

SETTLED = 0.005
"""A choice is decided when more timings are expected to gain less than this."""


def select_chunk_size(
    timings: Mapping[int | None, float],
    base: int,
    *,
    margin: float = 0.03,
    tie_tol: float = 0.02,
) -> int | None:
    """Choose from one time per candidate, the way the fixed plan does.

    Leaves the default (`None`) only for a candidate that is at least `margin` faster; exactly
    `margin` counts. Among such candidates within `tie_tol` of the fastest it takes the one
    nearest `base`, the smaller one of two that are equally near. Times that are not finite or
    not positive are ignored. Without a usable time of the default nothing can be shown to be
    faster than it, so the answer is the default.

    Args:
        timings: seconds by chunk_size; `None` is the native default.
        base: the chunk size to stay close to, usually the one the native rule gives.
        margin: share of the default's time that a candidate must save.
        tie_tol: how much slower than the fastest still counts as equal.
    """
    usable = {
        None if c is None else int(c): float(t)
        for c, t in timings.items()
        if t is not None and math.isfinite(t) and t > 0
    }
    default = usable.pop(None, None)
    if default is None:
        return None
    rounding = 1.0 + 1e-9
    faster = {c: t for c, t in usable.items() if t <= default * (1.0 - margin) * rounding}
    if not faster:
        return None
    limit = min(faster.values()) * (1.0 + tie_tol) * rounding
    ties = [c for c, t in faster.items() if c is not None and t <= limit]
    return min(ties, key=lambda c: (abs(c - base), c))


def judge(
    samples: Iterable[Sample],
    *,
    num_envs: int | None = None,
    nthread: int | None = None,
    cut_short: bool = False,
    failed: Collection[Candidate] = (),
) -> Verdict:
    """Say what samples mean together.

    Args:
        samples: of one run; what several say together, `tuner.racing.meta_analysis` knows.
        num_envs: environments in one step; None if not known.
        nthread: threads of the pool; None if not known. With both, samples of the chunk size
            that the native rule gives count as the default's own.
        cut_short: the run that took the samples ended for want of time, so candidates may be
            untimed: the verdict is then undecided.
        failed: candidates on which the pool raised: out, whatever they were timed at before.
    """
    shape = PoolShape(num_envs, nthread)
    usable = usable_samples(samples, shape.native_chunk, failed)
    analysis = analyse(usable, shape)
    if analysis is None:
        return Verdict(NATIVE_DEFAULT, False, "budget" if cut_short else "too few", 0.0, 0.0, 0.0)
    default = [s.milliseconds for s in usable if s.candidate == NATIVE_DEFAULT]
    return decide(analysis, shape, float(np.median(default)), cut_short=cut_short)


def decide(
    analysis: Analysis, shape: PoolShape, milliseconds: float, *, cut_short: bool = False
) -> Verdict:
    """Make a verdict of analysis.

    Args:
        analysis: what samples say.
        shape: what they timed.
        milliseconds: of a step of the native default.
        cut_short: as in `judge`.
    """
    choice = choose(analysis, shape.native_chunk)
    comparison = analysis.comparisons.get(choice, NO_COMPARISON)
    left = choice != NATIVE_DEFAULT
    rival = contested(analysis, choice)
    settled = rival is None and not cut_short
    return Verdict(
        candidate=choice,
        decided=settled,
        reason=None if settled else _reason(analysis, choice, rival, cut_short),
        gain=1.0 - math.exp(comparison.mean) if left else 0.0,
        gain_low=1.0 - math.exp(comparison.high) if left else 0.0,
        gain_high=1.0 - math.exp(comparison.low) if left else 0.0,
        ties=_ties(analysis, choice),
        estimates=_estimates(analysis, milliseconds),
        expected_loss=_expected_loss(analysis, choice)[0],
    )


def nearest_native(candidate: Candidate, native_chunk: int | None) -> tuple[float, int]:
    """Sort key among equals: how far from the native rule, then the smaller chunk.

    The native rule's ten chunks a thread leave slack for cores of unequal speed. Above it,
    nearer means more slack at no cost; below it, there is slack enough and every further chunk
    is overhead. Where the rule is unknown, the smaller chunk.
    """
    size = candidate.chunk_size
    if size is None:
        return (0.0, 0)
    return (abs(math.log(size / native_chunk)) if native_chunk else 0.0, size)


def choose(analysis: Analysis, native_chunk: int | None) -> Candidate:
    """Choose the fastest proven candidate, of equals the one nearest the native rule."""
    proven = [c for c, comparison in analysis.comparisons.items() if comparison.proven]
    if not proven:
        return NATIVE_DEFAULT
    best = min(analysis.comparisons[c].mean for c in proven)
    equal = [c for c in proven if analysis.comparisons[c].mean <= best + MIN_GAIN]
    return min(equal, key=lambda c: nearest_native(c, native_chunk))


def contested(analysis: Analysis, choice: Candidate) -> Candidate | None:
    """Return the candidate whose comparison could change the choice; None if it is settled."""
    if choice == NATIVE_DEFAULT and analysis.contradicted:
        return min(analysis.contradicted, key=lambda c: c.chunk_size or 0)
    loss, rival = _expected_loss(analysis, choice)
    if loss < SETTLED:
        return None
    return choice if rival == NATIVE_DEFAULT else rival


def _expected_loss(analysis: Analysis, choice: Candidate) -> tuple[float, Candidate]:
    """What the choice is expected to lose to the one it may lose most to, and which that is."""
    fitted, k = analysis.fit, analysis.candidates.index(choice)
    gain = fitted.mean[k] - fitted.mean
    variance = fitted.covariance.diagonal()
    spread = np.sqrt(np.maximum(variance + variance[k] - 2 * fitted.covariance[k], 1e-18))
    loss = [expected_excess(g, s) for g, s in zip(gain.tolist(), spread.tolist(), strict=True)]
    loss[k] = 0.0
    return max(loss), analysis.candidates[loss.index(max(loss))]


def _reason(
    analysis: Analysis, choice: Candidate, rival: Candidate | None, cut_short: bool
) -> Reason:
    if choice == NATIVE_DEFAULT and analysis.contradicted:
        return "contradiction"
    if cut_short or rival is None:
        return "budget"
    counts = dict(zip(analysis.candidates, analysis.counts, strict=True))
    return "too few" if min(counts[rival], counts[choice]) < FEWEST_PAIRS else "noise"


def _ties(analysis: Analysis, choice: Candidate) -> tuple[Candidate, ...]:
    k = analysis.candidates.index(choice)
    mean, cov = analysis.fit.mean.tolist(), analysis.fit.covariance.tolist()
    found = []
    for j, c in enumerate(analysis.candidates):
        spread = math.sqrt(max(cov[j][j] + cov[k][k] - 2 * cov[j][k], 0.0))
        if j != k and abs(mean[j] - mean[k]) <= 1.96 * spread:
            found.append(c)
    return tuple(found)


def _estimates(analysis: Analysis, milliseconds: float) -> tuple[Estimate, ...]:
    found = []
    for k, c in enumerate(analysis.candidates):
        mean = float(analysis.fit.mean[k])
        spread = math.sqrt(max(float(analysis.fit.covariance[k, k]), 0.0))
        reach = t95(NOISE_WEIGHT + analysis.counts[k]) * spread
        comparison = analysis.comparisons.get(c, NO_COMPARISON)
        low, high = mean - reach, mean + reach
        if comparison.pairs >= FEWEST_PAIRS:
            mean, low, high = comparison.mean, comparison.low, comparison.high
        found.append(
            Estimate(
                candidate=c,
                samples=analysis.counts[k],
                milliseconds=milliseconds * math.exp(mean),
                relative=math.exp(mean),
                low=math.exp(low),
                high=math.exp(high),
            )
        )
    return tuple(found)
