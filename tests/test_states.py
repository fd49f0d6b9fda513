"""Representative work: deterministic, spread out, within the actuators' ranges, never broken."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mujoco
import numpy as np
import pytest

from tests.support.real_models import QUADRUPED, REAL_MODELS
from tuner.errors import ArgumentError, PoolError
from tuner.model_file import load_model
from tuner.pools import STATE
from tuner.states import initial_state, prepare_states, random_control

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
    work = prepare_states(model, 40, nstep=5, budget_s=60.0)
    assert work.state.shape == (40, mujoco.mj_stateSize(model, STATE))
    assert work.control.shape == (40, 5, model.nu)
    assert work.state[:, 0] == pytest.approx(1.0, abs=0.01)
    assert len(np.unique(work.state, axis=0)) == 40
    assert len(set(contacts(model, work.state))) > 1
    start = initial_state(model, 1)
    assert not (np.abs(work.state[:, 1:] - start[:, 1:]).max(axis=1) < 0.01).any()
    assert work[2:] == ("moved for 1 s under random controls", (), 40, 0)


def test_the_same_seed_gives_the_same_work(quadruped: Any) -> None:
    one, two = (prepare_states(quadruped, 30, nstep=3, budget_s=60.0) for _ in range(2))
    other = prepare_states(quadruped, 30, nstep=3, seed=1, budget_s=60.0)
    for i in (0, 1):
        assert np.array_equal(one[i], two[i])
        assert not np.array_equal(one[i], other[i])


def test_thousands_of_environments_take_a_bounded_number_of_trajectories(quadruped: Any) -> None:
    work = prepare_states(quadruped, 20_000, nstep=1, budget_s=60.0, seconds=0.1)
    assert work.trajectories == 256
    assert (len(work.state), len(work.control)) == (20_000, 20_000)
    assert len(np.unique(work.state, axis=0)) == 20_000


UNACTUATED = {
    "free": "<freejoint/>",
    "ball": "<joint type='ball'/>",
    "short slide": "<joint type='slide' range='0 1e-4' limited='true'/>",
    "hinge": "<joint type='hinge' range='-10 10' limited='true'/>",
}


@pytest.mark.parametrize("joint", UNACTUATED.values(), ids=UNACTUATED.keys())
def test_environments_differ_without_actuators(joint: str) -> None:
    model = mujoco.MjModel.from_xml_string(
        f"<mujoco><worldbody><body>{joint}<geom size='.1'/></body></worldbody></mujoco>"
    )
    state = prepare_states(model, 300, nstep=1, seconds=0.01).state
    assert len(np.unique(state, axis=0)) == 300
    position = state[:, 1 : 1 + model.nq]
    if joint == UNACTUATED["short slide"]:
        assert (np.abs(position) < 0.01).all()
    if joint == UNACTUATED["ball"]:
        assert np.linalg.norm(position, axis=1) == pytest.approx(1.0)


def test_a_heavy_model_is_simulated_until_the_budget_is_spent() -> None:
    links = 150
    body = "<body pos='0 0 .1'><joint type='ball'/><geom size='.02' mass='.01'/>"
    chain = f"<mujoco><worldbody>{body * links}{'</body>' * links}</worldbody></mujoco>"
    model = mujoco.MjModel.from_xml_string(chain)
    work = prepare_states(model, 300, nstep=2, budget_s=0.05)
    assert np.isfinite(work.state).all()
    assert len(np.unique(work.state, axis=0)) == 300
    assert work.control.shape == (300, 2, 0)
    reached = work.state[:, 0].max()
    assert model.opt.timestep / 2 < reached < 0.9
    assert work.description == f"moved for {reached:.2g} s; the model is slow"


def test_a_time_step_of_microseconds_or_a_huge_nstep_ends() -> None:
    model = load_model(REAL_MODELS["half_cheetah"])
    model.opt.timestep = 1e-8
    assert 0 < prepare_states(model, 8, nstep=1, budget_s=0.05).state[:, 0].max() < 0.9
    model.opt.timestep = 0.01
    work = prepare_states(model, 8, nstep=5_000, budget_s=60.0)
    assert work.state[:, 0].max() == pytest.approx(1)
    assert work.control.shape == (8, 5_000, 6)


def test_a_model_without_joints_has_states_too() -> None:
    model = mujoco.MjModel.from_xml_string("<mujoco><worldbody/></mujoco>")
    assert prepare_states(model, 20, nstep=1).state.shape == (20, 1)


UNSTABLE = """
<mujoco>
  <option timestep="0.02" integrator="Euler"/>
  <worldbody>
    <body><joint name="j" type="slide"/><geom size=".1" mass="{mass}"/></body>
  </worldbody>
  <actuator>
    <general joint="j" gainprm="{gain}" ctrlrange="-{most} {most}" biastype="affine"
             biasprm="0 {push} 0"/>
  </actuator>
</mujoco>
"""


def unstable(**changes: float) -> Any:
    """A body on a slide, without damping, that an actuator pushes."""
    values = {"mass": 1.0, "gain": 1.0, "most": 1.0, "push": 0.0}
    return mujoco.MjModel.from_xml_string(UNSTABLE.format(**values | changes))


@pytest.mark.parametrize(
    ("model", "how"),
    [
        ({"gain": 1e9, "most": 20}, "under random controls scaled by 0.1: stronger ones diverge"),
        ({"gain": 1e9, "most": 200}, "under random controls scaled by 0.01: stronger ones diverge"),
        ({"most": 1e30}, "without controls: random ones diverge"),
    ],
)
def test_gentler_controls_are_tried_where_random_ones_diverge(
    model: dict[str, float], how: str
) -> None:
    work = prepare_states(unstable(**model), 50, nstep=3)
    assert work.description == f"moved for 1 s {how}"
    assert not work.has_diverged
    assert work.state[:, 0] == pytest.approx(1.0)
    assert np.ptp(work.control) < 1e9
    [warning] = work.warnings
    assert "unstable" in warning


def test_what_diverges_whatever_the_controls_is_told_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    work = prepare_states(unstable(mass=1e-6, push=1e8), 50, nstep=1)
    assert work.has_diverged
    assert work.diverged == work.trajectories
    assert np.isfinite(work.state).all()
    assert np.abs(work.state).max() < 1e10
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")


def test_a_joint_that_damping_holds_gets_no_velocity() -> None:
    model = mujoco.MjModel.from_xml_string(
        "<mujoco><worldbody><body><joint type='slide' damping='1e13'/><geom size='.1'/></body>"
        "</worldbody></mujoco>"
    )
    assert not prepare_states(model, 8, nstep=1).has_diverged


def test_the_few_that_diverge_are_replaced() -> None:
    model = unstable(mass=1e-6, push=1e-3)
    work = prepare_states(model, 50, nstep=1, seconds=0.1)
    assert np.isfinite(work.state).all()


def test_an_error_of_mujoco_is_raised_here() -> None:
    boxes = "<body><geom type='box' size='.1 .1 .1'/></body>" * 500
    model = mujoco.MjModel.from_xml_string(
        f"<mujoco><size memory='1M'/><worldbody>{boxes}<body><freejoint/><geom size='.1'/></body>"
        "</worldbody></mujoco>"
    )
    with pytest.raises(PoolError, match=r"cannot be stepped: .*stack overflow"):
        prepare_states(model, 4, nstep=1)


def test_controls_keep_their_ranges_and_are_held(quadruped: Any) -> None:
    control = random_control(quadruped, 500, 3)
    low, high = quadruped.actuator_ctrlrange.T
    assert ((control >= low) & (control <= high)).all()
    assert np.allclose(control.min(axis=(0, 1)), low, atol=0.05)
    assert np.allclose(control.max(axis=(0, 1)), high, atol=0.05)
    assert np.array_equal(control, np.repeat(control[:, :1], 3, axis=1))
    assert len(np.unique(control[:, 0], axis=0)) == 500


def test_controls_without_a_range_lie_between_minus_one_and_one() -> None:
    model = unstable()
    model.actuator_ctrllimited[:] = 0
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
        {"budget_s": 0},
    ],
)
def test_wrong_arguments_are_named(quadruped: Any, change: dict[str, Any]) -> None:
    arguments: dict[str, Any] = {"num_envs": 2, "nstep": 1, **change}
    with pytest.raises(ArgumentError, match=f"{next(iter(change))} must be"):
        prepare_states(quadruped, arguments.pop("num_envs"), **arguments)
