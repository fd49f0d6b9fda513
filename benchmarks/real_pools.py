"""Tunes real models on a real pool by both plans, then compares what they chose, side by side.

    python -m benchmarks.real_pools                 # gymnasium's models, about eight minutes
    python -m benchmarks.real_pools --models hopper --num-envs 256

Per model: the fixed plan's choice and the race's, and the seconds each took; then the median
ratio of the time of a step to the native default's, over long interleaved rounds in which each
choice is timed once, in an order that turns. Last, what difference it makes to time moved
states instead of the initial pose with zero controls.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tests.support.real_models import REAL_MODELS
from tuner import benchmark_chunk_sizes, race_chunk_sizes, select_chunk_size
from tuner.candidates import filter_candidates, make_candidates, native_chunk_size
from tuner.device import usable_cpus
from tuner.model_file import captured_warnings, load_model
from tuner.pools import RolloutPool
from tuner.states import initial_state, prepare_states

MODELS = ("humanoid", "ant", "half_cheetah", "hopper")


@dataclass(frozen=True)
class Row:
    """What came out for one model."""

    model: str
    fixed_choice: int | None
    fixed_seconds: float
    race_choice: int | None
    race_decided: bool
    race_seconds: float
    race_overhead: float
    """What the race took beyond the pool's own steps, as a share of these."""
    race_memory: float
    """Most memory it held at a time, over that of the state and the controls."""
    fixed_ratio: float
    """Median over rounds of the step's time with the fixed plan's choice over the default's."""
    race_ratio: float
    default_ratio: float
    """The default's second timing of a round over its first: what the machine's noise makes."""
    initial_ms: float
    """A step from the initial pose with zero controls."""
    moved_ms: float
    """A step from moved states under random controls."""
    initial_choice: int | None
    """What the race chooses from the initial pose."""


def main() -> None:
    """Run the models one after another and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=MODELS, choices=REAL_MODELS)
    parser.add_argument("--num-envs", type=int, default=1024)
    parser.add_argument("--nthread", type=int, default=usable_cpus())
    parser.add_argument("--nstep", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=60, help="interleaved rounds to compare in")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    rows = [
        measure(name, options.num_envs, options.nthread, options.nstep, options.rounds)
        for name in options.models
    ]
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
        return
    print(f"{options.num_envs} environments, {options.nthread} threads, {options.nstep} steps")
    print("| model | plan | choice | tuning | step against default |\n|---|---|---|---|---|")
    for row in rows:
        decided = "" if row.race_decided else " (undecided)"
        print(
            f"| {row.model} | fixed | {name_of(row.fixed_choice)} | {row.fixed_seconds:.1f} s "
            f"| {row.fixed_ratio:.3f} |\n"
            f"| | race | {name_of(row.race_choice)}{decided} | {row.race_seconds:.1f} s "
            f"| {row.race_ratio:.3f} |\n"
            f"| | default again | | | {row.default_ratio:.3f} |"
        )
    print("\n| model | race beyond the pool's steps | memory over state and controls |")
    print("|---|---|---|")
    for row in rows:
        print(f"| {row.model} | {row.race_overhead:.1%} | {row.race_memory:.2f} |")
    print("\n| model | initial pose, zero controls | moved, random controls | choices |")
    print("|---|---|---|---|")
    for row in rows:
        choices = f"{name_of(row.initial_choice)}, {name_of(row.race_choice)}"
        print(f"| {row.model} | {row.initial_ms:.2f} ms | {row.moved_ms:.2f} ms | {choices} |")


def measure(name: str, num_envs: int, nthread: int, nstep: int, rounds: int) -> Row:
    """Tune one model by both plans and compare the choices."""
    print(f"{name} ...", file=sys.stderr, flush=True)
    model = load_model(REAL_MODELS[name])
    state, control, *_ = prepare_states(model, num_envs, nstep=nstep)
    candidates = filter_candidates(make_candidates(num_envs, nthread), num_envs)
    with captured_warnings(), RolloutPool(model, nbatch=num_envs, nthread=nthread) as pool:
        work: dict[str, Any] = {"control": control, "post_step_forward_sensor": False}
        begun = time.perf_counter()
        timings = benchmark_chunk_sizes(pool, state, nstep, candidates, **work)
        fixed_seconds = time.perf_counter() - begun
        fixed = select_chunk_size(timings, native_chunk_size(num_envs, nthread))
        begun = time.perf_counter()
        race = race_chunk_sizes(pool, state, nstep, candidates, seed=0, **work)
        race_seconds = time.perf_counter() - begun
        choice = race.verdict.chunk_size
        memory = peak_memory(
            lambda: race_chunk_sizes(
                pool, state, nstep, candidates, seed=0, time_budget_s=1.0, **work
            )
        )
        times = compare(pool, state, nstep, control, [None, fixed, choice, None], rounds)
        still = race_chunk_sizes(
            pool,
            initial_state(model, num_envs),
            nstep,
            candidates,
            control=np.zeros_like(control),
            post_step_forward_sensor=False,
            seed=0,
        )
    return Row(
        model=name,
        fixed_choice=fixed,
        fixed_seconds=fixed_seconds,
        race_choice=choice,
        race_decided=race.verdict.decided,
        race_seconds=race_seconds,
        race_overhead=race_seconds / race.pool_seconds - 1,
        race_memory=memory / (state.nbytes + control.nbytes),
        fixed_ratio=ratio(times, 1),
        race_ratio=ratio(times, 2),
        default_ratio=ratio(times, 3),
        initial_ms=still.verdict.estimates[0].milliseconds,
        moved_ms=race.verdict.estimates[0].milliseconds,
        initial_choice=still.verdict.chunk_size,
    )


def peak_memory(doing: Callable[[], object]) -> int:
    """Measure the most bytes that Python and NumPy held at a time while doing something.

    What the pool itself holds to step is a part of it, but for its native memory.
    """
    tracemalloc.start()
    try:
        doing()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def compare(
    pool: RolloutPool,
    state: Any,
    nstep: int,
    control: Any,
    choices: list[int | None],
    rounds: int,
) -> list[list[float]]:
    """Time each choice once a round, in an order that turns; seconds by choice and round."""
    times: list[list[float]] = [[] for _ in choices]
    for number in range(rounds):
        places = list(range(len(choices)))
        for place in places[number % 4 :] + places[: number % 4]:
            begun = time.perf_counter()
            pool.step(state, nstep=nstep, control=control, chunk_size=choices[place])
            times[place].append(time.perf_counter() - begun)
    return times


def ratio(times: list[list[float]], place: int) -> float:
    """Median over rounds of a choice's time over the default's in the same round."""
    return statistics.median(a / b for a, b in zip(times[place], times[0], strict=True))


def name_of(choice: int | None) -> str:
    """Name a choice in a table."""
    return "default" if choice is None else str(choice)


if __name__ == "__main__":
    main()
