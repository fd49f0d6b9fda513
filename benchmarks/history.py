"""What earlier runs are worth: short runs that add up, near relatives, and runs that differ.

    python -m benchmarks.history --seeds 2

Everything is on simulated pools whose true costs are known, by their virtual clock, but for the
last table, which times the verdict itself. Figures go to stdout, progress to stderr.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import sys
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

# Small matrices, many of them: threads inside the linear algebra only get in each other's way.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
import numpy as np

from benchmarks.simulation import LANDSCAPES, NOISES, SIZES, Problem, SimulatedPool, native_chunk
from tuner.racing.meta_analysis import judge_runs
from tuner.racing.race import race_chunk_sizes
from tuner.racing.verdict import judge
from tuner.records import Candidate, Race, Run, Sample, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

BUDGET = 10.0
"""Seconds of a full race."""
SHORT = BUDGET / 5
"""Seconds of a job's share."""
RUNS = (1, 2, 5, 10)
DEVIATION = 0.01
"""By how much a day changes each candidate's cost."""
TUNES = 6
"""Independent tunes of one landscape whose choices are held against each other."""
CLEAR = 0.03
"""A gain over the runner-up that repeated tunes should agree on."""
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


def problems(seeds: Iterable[int]) -> list[Problem]:
    """Every landscape with every noise, the sizes taken in turn."""
    sizes = itertools.cycle(SIZES)
    pairs = itertools.product(seeds, LANDSCAPES, NOISES)
    return [Problem(x, y, *next(sizes), seed) for seed, x, y in pairs]


def raced(problem: Problem, pool: SimulatedPool, seed: int, **options: Any) -> Race:
    """One race on this pool."""
    return race_chunk_sizes(
        pool,
        np.zeros((problem.num_envs, 1)),
        1,
        problem.candidates(),
        control=None,
        post_step_forward_sensor=False,
        clock=pool.clock,
        seed=seed,
        nthread=problem.nthread,
        **options,
    )


def as_run(race: Race, number: int) -> Run:
    """The run that would be stored of a race, the `number`-th of its key."""
    return Run(
        state="cut short" if race.verdict.reason == "budget" else "complete",
        finished=EPOCH + timedelta(hours=number),
        uid=f"{number:032x}",
        strategy="race",
        samples=race.samples,
        failed=tuple(race.failures),
    )


def judged(problem: Problem, runs: Sequence[Run]) -> Verdict:
    """What the database would answer after these runs."""
    return judge_runs(runs, num_envs=problem.num_envs, nthread=problem.nthread)


def regret(problem: Problem, choice: int | None) -> float:
    """True time of the choice over the best candidate's, less 1."""
    costs = problem.pool().costs
    return costs[choice] / min(costs.values()) - 1.0


# --- short runs that add up -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Added:
    """After so many short runs, and after one long run of the same total."""

    runs: int
    short: float
    long: float
    harm: bool
    """Short runs led to a choice slower than the default by half a percent."""
    decided: bool
    seconds: float
    """What the short runs took."""


def short_runs(task: tuple[Problem, float]) -> list[Added]:
    """Jobs with a fifth of a budget each, until the key is decided, against one long race."""
    problem, deviation = task
    runs: list[Run] = []
    found, seconds = [], 0.0
    verdict = judged(problem, runs)
    costs = problem.pool().costs
    for number in range(1, max(RUNS) + 1):
        if not verdict.decided:
            pool = problem.pool(number, deviation)
            race = raced(problem, pool, number, time_budget_s=SHORT, earlier=runs)
            runs.append(as_run(race, number))
            seconds += race.pool_seconds
            verdict = judged(problem, runs)
        if number in RUNS:
            pool = problem.pool(100 + number, deviation)
            alone = raced(problem, pool, number, time_budget_s=SHORT * number).verdict
            choice = verdict.chunk_size
            found.append(
                Added(
                    runs=number,
                    short=regret(problem, choice),
                    long=regret(problem, alone.chunk_size),
                    harm=costs[choice] > 1.005 * costs[None],
                    decided=verdict.decided,
                    seconds=seconds,
                )
            )
    return found


# --- the same choice again ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Flips:
    """Choices of repeated tunes of one landscape."""

    lead: float
    """Gain of the best over the runner-up."""
    differing: float
    """Share of the pairs of tunes that do not agree."""


def repeated(problem: Problem) -> Flips:
    """Tune the same landscape on other days, each from scratch."""
    costs = problem.pool().costs
    best, second = sorted({c: t for c, t in costs.items() if c is not None}.values())[:2]
    native = native_chunk(problem.num_envs, problem.nthread)
    choices = [
        raced(problem, problem.pool(day), day).verdict.chunk_size or native
        for day in range(1, TUNES + 1)
    ]
    pairs = [a != b for a, b in itertools.combinations(choices, 2)]
    return Flips(lead=1.0 - best / second, differing=float(np.mean(pairs)))


# --- near relatives -------------------------------------------------------------------------


def _best(problem: Problem) -> int | None:
    costs = problem.pool().costs
    best = min(problem.candidates(), key=lambda c: costs[c])
    return None if best == native_chunk(problem.num_envs, problem.nthread) else best


def _far(problem: Problem) -> int | None:
    """What half of the candidates lie between it and the best."""
    order = problem.candidates()
    native = native_chunk(problem.num_envs, problem.nthread)
    best = _best(problem) or native
    at = order.index(best) if best in order else 0
    far = order[(at + len(order) // 2) % len(order)]
    return None if far == native else far


def _gain(problem: Problem) -> float:
    """What the best gains over the default, as a share of the default's time."""
    costs = problem.pool().costs
    return 1.0 - costs[_best(problem)] / costs[None]


def _likely(problem: Problem, choice: int | None) -> dict[str, Any]:
    """A relative's winner: what the best gains here, it gained there, so also a misleading one."""
    return {"prior": [choice], "prior_gain": _gain(problem)}


def _confirming(problem: Problem, choice: int | None) -> dict[str, Any]:
    if choice is None:
        return {"prior": [None]}
    return {"confirm": choice, "prior_gain": _gain(problem)}


RELATIVES: dict[str, Callable[[Problem], dict[str, Any]]] = {
    "none": lambda _p: {},
    "good": lambda p: _likely(p, _best(p)),
    "misleading": lambda p: _likely(p, _far(p)),
    "kept its default, wrongly or not": lambda _p: {"prior": [None]},
    "good, to confirm": lambda p: _confirming(p, _best(p)),
    "misleading, to confirm": lambda p: _confirming(p, _far(p)),
}


@dataclass(frozen=True, slots=True)
class Related:
    """A race with a relative."""

    timings: int
    seconds: float
    regret: float


def with_relatives(problem: Problem) -> list[Related]:
    """The same race with each kind of relative."""
    found = []
    for options in RELATIVES.values():
        race = raced(problem, problem.pool(), problem.seed, **options(problem))
        loss = regret(problem, race.verdict.chunk_size)
        found.append(Related(len(race.samples), race.pool_seconds, loss))
    return found


# --- intervals ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Covered:
    """Whether an interval of a candidate's time over the default's holds the true one."""

    runs: int
    joined: bool
    """By the samples joined as if they were of one run: a fixed effect."""
    pooled: bool
    """By `judge_runs`."""


def coverage(problem: Problem) -> list[Covered]:
    """Race on several days that differ, and look at every candidate timed in each of them."""
    costs = problem.pool().costs
    runs = [
        as_run(raced(problem, problem.pool(day, DEVIATION), day), day)
        for day in range(1, max(RUNS) + 1)
    ]
    found = []
    for number in RUNS[1:]:
        shared = set.intersection(*({s.candidate for s in run.samples} for run in runs[:number]))
        fixed = judge(_joined(runs[:number]), num_envs=problem.num_envs, nthread=problem.nthread)
        joined = {e.candidate: e for e in fixed.estimates}
        for e in judged(problem, runs[:number]).estimates:
            true = costs[e.candidate.chunk_size] / costs[None]
            if e.candidate.chunk_size is not None and e.candidate in shared:
                other = joined[e.candidate]
                found.append(
                    Covered(number, other.low <= true <= other.high, e.low <= true <= e.high)
                )
    return found


def _joined(runs: Sequence[Run]) -> list[Sample]:
    joined: list[Sample] = []
    for run in runs:
        rounds = 1 + max((s.block for s in joined), default=-1)
        start = len(joined)
        joined += [replace(s, block=s.block + rounds, order=s.order + start) for s in run.samples]
    return joined


# --- how long a verdict takes ---------------------------------------------------------------


def verdict_seconds(runs: int = 50, samples: int = 300) -> float:
    """Seconds for a verdict from so many runs, fastest of five: machines are held up."""
    problem = Problem("rugged", "2 %", 1024, 8, 0)
    sizes = [None, *problem.candidates()]
    history = []
    for number in range(runs):
        pool, rng = problem.pool(number), np.random.default_rng(number)
        blocks = [[sizes[k] for k in rng.choice(len(sizes), 4, replace=False)] for _ in range(12)]
        rivals = [sizes[k] for k in 1 + rng.choice(len(sizes) - 1, 2, replace=False)]
        blocks += [[None, c, c, None] for c in rivals for _ in range((samples // 4 - 12) // 2)]
        history.append(_timed(pool, blocks, number))
    taken = []
    for _ in range(5):
        before = time.perf_counter()
        judge_runs(history, num_envs=problem.num_envs, nthread=problem.nthread)
        taken.append(time.perf_counter() - before)
    return min(taken)


def _timed(pool: SimulatedPool, blocks: Sequence[Sequence[int | None]], number: int) -> Run:
    found: list[Sample] = []
    for place, block in enumerate(blocks):
        for c in block:
            before = pool.clock()
            pool.step(None, chunk_size=c)
            nanoseconds = round((pool.clock() - before) * 1e9)
            found.append(Sample(Candidate(c), place, len(found), nanoseconds))
    finished = EPOCH + timedelta(hours=number)
    return Run("complete", finished, uid=f"{number:032x}", samples=tuple(found))


# --- tables ---------------------------------------------------------------------------------


def _each(function: Callable[[Any], Any], todo: Sequence[Any], jobs: int) -> list[Any]:
    print(f"{function.__name__}: {len(todo)} problems", file=sys.stderr)
    if jobs == 1:
        return [function(task) for task in todo]
    with multiprocessing.Pool(jobs) as workers:
        return workers.map(function, todo, chunksize=4)


def _row(*cells: object) -> None:
    print("| " + " | ".join(map(str, cells)) + " |")


def _table(*heads: str) -> None:
    print()
    _row(*heads)
    _row(*("---" for _ in heads))


def _print_short_runs(todo: Sequence[Problem], jobs: int) -> None:
    for deviation in (0.0, DEVIATION):
        added = _each(short_runs, [(p, deviation) for p in todo], jobs)
        _table(
            f"short runs, days differ by {deviation:.0%}",
            "regret",
            "one long run of the total",
            "harm",
            "decided",
            "seconds, mean",
        )
        for number in RUNS:
            rows = [row for rows in added for row in rows if row.runs == number]
            _row(
                number,
                f"{np.mean([r.short for r in rows]):.2%}",
                f"{np.mean([r.long for r in rows]):.2%}",
                f"{np.mean([r.harm for r in rows]):.2%}",
                f"{np.mean([r.decided for r in rows]):.0%}",
                f"{np.mean([r.seconds for r in rows]):.1f}",
            )


def _print_flips(todo: Sequence[Problem], jobs: int) -> None:
    flips = _each(repeated, todo, jobs)
    _table("lead over the runner-up", "landscapes", "pairs of tunes that differ")
    for name, chosen in (
        ("any", flips),
        (f"above {CLEAR:.0%}", [f for f in flips if f.lead > CLEAR]),
    ):
        differing = np.mean([f.differing for f in chosen]) if chosen else float("nan")
        _row(name, len(chosen), f"{differing:.1%}")


def _print_relatives(todo: Sequence[Problem], jobs: int) -> None:
    related = _each(with_relatives, todo, jobs)
    _table("relative", "timings, median", "time over none, median", "regret", "95th percentile")
    for k, name in enumerate(RELATIVES):
        rows = [row[k] for row in related]
        _row(
            name,
            f"{np.median([r.timings for r in rows]):.0f}",
            f"{np.median([row[k].seconds / row[0].seconds for row in related]):.2f}",
            f"{np.mean([r.regret for r in rows]):.2%}",
            f"{np.percentile([r.regret for r in rows], 95):.2%}",
        )


def _print_coverage(todo: Sequence[Problem], jobs: int) -> None:
    covered = list(itertools.chain.from_iterable(_each(coverage, todo, jobs)))
    _table(
        f"runs, days differ by {DEVIATION:.0%}", "intervals", "cover, joined", "cover, judge_runs"
    )
    for number in RUNS[1:]:
        rows = [row for row in covered if row.runs == number]
        _row(
            number,
            len(rows),
            f"{np.mean([r.joined for r in rows]):.1%}",
            f"{np.mean([r.pooled for r in rows]):.1%}",
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables; exit 0."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, default=2, help="machines per combination")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    options = parser.parse_args(argv)
    todo = problems(range(options.first_seed, options.first_seed + options.seeds))
    for show in (_print_short_runs, _print_flips, _print_relatives, _print_coverage):
        show(todo, options.jobs)
    _table("verdict of all runs", "seconds")
    _row("50 runs of 300 samples", f"{verdict_seconds():.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
