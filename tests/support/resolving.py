"""Asks for a chunk_size as a training job does, of pools that do no physics."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.facts import MODEL, a_key
from tuner import resolve_chunk_size
from tuner.device import device_fingerprint
from tuner.workload import CacheKey

NUM_ENVS = 64
NTHREAD = 2


def resolve(pool: Any, file: Path, **changes: Any) -> int | None:
    """Ask as a training job asks, within a small budget."""
    arguments: dict[str, Any] = {
        "pool": pool,
        "state": np.zeros((NUM_ENVS, 3)),
        "model": MODEL,
        "n_variants": 1,
        "num_envs": NUM_ENVS,
        "nthread": NTHREAD,
        "dtype": np.float32,
        "post_step_forward_sensor": False,
        "bench_nsteps": 4,
        "manual_chunk_size": None,
        "adaptive": True,
        "model_file": "robot.xml",
        "time_budget_s": 0.3,
        "database": file,
    }
    return resolve_chunk_size(**(arguments | changes))


def its_key() -> CacheKey:
    """Name the key that `resolve` asks for."""
    return a_key(num_envs=NUM_ENVS, nthread=NTHREAD, device=device_fingerprint())


class no_logging:  # noqa: N801 - reads as the state it makes
    """Take the test runner's own handlers away: a process where nobody set up logging."""

    def __enter__(self) -> None:
        self.handlers = logging.root.handlers[:]
        logging.root.handlers.clear()

    def __exit__(self, *_: object) -> None:
        logging.root.handlers[:] = self.handlers
