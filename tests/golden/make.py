"""Makes the golden database of the revision that this code writes: once, before its release.

    python -m tests.golden.make

The file is kept as it is from then on, whatever becomes of the code: tests upgrade it, compare
it with a fresh database and use it. It holds one of everything that the revision can hold.
"""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tests.support.facts import DEVICE, a_key
from tuner import store_cache
from tuner.environment import PROTOCOL, Environment
from tuner.racing.verdict import judge
from tuner.records import Candidate, Run, RunMetadata, Sample, State
from tuner.store.runs import save_run
from tuner.store.sqlite import REVISION
from tuner.workload import CacheKey

FOLDER = Path(__file__).parent
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
COSTS = {None: 9.4, 4: 8.9, 8: 9.1, 13: 9.5, 32: 12.0}
"""Milliseconds of a step by chunk size."""


def samples(seed: int, pairs: int, *, without: int | None = None) -> tuple[Sample, ...]:
    """Draw a run's timings: a warm-up, a round of all candidates, duels with chunk 4."""
    draw = random.Random(seed)
    rounds: list[tuple[int, int | None]] = [(0, None)]
    rounds += [(1, chunk) for chunk in COSTS if chunk != without]
    rounds += [(2 + k // 2, chunk) for k in range(pairs) for chunk in ((None, 4), (4, None))[k % 2]]
    return tuple(
        Sample(
            candidate=Candidate(chunk),
            block=number,
            order=order,
            nanoseconds=round(2 * COSTS[chunk] * 1e6 * draw.lognormvariate(0.0, 0.01)),
            warm_up=number == 0,
            repeats=2,
        )
        for order, (number, chunk) in enumerate(rounds)
    )


def save(file: Path, key: CacheKey, number: int, timings: tuple[Sample, ...], state: State) -> None:
    """Store a run of one key, and the verdict that it leads to."""
    started = NOON + timedelta(hours=number)
    failed = (Candidate(16),) if number == 2 else ()
    verdict = None
    if state != "failed":
        verdict = judge(
            timings, num_envs=1024, nthread=8, cut_short=state == "cut short", failed=failed
        )
    run = Run(
        state=state,
        uid=f"{number:032x}",
        started=started,
        finished=started + timedelta(seconds=3, microseconds=number),
        strategy="race",
        work="moved states, random controls",
        samples=timings,
        environment=Environment("4.0.0", "mujoco.rollout", "4.0.0", PROTOCOL),
        trigger="new",
        choice=verdict.candidate if verdict else None,
        seed=number,
        time_budget_seconds=10.0,
        pool_seconds=sum(s.nanoseconds for s in timings) / 1e9,
        model_file="robots/quadruped.xml",
        metadata=RunMetadata(
            hostname="node7",
            pid=4242,
            load_average=0.5,
            tuner_version="0.1.0",
            python_version="3.11.9",
        ),
        message=f"it {state}" if state != "complete" else None,
        failed=failed,
    )
    save_run(file, key, run)


def make(file: Path) -> None:
    """Fill a new database."""
    decided, undecided = a_key(), a_key(num_envs=4096)
    save(file, decided, 1, samples(1, 24), "complete")
    save(file, decided, 2, samples(2, 12), "complete")
    save(file, undecided, 3, samples(3, 1, without=32), "cut short")
    save(file, undecided, 4, (), "failed")
    save(file, a_key(device=DEVICE | {"rack": "north"}), 5, samples(5, 24), "complete")
    store_cache(
        file,
        a_key(nthread=4),
        {"chunk_size": None, "per_candidate_ms": {"None": 9.4, "4": 9.9}, "model_file": "r.xml"},
    )
    store_cache(file, "a key of somebody's own", {"chunk_size": 16, "team": "locomotion"})


if __name__ == "__main__":
    golden = FOLDER / f"{REVISION}.db"
    if golden.exists():
        raise SystemExit(f"{golden} is there already, and what was released stays as it is")
    make(golden)
    print(golden)
