"""Pools on real models: results that do not depend on how the work is cut, and no crash."""

from __future__ import annotations

import gc
import multiprocessing
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import mujoco
import numpy as np
import pytest

from tests.support.real_models import HALF_CHEETAH, QUADRUPED, REAL_MODELS
from tuner.environment import Environment, environment_of_class, pool_identity, violated
from tuner.errors import ArgumentError, PoolError
from tuner.model_file import captured_warnings, load_model
from tuner.pools import POOLS, STATE, RolloutPool, open_batch_env_pool
from tuner.states import initial_state, prepare_states

if TYPE_CHECKING:
    from pathlib import Path

    from tuner.pools import FloatArray, OpenPool

NBATCH = 23
NSTEP = 4


@pytest.fixture(scope="module")
def quadruped() -> Any:
    return load_model(QUADRUPED)


@pytest.fixture(scope="module")
def work(quadruped: Any) -> tuple[FloatArray, FloatArray]:
    return prepare_states(quadruped, NBATCH, nstep=NSTEP, seconds=0.4)[:2]


def forward_sensors(model: Any, state: FloatArray) -> FloatArray:
    """The sensors of one forward pass on each state, in plain MuJoCo."""
    readings = np.empty((len(state), model.nsensordata))
    for row, reading in zip(state, readings, strict=True):
        data = mujoco.MjData(model)
        mujoco.mj_setState(model, data, row, STATE)
        mujoco.mj_forward(model, data)
        reading[:] = data.sensordata
    return readings


def plain_steps(
    model: Any, state: FloatArray, control: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """What a loop over `mj_step` makes of the states, and the sensors it leaves."""
    final = np.empty_like(state)
    readings = np.empty((len(state), model.nsensordata))
    for i, row in enumerate(state):
        data = mujoco.MjData(model)
        mujoco.mj_setState(model, data, row, STATE)
        for action in control[i]:
            data.ctrl[:] = action
            mujoco.mj_step(model, data)
        mujoco.mj_getState(model, data, final[i], STATE)
        readings[i] = data.sensordata
    return final, readings


def equal(left: Any, right: Any) -> bool:
    """Bit for bit, states and sensors."""
    return all(np.array_equal(a, b) for a, b in zip(left, right, strict=True))


@pytest.mark.parametrize("refresh", [False, True])
@pytest.mark.parametrize("name", REAL_MODELS)
def test_results_do_not_depend_on_chunk_size_or_threads(name: str, refresh: bool) -> None:
    model = load_model(REAL_MODELS[name])
    state, control, *_ = prepare_states(model, NBATCH, nstep=NSTEP, seconds=0.2)
    results = []
    for nthread in (1, 2, 3):
        with RolloutPool(model, nbatch=NBATCH, nthread=nthread) as pool:
            results += [
                pool.step(
                    state,
                    nstep=NSTEP,
                    control=control,
                    chunk_size=chunk_size,
                    return_sensor=True,
                    post_step_forward_sensor=refresh,
                )
                for chunk_size in (None, 1, 2, 7, NBATCH - 1, NBATCH, NBATCH + 1, 10**30)
            ]
    assert all(equal(results[0], other) for other in results[1:])


def test_steps_are_those_of_plain_mujoco(
    quadruped: Any, work: tuple[FloatArray, FloatArray]
) -> None:
    state, control = work
    with RolloutPool(quadruped, nbatch=NBATCH, nthread=2) as pool:
        final, sensors = pool.step(state, nstep=NSTEP, control=control, return_sensor=True)
        alone = pool.step(state, nstep=NSTEP, control=control)
        refreshed = pool.step(
            state,
            nstep=NSTEP,
            control=control,
            return_sensor=True,
            post_step_forward_sensor=True,
        )
    assert equal((final, sensors), plain_steps(quadruped, state, control))
    assert np.array_equal(alone, final)
    assert equal(refreshed, (final, forward_sensors(quadruped, final)))
    assert not np.array_equal(sensors, refreshed[1])


@pytest.mark.parametrize("integrator", list(mujoco.mjtIntegrator.__members__))
def test_refreshed_sensors_are_a_forward_pass_for_every_integrator(integrator: str) -> None:
    model = load_model(QUADRUPED)
    model.opt.integrator = mujoco.mjtIntegrator.__members__[integrator]
    state = initial_state(model, 3)
    state[:, 3] -= 0.02
    with RolloutPool(model, nbatch=3, nthread=2) as pool:
        final, sensors = pool.step(
            state, nstep=NSTEP, return_sensor=True, post_step_forward_sensor=True
        )
    assert np.array_equal(sensors, forward_sensors(model, final))


def test_without_controls_nothing_is_left_over_from_earlier_ones(
    quadruped: Any, work: tuple[FloatArray, FloatArray]
) -> None:
    state, control = work
    with RolloutPool(quadruped, nbatch=NBATCH, nthread=2) as pool:
        before = pool.step(state, nstep=NSTEP)
        pool.step(state, nstep=NSTEP, control=control)
        after = pool.step(state, nstep=NSTEP)
        zeros = pool.step(state, nstep=NSTEP, control=np.zeros_like(control))
    assert np.array_equal(before, after)
    assert np.array_equal(before, zeros)


def test_what_a_step_returns_is_the_callers_own(
    quadruped: Any, work: tuple[FloatArray, FloatArray]
) -> None:
    state, control = work
    given = state.copy(), control.copy()
    with RolloutPool(quadruped, nbatch=NBATCH, nthread=2) as pool:
        first = pool.step(state, nstep=NSTEP, control=control, return_sensor=True)
        kept = tuple(array.copy() for array in first)
        second = pool.step(first[0], nstep=NSTEP, control=control, return_sensor=True)
    assert equal(first, kept)
    assert not any(np.shares_memory(a, b) for a in first for b in (*second, state))
    assert equal(given, (state, control))


def test_a_later_change_of_the_model_does_not_reach_the_pool() -> None:
    model = load_model(HALF_CHEETAH)
    state = initial_state(model, 2)
    with RolloutPool(model, nbatch=2, nthread=1) as pool:
        before = pool.step(state, nstep=2)
        model.opt.gravity[2] = 0
        assert np.array_equal(before, pool.step(state, nstep=2))


def test_controls_can_be_held_and_arrays_can_be_of_any_real_kind(
    quadruped: Any, work: tuple[FloatArray, FloatArray]
) -> None:
    state, control = work
    held = np.repeat(control[:, :1], NSTEP, axis=1)
    with RolloutPool(quadruped, nbatch=NBATCH, nthread=2) as pool:
        whole = pool.step(state, nstep=NSTEP, control=held)
        assert np.array_equal(whole, pool.step(state, nstep=NSTEP, control=held[:, 0]))
        assert np.array_equal(whole, pool.step(state, nstep=NSTEP, control=held[:, :1]))
        single = state.astype(np.float32), held.astype(np.float32)
        rounded = pool.step(single[0], nstep=NSTEP, control=single[1])
        doubles = pool.step(
            single[0].astype(np.float64), nstep=NSTEP, control=single[1].astype(np.float64)
        )
        assert np.array_equal(rounded, doubles)
        fortran = np.asfortranarray(state)
        assert np.array_equal(whole, pool.step(fortran, nstep=NSTEP, control=held))


def test_the_number_of_steps_can_change_from_call_to_call(
    quadruped: Any, work: tuple[FloatArray, FloatArray]
) -> None:
    state, _ = work
    with RolloutPool(quadruped, nbatch=NBATCH, nthread=2) as pool:
        long = pool.step(state, nstep=3, return_sensor=True)
        pool.step(state, nstep=1, return_sensor=True)
        assert equal(long, pool.step(state, nstep=3, return_sensor=True))


def test_a_model_without_joints_actuators_or_sensors_steps() -> None:
    model = mujoco.MjModel.from_xml_string("<mujoco/>")
    with RolloutPool(model, nbatch=4, nthread=2) as pool:
        final, sensors = pool.step(
            initial_state(model, 4), nstep=2, control=np.empty((4, 2, 0)), return_sensor=True
        )
    assert final.shape == (4, 1)
    assert sensors.shape == (4, 0)
    assert np.allclose(final, 2 * model.opt.timestep)


def test_a_diverged_environment_leaves_its_neighbours_alone(
    quadruped: Any, work: tuple[FloatArray, FloatArray]
) -> None:
    state, control = work
    broken = state.copy()
    broken[5, 8] = np.nan
    options: dict[str, Any] = {"return_sensor": True, "post_step_forward_sensor": True}
    with captured_warnings(), RolloutPool(quadruped, nbatch=NBATCH, nthread=2) as pool:
        good = pool.step(state, nstep=NSTEP, control=control, **options)
        bad = pool.step(broken, nstep=NSTEP, control=control, chunk_size=4, **options)
    others = np.arange(NBATCH) != 5
    assert equal([part[others] for part in good], [part[others] for part in bad])


@pytest.mark.parametrize("chunk_size", [0, -1, True, False, 1.0, np.int64(0), "3", [3]])
def test_a_chunk_size_that_native_code_would_choke_on_is_refused(
    quadruped: Any, work: tuple[FloatArray, FloatArray], chunk_size: Any
) -> None:
    with (
        RolloutPool(quadruped, nbatch=NBATCH, nthread=2) as pool,
        pytest.raises(ArgumentError, match=r"chunk_size must be .*received"),
    ):
        pool.step(work[0], nstep=1, chunk_size=chunk_size)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"nstep": 0}, "nstep must be a whole number >= 1, received 0"),
        ({"nstep": -3}, "nstep must be a whole number >= 1, received -3"),
        ({"nstep": True}, "nstep must be a whole number"),
        ({"nstep": 2.0}, "nstep must be a whole number"),
        ({"state": np.zeros((NBATCH, 37))}, r"state must have shape .*received \(23, 37\)"),
        ({"state": np.zeros((NBATCH - 1, 38))}, r"state must have shape .*received \(22, 38\)"),
        ({"state": np.zeros(38)}, r"state must have shape .*received \(38,\)"),
        ({"state": [["a"]]}, "state must hold real numbers"),
        ({"state": np.zeros((NBATCH, 38), complex)}, "state must hold real numbers"),
        ({"control": np.zeros((NBATCH, 1, 11))}, "control must have shape"),
        ({"control": np.zeros((NBATCH, 3, 12))}, "control must have shape"),
        ({"control": np.zeros((NBATCH + 1, 2, 12))}, "control must have shape"),
        ({"control": np.zeros(12)}, "control must have shape"),
        ({"control": np.array(None)}, "control must hold real numbers"),
    ],
)
def test_wrong_arguments_of_a_step_are_named(
    quadruped: Any, work: tuple[FloatArray, FloatArray], change: dict[str, Any], words: str
) -> None:
    arguments = {"state": work[0], "nstep": 2, **change}
    with (
        RolloutPool(quadruped, nbatch=NBATCH, nthread=1) as pool,
        pytest.raises(ArgumentError, match=words),
    ):
        pool.step(**arguments)


@pytest.mark.parametrize("make", POOLS.values(), ids=list(POOLS))
@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"nbatch": 0}, "nbatch must be a whole number >= 1, received 0"),
        ({"nbatch": -1}, "nbatch must be a whole number >= 1, received -1"),
        ({"nbatch": 2.5}, "nbatch must be a whole number"),
        ({"nthread": 0}, "nthread must be a whole number >= 1, received 0"),
        ({"nthread": True}, "nthread must be a whole number"),
        ({"nthread": 10**6}, "nthread must be <= "),
    ],
)
def test_wrong_sizes_of_a_pool_are_named(
    quadruped: Any, make: Any, sizes: dict[str, Any], words: str
) -> None:
    with pytest.raises(ArgumentError, match=words):
        make(quadruped, **{"nbatch": 2, "nthread": 1, **sizes})


def test_a_path_is_not_a_model() -> None:
    with pytest.raises(ArgumentError, match="load_model"):
        RolloutPool(str(QUADRUPED), nbatch=2, nthread=1)


def test_a_closed_pool_says_so(quadruped: Any, work: tuple[FloatArray, FloatArray]) -> None:
    pool = RolloutPool(quadruped, nbatch=NBATCH, nthread=2)
    pool.step(work[0], nstep=1)
    pool.close()
    pool.close()
    with pytest.raises(PoolError, match="closed"):
        pool.step(work[0], nstep=1)


def test_threads_that_share_a_pool_take_turns(
    quadruped: Any, work: tuple[FloatArray, FloatArray]
) -> None:
    state, control = work
    wrong: list[int] = []
    with RolloutPool(quadruped, nbatch=NBATCH, nthread=2) as pool:
        expected = [pool.step(state, nstep=n, control=control[:, :n]) for n in (1, 2, 3, 4)]

        def steps(n: int) -> None:
            for _ in range(20):
                final = pool.step(state, nstep=n, control=control[:, :n])
                if not np.array_equal(final, expected[n - 1]):
                    wrong.append(n)

        threads = [threading.Thread(target=steps, args=(n,)) for n in (1, 2, 3, 4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


FORKED = """
import os, sys, warnings
from tuner.errors import PoolError
from tuner.model_file import load_model
from tuner.states import initial_state
from tuner.pools import RolloutPool
warnings.simplefilter("ignore")
model = load_model(sys.argv[1])
pool = RolloutPool(model, nbatch=4, nthread=2)
child = os.fork()
if child == 0:
    try:
        pool.step(initial_state(model, 4), nstep=1)
    except PoolError as error:
        pool.close()
        os._exit(7 if "fork" in str(error) else 1)
    os._exit(2)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), pool.step(
    initial_state(model, 4), nstep=1).shape)
"""


def test_a_forked_child_gets_an_error_where_it_would_hang() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKED, str(QUADRUPED)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.strip() == "7 (4, 38)", done.stderr


def test_pools_name_themselves(quadruped: Any) -> None:
    with RolloutPool(quadruped, nbatch=1, nthread=1) as pool:
        assert pool_identity(type(pool)) == ("mujoco.rollout", mujoco.__version__)
    assert pool_identity(type(gc)) == ("builtins.module", None)
    assert pool_identity(type(np.zeros(1))) == ("numpy.ndarray", np.__version__)
    context = multiprocessing.get_context("spawn")
    assert pool_identity(type(context)) == ("multiprocessing.context.SpawnContext", None)


def test_without_mujoco_uni_the_batch_env_pool_says_what_to_install(
    quadruped: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "mujoco_uni"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "mujoco_uni", None)
    with pytest.raises(PoolError, match=r"pip install 'tuner\[uni\]'"):
        open_batch_env_pool(quadruped, nbatch=2, nthread=1)


class TestBatchEnvPool:
    """MuJoCoUni's pool, where it is installed: it needs a mujoco of its own."""

    @pytest.fixture(autouse=True)
    def _needs_mujoco_uni(self) -> None:
        pytest.importorskip(
            "mujoco_uni", reason="BatchEnvPool needs mujoco 3.11.0, in its own environment"
        )

    @pytest.mark.parametrize("refresh", [False, True])
    @pytest.mark.parametrize("name", REAL_MODELS)
    def test_it_gives_what_the_rollout_pool_gives(self, name: str, refresh: bool) -> None:
        model = load_model(REAL_MODELS[name])
        state, control, *_ = prepare_states(model, NBATCH, nstep=NSTEP, seconds=0.2)
        results = []
        for make in POOLS.values():
            pool: OpenPool = make(model, nbatch=NBATCH, nthread=2)
            with pool:
                results += [
                    pool.step(
                        state,
                        nstep=NSTEP,
                        control=control,
                        chunk_size=chunk_size,
                        return_sensor=True,
                        post_step_forward_sensor=refresh,
                    )
                    for chunk_size in (None, 1, 5, NBATCH)
                ]
        assert all(equal(results[0], other) for other in results[1:])

    def test_it_has_the_same_face(self, quadruped: Any) -> None:
        pools: list[Any] = [make(quadruped, nbatch=3, nthread=2) for make in POOLS.values()]
        faces = {(p.nbatch, p.nthread, p.nstate, p.nsensordata) for p in pools}
        assert faces == {(3, 2, 38, 29)}
        for pool in pools:
            assert pool.step(initial_state(quadruped, 3), nstep=2).shape == (3, 38)
            pool.close()

    def test_it_names_itself(self, quadruped: Any) -> None:
        import mujoco_uni

        with open_batch_env_pool(quadruped, nbatch=2, nthread=1) as pool:
            expected = ("mujoco_uni.BatchEnvPool", mujoco_uni.__version__)
            assert pool_identity(type(pool)) == expected

    def test_a_model_it_refuses_is_a_pool_error(self) -> None:
        with pytest.raises(PoolError, match="cannot be set up"):
            open_batch_env_pool([], nbatch=2, nthread=1)


def test_stepping_writes_no_file(
    quadruped: Any,
    work: tuple[FloatArray, FloatArray],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    with RolloutPool(quadruped, nbatch=NBATCH, nthread=2) as pool:
        pool.step(work[0], nstep=2, control=work[1][:, :2])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("version", ["", "4.0\udcff", "4.0\0", "4.0\n", 4, None, ("4", "0")])
def test_a_version_that_no_database_could_give_back_is_unknown(
    version: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(np, "__version__", version)
    assert pool_identity(np.ndarray) == ("numpy.ndarray", None)


@pytest.mark.parametrize("version", ["3.4.0.dev1", "4", "4.0+local", "9" * 10_000])
def test_an_odd_version_holds_for_itself(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(np, "__version__", version)
    stack = environment_of_class(np.ndarray)
    assert stack.pool_version == version
    assert not violated(dict.fromkeys(Environment._fields, "same minor"), stack, stack)


@pytest.mark.parametrize(("flag", "integrator"), [("sleep", "Euler"), ("ipc", "discrete")])
def test_a_model_whose_steps_depend_on_more_than_its_state_is_refused(
    flag: str, integrator: str
) -> None:
    if f"mjENBL_{flag.upper()}" not in mujoco.mjtEnableBit.__members__:
        pytest.skip(f"this MuJoCo has no flag {flag}")
    model = mujoco.MjModel.from_xml_string(
        f'<mujoco><option integrator="{integrator}"><flag {flag}="enable"/></option><worldbody>'
        '<body><freejoint/><geom size="1"/></body></worldbody></mujoco>'
    )
    with pytest.raises(PoolError, match=f'<flag {flag}="enable"/>.* Disable the flag'):
        RolloutPool(model, nbatch=2, nthread=1)
