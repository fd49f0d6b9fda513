"""Work that diverges is not timed."""

from __future__ import annotations

from typing import Any

import mujoco
import numpy as np
import pytest

from benchmarks.simulation import SimulatedPool
from tests.support.races import COSTS, quiet_pool
from tests.support.stored import rows_of
from tuner import tune_pool
from tuner.errors import DivergedError
from tuner.pools import RolloutPool
from tuner.racing.race import race_chunk_sizes
from tuner.states import initial_state, random_control

NUM_ENVS, NSTEP = 40, 5


class AdvancingPool:
    """A pool whose states advance by a time step of 0.01, or whatever a test makes of them."""

    nthread = 8

    def __init__(self, pool: SimulatedPool, after: np.ndarray[Any, Any] | None = None) -> None:
        self.pool, self.after = pool, after

    def step(self, state: Any, **arguments: Any) -> Any:
        self.pool.step(state, **arguments)
        advanced = np.array(state)
        advanced[:, 0] += 0.01 * NSTEP
        states = advanced if self.after is None else self.after
        return (states, np.zeros((NUM_ENVS, 2))) if arguments["return_sensor"] else states


def race(after: Any, *, timestep: float | None = None, sensors: bool = False) -> Any:
    pool = quiet_pool({c: t for c, t in COSTS.items() if c is None or c < NUM_ENVS})
    return race_chunk_sizes(
        AdvancingPool(pool, after),
        np.ones((NUM_ENVS, 3)),
        NSTEP,
        [1, 4, 9],
        control=None,
        post_step_forward_sensor=sensors,
        clock=pool.clock,
        seed=0,
        timestep=timestep,
    )


def states(**rows: tuple[int, float]) -> Any:
    """States after a step: all advanced by 0.05, but `count` of them have their number so."""
    after = np.ones((NUM_ENVS, 3))
    after[:, 0] += 0.01 * NSTEP
    for name, (count, value) in rows.items():
        after[:count, 0 if name == "time" else 2] = value
    return after


@pytest.mark.parametrize("sensors", [False, True])
@pytest.mark.parametrize(
    ("after", "timestep"),
    [
        (states(position=(5, np.nan)), None),
        (states(position=(40, np.inf)), None),
        (states(time=(5, 1.01)), None),  # the rest of the steps was skipped
        (states(time=(5, 0.03)), None),  # set back to the initial pose
        (states(time=(40, 1.01)), 0.01),
        (states(time=(40, 0.03)), 0.01),
        (states(time=(5, np.nan)), 0.01),
    ],
)
def test_diverged_states_end_the_race(after: Any, timestep: float | None, sensors: bool) -> None:
    with pytest.raises(DivergedError, match=r"of 40 environments diverge"):
        race(after, timestep=timestep, sensors=sensors)


@pytest.mark.parametrize("timestep", [None, 0.01])
@pytest.mark.parametrize(
    "after",
    [
        states(),
        states(position=(4, np.nan)),
        states(time=(4, 0.03)),
        np.zeros(3),
        "not an array",
        np.ones((NUM_ENVS, 3)),
    ],
)
def test_other_results_are_no_reason_to_stop(after: Any, timestep: float | None) -> None:
    assert race(after, timestep=timestep).verdict.chunk_size == 4


@pytest.mark.parametrize("nstep", [2, 5])
def test_a_job_that_diverges_gets_its_default_and_one_line(
    nstep: int, database: Any, caplog: pytest.LogCaptureFixture
) -> None:
    model = mujoco.MjModel.from_xml_string(
        "<mujoco><worldbody><body><joint name='j' type='slide'/><geom size='.1'/></body>"
        "</worldbody><actuator><motor joint='j' gear='1e14'/></actuator></mujoco>"
    )
    with RolloutPool(model, nbatch=NUM_ENVS, nthread=2) as pool:
        choice = tune_pool(
            pool,
            initial_state(model, NUM_ENVS),
            model=model,
            nstep=nstep,
            control=random_control(model, NUM_ENVS, nstep),
            database=database,
        )
    assert choice is None
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "40 of 40 environments diverge" in caplog.text
    assert rows_of(database, "SELECT * FROM run") == []
