"""Representative work to time: robots that have fallen, moved and spread, with controls.

In the initial pose every environment costs the same and has few contacts, so nothing is left
for small work items to even out. Everything here follows from its arguments and the seed alone:
no clock, no thread count, no machine. Nothing here times a pool.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mujoco
import numpy as np

from tuner.candidates import whole_number
from tuner.device import usable_cpus
from tuner.errors import ArgumentError
from tuner.model_file import captured_warnings
from tuner.pools import STATE, RolloutPool

if TYPE_CHECKING:
    from tuner.pools import FloatArray

WORK_MOVED = "moved for about 1 s under random controls"
"""Which work was timed, in the words that a run's row keeps."""

_MOST_TRAJECTORIES = 256
_FEWEST_TRAJECTORIES = 8
_FEWEST_STEPS = 10
_MOST_STEPS = 1000
_FEWEST_MOMENTS = 10
_BUDGET_US = 2_000_000.0
# What moving may cost on one core, by the estimate below: about 2 s.
_HOLD_SECONDS = 0.04
# A robot under controls redrawn at every step only trembles: the noise averages out.


def initial_state(model: Any, num_envs: int) -> FloatArray:
    """The model's initial pose in every environment: its first keyframe, else qpos0.

    Legged models keep a pose they can stand in as their first keyframe, and training starts
    from it; qpos0 often has straight legs half in the floor.

    Args:
        model: A `mujoco.MjModel`.
        num_envs: Number of environments, >= 1.

    Returns:
        (num_envs, nstate) float64, rows of mjSTATE_FULLPHYSICS.

    Raises:
        ArgumentError: num_envs is not a whole number >= 1.
    """
    whole_number(num_envs, "num_envs")
    data = mujoco.MjData(model)
    if model.nkey > 0:
        mujoco.mj_resetDataKeyframe(model, data, 0)
    row = np.empty(mujoco.mj_stateSize(model, STATE))
    mujoco.mj_getState(model, data, row, STATE)
    return np.tile(row, (num_envs, 1))


def random_control(model: Any, num_envs: int, nstep: int, seed: int = 0) -> FloatArray:
    """Uniform random controls within the actuators' ranges, [-1, 1] where they have none.

    One draw per environment, held over all its steps, as a policy's action is. Environment i
    gets the same draw however many environments come after it.

    Args:
        model: A `mujoco.MjModel`.
        num_envs: Number of environments, >= 1.
        nstep: Physics steps, >= 1.
        seed: Any whole number >= 0.

    Returns:
        (num_envs, nstep, nu) float64.

    Raises:
        ArgumentError: An argument is not the whole number it has to be.
    """
    whole_number(num_envs, "num_envs")
    whole_number(nstep, "nstep")
    draws = _draw_controls(model, num_envs, _generator(seed, stream=0))
    return np.repeat(draws[:, np.newaxis], nstep, axis=1)


def moved_state(
    model: Any,
    num_envs: int,
    *,
    nstep: int,
    seed: int = 0,
    seconds: float = 1.0,
    nthread: int | None = None,
) -> tuple[FloatArray, FloatArray]:
    """States of environments that fell and moved under random controls, and controls to go on.

    From the initial pose, 8 to 256 trajectories with random streams of their own are simulated
    for `seconds`, each valid_runs a control for 0.04 s or `nstep` steps, whichever is longer, but
    no longer than a tenth of the whole. With as many environments as trajectories or fewer,
    each gets the end of its own. Further ones get earlier moments, going back a control at a
    time but not into the first half (then they repeat): distinct enough to cost differently,
    at a bounded price. The order is shuffled.

    The price is bounded by a rough estimate of a step's cost, never by a clock: on heavy
    models fewer trajectories are simulated, then a shorter time (at least 10 steps of 8
    trajectories), and a tiny time step ends after 1,000 steps.

    A trajectory ends where MuJoCo warns (diverged, or out of memory for contacts); moments
    after that are never used. The result is the same for every `nthread`.

    Args:
        model: A `mujoco.MjModel`.
        num_envs: Number of environments, >= 1.
        nstep: Physics steps in one `pool.step`, >= 1.
        seed: Any whole number >= 0.
        seconds: Simulated time, > 0.
        nthread: Threads to simulate on; None is the CPUs this process may use.

    Returns:
        state (num_envs, nstate) float64 and control (num_envs, nstep, nu) float64.

    Raises:
        ArgumentError: An argument is not what it has to be.
        PoolError: The model cannot be stepped.
    """
    whole_number(num_envs, "num_envs")
    whole_number(nstep, "nstep")
    if nthread is None:
        nthread = usable_cpus()
    whole_number(nthread, "nthread")
    if not isinstance(seconds, (int, float)) or not 0 < seconds < float("inf"):
        raise ArgumentError(f"seconds must be a number > 0 and finite, received {seconds!r}")
    rng = _generator(seed, stream=1)
    trajectories, steps = _affordable(model, seconds)
    hold = max(nstep, round(_HOLD_SECONDS / model.opt.timestep), 1)
    moments, valid = _simulate(
        model,
        trajectories=min(num_envs, trajectories),
        steps=steps,
        hold=min(hold, max(1, steps // _FEWEST_MOMENTS)),
        rng=rng,
        nthread=nthread,
    )
    chosen = _latest_first(moments, valid)
    rows = rng.permutation(np.resize(np.arange(len(chosen)), num_envs))
    return chosen[rows], random_control(model, num_envs, nstep, seed)


def _simulate(
    model: Any, *, trajectories: int, steps: int, hold: int, rng: np.random.Generator, nthread: int
) -> tuple[FloatArray, np.ndarray[Any, np.dtype[np.bool_]]]:
    """Every trajectory at every change of controls, from the start on.

    Returns:
        States (moments, trajectories, nstate), the initial pose first, and which of them are
        valid (moments, trajectories). The initial pose counts as valid.
    """
    state = initial_state(model, trajectories)
    alive = np.ones(trajectories, dtype=np.bool_)
    moments, valid = [state], [alive]
    with (
        captured_warnings(),
        RolloutPool(model, nbatch=trajectories, nthread=min(nthread, trajectories)) as pool,
    ):
        for _ in range(max(1, round(steps / hold))):
            expected = state[:, 0] + hold * model.opt.timestep
            control = _draw_controls(model, trajectories, rng)
            stepped = pool.step(state, nstep=hold, control=control)
            state = stepped if isinstance(stepped, np.ndarray) else stepped[0]
            # Where MuJoCo warns, the rest of the steps is skipped, or the model is back in its
            # initial pose: either way the clock, a state's first number, is not where it has
            # to be.
            in_time = np.abs(state[:, 0] - expected) < model.opt.timestep / 2
            alive = alive & in_time & np.isfinite(state).all(axis=1)
            # What diverged starts again, so that it cannot go on warning at every step.
            state[~alive] = moments[0][~alive]
            moments.append(state)
            valid.append(alive)
    return np.stack(moments), np.stack(valid)


def _latest_first(moments: FloatArray, valid: np.ndarray[Any, np.dtype[np.bool_]]) -> FloatArray:
    """The valid states of the second half, the last moment of all trajectories first.

    Where none is valid so late, those of the last moment that has any.
    """
    last = int(np.flatnonzero(valid.any(axis=1))[-1])
    middle = min(len(moments) // 2, last)
    return moments[middle:][::-1][valid[middle:][::-1]]


def _affordable(model: Any, seconds: float) -> tuple[int, int]:
    """How many trajectories of how many steps fit the budget, from the model alone."""
    step_us = _step_cost_us(model)
    steps = min(max(1, round(seconds / model.opt.timestep)), _MOST_STEPS)
    trajectories = int(_BUDGET_US / (steps * step_us))
    if trajectories < _FEWEST_TRAJECTORIES:
        affordable = int(_BUDGET_US / (_FEWEST_TRAJECTORIES * step_us))
        steps = min(steps, max(affordable, _FEWEST_STEPS))
    return min(max(trajectories, _FEWEST_TRAJECTORIES), _MOST_TRAJECTORIES), steps


def _step_cost_us(model: Any) -> float:
    """A rough guess at a step's microseconds on one core, on the high side.

    Fitted to gymnasium's robots, the quadruped and chains of up to 300 ball joints, where it
    is about 1 to 2 times what they take on one server core. Elliptic friction cones double the
    solver's work; the cube is the factorisation of the constraints.
    """
    passes = 4 if model.opt.integrator == mujoco.mjtIntegrator.mjINT_RK4 else 1
    cones = 2 if model.opt.cone == mujoco.mjtCone.mjCONE_ELLIPTIC else 1
    dofs = model.nv + 0.025 * model.nv**2 + 0.00005 * model.nv**3
    return float(passes * cones * (2.5 + dofs + 0.25 * model.ngeom))


def _draw_controls(model: Any, num_envs: int, rng: np.random.Generator) -> FloatArray:
    """One uniform draw per environment and actuator, (num_envs, nu)."""
    low, high = model.actuator_ctrlrange.T
    limited = model.actuator_ctrllimited.astype(bool) & np.isfinite(high - low)
    low = np.where(limited, low, -1.0)
    high = np.where(limited, high, 1.0)
    draws: FloatArray = low + (high - low) * rng.random((num_envs, model.nu))
    return draws


def _generator(seed: int, *, stream: int) -> np.random.Generator:
    """A generator of its own for each seed and purpose."""
    if type(seed) is not int or seed < 0:
        raise ArgumentError(f"seed must be a whole number >= 0, received {seed!r}")
    return np.random.default_rng([stream, seed])
