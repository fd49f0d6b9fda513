"""The race's promises in numbers, on simulated pools: the same code as the benchmark.

The clock is virtual and every seed fixed, so nothing here depends on the machine. The bounds
are the promised ones with room for what so few runs can tell apart, not the figures this
sample happens to give.
"""

import itertools
from typing import Any

import numpy as np
import pytest

from benchmarks.decision_quality import Outcome, fixed, interleaved, main, problems, run, table
from benchmarks.simulation import HELD_OUT_LANDSCAPES, LANDSCAPES, NOISES, SIZES, Problem


@pytest.fixture(scope="module")
def outcomes() -> list[Outcome]:
    """Every landscape with every noise once, the sizes taken in turn, and some equal ones."""
    sizes = itertools.cycle(SIZES)
    todo = [Problem(x, y, *next(sizes), 7) for x, y in itertools.product(LANDSCAPES, NOISES)]
    todo += [Problem("equal", "2 %", *next(sizes), seed) for seed in range(30)]
    return [run(problem, plan) for plan in ("fixed", "race") for problem in todo]


def test_the_race_keeps_its_promises(outcomes: Any) -> None:
    race = table(outcomes)["race"]
    assert race["mean_regret"] <= 0.007
    assert race["p95_regret"] <= 0.039
    assert race["harm"] == 0.0
    assert race["left_when_equal"] <= 1 / 30
    assert race["seconds_ratio"] <= 0.3  # the equal ones, which take longest, are over-represented


def test_where_candidates_differ_the_race_takes_a_fraction_of_the_time(outcomes: Any) -> None:
    race = table([o for o in outcomes if o.group == "main"])["race"]
    assert race["seconds_ratio"] <= 0.18


def test_the_race_decides_better_than_the_fixed_plan(outcomes: Any) -> None:
    rows = table(outcomes)
    for figure in ("mean_regret", "p95_regret", "left_when_equal", "pool_seconds", "timings"):
        assert rows["race"][figure] < rows["fixed"][figure]


@pytest.mark.parametrize("landscape", HELD_OUT_LANDSCAPES)
def test_no_harm_on_landscapes_it_was_not_built_on(landscape: Any) -> None:
    found = [run(Problem(landscape, y, 1024, 8, 11), "race") for y in ("quiet", "two speeds")]
    assert max(o.slower for o in found) <= 0.005
    assert np.mean([o.regret for o in found]) <= 0.06


def test_the_plans_it_is_held_against() -> None:
    problem = Problem("convex", "quiet", 1024, 8, 0, step_seconds=0.01)
    for plan, timings in ((fixed, 22 * 17), (interleaved, 20 * 17)):
        pool = problem.pool()
        choice = plan(problem, pool)
        assert pool.calls == timings
        assert pool.costs[choice] <= 1.03 * min(pool.costs.values())


def test_a_simulated_machine_is_the_same_every_time() -> None:
    problem = Problem("waves", "bursts", 1024, 8, 0)
    first, second = problem.pool(), problem.pool()
    assert first.costs == second.costs
    assert first.costs[None] == first.costs[12]
    for pool in (first, second):
        for c in (None, 1, 128):
            pool.step(None, chunk_size=c)
    assert first.now == second.now > 0


def test_problems_cover_every_combination_once() -> None:
    todo = problems(range(2))
    assert len(set(todo)) == len(todo)
    held_out = problems([0], held_out=True)
    assert {p.landscape for p in held_out} >= set(HELD_OUT_LANDSCAPES)


def test_the_script_prints_its_tables(monkeypatch: Any, capsys: Any) -> None:
    few = [Problem("convex", "quiet", 256, 2, 0), Problem("equal", "2 %", 256, 2, 0)]
    monkeypatch.setattr("benchmarks.decision_quality.problems", lambda _seeds, **_options: few)
    assert main(["--by", "noise"]) == 0
    assert {"fixed", "interleaved", "race"} <= set(capsys.readouterr().out.split())
    assert main(["--json"]) == 0
    assert '"plans"' in capsys.readouterr().out
