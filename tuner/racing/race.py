"""Times candidates on one pool, side by side, and says which is fastest.

It only calls `pool.step` and reads the clock: `tuner.racing.plan` plans what to time next and
`tuner.racing.verdict` judges the timings. The pool gets a copy of the caller's state.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tuner.candidates import checked_chunk_size
from tuner.errors import ArgumentError, DivergedError, MeasuringError
from tuner.formatting import counted
from tuner.racing.comparison import PoolShape
from tuner.racing.meta_analysis import (
    estimate_run,
    excluded_candidates,
    in_order,
    measured_runs,
)
from tuner.racing.plan import BlockPlan, RaceState, next_block
from tuner.racing.verdict import judge
from tuner.records import NATIVE_DEFAULT, Candidate, Race, Run, Sample

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

SHORTEST_SAMPLE_S = 3e-3
"""A sample repeats the step until it lasts about this long: clocks and wake-ups blur less."""
ENOUGH_TIMINGS = 200
"""A small budget holds at least so many samples of a light step."""
MAX_REPEATS = 1000
"""Repeats in one sample, whatever the clock says."""
COLD_START_S = 0.01
"""What the very first step may take longer than others; one slower than that is not light."""
MAX_DIVERGED = 0.1
"""Share of the environments that may diverge in the first step."""
WARM_UP_S = 0.1
"""A first step longer than this is no warm-up: caches and threads are warm within it."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How a race stands, once per block."""

    survivors: int
    """Candidates that may still win."""
    leader: Candidate
    relative: float
    """The leader's time over the native default's."""
    low: float
    high: float
    """Ends of the 95 % interval of `relative`."""
    seconds: float
    """Seconds of the budget that are gone."""
    budget_s: float


def race_chunk_sizes(
    pool: Any,
    state: Any,
    nstep: int,
    candidates: Iterable[int | None],
    *,
    control: Any,
    post_step_forward_sensor: bool,
    time_budget_s: float = 10.0,
    clock: Callable[[], float] = time.perf_counter,
    seed: int | None = None,
    prior: Sequence[int | None] | None = None,
    confirm: int | None = None,
    prior_gain: float | None = None,
    earlier: Iterable[Run] = (),
    nthread: int | None = None,
    timestep: float | None = None,
    progress: Callable[[Progress], None] | None = None,
    stopped: Callable[[Race], None] | None = None,
) -> Race:
    """Find the fastest chunk_size by timing candidates side by side.

    The native default is always timed, and a candidate equal to what its rule gives is not:
    they are the same shape.

    Args:
        pool: steps all environments: `pool.step(state, nstep=, control=, chunk_size=,
            return_sensor=, post_step_forward_sensor=)`.
        state: one row per environment, shape (num_envs, ...). Never written to.
        nstep: physics steps in one `pool.step`.
        candidates: chunk sizes, plain integers from 1 to num_envs; None may be among them.
        control: handed to the pool as it is.
        post_step_forward_sensor: handed to the pool; sensors are then returned as well.
        time_budget_s: seconds, by `clock`, from the first timing on; a sample that would exceed
            them is not started.
        clock: returns seconds.
        seed: of every random choice.
        prior: likely winners, from a relative's history; None if the relative kept its default.
        confirm: the winner of an earlier version of the same workload. A paired comparison of at
            most sixteen timings may confirm it, which ends the race.
        prior_gain: gain of the candidate to confirm, or of the first likely one, as a share of
            the default's time; None if unknown. A candidate that probably keeps less than half
            of it stops being likely.
        earlier: runs of the same workload to continue from. The verdict is that of this race
            alone; `meta_analysis.judge_runs` judges all runs together.
        nthread: threads of the pool; `pool.nthread` if None.
        timestep: simulated seconds of a physics step; if None, the environment that advanced
            furthest in the first step tells how far all should.
        progress: called once per block.
        stopped: called with what was timed so far when Ctrl-C, or whatever else ends the
            process, comes in between; it is passed on after that.

    Raises:
        ArgumentError: a candidate, or the state, is not one a pool may see.
        DivergedError: the first step shows that more than a tenth of the environments diverge.
        MeasuringError: not even the native default could be timed.
    """
    if math.isnan(time_budget_s):
        raise ArgumentError("time_budget_s must be a number of seconds, received nan")
    num_envs = len(state)
    chunks = [checked_chunk_size(c, num_envs) for c in candidates if c is not None]
    threads = nthread if nthread is not None else getattr(pool, "nthread", None)
    shape = PoolShape(num_envs, threads)
    winners = [*([] if confirm is None else [confirm]), *(prior or ())]
    likely = [None if c is None else checked_chunk_size(c, num_envs) for c in winners]
    runs_before = measured_runs(in_order(earlier))
    failed = excluded_candidates(runs_before, shape)
    estimates = (estimate_run(run.samples, shape, failed) for run in runs_before)
    out = {shape.native_chunk, *(c.chunk_size for c in failed)}
    race_state = RaceState(
        candidates=tuple(Candidate(c) for c in sorted(set(chunks) - out)),
        shape=shape,
        likely=tuple(Candidate(None if c == shape.native_chunk else c) for c in likely),
        likely_gain=prior_gain,
        confirm=Candidate(confirm) if confirm in set(chunks) - out else None,
        earlier=tuple(r for r in estimates if r is not None),
    )
    timer = _Timer(pool, state, nstep, control, post_step_forward_sensor, clock)
    run = _Run(timer, race_state, max(0.0, time_budget_s), np.random.default_rng(seed))

    def outcome(cut_short: bool) -> Race:
        return Race(
            samples=tuple(run.samples),
            verdict=judge(
                run.samples,
                num_envs=num_envs,
                nthread=threads,
                cut_short=cut_short,
                failed=run.failures,
            ),
            pool_seconds=run.spent,
            failures=dict(run.failures),
        )

    try:
        first_s = run.step_once()
        _check_diverged(timer, nstep, timestep)
        run.warm_up(first_s)
        cut_short = run.until_settled(progress)
    except (KeyboardInterrupt, SystemExit):
        if stopped and run.samples:
            stopped(outcome(cut_short=True))
        raise
    return outcome(cut_short)


def _check_diverged(timer: _Timer, nstep: int, timestep: float | None) -> None:
    """Look at the states after a step: where MuJoCo warns, it skips steps or starts again.

    Raises:
        DivergedError: more than a tenth of the states are not finite or not where the simulated
            time, a state's first number, should be.
    """
    before, after = timer.origin, timer.stepped
    after = after[0] if isinstance(after, tuple) else after
    if not isinstance(after, np.ndarray) or after.shape != before.shape or after.ndim != 2:
        return
    if np.array_equal(before, after):  # a test's pool, or one of still environments
        return
    finite = np.isfinite(after).all(axis=1)
    advance = after[:, 0] - before[:, 0]
    step = timestep or max(float(np.max(advance, initial=0.0, where=finite)), 0.0) / nstep
    diverged = int((~finite | (advance < (nstep - 0.5) * step)).sum())
    if diverged > MAX_DIVERGED * len(after):
        raise DivergedError(
            f"{diverged} of {counted(len(after), 'environment')} diverge in a step, so its time "
            "means nothing. Check the controls, the time step and the actuator gains"
        )


def _error_text(error: Exception) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # an error that cannot even be printed is somebody else's, and still one
        return type(error).__name__


class _Timer:
    """Times calls of one pool with everything but the chunk_size fixed."""

    def __init__(
        self,
        pool: Any,
        state: Any,
        nstep: int,
        control: Any,
        sensors: bool,
        clock: Callable[[], float],
    ) -> None:
        self._pool, self._clock = pool, clock
        self.origin = np.asarray(state)
        self.stepped: Any = None
        """What the last call of the pool returned."""
        self._scratch = np.array(state, order="C")
        self._arguments = {
            "nstep": nstep,
            "control": control,
            "return_sensor": sensors,
            "post_step_forward_sensor": sensors,
        }

    def now(self) -> float:
        """Read the clock."""
        return self._clock()

    def seconds(self, candidate: Candidate, steps: int) -> float:
        """Time `steps` steps from the caller's state; what the clock says, believable or not."""
        np.copyto(self._scratch, self.origin)
        pool, scratch, arguments = self._pool, self._scratch, self._arguments
        chunk_size = candidate.chunk_size
        start = self._clock()
        for _ in range(steps):
            self.stepped = pool.step(scratch, chunk_size=chunk_size, **arguments)
        return float(self._clock() - start)


class _Run:
    """The samples of one race as they are taken, and what they have cost."""

    def __init__(
        self, timer: _Timer, race_state: RaceState, budget: float, rng: np.random.Generator
    ) -> None:
        self.samples: list[Sample] = []
        self.failures: dict[Candidate, str] = {}
        self.spent = 0.0
        self._timer, self._race_state, self._budget, self._rng = timer, race_state, budget, rng
        self._started = timer.now()
        self._steps = 1
        self._last: dict[Candidate, float] = {}

    @property
    def elapsed(self) -> float:
        """Seconds of the budget that are gone: the pool's, and those of planning between."""
        return max(self.spent, self._timer.now() - self._started)

    def step_once(self) -> float:
        """Take the default's first sample, a single step."""
        return self._take(NATIVE_DEFAULT, 0, warm_up=True)

    def warm_up(self, first_s: float) -> None:
        """Step the default a few times, to warm up and to learn how often a sample repeats it.

        The very first step tells nothing of the others: threads start, pages are touched.
        """
        if first_s >= COLD_START_S:
            return
        while self.elapsed < self._budget / 4:
            seconds = self._take(NATIVE_DEFAULT, 0, warm_up=True)
            shortest = min(SHORTEST_SAMPLE_S, self._budget / ENOUGH_TIMINGS)
            if seconds >= shortest / 2 or self._steps >= MAX_REPEATS:
                return
            wanted = 1.2 * shortest * self._steps / max(seconds, 1e-9)
            self._steps = min(max(math.ceil(wanted), 2 * self._steps), MAX_REPEATS)
            self._last.clear()  # what fewer steps took is no guide any more

    def until_settled(self, progress: Callable[[Progress], None] | None) -> bool:
        """Take block after block; True if it ended for want of time."""
        block_number = 1
        plan: BlockPlan | None = None
        while True:
            default = self._last.get(NATIVE_DEFAULT, 0.0)
            left = self._budget - self.elapsed
            plan = next_block(
                self._race_state,
                self.samples,
                self._rng,
                left / default if default else math.inf,
                plan,
            )
            if progress:
                relative, low, high = plan.relative
                progress(
                    Progress(
                        plan.contenders,
                        plan.leader,
                        relative,
                        low,
                        high,
                        self.elapsed,
                        self._budget,
                    )
                )
            if not plan.block:
                return plan.cut_short
            for candidate in plan.block:
                if candidate in self.failures:
                    continue
                expected = self._last.get(candidate, default)
                if self.elapsed + expected > self._budget:
                    return True
                self._take(candidate, block_number)
            block_number += 1

    def _take(self, candidate: Candidate, block: int, *, warm_up: bool = False) -> float:
        """Take one sample; return its seconds, or 0 if the pool raises on the candidate."""
        try:
            seconds = self._timer.seconds(candidate, self._steps)
        except Exception as error:
            if candidate == NATIVE_DEFAULT:
                raise MeasuringError(
                    f"the pool cannot step with the native default: {_error_text(error)}"
                ) from error
            self.failures[candidate] = _error_text(error)
            others = tuple(c for c in self._race_state.candidates if c != candidate)
            self._race_state = replace(self._race_state, candidates=others, confirm=None)
            return 0.0
        self.spent += seconds
        self._last[candidate] = seconds
        self.samples.append(
            Sample(
                candidate=candidate,
                block=block,
                order=len(self.samples),
                nanoseconds=max(1, round(seconds * 1e9)),
                warm_up=warm_up and seconds < WARM_UP_S,
                repeats=self._steps,
            )
        )
        return seconds
