"""Training jobs in processes of their own, that ask for a chunk_size and tell what they got.

Run as `python -m tests.support.jobs '{"database": ..., ...}'`; prints one JSON line at the end, and
"stepping" before its pool's first step.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.facts import MODEL, SleepingPool
from tuner import resolve_chunk_size

ROOT = Path(__file__).parents[2]


class TalkingPool(SleepingPool):
    """Says when it is stepped first, so that a test knows that the measuring has begun."""

    def step(self, state: Any, **options: Any) -> Any:
        if not self.chunks:
            print("stepping", flush=True)
        return super().step(state, **options)


def start_job(
    database: Path, *, folder: Path | None = None, **options: Any
) -> subprocess.Popen[str]:
    """Start a job.

    Args:
        database: The tuning database it uses.
        folder: Where the machine's lock lies for it; by default where the test put it.
        options: num_envs, step_s, budget_s, wait_s, repeat.
    """
    environment = dict(os.environ) | ({"TUNER_LOCK_FOLDER": str(folder)} if folder else {})
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tests.support.jobs",
            json.dumps({"database": str(database)} | options),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=environment,
    )


def finish(job: subprocess.Popen[str]) -> dict[str, Any]:
    """Wait for a job's end and read what it tells."""
    out, err = job.communicate(timeout=120)
    assert job.returncode == 0, err
    told: dict[str, Any] = json.loads(out.splitlines()[-1])
    return told | {"stderr": err}


def wait_until_stepping(job: subprocess.Popen[str]) -> None:
    """Wait until a job's pool is stepped for the first time."""
    assert job.stdout is not None
    assert job.stdout.readline() == "stepping\n"


def main(options: dict[str, Any]) -> None:
    """Be a job."""
    num_envs = options.get("num_envs", 64)
    pool = TalkingPool(num_envs, 2, options.get("step_s", 1e-3))
    started = time.time()
    choice = resolve_chunk_size(
        pool=pool,
        state=np.zeros((num_envs, 3)),
        model=MODEL,
        n_variants=1,
        num_envs=num_envs,
        nthread=2,
        dtype="float32",
        post_step_forward_sensor=False,
        bench_nsteps=4,
        manual_chunk_size=None,
        adaptive=True,
        time_budget_s=options.get("budget_s", 0.5),
        wait_s=options.get("wait_s"),
        database=options["database"],
    )
    told = {"choice": choice, "steps": len(pool.chunks), "started": started, "ended": time.time()}
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
