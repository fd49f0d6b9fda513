"""Fits timings: what each candidate costs, what the machine was doing, and how sure that is.

Pure numpy: no clock, no database, no randomness, and it decides nothing.

The log of a timing is taken apart into three things:

* the candidate's cost. Over the log of the chunk size it is a smooth curve plus a bump of the
  candidate's own; how large either is, is scales from the timings, so neighbours inform each
  other only as far as the timings agree that they do;
* the machine's speed, a walk over the order of the timings whose steps are small as a rule and
  now and then large (a change of clock speed, a neighbour that comes or goes);
* noise, small as a rule and now and then large (somebody else's turn on the core), and
  never a gift.

"Small as a rule, now and then large" is Student's t with few degrees of freedom, written as a
normal distribution with an unknown scale per timing. All scales are found by variational
iteration; one iteration goes along the walk once and inverts one matrix with a row for every
candidate that was timed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

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
"""Timings in a row that share a machine speed; a change within them counts as noise."""
MAX_TIMINGS = 600
"""With more timings than this the stretches get longer."""
ITERATIONS = 12
"""Of the variational fit, from the prior guesses on."""


@dataclass(frozen=True, slots=True)
class FitScales:
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
    def nothing(cls, timings: int, stretches: int, candidates: int) -> FitScales:
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

    def carried_to(self, timings: int, stretches: int, candidates: int) -> FitScales:
        """Extend the scales to more timings; start over for other candidates."""
        fresh = FitScales.nothing(timings, stretches, candidates)
        if len(self.noise_w) > timings or len(self.bump_w) != candidates:
            return fresh
        noise_w, speed_w = fresh.noise_w, fresh.speed_w
        noise_w[: len(self.noise_w)] = self.noise_w
        speed_w[: len(self.speed_w)] = self.speed_w
        return replace(self, noise_w=noise_w, speed_w=speed_w)


@dataclass(frozen=True, slots=True)
class Costs:
    """Log costs relative to the first candidate (the native default), with their covariance."""

    mean: Floats
    """Shape (candidates,): log of the time over the default's; the first is 0."""
    covariance: Floats
    """Shape (candidates, candidates)."""
    noise: float
    """Standard deviation of the log of one timing, spikes set aside."""


@dataclass(frozen=True, slots=True)
class Fit(Costs):
    """Costs as one run's timings show them, and what they rest on."""

    scales: FitScales
    information: Floats
    """Shape (candidates, candidates): what the timings say of the costs, the machine's speed taken
    out and the prior left aside. Its inverse would be a covariance if it runs anything of the
    costs' common level. Those of several runs add up."""
    score: Floats
    """Shape (candidates,): information times costs. Likewise."""


def fit(
    chunks: tuple[float, ...],
    idle: tuple[float, ...],
    which: Sequence[int],
    logs: Sequence[float],
    *,
    iterations: int = ITERATIONS,
    scales: FitScales | None = None,
) -> Fit:
    """Fit timings taken one after another.

    Candidates without timings get a prediction and change nothing for the others.

    Args:
        chunks: chunk size of each candidate, the native default first (at the chunk
            size its rule gives, NaN if that is not known).
        idle: for each, log of how much longer a step takes for threads that have
            nothing to do in its last rounds, 0 where unknown. How much of it shows is scales.
        which: index of the candidate of each timing, in the order taken.
        logs: log of the time of one step, for each timing.
        iterations: how often the scales are updated.
        scales: what a fit of all but the latest timings found: a better start than the prior
            guesses, so that fewer iterations do.
    """
    n, m = len(which), len(chunks)
    kind = {k: place for place, k in enumerate(sorted(set(which)))}
    trend, smooth = curves(chunks, idle, kind)
    seen, kinds = np.array(list(kind)), len(kind)
    smooth_s = smooth.take(seen, 0).take(seen, 1)
    place = np.array([kind[k] for k in which])
    stretch = np.arange(n) // (STRETCH * math.ceil(n / MAX_TIMINGS))
    levels = int(stretch[-1]) + 1
    y = np.array(logs) - logs[0]
    begin = (scales or FitScales.nothing(n, levels, m)).carried_to(n, levels, m)
    noise2, speed2, curve2, bump2 = begin.noise2, begin.speed2, begin.curve2, begin.bump2
    noise_w, speed_w, bump_w = begin.noise_w, begin.speed_w, begin.bump_w.copy()
    for _ in range(iterations):
        bump_v = bump2 / bump_w
        prior = trend + curve2 * smooth
        prior.flat[:: m + 1] += bump_v
        prior_s = prior.take(seen, 0).take(seen, 1)
        found = _solve(y, place, stretch, noise_w / noise2, speed_w / speed2, prior_s)
        # The noise: what is left of each timing.
        late = found.left2 / noise2
        # A machine can hold a step up but not speed it up: only late timings are set aside.
        np.minimum(late, 1.0, out=late, where=found.left < 0)
        noise_w = (NOISE_TAIL + 1) / (NOISE_TAIL + late)
        # The machine's speed: its changes from one stretch to the next.
        speed_w = (SPEED_TAIL + 1) / (SPEED_TAIL + found.change2 / speed2)
        # The candidates: how much of what they cost is curve, how much their own bump.
        pull, hold, bump_v = found.pull, found.hold, bump_v.take(seen)
        bump_e2 = (bump_v * pull) ** 2 + bump_v - bump_v**2 * hold.diagonal()
        curve_e2 = kinds * curve2 + curve2**2 * (smooth_s * (pull[:, None] * pull - hold)).sum()
        bump_w[seen] = (BUMP_TAIL + 1) / (BUMP_TAIL + bump_e2 / bump2)
        noise2 = _scale((noise_w * found.left2).sum(), n, NOISE_SCALE)
        speed2 = _scale((speed_w * found.change2).sum(), levels - 1, SPEED_SCALE)
        curve2 = _scale(curve_e2, kinds, CURVE_SCALE)
        bump2 = _scale((bump_w.take(seen) * bump_e2).sum(), kinds, BUMP_SCALE)
    carry = prior.take(seen, 1)
    cost = carry @ found.pull
    covariance = prior - carry @ found.hold @ carry.T
    information, score = np.zeros((m, m)), np.zeros(m)
    information[seen[:, None], seen] = found.told[:, :kinds]
    score[seen] = found.told[:, kinds]
    return Fit(
        mean=cost - cost[0],
        covariance=covariance - covariance[0] - covariance[:, :1] + covariance[0, 0],
        noise=NOISE_SPREAD * math.sqrt(noise2),
        scales=FitScales(noise2, speed2, curve2, bump2, noise_w, speed_w, bump_w),
        information=information,
        score=score,
    )


@dataclass(frozen=True, slots=True)
class _Solution:
    """What timings say of levels and costs while all scales are given."""

    left: Floats
    """Shape (timings,): what is left of each."""
    left2: Floats
    """The expected square of that."""
    change2: Floats
    """Shape (levels - 1,): likewise of the steps from level to level."""
    pull: Floats
    """Shape (kinds,): P pull is the costs, P their prior covariance."""
    hold: Floats
    """Shape (kinds, kinds): P - P hold P is the costs' covariance."""
    told: Floats
    """Shape (kinds, kinds + 1): the costs' information and score, the prior left aside."""


def _solve(
    y: Floats,
    place: NDArray[np.intp],
    stretch: NDArray[np.intp],
    noise_p: Floats,
    speed_p: Floats,
    prior: Floats,
) -> _Solution:
    """Levels and costs, given the precisions of noise and speed and the costs' covariance.

    If the costs were known, the levels would be a chain of neighbours, and answer in proportion
    to timings and costs. So they are taken out first; a problem of the costs' small size is left.

    Args:
        y: shape (timings,): the log of each.
        place: shape (timings,): which of the costs is in it.
        stretch: shape (timings,): which of the levels is.
        noise_p: shape (timings,): precision of each.
        speed_p: shape (levels - 1,): precision of each change of the level.
        prior: shape (kinds, kinds).
    """
    levels, kinds = len(speed_p) + 1, len(prior)
    cell = stretch * (kinds + 1) + place
    weight = np.bincount(cell, noise_p, levels * (kinds + 1)).reshape(levels, kinds + 1)
    weight[:, kinds] = np.bincount(stretch, noise_p * y, levels)
    own = np.bincount(stretch, noise_p, levels)
    deviation, apart, step_v = _chain(own.tolist(), speed_p.tolist())
    related = np.exp(-np.abs(apart[:, None] - apart))
    answer = deviation[:, None] * (related @ (deviation[:, None] * weight))
    told = weight[:, :kinds].T @ answer
    told *= -1.0
    told.flat[:: kinds + 2] += np.bincount(place, noise_p, kinds)
    told[:, kinds] += np.bincount(place, noise_p * y, kinds)
    known, follow = told[:, :kinds], answer[:, :kinds]
    grown = known @ prior
    grown.flat[:: kinds + 1] += 1.0
    shrink = np.linalg.inv(grown)
    pull = shrink @ told[:, kinds]
    cost, covariance = prior @ pull, prior @ shrink
    level = answer[:, kinds] - follow @ cost
    left = y - level[stretch] - cost[place]
    both = follow @ covariance
    level_v = deviation * deviation + (both * follow).sum(axis=1)
    left_v = level_v[stretch] + covariance.diagonal()[place] - 2 * both[stretch, place]
    change, turn = level[1:] - level[:-1], follow[1:] - follow[:-1]
    return _Solution(
        left=left,
        left2=left * left + left_v,
        change2=change * change + step_v + (turn @ covariance * turn).sum(axis=1),
        pull=pull,
        hold=shrink @ known,
        told=told,
    )


def _chain(own: Sequence[float], link: Sequence[float]) -> tuple[Floats, Floats, Floats]:
    """Solve a chain of levels: in one pass there and back, as only neighbours hold each other.

    Args:
        own: precision with which its timings hold each level.
        link: precision with which each but the last holds the next.

    Returns:
        The standard deviation of each level; a place of each, so that the correlation of any
        two is exp(-distance of their places); and the variance of each step from level to level.
    """
    held = own[0]
    # A level is `share` of the next one's plus something of its own, of variance `alone`.
    alone, share = [], []
    for linked, more in zip(link, own[1:], strict=True):
        alone.append(1.0 / (held + linked))
        share.append(linked * alone[-1])
        held = more + held * share[-1]
    variance, place, step_v = [1.0 / held], [0.0], []
    for a, s in zip(reversed(alone), reversed(share), strict=True):
        after = variance[-1]
        variance.append(a + s * s * after)
        place.append(place[-1] + 0.5 * math.log(variance[-1] / after) - math.log(s))
        step_v.append(a + (1.0 - s) ** 2 * after)
    return np.sqrt(variance[::-1]), np.array(place[::-1]), np.array(step_v[::-1])


def curves(
    chunks: tuple[float, ...], idle: tuple[float, ...], seen: Iterable[int]
) -> tuple[Floats, Floats]:
    """The prior covariance of the trend, and of the smooth deviation from it at scale 1.

    Args:
        chunks: as for `fit`.
        idle: likewise.
        seen: candidates that were timed, in ascending order.
    """
    if chunks[0] > 0:
        return _curves(chunks, idle, math.log(chunks[0]))
    timed = [math.log(chunks[k]) for k in seen if chunks[k] > 0]
    return _curves(chunks, idle, sum(timed) / max(len(timed), 1))


@lru_cache(maxsize=4)
def _curves(
    chunks: tuple[float, ...], idle: tuple[float, ...], origin: float
) -> tuple[Floats, Floats]:
    """The same for trends that turn about this log(chunk); a race asks for it at every block."""
    known = np.isfinite(chunks)
    sizes = np.where(known, chunks, 1.0)
    x = np.log(sizes) - origin
    trend = np.column_stack([0.15 * x, 0.08 * x * x, 0.6 / sizes, 0.4 * np.array(idle)])
    gap = np.abs(x[:, None] - x[None, :]) / CURVE_LENGTH * np.sqrt(5.0)
    smooth = (1.0 + gap + gap * gap / 3.0) * np.exp(-gap)  # Matern, 5/2
    trend[~known] = 0.0
    smooth[~known, :] = 0.0
    smooth[:, ~known] = 0.0
    return trend @ trend.T + np.diag(np.where(known, 0.0, 0.3**2)), smooth


def _scale(squares: np.floating[Any] | float, count: int, guess: float) -> float:
    """A variance from a sum of squares and a prior guess that is worth `PRIOR_WEIGHT` of them."""
    return float((squares + PRIOR_WEIGHT * guess * guess) / (count + PRIOR_WEIGHT))
