"""Fits timings: what each candidate costs, what the machine was doing, and how sure that is.

Pure numpy: no clock, no database, no randomness, and it decides nothing.

The log of a timing is taken apart into three things:

* the candidate's cost. Over the log of the chunk size it is a smooth curve plus a bump of the
  candidate's own; how large either is, is learned from the timings, so neighbours inform each
  other only as far as the timings agree that they do;
* the machine's speed, a walk over the order of the timings whose steps are small as a rule and
  now and then large (a change of clock speed, a neighbour that comes or goes);
* noise, small as a rule and now and then large (somebody else's turn on the core).

"Small as a rule, now and then large" is Student's t with few degrees of freedom, written as a
normal distribution with an unknown scale per timing. All scales are found by variational
iteration; one iteration inverts one matrix of the size of the number of timings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

NOISE_SCALE, NOISE_TAIL = 0.015, 4.0
"""Prior guess of the noise of a timing (a share of it), and the degrees of freedom of its tail."""
NOISE_SPREAD = 1.25
"""Standard deviation of normal noise over the scale that a t with that tail fits to it."""
SPEED_SCALE, SPEED_TAIL = 0.003, 1.0
"""The same for the change of the machine's speed from one timing to the next."""
CURVE_SCALE, BUMP_SCALE = 0.04, 0.012
"""Prior guesses of the smooth curve's deviation from its trend, and of a candidate's own bump."""
PRIOR_WEIGHT = 3.0
"""How many observations each prior guess is worth."""
CURVE_LENGTH = 0.7
"""Over how much log(chunk) the curve keeps its shape: a factor of two in chunk size."""
BUMP_TAIL = 3.0
"""Degrees of freedom of the bumps: lone winners exist."""
ITERATIONS = 12


@dataclass(frozen=True, slots=True)
class Fit:
    """Log costs relative to the first candidate (the native default), with their covariance."""

    mean: Floats
    """Shape (candidates,): log of the time over the default's; the first is 0."""
    covariance: Floats
    """Shape (candidates, candidates)."""
    noise: float
    """Standard deviation of the log of one timing, spikes set aside."""


def fit(chunks: Floats, idle: Floats, which: NDArray[np.intp], logs: Floats) -> Fit:
    """Fit timings taken one after another.

    Candidates without timings get a prediction and change nothing for the others.

    Args:
        chunks: shape (candidates,): chunk size of each, the native default first (at the chunk
            size its rule gives, NaN if that is not known).
        idle: shape (candidates,): log of how much longer a step takes for threads that have
            nothing to do in its last rounds, 0 where unknown. How much of it shows is learned.
        which: shape (timings,): index of the candidate of each timing, in the order taken.
        logs: shape (timings,): log of the time of one step.
    """
    n, m = len(which), len(chunks)
    trend, smooth = _curves(chunks, idle, np.unique(which))
    seen = np.zeros((n, m))
    seen[np.arange(n), which] = 1.0
    kinds = int(np.count_nonzero(seen.any(axis=0)))
    y = logs - np.median(logs)
    trend_yy, smooth_yy = trend[np.ix_(which, which)] + 100.0, smooth[np.ix_(which, which)]
    # Timing i has seen the changes of speed 1..i, so i and j share those up to the earlier.
    upper = np.triu(np.ones((n, n)))
    earlier = np.minimum.outer(np.arange(n), np.arange(n))
    noise2, speed2, curve2, bump2 = (
        s * s for s in (NOISE_SCALE, SPEED_SCALE, CURVE_SCALE, BUMP_SCALE)
    )
    noise_w, speed_w, bump_w = np.ones(n), np.full(n - 1, 0.2), np.ones(m)
    for _ in range(ITERATIONS):
        noise_v, speed_v, bump_v = noise2 / noise_w, speed2 / speed_w, bump2 / bump_w
        walk = np.concatenate(([0.0], np.cumsum(speed_v)))
        total = trend_yy + curve2 * smooth_yy + walk[earlier]
        total += (seen * bump_v) @ seen.T
        total.flat[:: n + 1] += noise_v
        inverse = np.linalg.inv(total)
        a = inverse @ y
        diagonal = inverse.diagonal()
        noise_e2 = (noise_v * a) ** 2 + noise_v - noise_v**2 * diagonal
        # Sums over the timings from i on: of `a`, and of both sides of `inverse`.
        later = np.cumsum(a[::-1])[::-1][1:]
        corner = np.cumsum((2 * (inverse * upper).sum(axis=1) - diagonal)[::-1])[::-1][1:]
        speed_e2 = (speed_v * later) ** 2 + speed_v - speed_v**2 * corner
        # A machine can hold a step up but not speed it up: only late timings are set aside.
        late = np.where(a > 0, noise_e2 / noise2, np.minimum(noise_e2 / noise2, 1.0))
        noise_w = (NOISE_TAIL + 1) / (NOISE_TAIL + late)
        speed_w = (SPEED_TAIL + 1) / (SPEED_TAIL + speed_e2 / speed2)
        noise2 = _scale(noise_w @ noise_e2, n, NOISE_SCALE)
        speed2 = _scale(speed_w @ speed_e2, n - 1, SPEED_SCALE)
        inner, sa = seen.T @ inverse @ seen, seen.T @ a
        timed = inner.diagonal() > 0
        bump_e2 = (bump_v * sa) ** 2 + bump_v - bump_v**2 * inner.diagonal()
        bump_w = np.where(timed, (BUMP_TAIL + 1) / (BUMP_TAIL + bump_e2 / bump2), 1.0)
        curve_e2 = kinds * curve2 + curve2**2 * (sa @ smooth @ sa - np.sum(smooth * inner))
        bump2 = _scale(bump_w[timed] @ bump_e2[timed], kinds, BUMP_SCALE)
        curve2 = _scale(curve_e2, kinds, CURVE_SCALE)
    prior = trend + curve2 * smooth + np.diag(bump_v)
    cross = prior[:, which]
    mean = cross @ a
    relative = np.eye(m)
    relative[:, 0] -= 1.0
    return Fit(
        mean=mean - mean[0],
        covariance=relative @ (prior - cross @ inverse @ cross.T) @ relative.T,
        noise=float(NOISE_SPREAD * np.sqrt(noise2)),
    )


def _curves(chunks: Floats, idle: Floats, seen: NDArray[np.intp]) -> tuple[Floats, Floats]:
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


def _scale(squares: float, count: int, guess: float) -> float:
    """A variance from a sum of squares and a prior guess that is worth `PRIOR_WEIGHT` of them."""
    return float((squares + PRIOR_WEIGHT * guess * guess) / (count + PRIOR_WEIGHT))
