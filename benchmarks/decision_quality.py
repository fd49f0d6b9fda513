"""How well and how fast three plans choose a chunk_size, on pools whose true costs are known.

    python -m benchmarks.decision_quality --seeds 4
    python -m benchmarks.decision_quality --seeds 4 --held-out --json

Plans: `fixed` times the default and then every candidate in ascending order (2 warm-ups and 20
repetitions each, the minimum, 25 s checked between candidates, a margin of 3 %);
`interleaved` times all of them once a round for 20 rounds, the minimum, the same margin;
`race` is this package's. The virtual clock makes every figure exact: same seeds, same table.
Figures go to stdout, progress to stderr.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import multiprocessing
import os
import sys
from collections import defaultdict
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

# Thousands of small matrices: threads inside the linear algebra only get in each other's way.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
import numpy as np

from benchmarks.simulation import (
    HELD_OUT_LANDSCAPES,
    HELD_OUT_NOISES,
    LANDSCAPES,
    NOISES,
    SIZES,
    Problem,
    SimulatedPool,
    native_chunk,
)
from tuner.racing.race import race_chunk_sizes
from tuner.racing.verdict import select_chunk_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

HARM = 0.005
"""A choice slower than the default by more than this share counts as harm."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one plan made of one problem."""

    plan: str
    landscape: str
    noise: str
    size: str
    group: str
    """main, equal (all candidates cost the same), light or heavy (by the time of a step)."""
    regret: float
    """True time of the choice over the best candidate's, less 1."""
    slower: float
    """True time of the choice over the default's, less 1."""
    left: bool
    """The choice is not the default (nor the same work under another name)."""
    seconds: float
    """Pool time spent choosing, by the virtual clock."""
    timings: int


def fixed(problem: Problem, pool: SimulatedPool) -> int | None:
    """The reference's plan: one candidate after another."""
    state = np.zeros((problem.num_envs, 1))
    timings: dict[int | None, float] = {}
    for c in (None, *problem.candidates()):
        if timings and pool.now > 25.0:
            break
        times = []
        for _ in range(22):
            start = pool.clock()
            pool.step(state, chunk_size=c)
            times.append(pool.clock() - start)
        timings[c] = min(times[2:])
    return select_chunk_size(timings, native_chunk(problem.num_envs, problem.nthread))


def interleaved(problem: Problem, pool: SimulatedPool) -> int | None:
    """Every candidate once a round, 20 rounds, the minimum."""
    state = np.zeros((problem.num_envs, 1))
    timings: dict[int | None, float] = {}
    for _ in range(20):
        for c in (None, *problem.candidates()):
            start = pool.clock()
            pool.step(state, chunk_size=c)
            timings[c] = min(timings.get(c, float("inf")), pool.clock() - start)
    return select_chunk_size(timings, native_chunk(problem.num_envs, problem.nthread))


def race(problem: Problem, pool: SimulatedPool) -> int | None:
    """The race, as `resolve_chunk_size` runs it."""
    return race_chunk_sizes(
        pool,
        np.zeros((problem.num_envs, 1)),
        1,
        problem.candidates(),
        control=None,
        post_step_forward_sensor=False,
        clock=pool.clock,
        seed=problem.seed,
        nthread=problem.nthread,
    ).verdict.chunk_size


PLANS = {"fixed": fixed, "interleaved": interleaved, "race": race}


def run(problem: Problem, plan: str) -> Outcome:
    """Let one plan choose, and hold the choice against the truth."""
    pool = problem.pool()
    choice = PLANS[plan](problem, pool)
    cost, default = pool.costs[choice], pool.costs[None]
    return Outcome(
        plan=plan,
        landscape=problem.landscape,
        noise=problem.noise,
        size=f"{problem.num_envs}x{problem.nthread}",
        group=_group(problem),
        regret=cost / min(pool.costs.values()) - 1.0,
        slower=cost / default - 1.0,
        left=choice not in (None, native_chunk(problem.num_envs, problem.nthread)),
        seconds=pool.now,
        timings=pool.calls,
    )


def _group(problem: Problem) -> str:
    if problem.landscape == "equal":
        return "equal"
    if problem.step_seconds is None:
        return "main"
    return "heavy" if problem.step_seconds > 1 else "light"


def problems(seeds: Iterable[int], *, held_out: bool = False) -> list[Problem]:
    """All landscapes x noises x sizes x seeds, with a few light, heavy and equal ones."""
    landscapes = HELD_OUT_LANDSCAPES if held_out else LANDSCAPES
    noises = HELD_OUT_NOISES if held_out else NOISES
    found = []
    for seed, (n, t) in itertools.product(seeds, SIZES):
        found += [Problem(x, y, n, t, seed) for x, y in itertools.product(landscapes, noises)]
        found += [Problem("equal", "2 %", n, t, 1000 * k + seed) for k in range(1, 9)]
        for landscape in ("convex", "rugged"):
            found.append(Problem(landscape, "two speeds", n, t, 100 + seed, step_seconds=1.5))
            found.append(Problem(landscape, "2 %", n, t, 200 + seed, step_seconds=2e-4))
    return found


def table(outcomes: Sequence[Outcome]) -> dict[str, dict[str, float]]:
    """Per plan: regret, harm, default left where all are equal, pool seconds, timings.

    Equal problems count only for `left`: they have no regret and would dilute the rest.
    """
    by_plan: dict[str, list[Outcome]] = defaultdict(list)
    for o in outcomes:
        by_plan[o.plan].append(o)
    rows = {}
    for plan, own in by_plan.items():
        real = [o for o in own if o.group != "equal"]
        equal = [o.left for o in own if o.group == "equal"]
        pairs = zip(own, by_plan.get("fixed", ()), strict=False)
        rows[plan] = {
            "runs": len(own),
            "mean_regret": _mean([o.regret for o in real]),
            "p95_regret": float(np.percentile([o.regret for o in real] or [np.nan], 95)),
            "harm": _mean([o.slower > HARM for o in real]),
            "left_when_equal": _mean(equal),
            "pool_seconds": float(np.sum([o.seconds for o in own])),
            "timings": _mean([o.timings for o in own]),
            "seconds_ratio": float(
                np.median([a.seconds / b.seconds for a, b in pairs] or [np.nan])
            ),
        }
    return rows


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if len(values) else float("nan")


def breakdown(outcomes: Sequence[Outcome], plan: str, by: str) -> dict[str, dict[str, float]]:
    """The table's figures for one plan, by landscape, noise or size."""
    groups: dict[str, list[Outcome]] = defaultdict(list)
    for o in outcomes:
        if o.plan in (plan, "fixed"):
            groups[getattr(o, by)].append(o)
    return {name: table(group)[plan] for name, group in groups.items()}


def _run_all(problem: Problem) -> list[Outcome]:
    return [run(problem, plan) for plan in PLANS]


def measure(todo: Sequence[Problem], jobs: int = 1, *, show: bool = False) -> list[Outcome]:
    """Run every plan on every problem, in order, whatever the number of processes."""
    outcomes: list[Outcome] = []

    def collect(results: Iterable[list[Outcome]]) -> None:
        for done, found in enumerate(results, 1):
            outcomes.extend(found)
            if show and done % 200 == 0:
                print(f"{done} of {len(todo)} problems", file=sys.stderr)

    if jobs == 1:
        collect(map(_run_all, todo))
    else:
        with multiprocessing.Pool(jobs) as workers:
            collect(workers.imap(_run_all, todo, chunksize=16))
    return outcomes


def _share(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.2%}"


def _print_rows(rows: dict[str, dict[str, float]], heading: str) -> None:
    print(
        f"{heading:<14}{'runs':>6}{'regret':>9}{'p95':>8}{'harm':>8}{'left':>8}"
        f"{'seconds':>10}{'timings':>9}{'ratio':>8}"
    )
    for name, r in rows.items():
        print(
            f"{name:<14}{r['runs']:>6.0f}{_share(r['mean_regret']):>9}"
            f"{_share(r['p95_regret']):>8}{_share(r['harm']):>8}"
            f"{_share(r['left_when_equal']):>8}{r['pool_seconds']:>10.0f}"
            f"{r['timings']:>9.1f}{r['seconds_ratio']:>8.3f}"
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; exit 0."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, default=4, help="machines per combination")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--held-out", action="store_true", help="the families kept for checking")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--by", choices=["landscape", "noise", "size"], action="append")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of tables")
    options = parser.parse_args(argv)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    todo = problems(seeds, held_out=options.held_out)
    outcomes = measure(todo, options.jobs, show=True)
    if options.json:
        main_group = [o for o in outcomes if o.group in ("main", "equal")]
        print(json.dumps({"plans": table(main_group), "outcomes": [asdict(o) for o in outcomes]}))
        return 0
    _print_rows(table([o for o in outcomes if o.group in ("main", "equal")]), "plan")
    for group in ("light", "heavy"):
        print()
        _print_rows(table([o for o in outcomes if o.group == group]), group)
    for by in options.by or ():
        print()
        _print_rows(breakdown(outcomes, "race", by), f"race, {by}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
