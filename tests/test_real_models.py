"""Real models, tuned for real on a real pool: ours and gymnasium's, with a small budget."""

from __future__ import annotations

import importlib.util
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from tests.support.real_models import REAL_MODELS
from tuner import benchmark_chunk_sizes, load_cache, resolve_chunk_size
from tuner.model_file import load_model
from tuner.pools import POOLS
from tuner.states import prepare_states

NUM_ENVS = 48
NTHREAD = 2
NSTEP = 2

IDENTITIES = {"rollout": "mujoco.rollout", "batch-env": "mujoco_uni.BatchEnvPool"}
POOL_NAMES = ["rollout"] + (["batch-env"] if importlib.util.find_spec("mujoco_uni") else [])


@pytest.mark.parametrize("pool_name", POOL_NAMES)
@pytest.mark.parametrize("model_file", REAL_MODELS.values(), ids=REAL_MODELS.keys())
def test_a_real_model_is_tuned_stored_and_found(
    model_file: Path, pool_name: str, database: Path
) -> None:
    model = load_model(model_file)
    state, control, *_ = prepare_states(model, NUM_ENVS, nstep=NSTEP, seed=0)
    pool = POOLS[pool_name](model, nbatch=NUM_ENVS, nthread=NTHREAD)
    with pool:

        def resolve(time_budget_s: float) -> int | None:
            return resolve_chunk_size(
                pool=pool,
                state=state,
                control=control,
                model=model,
                n_variants=1,
                num_envs=NUM_ENVS,
                nthread=NTHREAD,
                dtype=np.float64,
                post_step_forward_sensor=True,
                bench_nsteps=NSTEP,
                manual_chunk_size=None,
                adaptive=True,
                model_file=str(model_file),
                time_budget_s=time_budget_s,
                database=database,
            )

        choice = resolve(0.5)
        assert choice is None or 1 <= choice <= NUM_ENVS // NTHREAD
        [(_, value)] = load_cache(database).items()
        assert value["chunk_size"] == choice
        assert value["model_file"] == str(model_file)
        assert value["per_candidate_ms"]["None"] > 0
        assert resolve(0.0) == choice

    connection = sqlite3.connect(database)
    pools = connection.execute("SELECT DISTINCT pool FROM run").fetchall()
    samples = connection.execute("SELECT count(*), min(nanoseconds) FROM sample").fetchone()
    connection.close()
    assert pools == [
        ({"rollout": "mujoco.rollout", "batch-env": "mujoco_uni.BatchEnvPool"}[pool_name],)
    ]
    assert samples[0] >= 4
    assert samples[1] > 1000


@pytest.mark.parametrize("pool_name", POOL_NAMES)
def test_the_fixed_plan_times_a_real_pool(pool_name: str) -> None:
    model = load_model(REAL_MODELS["quadruped"])
    state, control, *_ = prepare_states(model, NUM_ENVS, nstep=NSTEP, seed=0)
    before = state.copy()
    with POOLS[pool_name](model, nbatch=NUM_ENVS, nthread=NTHREAD) as pool:
        timings = benchmark_chunk_sizes(
            pool,
            state,
            NSTEP,
            [1, 8, 24],
            control=control,
            post_step_forward_sensor=False,
            warmup=1,
            reps=2,
        )
    assert set(timings) == {None, 1, 8, 24}
    assert all(seconds > 0 for seconds in timings.values())
    assert (state == before).all()
