"""Fits timings: what each candidate costs, what the machine was doing, and how sure that is.

Pure numpy: no clock, no database, no randomness, and it decides nothing.

The log of a timing is taken apart into three things:

* the candidate's cost. Over the log of the chunk size it is a smooth curve plus a bump of the
  candidate's own; how large either is, is learned from the timings, so neighbours inform each
  other only as far as the timings agree that they do;
* the machine's speed, a walk over the order of the timings whose steps are small as a rule and
  now and then large (a change of clock speed, a neighbour that comes or goes);
* noise, small as a rule and now and then large (somebody else's turn on the core), and
  never a gift.

"Small as a rule, now and then large" is Student's t with few degrees of freedom, written as a
normal distribution with an unknown scale per timing. All scales are found by variational
iteration; one iteration inverts one matrix with a row for every other timing and for every
candidate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

NOISE_SCALE, NOISE_TAIL = 0.015, 4.0
"""Prior guess of the noise of a timing (a share of it), and the degrees of freedom of its tail."""
NOISE_SPREAD = 1.25
"""Standard deviation of normal noise over the scale that a t with that tail fits to it."""
SPEED_SCALE, SPEED_TAIL = 0.003, 1.0
"""The same for the change of the machine's speed from one timing to the next."""
CURVE_SCALE, BUMP_SCALE = 0.04, 0.016
"""Prior guesses of the smooth curve's deviation from its trend, and of a candidate's own bump."""
PRIOR_WEIGHT = 3.0
"""How many observations each prior guess is worth."""
CURVE_LENGTH = 0.7
"""Over how much log(chunk) the curve keeps its shape: a factor of two in chunk size."""
BUMP_TAIL = 3.0
"""Degrees of freedom of the bumps: lone winners exist."""
STRETCH = 2
"""Timings in a row that share a speed of the machine; a change within them counts as noise."""
MOST_TIMINGS = 600
"""With more timings than this (many runs judged together) the stretches get longer."""
ITERATIONS = 12
"""Of the variational fit, at most."""


@dataclass(frozen=True, slots=True)
class Learned:
    """What a fit found out about scales, for a fit of the same timings and some more."""

    noise2: float
    speed2: float
    curve2: float
    bump2: float
    """Squares of the four scales."""
    noise_w: Floats
    """Shape (timings,): weight of each, small for one that came late."""
    speed_w: Floats
    """Shape (stretches - 1,): weight of each change of speed, small for a large one."""
    bump_w: Floats
    """Shape (candidates,): weight of each one's bump, small for a large one."""

    @classmethod
    def nothing(cls, timings: int, stretches: int, candidates: int) -> Learned:
        """The prior guesses."""
        return cls(
            noise2=NOISE_SCALE**2,
            speed2=SPEED_SCALE**2,
            curve2=CURVE_SCALE**2,
            bump2=BUMP_SCALE**2,
            noise_w=np.ones(timings),
            speed_w=np.full(stretches - 1, 0.2),
            bump_w=np.ones(candidates),
        )

    def carried_to(self, timings: int, stretches: int, candidates: int) -> Learned:
        """The same for more timings of the same candidates; anew if these are others."""
        fresh = Learned.nothing(timings, stretches, candidates)
        if len(self.noise_w) > timings or len(self.bump_w) != candidates:
            return fresh
        noise_w, speed_w = fresh.noise_w, fresh.speed_w
        noise_w[: len(self.noise_w)] = self.noise_w
        speed_w[: len(self.speed_w)] = self.speed_w
        return replace(self, noise_w=noise_w, speed_w=speed_w)


@dataclass(frozen=True, slots=True)
class Fit:
    """Log costs relative to the first candidate (the native default), with their covariance."""

    mean: Floats
    """Shape (candidates,): log of the time over the default's; the first is 0."""
    covariance: Floats
    """Shape (candidates, candidates)."""
    noise: float
    """Standard deviation of the log of one timing, spikes set aside."""
    learned: Learned | None = None
    """What a fit of more timings may go on from."""


def fit(
    chunks: Floats,
    idle: Floats,
    which: NDArray[np.intp],
    logs: Floats,
    *,
    tolerance: float = 0.0,
    learned: Learned | None = None,
) -> Fit:
    """Fit timings taken one after another.

    Candidates without timings get a prediction and change nothing for the others.

    Args:
        chunks: shape (candidates,): chunk size of each, the native default first (at the chunk
            size its rule gives, NaN if that is not known).
        idle: shape (candidates,): log of how much longer a step takes for threads that have
            nothing to do in its last rounds, 0 where unknown. How much of it shows is learned.
        which: shape (timings,): index of the candidate of each timing, in the order taken.
        logs: shape (timings,): log of the time of one step.
        tolerance: The scales are found anew until they change by less than this share, and
            `ITERATIONS` times at most.
        learned: What a fit of all but the latest timings found: a better start than the prior
            guesses, so that fewer iterations do.
    """
    n, m = len(which), len(chunks)
    trend, smooth = curves(chunks, idle, np.unique(which))
    seen, place = np.unique(which, return_inverse=True)
    trend_s, smooth_s, kinds = trend[np.ix_(seen, seen)], smooth[np.ix_(seen, seen)], len(seen)
    stretch = _stretches(n)
    levels = int(stretch[-1]) + 1
    y = logs - np.median(logs)
    begin = (learned or Learned.nothing(n, levels, m)).carried_to(n, levels, m)
    noise2, speed2, curve2, bump2 = begin.noise2, begin.speed2, begin.curve2, begin.bump2
    noise_w, speed_w, bump_w = begin.noise_w, begin.speed_w, begin.bump_w[seen]
    for _ in range(ITERATIONS):
        before = np.array([noise2, speed2, curve2, bump2])
        bump_v = bump2 / bump_w
        inner = _inverse(trend_s + curve2 * smooth_s + np.diag(bump_v))
        mean, cov = _solve(y, stretch, place, noise_w / noise2, speed_w / speed2, inner)
        level, cost = mean[:levels], mean[levels:]
        # The noise: what is left of each timing.
        e = y - level[stretch] - cost[place]
        own = cov.diagonal()
        spread = own[stretch] + own[levels + place] + 2 * cov[stretch, levels + place]
        e2 = e * e + spread
        # A machine can hold a step up but not speed it up: only late timings are set aside.
        late = np.where(e > 0, e2 / noise2, np.minimum(e2 / noise2, 1.0))
        noise_w = (NOISE_TAIL + 1) / (NOISE_TAIL + late)
        noise2 = _scale(np.sum(noise_w * e2), n, NOISE_SCALE)
        # The machine's speed: its changes from one stretch to the next.
        between = own[1:levels] + own[: levels - 1] - 2 * cov.diagonal(1)[: levels - 1]
        change2 = np.diff(level) ** 2 + between
        speed_w = (SPEED_TAIL + 1) / (SPEED_TAIL + change2 / speed2)
        speed2 = _scale(np.sum(speed_w * change2), levels - 1, SPEED_SCALE)
        # The candidates: how much of what they cost is curve, how much their own bump.
        a = inner @ cost
        doubt = inner - inner @ cov[levels:, levels:] @ inner
        bump_e2 = (bump_v * a) ** 2 + bump_v - bump_v**2 * doubt.diagonal()
        curve_e2 = kinds * curve2 + curve2**2 * float(np.sum(smooth_s * (np.outer(a, a) - doubt)))
        bump_w = (BUMP_TAIL + 1) / (BUMP_TAIL + bump_e2 / bump2)
        bump2 = _scale(np.sum(bump_w * bump_e2), kinds, BUMP_SCALE)
        curve2 = _scale(curve_e2, kinds, CURVE_SCALE)
        if np.abs(np.array([noise2, speed2, curve2, bump2]) / before - 1).max() < tolerance:
            break
    every_bump_w = begin.bump_w.copy()
    every_bump_w[seen] = bump_w
    own_bump = np.full(m, bump2)
    own_bump[seen] = bump_v
    prior = trend + curve2 * smooth + np.diag(own_bump)
    carry = (trend + curve2 * smooth)[:, seen] @ inner
    carry[seen] = np.eye(kinds)
    everyone = carry @ cost
    covariance = prior - carry @ (_inverse(inner) - cov[levels:, levels:]) @ carry.T
    relative = np.eye(m)
    relative[:, 0] -= 1.0
    return Fit(
        mean=everyone - everyone[0],
        covariance=relative @ covariance @ relative.T,
        noise=float(NOISE_SPREAD * np.sqrt(noise2)),
        learned=Learned(noise2, speed2, curve2, bump2, noise_w, speed_w, every_bump_w),
    )


def told(which: NDArray[np.intp], logs: Floats, learned: Learned) -> tuple[Floats, Floats]:
    """What timings say of the costs when the machine's speed is taken out, prior left aside.

    Args:
        which: as `fit` got them.
        logs: likewise.
        learned: what that fit found.

    Returns:
        Shape (candidates, candidates): the information, whose inverse would be a covariance if
        it said anything of the costs' common level; and, shape (candidates,), information times
        costs. Those of several runs add up.
    """
    m, stretch = len(learned.bump_w), _stretches(len(which))
    noise_p, speed_p = learned.noise_w / learned.noise2, learned.speed_w / learned.speed2
    levels = len(speed_p) + 1
    columns = np.zeros((len(which), m + 1))
    columns[np.arange(len(which)), which] = 1.0
    columns[:, m] = logs - np.median(logs)
    weighed = noise_p[:, None] * columns
    summed = np.zeros((levels, m + 1))
    np.add.at(summed, stretch, weighed)
    chain = np.diag(summed[:, :m].sum(axis=1))
    at = np.arange(levels - 1)
    chain[at, at + 1] = chain[at + 1, at] = -speed_p
    chain[at, at] += speed_p
    chain[at + 1, at + 1] += speed_p
    left = columns.T @ weighed - summed.T @ np.linalg.solve(chain, summed)
    return left[:m, :m], left[:m, m]


def _stretches(timings: int) -> NDArray[np.intp]:
    return np.arange(timings) // (STRETCH * math.ceil(timings / MOST_TIMINGS))


def _solve(
    y: Floats,
    stretch: NDArray[np.intp],
    place: NDArray[np.intp],
    noise_p: Floats,
    speed_p: Floats,
    cost_p: Floats,
) -> tuple[Floats, Floats]:
    """Mean and covariance of the levels and the costs, in this order, given all precisions."""
    levels, kinds = len(speed_p) + 1, len(cost_p)
    precision = np.zeros((levels + kinds, levels + kinds))
    at, cost_at = np.arange(levels), np.arange(levels, levels + kinds)
    precision[at[1:], at[:-1]] = precision[at[:-1], at[1:]] = -speed_p
    precision[at, at] = np.bincount(stretch, noise_p, levels)
    precision[at[1:], at[1:]] += speed_p
    precision[at[:-1], at[:-1]] += speed_p
    shared = np.bincount(stretch * kinds + place, noise_p, levels * kinds)
    precision[:levels, levels:] = shared.reshape(levels, kinds)
    precision[levels:, :levels] = precision[:levels, levels:].T
    precision[levels:, levels:] = cost_p
    precision[cost_at, cost_at] += np.bincount(place, noise_p, kinds)
    right = np.concatenate(
        [np.bincount(stretch, noise_p * y, levels), np.bincount(place, noise_p * y, kinds)]
    )
    covariance = _inverse(precision)
    return covariance @ right, covariance


def curves(chunks: Floats, idle: Floats, seen: NDArray[np.intp]) -> tuple[Floats, Floats]:
    """The prior covariance of the trend, and of the smooth deviation from it at scale 1."""
    known = np.isfinite(chunks)
    sizes = np.where(known, chunks, 1.0)
    x = np.log(sizes)
    timed = seen[known[seen]]
    x = x - (x[0] if known[0] else x[timed].mean() if len(timed) else 0.0)
    trend = np.column_stack([0.15 * x, 0.08 * x * x, 0.6 / sizes, 0.4 * idle])
    gap = np.abs(x[:, None] - x[None, :]) / CURVE_LENGTH * np.sqrt(5.0)
    smooth = (1.0 + gap + gap * gap / 3.0) * np.exp(-gap)  # Matern, 5/2
    trend[~known] = 0.0
    smooth[~known, :] = 0.0
    smooth[:, ~known] = 0.0
    return trend @ trend.T + np.diag(np.where(known, 0.0, 0.3**2)), smooth


def _inverse(matrix: Floats) -> Floats:
    return np.asarray(np.linalg.inv(matrix), dtype=np.float64)


def _scale(squares: np.floating[Any] | float, count: int, guess: float) -> float:
    """A variance from a sum of squares and a prior guess that is worth `PRIOR_WEIGHT` of them."""
    return float((squares + PRIOR_WEIGHT * guess * guess) / (count + PRIOR_WEIGHT))
