"""Representative work: deterministic, spread out, within the actuators' ranges, never broken."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mujoco
import numpy as np
import pytest

from tests.support.real_models import QUADRUPED, REAL_MODELS
from tuner import states
from tuner.errors import ArgumentError
from tuner.model_file import load_model
from tuner.pools import STATE, RolloutPool
from tuner.states import initial_state, moved_state, random_control

if TYPE_CHECKING:
    from pathlib import Path

    from tuner.pools import FloatArray


@pytest.fixture(scope="module")
def quadruped() -> Any:
    return load_model(QUADRUPED)


def contacts(model: Any, state: FloatArray) -> list[int]:
    """Number of contacts in each state."""
    data = mujoco.MjData(model)
    counts = []
    for row in state:
        mujoco.mj_setState(model, data, row, STATE)
        mujoco.mj_forward(model, data)
        counts.append(int(data.ncon))
    return counts


def test_the_initial_pose_is_the_first_keyframe(quadruped: Any) -> None:
    state = initial_state(quadruped, 3)
    assert state.shape == (3, 38)
    assert np.array_equal(state[:, 1:20], np.tile(quadruped.key_qpos[0], (3, 1)))


def test_the_initial_pose_is_qpos0_without_a_keyframe() -> None:
    model = load_model(REAL_MODELS["ant"])
    assert model.nkey == 0
    assert np.array_equal(initial_state(model, 1)[0, 1 : 1 + model.nq], model.qpos0)


@pytest.mark.parametrize("name", REAL_MODELS)
def test_real_models_move_and_spread(name: str) -> None:
    model = load_model(REAL_MODELS[name])
    state, control = moved_state(model, 40, nstep=5)
    assert state.shape == (40, mujoco.mj_stateSize(model, STATE))
    assert control.shape == (40, 5, model.nu)
    assert np.isfinite(state).all()
    assert (state[:, 0] >= 0.4).all()
    assert (state[:, 0] <= 1.1).all()
    assert len(np.unique(state, axis=0)) == 40
    assert len(set(contacts(model, state))) > 1
    start = initial_state(model, 1)
    assert not (np.abs(state[:, 1:] - start[:, 1:]).max(axis=1) < 0.01).any()


def test_the_same_seed_gives_the_same_work_whatever_the_threads(quadruped: Any) -> None:
    one, two, three = (moved_state(quadruped, 30, nstep=3, nthread=n) for n in (1, 2, None))
    other = moved_state(quadruped, 30, nstep=3, seed=1)
    assert all(np.array_equal(one[i], two[i]) and np.array_equal(one[i], three[i]) for i in (0, 1))
    assert not np.array_equal(one[0], other[0])
    assert not np.array_equal(one[1], other[1])


def test_thousands_of_environments_cost_a_bounded_number_of_trajectories(
    quadruped: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = []

    class Counted(RolloutPool):
        def __init__(self, model: Any, *, nbatch: int, nthread: int) -> None:
            batches.append(nbatch)
            super().__init__(model, nbatch=nbatch, nthread=nthread)

    monkeypatch.setattr(states, "RolloutPool", Counted)
    state, control = moved_state(quadruped, 20_000, nstep=1)
    assert (len(state), len(control)) == (20_000, 20_000)
    assert max(batches) <= 256
    assert len(np.unique(state, axis=0)) > 1000


def test_a_heavy_model_is_simulated_for_less() -> None:
    links = 150
    body = "<body pos='0 0 .1'><joint type='ball'/><geom size='.02' mass='.01'/>"
    chain = f"<mujoco><worldbody>{body * links}{'</body>' * links}</worldbody></mujoco>"
    model = mujoco.MjModel.from_xml_string(chain)
    state, control = moved_state(model, 300, nstep=2)
    assert np.isfinite(state).all()
    assert control.shape == (300, 2, 0)
    assert 10 * model.opt.timestep - 1e-9 < state[:, 0].max() < 0.9


def test_a_time_step_of_microseconds_or_a_huge_nstep_ends() -> None:
    model = load_model(REAL_MODELS["half_cheetah"])
    model.opt.timestep = 1e-6
    state, _ = moved_state(model, 8, nstep=1)
    assert 0 < state[:, 0].max() <= 1001e-6
    model.opt.timestep = 0.01
    state, control = moved_state(model, 8, nstep=5_000)
    assert state[:, 0].max() == pytest.approx(1)
    assert control.shape == (8, 5_000, 6)


UNSTABLE = """
<mujoco>
  <option timestep="0.02" integrator="Euler"/>
  <worldbody>
    <body><joint name="j" type="slide"/><geom size=".1" mass="1e-6"/></body>
  </worldbody>
  <actuator><general joint="j" biastype="affine" biasprm="0 {push} 0"/></actuator>
</mujoco>
"""


@pytest.mark.parametrize("push", [1e-3, 1e8])
def test_what_diverges_is_replaced_and_nothing_is_written(
    push: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    model = mujoco.MjModel.from_xml_string(UNSTABLE.format(push=push))
    state, _ = moved_state(model, 50, nstep=1)
    assert np.isfinite(state).all()
    assert np.abs(state).max() < 1e10
    assert state[:, 0].max() < 0.9, "nothing diverged: this model is too tame for the test"
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")


def test_controls_keep_their_ranges_and_are_held(quadruped: Any) -> None:
    control = random_control(quadruped, 500, 3)
    low, high = quadruped.actuator_ctrlrange.T
    assert ((control >= low) & (control <= high)).all()
    assert np.allclose(control.min(axis=(0, 1)), low, atol=0.05)
    assert np.allclose(control.max(axis=(0, 1)), high, atol=0.05)
    assert np.array_equal(control, np.repeat(control[:, :1], 3, axis=1))
    assert len(np.unique(control[:, 0], axis=0)) == 500


def test_controls_without_a_range_lie_between_minus_one_and_one() -> None:
    model = mujoco.MjModel.from_xml_string(UNSTABLE.format(push=0))
    control = random_control(model, 500, 1)
    assert -1 <= control.min() < -0.9
    assert 0.9 < control.max() <= 1


def test_an_environment_keeps_its_controls_when_others_are_added(quadruped: Any) -> None:
    few, many = random_control(quadruped, 3, 2, seed=5), random_control(quadruped, 30, 2, seed=5)
    assert np.array_equal(few, many[:3])


@pytest.mark.parametrize(
    "change",
    [
        {"num_envs": 0},
        {"num_envs": 2.0},
        {"nstep": 0},
        {"nstep": True},
        {"seed": -1},
        {"seed": "x"},
        {"seconds": 0},
        {"seconds": float("nan")},
        {"seconds": float("inf")},
        {"seconds": "1"},
        {"nthread": 0},
    ],
)
def test_wrong_arguments_are_named(quadruped: Any, change: dict[str, Any]) -> None:
    arguments: dict[str, Any] = {"num_envs": 2, "nstep": 1, **change}
    with pytest.raises(ArgumentError, match=f"{next(iter(change))} must be"):
        moved_state(quadruped, arguments.pop("num_envs"), **arguments)
