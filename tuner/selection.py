"""From samples to a verdict. Pure: no clock, no database, no randomness, numpy only.

`judge` needs nothing but the samples (and what the native rule stands for), so a verdict can
be made again later from what the database holds, and comes out the same in every process.

It leaves the native default only for a candidate that a duel has proven faster. A duel is a
round in which the default and one other candidate were timed in turn (default, other, other,
default): the timings that made a candidate look good are never the ones that prove it, so
being the luckiest of sixteen proves nothing.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from tuner.curve import Fit, fit
from tuner.records import NATIVE_DEFAULT, Candidate, Estimate, Sample, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from tuner.records import Reason

    Floats = NDArray[np.float64]

WORTH = 0.002
"""The smallest gain worth leaving the default for, as a share of the default's time."""
FEWEST_PAIRS = 4
"""Pairs without which a duel proves nothing."""
ALPHA = 0.1
RHO = 8.0
"""Half-widths of the 95 % interval that must lie beyond it."""
FIT_PROOF = 0.0
FIT_WORTH = 0.0
OUTLIER = 4.5
"""A pair this many standard deviations from the median pair is set aside."""
NOISE_WEIGHT = 4
"""Degrees of freedom that the run's noise, known from all its timings, brings to a duel."""
SETTLED = 0.005
"""A choice is decided when more timings are expected to gain less than this."""

_T95 = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179)


def t95(freedom: int) -> float:
    """The 97.5 % quantile of Student's t: half a two-sided 95 % interval, in standard errors."""
    if freedom < 1:
        return math.inf
    if freedom <= len(_T95):
        return _T95[freedom - 1]
    return 1.96 + 2.4 / freedom + 3.0 / freedom**2


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
    usable = {c: t for c, t in timings.items() if math.isfinite(t) and t > 0}
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


@dataclass(frozen=True, slots=True)
class Duel:
    """What the duels between one candidate and the default say, as log(time / default's)."""

    pairs: int
    mean: float
    low: float
    high: float

    @property
    def proven(self) -> bool:
        """The candidate is faster, by more than is worth it, with 95 % confidence."""
        n = max(self.pairs, 1)
        z = math.sqrt((n + RHO) / n * math.log((n + RHO) / (RHO * ALPHA**2)))
        bound = self.mean + z / 1.96 * (self.high - self.mean)
        return self.pairs >= FEWEST_PAIRS and bound < math.log1p(-WORTH)


NO_DUEL = Duel(0, 0.0, -math.inf, math.inf)


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything samples say, before anything is decided."""

    candidates: tuple[Candidate, ...]
    """The native default first."""
    counts: tuple[int, ...]
    """Samples of each."""
    fit: Fit
    duels: dict[Candidate, Duel]

    def proven(self, candidate: Candidate) -> bool:
        """Both a duel and the fit of all timings say that it is faster than the default."""
        if not self.duels.get(candidate, NO_DUEL).proven:
            return False
        k = self.candidates.index(candidate)
        spread = math.sqrt(max(float(self.fit.covariance[k, k]), 0.0))
        return float(self.fit.mean[k]) + FIT_PROOF * spread < math.log1p(-FIT_WORTH)


def usable_samples(samples: Iterable[Sample], native_chunk: int | None) -> list[Sample]:
    """The samples a verdict rests on, in the order taken, the default's twin renamed to it."""
    twin = Candidate(native_chunk)
    return [
        replace(s, candidate=NATIVE_DEFAULT) if s.candidate == twin else s
        for s in sorted(samples, key=lambda s: s.order)
        if not s.warm_up and s.nanoseconds > 0
    ]


@dataclass(frozen=True, slots=True)
class Work:
    """What is cut into chunks, and for how many threads."""

    num_envs: int | None = None
    nthread: int | None = None

    @property
    def native_chunk(self) -> int | None:
        """The chunk size of the pool's own rule; None if not known."""
        if not self.num_envs or not self.nthread:
            return None
        return max(1, self.num_envs // (10 * self.nthread))

    def idle(self, chunk_size: float) -> float:
        """Log of how much longer a step takes because the last round of chunks is not full."""
        if not self.num_envs or not self.nthread or not chunk_size >= 1:
            return 0.0
        rounds = math.ceil(math.ceil(self.num_envs / chunk_size) / self.nthread)
        return math.log(rounds * chunk_size * self.nthread / self.num_envs)


def weigh(
    samples: Sequence[Sample], work: Work, others: Iterable[Candidate] = ()
) -> Evidence | None:
    """Fit the samples and add up the duels; None if the default has no sample.

    Args:
        samples: as `usable_samples` gives them.
        work: what the samples timed.
        others: candidates without samples, for which the fit should say what to expect.
    """
    counts = {NATIVE_DEFAULT: 0, **{c: 0 for c in others}}
    for s in samples:
        counts[s.candidate] = counts.get(s.candidate, 0) + 1
    if not counts[NATIVE_DEFAULT]:
        return None
    rest = sorted((c for c in counts if c != NATIVE_DEFAULT), key=lambda c: c.chunk_size or 0)
    candidates = (NATIVE_DEFAULT, *rest)
    index = {c: k for k, c in enumerate(candidates)}
    chunks = np.array([c.chunk_size or work.native_chunk or math.nan for c in candidates], dtype=float)
    which = np.array([index[s.candidate] for s in samples], dtype=np.intp)
    logs = np.log([s.nanoseconds / s.steps for s in samples])
    fitted = fit(chunks, np.array([work.idle(c) for c in chunks]), which, logs)
    return Evidence(
        candidates=candidates,
        counts=tuple(counts[c] for c in candidates),
        fit=fitted,
        duels={c: _duel(d, fitted.noise) for c, d in duel_differences(samples).items()},
    )


def duel_differences(samples: Sequence[Sample]) -> dict[Candidate, list[float]]:
    """log(time / default's) of each pair of neighbours, from the rounds that are duels."""
    rounds: dict[int, list[Sample]] = defaultdict(list)
    for s in samples:
        rounds[s.round].append(s)
    found: dict[Candidate, list[float]] = defaultdict(list)
    for members in rounds.values():
        kinds = {s.candidate for s in members}
        if len(kinds) != 2 or NATIVE_DEFAULT not in kinds:
            continue
        (rival,) = kinds - {NATIVE_DEFAULT}
        waiting: Sample | None = None
        for s in members:
            if waiting is None or waiting.candidate == s.candidate or s.order != waiting.order + 1:
                waiting = s
                continue
            ratio = math.log(s.nanoseconds / s.steps * waiting.steps / waiting.nanoseconds)
            found[rival].append(ratio if s.candidate == rival else -ratio)
            waiting = None
    return dict(found)


def _duel(differences: Sequence[float], noise: float) -> Duel:
    """The mean difference with its 95 % interval, far-off pairs set aside."""
    pairs = np.array(differences)
    expected = math.sqrt(2.0) * noise
    kept = pairs[np.abs(pairs - np.median(pairs)) <= OUTLIER * expected]
    if len(kept) < 2:
        return NO_DUEL
    freedom = NOISE_WEIGHT + len(kept) - 1
    mean = float(kept.mean())
    squares = NOISE_WEIGHT * expected**2 + float(np.sum((kept - mean) ** 2))
    error = math.sqrt(squares / freedom / len(kept))
    reach = t95(freedom) * error
    return Duel(len(kept), mean, mean - reach, mean + reach)


def judge(
    samples: Iterable[Sample],
    *,
    num_envs: int | None = None,
    nthread: int | None = None,
    cut_short: bool = False,
) -> Verdict:
    """Say what samples mean together.

    Args:
        samples: of one run, or of several joined by `join_runs`.
        num_envs: environments in one step; None if not known.
        nthread: threads of the pool; None if not known. With both, samples of the chunk size
            that the native rule gives count as the default's own.
        cut_short: the run that took the samples ended for want of time; only the reason of an
            undecided verdict depends on it.
    """
    work = Work(num_envs, nthread)
    usable = usable_samples(samples, work.native_chunk)
    evidence = weigh(usable, work)
    if evidence is None:
        return Verdict(NATIVE_DEFAULT, False, "budget" if cut_short else "too few", 0.0, 0.0, 0.0)
    choice = _choose(evidence, work.native_chunk)
    duel = evidence.duels.get(choice, NO_DUEL)
    left = choice != NATIVE_DEFAULT
    settled = _expected_loss(evidence.fit, evidence.candidates.index(choice)) < SETTLED
    return Verdict(
        candidate=choice,
        decided=settled,
        reason=None if settled else _reason(evidence, cut_short),
        gain=1.0 - math.exp(duel.mean) if left else 0.0,
        gain_low=1.0 - math.exp(duel.high) if left else 0.0,
        gain_high=1.0 - math.exp(duel.low) if left else 0.0,
        ties=_ties(evidence, choice),
        estimates=_estimates(evidence, usable),
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


def _choose(evidence: Evidence, native_chunk: int | None) -> Candidate:
    proven = [c for c in evidence.duels if evidence.proven(c)]
    if not proven:
        return NATIVE_DEFAULT
    best = min(evidence.duels[c].mean for c in proven)
    equal = [c for c in proven if evidence.duels[c].mean <= best + WORTH]
    return min(equal, key=lambda c: nearest_native(c, native_chunk))


_ERF = np.vectorize(math.erf, otypes=[float])


def expected_excess(mean: Floats, spread: Floats) -> Floats:
    """Expected positive part of normal values with this mean and standard deviation."""
    spread = np.maximum(spread, 1e-12)
    z = mean / spread
    density = np.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
    excess: Floats = mean * 0.5 * (1 + _ERF(z / math.sqrt(2))) + spread * density
    return excess


def _expected_loss(fitted: Fit, choice: int) -> float:
    """An upper bound on what the choice is expected to lose to the best of the others."""
    gain = fitted.mean[choice] - fitted.mean
    variance = np.diag(fitted.covariance)
    spread = np.sqrt(
        np.maximum(variance + variance[choice] - 2 * fitted.covariance[choice], 1e-18)
    )
    loss = expected_excess(gain, spread)
    loss[choice] = 0.0
    return float(loss.max())


def _reason(evidence: Evidence, cut_short: bool) -> Reason:
    if cut_short:
        return "budget"
    return "too few" if min(evidence.counts) < 2 or len(evidence.counts) < 2 else "noise"


def _ties(evidence: Evidence, choice: Candidate) -> tuple[Candidate, ...]:
    k = evidence.candidates.index(choice)
    mean, cov = evidence.fit.mean, evidence.fit.covariance
    found = []
    for j, c in enumerate(evidence.candidates):
        spread = math.sqrt(max(float(cov[j, j] + cov[k, k] - 2 * cov[j, k]), 0.0))
        if j != k and abs(mean[j] - mean[k]) <= 1.96 * spread:
            found.append(c)
    return tuple(found)


def _estimates(evidence: Evidence, samples: Sequence[Sample]) -> tuple[Estimate, ...]:
    times: dict[Candidate, list[float]] = defaultdict(list)
    for s in samples:
        times[s.candidate].append(s.milliseconds)
    found = []
    for k, c in enumerate(evidence.candidates):
        mean = float(evidence.fit.mean[k])
        reach = 1.96 * math.sqrt(max(float(evidence.fit.covariance[k, k]), 0.0))
        duel = evidence.duels.get(c, NO_DUEL)
        low, high = mean - reach, mean + reach
        if duel.pairs >= FEWEST_PAIRS:
            mean, low, high = duel.mean, duel.low, duel.high
        found.append(
            Estimate(
                candidate=c,
                samples=evidence.counts[k],
                milliseconds=float(np.median(times[c])),
                relative=math.exp(mean),
                low=math.exp(low),
                high=math.exp(high),
            )
        )
    return tuple(found)


def join_runs(runs: Iterable[Iterable[Sample]]) -> tuple[Sample, ...]:
    """Samples of several runs as one sequence: rounds and orders go on from run to run."""
    joined: list[Sample] = []
    for run in runs:
        first_round = 1 + max((s.round for s in joined), default=-1)
        # An order is left out so that no pair straddles two runs.
        first_order = 2 + joined[-1].order if joined else 0
        joined += [
            replace(s, round=s.round + first_round, order=s.order + first_order)
            for s in sorted(run, key=lambda s: s.order)
        ]
    return tuple(joined)


def explain_verdict(verdict: Verdict, *, pool_seconds: float | None = None) -> str:
    """One sentence: what was chosen and why, or what would settle it."""
    timings = sum(e.samples for e in verdict.estimates)
    cost = f"{timings} timings" + ("" if pool_seconds is None else f", {pool_seconds:.1f} s")
    if verdict.candidate != NATIVE_DEFAULT:
        head = (
            f"chunk {verdict.candidate} is {verdict.gain:.1%} faster than the native default "
            f"({100 * verdict.gain_low:.1f} to {verdict.gain_high:.1%}), {cost}"
        ).replace("%", " %")
    else:
        head = f"the native default stays: nothing is proven faster, {cost}"
    if verdict.decided:
        return head
    remedy = {
        "budget": "time ran out: a larger time budget would settle it",
        "noise": "the machine is too noisy: a quieter machine or a larger time budget "
        "would settle it",
        "too few": "too few timings: a larger time budget would settle it",
        None: "",
    }[verdict.reason]
    return f"{head}; undecided, {remedy}"
