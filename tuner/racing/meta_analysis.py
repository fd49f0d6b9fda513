"""Judges all runs of a key together. Pure numpy: no clock, no database, no randomness.

Timings compare candidates only within a run, because the machine changes from run to run, and
gains differ between runs as well (standard deviation `between_runs`, tau). This is a
random-effects network meta-analysis (Higgins and Whitehead 1996; Lu and Ades 2004); tau has a
weakly informative prior and is integrated over a grid.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from tuner.racing.comparison import (
    FEWEST_PAIRS,
    MIN_GAIN,
    NO_COMPARISON,
    NOISE_WEIGHT,
    OUTLIER,
    Analysis,
    PairedComparison,
    PoolShape,
    compare_pairs,
    looks_z,
    paired_differences,
    t95,
    usable_samples,
)
from tuner.racing.costs import Costs, curves, fit
from tuner.racing.verdict import decide, judge
from tuner.records import NATIVE_DEFAULT, Candidate, Run, Sample, Verdict

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

TAUS = np.concatenate([[0.0], np.geomspace(0.0005, 0.1, 16)])
"""The grid over which the spread between runs is integrated."""
TAU_SCALE, TAU_TAIL = 0.003, 4.0
"""Of its prior, a half-t one (Gelman 2006), and the degrees of freedom of its tail. A half-Cauchy
one, whose tail is longer, would let a second run that agrees take back what the first proved."""
FEW_TIMINGS = 2
"""Samples of a candidate in one run that cannot tell whether they were late or it is slow."""
OUTLIER_DEVIATIONS = 2.5
"""Standard deviations by which such timings may be slow and still count in full."""
PASSES = 2
"""Passes in which outliers are found, against all runs."""
SMALLEST_NOISE = 1e-4
"""Lower limit of the noise."""
MANY_PAIRS = 12
"""With this many pairs in all runs, the noise comes from them and not from the runs' fits: a short
run alone cannot separate a few outliers from a noisy machine."""
COMMON, COMMON_DEVIATIONS = 0.8, 1.2816
"""The quantile of the pairs' spread that gives the noise, and its place in standard deviations:
outliers are fewer than the other timings."""
NOISE_TIMINGS = 40.0
"""How many timings the noise of all runs together counts for in the noise of one."""
FIT_ITERATIONS = 3
"""Of one run's fit: its costs depend little on its scales."""
CLEARLY = 3.0
"""Standard errors between the gains of two runs that make them a contradiction."""
ENOUGH_SECONDS = 30.0
"""Pool time of all runs of a key, three full budgets; then the tie rule decides."""
ENOUGH_SAMPLES = 1440
"""The same in samples, three times what ends a race: light steps get there first."""
ENOUGH_RUNS = 20
"""The same in runs: of a small budget, resumed runs spend little each."""
OUTLIER_STANDSTILL = 10.0
"""A sample this many times the run's median is from a suspended process; the excess is ignored."""
MEASURED = ("complete", "cut short")
"""States of runs whose samples are analysis."""
VERIFY = "verify"
"""Strategy of a run that only checks whether a choice still holds."""


@dataclass(frozen=True, slots=True)
class RunEstimate:
    """Costs as one run shows them, the machine's speed removed."""

    candidates: tuple[Candidate, ...]
    """Those it timed, the native default first whether timed or not."""
    counts: tuple[int, ...]
    information: Floats
    """Shape (candidates, candidates), as `costs.Fit` has it."""
    score: Floats
    """Shape (candidates,)."""
    noise2: float
    """Square of the noise's standard deviation."""
    bumps: Floats
    """Shape (candidates,): prior variance of each one's own bump, as the run scales it."""
    curve2: float
    """Square of the costs's scale, likewise."""
    costs: Floats
    """Shape (candidates,): log of the time over the default's, as the run alone sees it."""
    pairs: dict[Candidate, list[float]]
    """Of its comparisons."""


def estimate_run(
    samples: Iterable[Sample], shape: PoolShape, failed: Collection[Candidate] = ()
) -> RunEstimate | None:
    """Analyse one run's samples; None if none of them counts.

    Args:
        samples: of the run.
        shape: what it timed.
        failed: candidates on which the pool raised, in this run or another.
    """
    usable = usable_samples(samples, shape.native_chunk, failed)
    if not usable:
        return None
    timed = {s.candidate for s in usable} - {NATIVE_DEFAULT}
    candidates = (NATIVE_DEFAULT, *sorted(timed, key=lambda c: c.chunk_size or 0))
    index = {c: k for k, c in enumerate(candidates)}
    which = [index[s.candidate] for s in usable]
    logs = [math.log(s.nanoseconds / s.repeats) for s in usable]
    fitted = fit(*shape.axes(candidates), which, logs, iterations=FIT_ITERATIONS)
    pairs = paired_differences(which, [s.block for s in usable], [s.order for s in usable], logs)
    return RunEstimate(
        candidates=candidates,
        counts=tuple(map(which.count, range(len(candidates)))),
        information=fitted.information,
        score=fitted.score,
        noise2=fitted.noise**2,
        bumps=fitted.scales.bump2 / fitted.scales.bump_w,
        curve2=fitted.scales.curve2,
        costs=fitted.mean,
        pairs={candidates[k]: d for k, d in pairs.items()},
    )


@dataclass(frozen=True, slots=True)
class CombinedRuns:
    """Several runs combined."""

    analysis: Analysis
    between_runs: float
    """Posterior mean of tau."""


def combine_runs(
    estimates: Sequence[RunEstimate], shape: PoolShape, others: Iterable[Candidate] = ()
) -> CombinedRuns:
    """Combine runs.

    Args:
        estimates: of the runs, in the order they finished.
        shape: what they timed.
        others: candidates that may have no timing at all.
    """
    named = {c for r in estimates for c in r.candidates} | {*others}
    named.discard(NATIVE_DEFAULT)
    candidates = (NATIVE_DEFAULT, *sorted(named, key=lambda c: c.chunk_size or 0))
    index = {c: k for k, c in enumerate(candidates)}
    m, n = len(candidates), len(estimates)
    information, score = np.zeros((n, m, m)), np.zeros((n, m))
    bumps, seen, counts = np.zeros(m), np.zeros(m), np.zeros((n, m), dtype=np.int64)
    taken = np.array([float(sum(r.counts)) for r in estimates])
    noise2 = np.array([r.noise2 for r in estimates])
    common = _common_noise2(estimates, noise2, taken)
    steadied = (noise2 * taken + common * NOISE_TIMINGS) / (taken + NOISE_TIMINGS)
    for k, r in enumerate(estimates):
        at = np.array([index[c] for c in r.candidates])
        information[k][np.ix_(at, at)] = r.information * (noise2[k] / steadied[k])
        score[k, at] = r.score * (noise2[k] / steadied[k])
        timed = np.array(r.counts) > 0
        bumps[at] += np.where(timed, r.bumps, 0.0)
        seen[at] += timed
        counts[k, at] = r.counts
    own_bump = np.where(seen > 0, bumps / np.maximum(seen, 1), bumps.sum() / seen.sum())
    trend, smooth = curves(*shape.axes(candidates), np.flatnonzero(seen).tolist())
    prior = trend + np.mean([r.curve2 for r in estimates]) * smooth + np.diag(own_bump)
    weights, mean, covariance = _integrated(information, score, prior)
    for _ in range(PASSES):
        tau2 = float(weights @ TAUS**2)
        blur = (
            _outlier_variance(information, score, mean, tau2)
            * (counts > 0)
            * (counts <= FEW_TIMINGS)
        )
        keep = np.linalg.inv(np.eye(m) + information * blur[:, None, :])
        weights, mean, covariance = _integrated(
            keep @ information, np.einsum("rij,rj->ri", keep, score), prior
        )
    relative = np.eye(m)
    relative[:, 0] -= 1.0
    comparisons, contradicted = {}, set()
    for c in sorted({c for r in estimates for c in r.pairs}, key=lambda c: c.chunk_size or 0):
        said = [
            _RunComparison.of(
                r.pairs[c], float(r.costs[r.candidates.index(c)]), 2.0 * float(noise2)
            )
            for r, noise2 in zip(estimates, steadied, strict=True)
            if c in r.pairs
        ]
        without = _gain_missing(said)
        if any(without):
            contradicted.add(c)
        if not without or not without[-1]:  # the latest comparison withdraws what it lacks
            comparisons[c] = _combined_comparison(said, weights)
    return CombinedRuns(
        analysis=Analysis(
            candidates=candidates,
            counts=tuple(counts.sum(axis=0).tolist()),
            fit=Costs(
                mean=relative @ mean,
                covariance=relative @ covariance @ relative.T,
                noise=math.sqrt(common),
            ),
            comparisons=comparisons,
            contradicted=frozenset(contradicted),
        ),
        between_runs=float(weights @ TAUS),
    )


def _prior_of_tau() -> Floats:
    edges = np.concatenate([[0.0], 0.5 * (TAUS[1:] + TAUS[:-1]), TAUS[-1:]])
    density = (1.0 + (TAUS / TAU_SCALE) ** 2 / TAU_TAIL) ** (-0.5 * (TAU_TAIL + 1.0))
    weights = density * np.diff(edges)
    return np.asarray(weights / weights.sum())


PRIOR_OF_TAU = _prior_of_tau()
"""Probability of each of the `TAUS`, before any run."""


def _common_noise2(estimates: Sequence[RunEstimate], noise2: Floats, taken: Floats) -> float:
    """The square of the noise of all runs together, without outliers."""
    fitted = float(noise2 @ taken) / float(taken.sum())
    pairs = [np.array(d) - np.median(d) for r in estimates for d in r.pairs.values() if len(d) > 2]
    if sum(map(len, pairs)) < MANY_PAIRS:
        return fitted
    deviation = float(np.quantile(np.abs(np.concatenate(pairs)), COMMON)) / COMMON_DEVIATIONS
    # The deviation of a pair is that of two timings; one of 0 is a clock's grain, not a machine's.
    return min(fitted, max(0.5 * deviation**2, SMALLEST_NOISE**2))


def _outlier_variance(information: Floats, score: Floats, mean: Floats, tau2: float) -> Floats:
    """Variance to add to each run's costs for outliers."""
    own = np.maximum(np.einsum("rkk->rk", information), 1e-9)
    off = (score - information @ mean) / own
    expected = 1.0 / own + 0.5 * tau2 * np.sum(information**2, axis=2) / own**2
    late = np.maximum(off, 0.0) / OUTLIER_DEVIATIONS
    return np.asarray(np.maximum(late**2 - expected, 0.0))


def _integrated(information: Floats, score: Floats, prior: Floats) -> tuple[Floats, Floats, Floats]:
    """Weights of the `TAUS`, and mean and covariance of the costs with all of them together.

    A run's candidates each deviate from their costs by a variance of tau squared over 2, so that
    the difference of two of them deviates by tau. In the directions of its information's
    eigenvectors that is one number more to each variance.
    """
    n, m = score.shape
    known, axes = np.linalg.eigh(information)
    known = np.where(known > 1e-9 * known[:, -1:], known, 0.0)
    along = np.einsum("rji,rj->ri", axes, score)
    share = 1.0 / (1.0 + 0.5 * TAUS[:, None, None] ** 2 * known)
    every_axis = axes.transpose(1, 0, 2).reshape(m, n * m)
    strength = (share * known).reshape(-1, 1, n * m)
    everything = (every_axis * strength) @ every_axis.T
    right = (share * along).reshape(-1, n * m) @ every_axis.T
    squares = along**2 / np.where(known > 0, known, 1.0) * (known > 0)
    shrink = np.linalg.inv(np.eye(m) + everything @ prior)
    covariances = prior @ shrink
    means = np.einsum("gij,gj->gi", covariances, right)
    likelihood = 0.5 * (
        np.log(share).sum(axis=(1, 2))
        - (share * squares).sum(axis=(1, 2))
        + np.einsum("gi,gi->g", means, right)
        + np.linalg.slogdet(shrink)[1]
    )
    weights = PRIOR_OF_TAU * np.exp(likelihood - likelihood.max())
    weights /= weights.sum()
    mean = weights @ means
    off = means - mean
    covariance = np.einsum("g,gij->ij", weights, covariances + off[:, :, None] * off[:, None, :])
    return weights, mean, covariance


@dataclass(frozen=True, slots=True)
class _RunComparison:
    """One run's comparison between a candidate and the default."""

    alone: PairedComparison
    """As this run's verdict sees it."""
    pairs: int
    mean: float
    squares: float
    """Sum of squares about the mean, in units of `variance`."""
    variance: float
    """Of one pair, by the run's noise."""

    @classmethod
    def of(cls, pairs: Sequence[float], expected: float, variance: float) -> _RunComparison:
        reach = OUTLIER * math.sqrt(variance)
        kept = [pair for pair in pairs if abs(pair - expected) <= reach]
        mean = math.fsum(kept) / max(len(kept), 1)
        return cls(
            alone=compare_pairs(pairs, math.sqrt(0.5 * variance)),
            pairs=len(kept),
            mean=mean,
            squares=math.fsum((pair - mean) ** 2 for pair in kept) / variance,
            variance=variance,
        )


def _combined_comparison(said: Sequence[_RunComparison], weights: Floats) -> PairedComparison:
    """Combine a candidate's comparisons, no more exactly than tau allows."""
    said = [d for d in said if d.pairs]
    pairs = sum(d.pairs for d in said)
    if pairs < 2:
        return NO_COMPARISON
    freedom = NOISE_WEIGHT + pairs - len(said)
    excess = (NOISE_WEIGHT + sum(d.squares for d in said)) / freedom
    variance = np.array([excess * d.variance / d.pairs for d in said])
    precision = 1.0 / (variance + TAUS[:, None] ** 2)
    means = precision @ np.array([d.mean for d in said]) / precision.sum(axis=1)
    errors = t95(freedom) / 1.96 / np.sqrt(precision.sum(axis=1))
    mean = float(weights @ means)
    low, high = (_quantile(p, weights, means, errors) for p in (0.025, 0.975))
    wider = looks_z(pairs) / 1.96
    return PairedComparison(
        pairs, mean, mean - wider * max(mean - low, 0.0), mean + wider * max(high - mean, 0.0)
    )


def _quantile(share: float, weights: Floats, means: Floats, errors: Floats) -> float:
    """Of a mixture of normal distributions, by bisection."""
    low = float((means - 12.0 * errors).min())
    high = float((means + 12.0 * errors).max())
    parts = list(zip(weights.tolist(), means.tolist(), errors.tolist(), strict=True))
    for _ in range(50):
        middle = 0.5 * (low + high)
        below = sum(w * 0.5 * math.erfc((m - middle) / (e * math.sqrt(2.0))) for w, m, e in parts)
        low, high = (middle, high) if below < share else (low, middle)
    return 0.5 * (low + high)


def _gain_missing(said: Sequence[_RunComparison]) -> list[bool]:
    """Per run: its comparison clearly lacks a gain that another run's comparison has proven."""
    known = [d.alone for d in said]
    proven = [d for d in known if d.proven]

    def lacks(comparison: PairedComparison) -> bool:
        if comparison.pairs < FEWEST_PAIRS or comparison.mean < math.log1p(-MIN_GAIN):
            return False
        return any(
            comparison.mean - p.mean > CLEARLY * math.hypot(comparison.error, p.error)
            for p in proven
        )

    return [lacks(comparison) for comparison in known if comparison.pairs >= FEWEST_PAIRS]


def judge_runs(
    runs: Iterable[Run], *, num_envs: int | None = None, nthread: int | None = None
) -> Verdict:
    """Say what all runs of a key mean together, whatever the order they come in.

    One run with timings: what `judge` says of it. Several: a candidate must be faster in spite
    of how much runs differ; where they contradict each other the verdict is undecided. Failed
    runs say nothing. An imported run's stated choice stands where no measured run decides.

    Args:
        runs: of one key.
        num_envs: as for `judge`.
        nthread: as for `judge`.
    """
    ordered = in_order(runs)
    measured = _measured_verdict(measured_runs(ordered), PoolShape(num_envs, nthread))
    stated = [run.choice for run in ordered if run.state == "imported" and run.choice is not None]
    if num_envs:  # one may have been stated when nobody knew what the pool can take
        stated = [c for c in stated if (c.chunk_size or 0) <= num_envs]
    if measured.decided or not stated:
        return measured
    return Verdict(stated[-1], True, None, None, None, None)


def in_order(runs: Iterable[Run]) -> list[Run]:
    """Runs in the order they finished."""
    return sorted(runs, key=lambda run: (run.finished, run.uid))


def measured_runs(runs: Iterable[Run]) -> list[Run]:
    """Those in which something was timed."""
    return [run for run in runs if run.state in MEASURED and run.samples]


def excluded_candidates(runs: Iterable[Run], shape: PoolShape) -> set[Candidate]:
    """Candidates that cannot be chosen: the pool raised on them, or they exceed num_envs."""
    out = set()
    most = shape.num_envs or math.inf
    for run in runs:
        out |= {
            *run.failed,
            *(s.candidate for s in run.samples if (s.candidate.chunk_size or 0) > most),
        }
    return out


def _measured_verdict(runs: Sequence[Run], shape: PoolShape) -> Verdict:
    failed = excluded_candidates(runs, shape)
    found = [r for run in runs if (r := estimate_run(run.samples, shape, failed)) is not None]
    cut_short = not _explored(runs, shape)
    default = [
        s.milliseconds
        for run in runs
        for s in usable_samples(run.samples, shape.native_chunk)
        if s.candidate == NATIVE_DEFAULT
    ]
    if len(found) > 1 and default:
        combined = combine_runs(found, shape)
        milliseconds = float(np.median(default))
        verdict = decide(combined.analysis, shape, milliseconds, cut_short=cut_short)
        verdict = replace(verdict, between_runs=combined.between_runs)
    else:
        verdict = judge(
            next((run.samples for run in runs if estimate_run(run.samples, shape, failed)), ()),
            num_envs=shape.num_envs,
            nthread=shape.nthread,
            cut_short=cut_short,
            failed=failed,
        )
    if verdict.decided or not _is_at_its_total(runs):
        return verdict
    return replace(verdict, decided=True, reason="tie")


def _explored(runs: Sequence[Run], shape: PoolShape) -> bool:
    """Whether a complete run has looked at all candidates.

    A run of nothing but a comparison counts if it continued others, or nothing else was timed.
    """
    timed = [{s.candidate for s in usable_samples(r.samples, shape.native_chunk)} for r in runs]
    everything: set[Candidate] = set().union(*timed)
    before: set[Candidate] = set()
    for run, own in zip(runs, timed, strict=True):
        before |= own
        only_a_comparison = len(own) == 2 and len(before) == 2 < len(everything)
        if run.state == "complete" and run.strategy != VERIFY and not only_a_comparison:
            return True
    return False


def _is_at_its_total(runs: Sequence[Run]) -> bool:
    """Whether a key's total measuring is spent, so that the rule for ties decides."""
    seconds = 0.0
    for run in runs:
        taken = [s.nanoseconds / 1e9 for s in run.samples]
        most = OUTLIER_STANDSTILL * float(np.median(taken))
        seconds += sum(min(each, most) for each in taken)
    samples = sum(len(run.samples) for run in runs)
    return seconds >= ENOUGH_SECONDS or samples >= ENOUGH_SAMPLES or len(runs) >= ENOUGH_RUNS
