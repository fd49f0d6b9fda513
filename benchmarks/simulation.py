"""Simulated pools whose true costs are known, on a clock that only they move.

A `SimulatedPool` has the `step` of a real pool and does no work: it moves its own virtual
clock by the true cost of the candidate, times what the machine is doing just then. The same
seed gives the same machine, so every figure made with it can be made again to the digit.

Landscapes say what a candidate truly costs, noises what the machine adds. Two families of
each: the ones the race was built on, and `HELD_OUT` ones kept aside to check it.
"""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SIZES = ((256, 2), (1024, 8), (2048, 40), (4096, 16), (8192, 64))
"""Pairs of (num_envs, nthread)."""


def native_chunk(num_envs: int, nthread: int) -> int:
    """The chunk size that the pool's own rule gives."""
    return max(1, num_envs // (10 * nthread))


def candidate_sizes(num_envs: int, nthread: int, limit: int = 16) -> list[int]:
    """Up to `limit` chunk sizes: 1, a dense band around the native rule, the ceiling."""
    upper = math.ceil(num_envs / nthread)
    native = native_chunk(num_envs, nthread)
    band = {round(native * f) for f in (0.25, 0.35, 0.5, 0.6, 0.75, 0.9, 1, 1.15, 1.35)}
    band |= {round(native * f) for f in (1.6, 2, 2.5, 3.2, 4, 6)} | {1, 2, upper}
    sizes = sorted(c for c in band if 1 <= c <= upper)
    while len(sizes) > limit:
        del sizes[-2]
    return sizes


# --- what a candidate truly costs: chunk size -> log cost, up to a constant ---------------


def _convex(n: int, t: int, rng: np.random.Generator) -> Callable[[int], float]:
    """A valley over log(chunk), its bottom within a factor of five of the native rule."""
    centre = math.log(native_chunk(n, t)) + rng.uniform(-1.2, 1.6)
    left, right = np.exp(rng.uniform(math.log(0.02), math.log(0.15), 2))

    def cost(c: int) -> float:
        x = math.log(c) - centre
        return float((left if x < 0 else right) * x * x)

    return cost


def _flat(n: int, t: int, rng: np.random.Generator) -> Callable[[int], float]:
    """Hardly a difference anywhere except at the far ends."""
    centre = math.log(native_chunk(n, t)) + rng.uniform(-0.5, 0.5)
    width = rng.uniform(1.2, 2.0)
    slope = rng.uniform(0.0, 0.01)

    def cost(c: int) -> float:
        x = math.log(c) - centre
        return slope * x + 0.15 * max(0.0, abs(x) - width) ** 2

    return cost


def _rugged(n: int, t: int, rng: np.random.Generator) -> Callable[[int], float]:
    """A valley with a bump of its own for every chunk size."""
    base = _convex(n, t, rng)
    bumps = rng.normal(0.0, rng.uniform(0.01, 0.05), n + 1)
    return lambda c: base(c) + float(bumps[c])


def _steps(n: int, t: int, rng: np.random.Generator) -> Callable[[int], float]:
    """Work items that do not divide evenly leave threads idle; each item costs overhead."""
    overhead = math.exp(rng.uniform(math.log(0.05), math.log(1.5)))
    evenness = rng.uniform(0.3, 1.0)

    def cost(c: int) -> float:
        rounds = math.ceil(math.ceil(n / c) / t)
        return evenness * math.log(rounds * c * t / n) + math.log1p(overhead / c)

    return cost


def _published(n: int, t: int, rng: np.random.Generator) -> Callable[[int], float]:
    """The published curve for 2,048 environments on 40 threads, stretched to this size."""
    log_chunk = np.log([1.0, 4.0, 5.0, 52.0]) - math.log(5.0)
    log_cost = np.log([25.43, 9.15, 9.38, 14.59])
    stretch = rng.uniform(0.7, 1.3)
    native = native_chunk(n, t)
    left = math.log(5.0) / max(math.log(native), 0.7)

    def cost(c: int) -> float:
        x = math.log(c / native)
        return stretch * float(np.interp(x * left if x < 0 else x, log_chunk, log_cost))

    return cost


def _equal(n: int, t: int, rng: np.random.Generator) -> Callable[[int], float]:
    """Every candidate costs the same."""
    del n, t, rng
    return lambda _c: 0.0


def _two_valleys(n: int, t: int, rng: np.random.Generator) -> Callable[[int], float]:
    """Two local bottoms: a search that only walks downhill ends in one of them."""
    a, b = math.log(native_chunk(n, t)) + np.array([rng.uniform(-1.5, -0.3), rng.uniform(0.5, 2)])
    depth = rng.uniform(0.03, 0.2, 2)

    def cost(c: int) -> float:
        x = math.log(c)
        wells = depth * np.exp(-(((x - np.array([a, b])) / 0.4) ** 2))
        return float(0.02 * (x - a) ** 2 - wells.sum())

    return cost


def _waves(n: int, t: int, rng: np.random.Generator) -> Callable[[int], float]:
    """A random smooth curve that knows nothing of convexity."""
    phases = rng.uniform(0, 2 * math.pi, 4)
    sizes = rng.normal(0, 0.04, 4)
    tilt = rng.normal(0, 0.03)
    del n, t
    waves = list(zip(phases, sizes, (0.6, 1.1, 1.9, 3.0), strict=True))
    return lambda c: (
        tilt * math.log(c) + sum(s * math.sin(p + w * math.log(c)) for p, s, w in waves)
    )


def _lone_winner(n: int, t: int, rng: np.random.Generator) -> Callable[[int], float]:
    """Equal but for one candidate that no neighbour announces."""
    sizes = [c for c in candidate_sizes(n, t) if c != native_chunk(n, t)]
    winner = int(rng.choice(sizes))
    gain = rng.uniform(0.03, 0.15)
    return lambda c: -gain if c == winner else 0.0


def _cliff(n: int, t: int, rng: np.random.Generator) -> Callable[[int], float]:
    """Cheaper and cheaper towards large chunks until a cliff (or the other way round)."""
    edge = math.log(native_chunk(n, t)) + rng.uniform(-0.8, 1.2)
    side = float(rng.choice([-1.0, 1.0]))
    slope, height = rng.uniform(0.01, 0.08), rng.uniform(0.1, 0.6)

    def cost(c: int) -> float:
        x = side * (math.log(c) - edge)
        return -slope * x if x <= 0 else height + slope * x

    return cost


def _overhead(n: int, t: int, rng: np.random.Generator) -> Callable[[int], float]:
    """Overhead per item on the left, stragglers on the right: a + b/c + d*c, all positive."""
    native = native_chunk(n, t)
    b = math.exp(rng.uniform(math.log(0.01), math.log(0.6))) * native
    d = math.exp(rng.uniform(math.log(0.002), math.log(0.1))) / native
    return lambda c: math.log1p(b / c + d * c)


LANDSCAPES: dict[str, Callable[[int, int, np.random.Generator], Callable[[int], float]]] = {
    "convex": _convex,
    "flat": _flat,
    "rugged": _rugged,
    "steps": _steps,
    "published": _published,
}
HELD_OUT_LANDSCAPES: dict[str, Callable[[int, int, np.random.Generator], Callable[[int], float]]]
HELD_OUT_LANDSCAPES = {
    "two valleys": _two_valleys,
    "waves": _waves,
    "lone winner": _lone_winner,
    "cliff": _cliff,
    "overhead": _overhead,
}

# --- what the machine adds ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine's behaviour: a slowdown that holds for a while, and a factor per step.

    `changes` are the seconds at which the next of `slowdowns` (one more than `changes`) takes
    over; `smooth` gives a slowdown by the second on top.
    """

    jitter: Callable[[np.random.Generator], float]
    changes: tuple[float, ...] = ()
    slowdowns: tuple[float, ...] = (1.0,)
    smooth: Callable[[float], float] = lambda _t: 1.0


def _lognormal(sigma: float) -> Callable[[np.random.Generator], float]:
    return lambda rng: math.exp(sigma * rng.standard_normal())


def quiet(rng: np.random.Generator, scale: float) -> Machine:
    """Make a machine whose timings scatter by 0.5 %."""
    del rng, scale
    return Machine(_lognormal(0.005))


def _two_percent(rng: np.random.Generator, scale: float) -> Machine:
    del rng, scale
    return Machine(_lognormal(0.02))


def _four_percent(rng: np.random.Generator, scale: float) -> Machine:
    del rng, scale
    return Machine(_lognormal(0.04))


def _spikes(rng: np.random.Generator, scale: float) -> Machine:
    """One step in eight is held up by something else, by 5 to 100 %."""
    del rng, scale

    def jitter(r: np.random.Generator) -> float:
        late = r.uniform(0.05, 1.0) if r.random() < 0.125 else 0.0
        return math.exp(0.01 * r.standard_normal()) + late

    return Machine(jitter)


def _heavy_tails(rng: np.random.Generator, scale: float) -> Machine:
    del rng, scale
    return Machine(lambda r: math.exp(min(0.015 * abs(r.standard_t(2)), 2.0)))


def _drift(rng: np.random.Generator, scale: float) -> Machine:
    """Slower (or faster) by up to a third over some hundred steps, and a slow swing."""
    total, period, swing = rng.uniform(-0.25, 0.35), rng.uniform(30, 300) * scale, 0.03
    span = 300 * scale
    phase = rng.uniform(0, 2 * math.pi)
    return Machine(
        _lognormal(0.01),
        smooth=lambda t: (
            (1 + total * min(t / span, 1.0))
            * (1 + swing * math.sin(phase + 2 * math.pi * t / period))
        ),
    )


def _warm_up(rng: np.random.Generator, scale: float) -> Machine:
    """Up to 60 % slower at first, settling within 3 to 100 steps."""
    extra, tau = rng.uniform(0.1, 0.6), scale * math.exp(rng.uniform(math.log(3), math.log(100)))
    return Machine(_lognormal(0.01), smooth=lambda t: 1 + extra * math.exp(-t / tau))


def _switching(rng: np.random.Generator, scale: float) -> Machine:
    """Two speeds, 1.6x apart, changing every second or so whatever a step takes."""
    del scale
    changes = np.cumsum(rng.exponential(1.0, 400) + 0.05)
    first = bool(rng.integers(2))
    speeds = tuple(1.6 if (k % 2 == 0) == first else 1.0 for k in range(401))
    return Machine(_lognormal(0.01), tuple(changes.tolist()), speeds)


def _neighbour(rng: np.random.Generator, scale: float) -> Machine:
    """Somebody else's job starts or stops once, within the first hundred steps."""
    when = scale * math.exp(rng.uniform(math.log(4), math.log(100)))
    load = rng.uniform(1.1, 1.8)
    return Machine(_lognormal(0.015), (when,), (1.0, load) if rng.integers(2) else (load, 1.0))


def _bursts(rng: np.random.Generator, scale: float) -> Machine:
    """A neighbour that comes and goes: three loads, each for some 5 to 60 steps."""
    changes = np.cumsum(scale * np.exp(rng.uniform(math.log(5), math.log(60), 60)))
    loads = rng.choice([1.0, 1.12, 1.35], 61)
    return Machine(_lognormal(0.012), tuple(changes.tolist()), tuple(loads.tolist()))


def _wandering(rng: np.random.Generator, scale: float) -> Machine:
    """The speed walks at random, 1.5 % a step."""
    walk = np.exp(np.cumsum(rng.normal(0, 0.015, 2000)))
    changes = np.arange(1, 2000) * scale
    return Machine(_lognormal(0.008), tuple(changes.tolist()), tuple(walk.tolist()))


def _skewed(rng: np.random.Generator, scale: float) -> Machine:
    """Never faster than a floor, often a little slower, sometimes much."""
    del rng, scale
    return Machine(lambda r: 1.0 + r.gamma(0.7, 0.035))


def _six_percent(rng: np.random.Generator, scale: float) -> Machine:
    del rng, scale
    return Machine(_lognormal(0.06))


NOISES: dict[str, Callable[[np.random.Generator, float], Machine]] = {
    "quiet": quiet,
    "2 %": _two_percent,
    "4 %": _four_percent,
    "spikes": _spikes,
    "heavy tails": _heavy_tails,
    "drift": _drift,
    "warm-up": _warm_up,
    "two speeds": _switching,
    "neighbour": _neighbour,
}
HELD_OUT_NOISES: dict[str, Callable[[np.random.Generator, float], Machine]] = {
    "bursts": _bursts,
    "wandering": _wandering,
    "skewed": _skewed,
    "6 %": _six_percent,
    "two speeds": _switching,
}


class SimulatedPool:
    """Steps nothing; moves `now` by what the step would have taken."""

    def __init__(
        self, costs: dict[int | None, float], machine: Machine, seed: int | Sequence[int]
    ) -> None:
        self.costs = costs
        """True seconds of one step, by chunk_size."""
        self.now = 0.0
        self.calls = 0
        self._machine = machine
        self._rng = np.random.default_rng(seed)

    def clock(self) -> float:
        """Seconds since the pool was made."""
        return self.now

    def step(
        self,
        state: Any,
        *,
        nstep: int = 1,
        control: Any = None,
        chunk_size: int | None = None,
        return_sensor: bool = False,
        post_step_forward_sensor: bool = False,
    ) -> None:
        """Move the clock by one step of this chunk_size; the state is left alone."""
        del state, nstep, control, return_sensor, post_step_forward_sensor
        machine = self._machine
        work = self.costs[chunk_size] * machine.jitter(self._rng) * machine.smooth(self.now)
        piece = bisect.bisect_right(machine.changes, self.now)
        while piece < len(machine.changes):
            room = (machine.changes[piece] - self.now) / machine.slowdowns[piece]
            if work <= room:
                break
            work -= room
            self.now = machine.changes[piece]
            piece += 1
        self.now += work * machine.slowdowns[piece]
        self.calls += 1


@dataclass(frozen=True, slots=True)
class Problem:
    """One simulated tuning job whose true costs are known; `pool()` gives a fresh machine."""

    landscape: str
    noise: str
    num_envs: int
    nthread: int
    seed: int
    held_out: bool = False
    step_seconds: float | None = None
    """Time of a default step; drawn from the seed between 1 ms and 0.2 s if None."""

    def pool(self, again: int = 0, deviation: float = 0.0) -> SimulatedPool:
        """A fresh pool on a fresh machine, the same one every time.

        Args:
            again: another number is the same work on another day: another machine of this noise.
            deviation: by how much that day changes the cost of each candidate, as the standard
                deviation of a share.
        """
        shapes = {**LANDSCAPES, **HELD_OUT_LANDSCAPES, "equal": _equal}
        noises = {**NOISES, **HELD_OUT_NOISES}
        root = [self.seed, self.num_envs, *self.landscape.encode(), *self.noise.encode()]
        rng = np.random.default_rng(root)
        shape = shapes[self.landscape](self.num_envs, self.nthread, rng)
        native = native_chunk(self.num_envs, self.nthread)
        base = self.step_seconds or math.exp(rng.uniform(math.log(1e-3), math.log(0.2)))
        sizes = {*candidate_sizes(self.num_envs, self.nthread), native}
        costs: dict[int | None, float] = {
            c: base * math.exp(shape(c) - shape(native)) for c in sizes
        }
        if again:
            rng = np.random.default_rng([*root, 2, again])
        if deviation:
            costs = {c: t * math.exp(deviation * rng.standard_normal()) for c, t in costs.items()}
        costs[None] = costs[native]
        day = [again] if again else []
        return SimulatedPool(costs, noises[self.noise](rng, base), [*root, 1, *day])

    def candidates(self) -> list[int]:
        """Chunk sizes to try, ascending."""
        return candidate_sizes(self.num_envs, self.nthread)
