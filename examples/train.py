"""A training-like job: build a pool, ask for its chunk_size, step, and say what that was worth.

Run it twice: the first run measures, the second finds the answer.

    python examples/train.py --num-envs 256 --steps 300
"""

import argparse
import os
import time
from pathlib import Path

import mujoco
import numpy as np

import tuner
from tuner.pools import RolloutPool

MODEL = Path(__file__).with_name("quadruped.xml")
NSTEP = 5
BLOCKS = 10


def rate(
    pool: RolloutPool, state: np.ndarray, control: np.ndarray, chunk_size: int | None, steps: int
) -> float:
    """Step the pool and return the environments' steps per second."""
    started = time.perf_counter()
    for _ in range(steps):
        state = pool.step(state, nstep=NSTEP, control=control, chunk_size=chunk_size)
    return len(state) * steps / (time.perf_counter() - started)


def main() -> None:
    """Train nothing, at full speed."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--num-envs", type=int, default=256, help="environments in one step")
    arguments.add_argument("--nthread", type=int, default=len(os.sched_getaffinity(0)))
    arguments.add_argument("--steps", type=int, default=300, help="steps with each chunk_size")
    options = arguments.parse_args()

    model = mujoco.MjModel.from_xml_path(str(MODEL))
    rng = np.random.default_rng(0)
    with RolloutPool(model, nbatch=options.num_envs, nthread=options.nthread) as pool:
        data = mujoco.MjData(model)
        first = np.empty(pool.nstate)
        mujoco.mj_getState(model, data, first, mujoco.mjtState.mjSTATE_FULLPHYSICS)
        state = np.tile(first, (options.num_envs, 1))
        control = rng.uniform(-1, 1, (options.num_envs, NSTEP, model.nu))
        for _ in range(20):  # let the robots fall: a step in the air costs less than one on feet
            state = pool.step(state, nstep=NSTEP, control=control)
        chosen = tuner.tune_pool(
            pool, state, model=model, nstep=NSTEP, control=control, model_file=str(MODEL)
        )

        # Turn and turn about, so that a machine that changes its speed changes both.
        rates: dict[int | None, list[float]] = {None: [], chosen: []}
        for _ in range(BLOCKS):
            for chunk_size, measured in rates.items():
                steps = max(1, options.steps // BLOCKS)
                measured.append(rate(pool, state, control, chunk_size, steps))
    for chunk_size, measured in rates.items():
        name = "native default" if chunk_size is None else f"chunk_size {chunk_size}"
        print(f"{name}: {np.median(measured):,.0f} environment steps per second")
    if chosen is None:
        print("the native default is the choice: nothing to compare it with")


if __name__ == "__main__":
    main()
