"""Facts that tests make keys from, and pools that need no physics."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import numpy as np

from tuner.workload import CacheKey, make_cache_key

MODEL_SIGNATURE = {
    "nq": 19,
    "nv": 18,
    "nbody": 14,
    "njnt": 13,
    "nu": 12,
    "ngeom": 20,
    "nsensordata": 30,
    "n_variants": 1,
}
DEVICE = {"system": "Linux", "machine": "x86_64", "cpu_count": 8}
MODEL = SimpleNamespace(**{name: n for name, n in MODEL_SIGNATURE.items() if name != "n_variants"})


def a_key(**changes: Any) -> CacheKey:
    """Make a key, the same each time but for what is changed."""
    facts: dict[str, Any] = {
        "backend_type": "mujoco",
        "model_sig": MODEL_SIGNATURE,
        "device": DEVICE,
        "num_envs": 1024,
        "nthread": 8,
        "dtype": "float32",
        "post_step_forward_sensor": False,
        "bench_nsteps": 4,
    }
    return make_cache_key(**(facts | changes))


class SleepingPool:
    """A pool whose step lasts as long as its cost function says; it does no physics."""

    def __init__(self, nbatch: int, nthread: int, seconds: float = 2e-4) -> None:
        self.nbatch = nbatch
        self.nthread = nthread
        self.seconds = seconds
        self.chunks: list[int | None] = []
        """What it was stepped with, call by call."""
        self.states: list[Any] = []
        """Which array objects it was given."""

    def step(
        self,
        state: Any,
        *,
        nstep: int,
        control: Any = None,
        chunk_size: int | None = None,
        return_sensor: bool = False,
        post_step_forward_sensor: bool = False,
    ) -> Any:
        self.chunks.append(chunk_size)
        self.states.append(state)
        time.sleep(self.cost(chunk_size))
        stepped = state.copy()
        state[:] = np.nan  # a pool may write into what it is given
        return stepped

    def cost(self, chunk_size: int | None) -> float:
        """Seconds of a step: chunk 1 is slow, the rest alike."""
        return self.seconds * (3 if chunk_size == 1 else 1)


class ClockworkPool(SleepingPool):
    """A pool on a clock of its own, which never varies: a race on it is soon decided."""

    def __init__(self, nbatch: int, nthread: int, seconds: float = 2e-3) -> None:
        super().__init__(nbatch, nthread, seconds)
        self.now = 0.0

    def step(self, state: Any, *, chunk_size: int | None = None, **options: Any) -> Any:
        self.chunks.append(chunk_size)
        self.states.append(state)
        self.now += self.cost(chunk_size)
        return state

    def clock(self) -> float:
        """Seconds that the steps so far have taken."""
        return self.now
