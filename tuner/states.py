"""Representative work to time: robots that have fallen, moved and spread, with controls.

In the initial pose every environment costs the same and has few contacts, so nothing is left
for small work items to even out.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import mujoco
import numpy as np
from mujoco.rollout import Rollout

from tuner.candidates import whole_number
from tuner.errors import ArgumentError, PoolError
from tuner.model_file import captured_warnings
from tuner.pools import CONTROL, STATE

if TYPE_CHECKING:
    import numpy.typing as npt

    from tuner.pools import FloatArray

# Share of environments that may diverge before the work no longer counts as work.
_MAX_DIVERGED = 0.1
_FEWEST_TRAJECTORIES = 8
_MOST_TRAJECTORIES = 256
# A robot under controls redrawn at every step only trembles: the noise averages out.
_HOLD_SECONDS = 0.04
# Rollout records every step: 128 MB of float64.
_MOST_NUMBERS = 2**24
_CONTROL_SCALES = (1.0, 0.1, 0.01, 0.0)
# Standard deviations of the perturbed start: metres or radians, and those per second.
_POSITION_SPREAD = 0.02
_VELOCITY_SPREAD = 0.1
# Per second. MuJoCo calls an acceleration above 1e10 unstable.
_MOST_DAMPING = 1e7


class PreparedStates(NamedTuple):
    """Where to start a step, the controls to go on with, and how they came about."""

    state: FloatArray
    """(num_envs, nstate) float64, rows of mjSTATE_FULLPHYSICS."""
    control: FloatArray
    """(num_envs, nstep, nu) float64."""
    description: str
    """How the states were made, in words."""
    warnings: tuple[str, ...]
    """What MuJoCo warned of on the way, each kind once."""
    trajectories: int
    """Number of simulated environments that the states are taken from."""
    diverged: int
    """How many of them diverged, under the gentlest controls that were tried."""

    @property
    def has_diverged(self) -> bool:
        """More than a tenth diverged: what is timed then is not a job's work."""
        return self.diverged > _MAX_DIVERGED * self.trajectories


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


def prepare_states(
    model: Any,
    num_envs: int,
    *,
    nstep: int,
    seed: int = 0,
    seconds: float = 1.0,
    budget_s: float = 1.0,
) -> PreparedStates:
    """Simulate environments under random controls, and keep states and controls to go on with.

    From perturbed copies of the initial pose, 8 to 256 trajectories are simulated for
    `seconds`, or until `budget_s` is spent, whichever comes first: each holds a random control
    for 0.04 s or `nstep` steps, whichever is longer, but no longer than a tenth of the whole.
    Where more than a tenth of the trajectories diverge, gentler controls are tried. With more
    environments than trajectories, the further ones get earlier moments of the second half,
    then copies. All velocities are perturbed a little, so that no two are the same.

    Everything is stepped on the calling thread, where an error of MuJoCo is an exception and
    not the end of the process.

    Args:
        model: A `mujoco.MjModel`.
        num_envs: Number of environments, >= 1.
        nstep: Physics steps in one `pool.step`, >= 1.
        seed: Any whole number >= 0.
        seconds: Simulated time, > 0.
        budget_s: Seconds of wall-clock time, > 0; exceeded by 8 physics steps at most.

    Raises:
        ArgumentError: An argument is not what it has to be.
        PoolError: The model cannot be stepped.
    """
    whole_number(num_envs, "num_envs")
    whole_number(nstep, "nstep")
    for name, value in (("seconds", seconds), ("budget_s", budget_s)):
        if not isinstance(value, (int, float)) or not 0 < value < float("inf"):
            raise ArgumentError(f"{name} must be a number > 0 and finite, received {value!r}")
    rng = _generator(seed, stream=1)
    steps = max(1, round(seconds / model.opt.timestep))
    hold = max(nstep, round(_HOLD_SECONDS / model.opt.timestep), 1)
    hold = min(hold, max(1, steps // 10))
    first = min(num_envs, _FEWEST_TRAJECTORIES)
    deadline = time.perf_counter() + budget_s
    with captured_warnings() as warnings:
        for scale in _CONTROL_SCALES if model.nu else (1.0,):
            started = time.perf_counter()
            trajectories = _Trajectories(model, first, scale, rng)
            trajectories.advance(steps, hold, deadline)
            now = time.perf_counter()
            if trajectories.diverged <= _MAX_DIVERGED * first:
                break
        affordable = int(0.8 * first * (deadline - now) / (now - started))
        together = [trajectories]
        if (more := min(affordable, num_envs - first, _MOST_TRAJECTORIES - first)) > 0:
            together.append(_Trajectories(model, more, scale, rng))
            together[1].follow(trajectories)
    moments = np.concatenate([np.stack(each.moments) for each in together], axis=1)
    valid = np.concatenate([np.stack(each.valid) for each in together], axis=1)
    chosen = _latest_first(moments, valid)
    state = np.resize(chosen, (num_envs, chosen.shape[1]))
    # Copies differ then, and environments that came to rest in the same place.
    state[:, 1 + model.nq : 1 + model.nq + model.nv] += 0.01 * _velocities(model, num_envs, rng)
    return PreparedStates(
        rng.permutation(state),
        scale * random_control(model, num_envs, nstep, seed),
        _description(model, trajectories.steps, steps, scale),
        _each_kind_once(warnings),
        valid.shape[1],
        sum(each.diverged for each in together),
    )


class _Trajectories:
    """Environments that are simulated together, and their states at every change of controls."""

    def __init__(self, model: Any, size: int, scale: float, rng: np.random.Generator) -> None:
        self._model, self._scale, self._rng = model, scale, rng
        self._data = mujoco.MjData(model)
        self._holds: list[int] = []
        self.moments = [_perturbed_start(model, size, rng)]
        self.valid = [np.ones(size, dtype=np.bool_)]

    @property
    def steps(self) -> int:
        """Physics steps that each has taken."""
        return sum(self._holds)

    @property
    def diverged(self) -> int:
        """How many have diverged."""
        return int((~self.valid[-1]).sum())

    def advance(self, steps: int, hold: int, deadline: float) -> None:
        """Take `steps` steps, fewer where the deadline passes or too many diverge."""
        size, nstate = self.moments[0].shape
        hold = min(hold, max(1, _MOST_NUMBERS // (size * (nstate + self._model.nsensordata))))
        length = 1  # the first step shows what one costs
        while self.steps < steps and self.diverged <= _MAX_DIVERGED * size:
            length = min(length, hold, steps - self.steps)
            started = time.perf_counter()
            self._hold(length)
            now = time.perf_counter()
            if now >= deadline:
                break
            length = max(1, int(0.25 * length * (deadline - now) / (now - started)))
        self._check_last()

    def follow(self, others: _Trajectories) -> None:
        """Take the steps that others have taken."""
        for length in others._holds:
            self._hold(length)
        self._check_last()

    def _hold(self, length: int) -> None:
        """Go on from the last moment with a new control."""
        state, alive = self._step(length)
        # What diverged starts again, so that it does not go on warning at every step.
        state[~alive] = self.moments[0][~alive]
        self.moments.append(state)
        self.valid.append(alive)
        self._holds.append(length)

    def _check_last(self) -> None:
        """Let the last moment count where it can be stepped."""
        self.valid[-1] = self._step(1)[1]

    def _step(self, length: int) -> tuple[FloatArray, npt.NDArray[np.bool_]]:
        """Step the last moment; return the new states and which have not diverged."""
        state, model = self.moments[-1], self._model
        control = self._scale * _draw_controls(model, len(state), self._rng)
        try:
            with Rollout(nthread=0) as rollout:
                path, _ = rollout.rollout(
                    [model] * len(state),
                    [self._data],
                    state,
                    np.repeat(control[:, np.newaxis], length, axis=1) if model.nu else None,
                    control_spec=CONTROL if model.nu else 0,
                    nstep=length,
                )
        except (RuntimeError, ValueError, mujoco.FatalError) as error:
            raise PoolError(f"the model cannot be stepped: {error}") from error
        # Where MuJoCo warns, the rest of the steps is skipped, or the model is back in its
        # initial pose: either way the clock, a state's first number, is behind.
        late = state[:, 0] + length * model.opt.timestep - path[:, -1, 0]
        in_time = np.abs(late) < model.opt.timestep / 2
        return path[:, -1].copy(), self.valid[-1] & in_time & np.isfinite(path[:, -1]).all(axis=1)


def _perturbed_start(model: Any, size: int, rng: np.random.Generator) -> FloatArray:
    """The initial pose with small random displacements within the joints' ranges, and velocities.

    Without them, environments of a model without actuators would all be the same.
    """
    state = initial_state(model, size)
    spread = np.full(model.nv, _POSITION_SPREAD)
    scalar = model.jnt_type >= int(mujoco.mjtJoint.mjJNT_SLIDE)
    limited = np.flatnonzero(scalar & model.jnt_limited.astype(bool))
    low, high = model.jnt_range[limited].T
    dofs, places = model.jnt_dofadr[limited], 1 + model.jnt_qposadr[limited]
    spread[dofs] = np.minimum(spread[dofs], 0.05 * (high - low))
    for row in state:
        position = row[1 : 1 + model.nq].copy()
        mujoco.mj_integratePos(model, position, spread * rng.standard_normal(model.nv), 1.0)
        row[1 : 1 + model.nq] = position
        row[places] = np.clip(row[places], low, high)
    state[:, 1 + model.nq : 1 + model.nq + model.nv] += _velocities(model, size, rng)
    return state


def _velocities(model: Any, size: int, rng: np.random.Generator) -> FloatArray:
    """Random velocities, (size, nv); none where damping would make an enormous force of one."""
    moves = model.dof_damping < _MOST_DAMPING * model.dof_M0
    velocities: FloatArray = _VELOCITY_SPREAD * moves * rng.standard_normal((size, model.nv))
    return velocities


def _latest_first(moments: FloatArray, valid: npt.NDArray[np.bool_]) -> FloatArray:
    """The valid states of the second half, the last moment of all trajectories first.

    Where none is valid so late, those of the last moment that has any.
    """
    last = int(np.flatnonzero(valid.any(axis=1))[-1])
    middle = min(len(moments) // 2, last)
    return moments[middle:][::-1][valid[middle:][::-1]]


def _description(model: Any, taken: int, steps: int, scale: float) -> str:
    """How the states were made, in words."""
    moved = f"moved for {taken * model.opt.timestep:.2g} s"
    if model.nu:
        moved += " under random controls" if scale else " without controls: random ones diverge"
    if 0 < scale < 1:
        moved += f" scaled by {scale:g}: stronger ones diverge"
    return moved if taken == steps else f"{moved}; the model is slow"


def _each_kind_once(warnings: list[str]) -> tuple[str, ...]:
    """The first warning of each kind: the same one at another time or joint is no news."""
    kinds = {re.sub(r"[\d.]+", "", text): " ".join(text.split()) for text in reversed(warnings)}
    return tuple(reversed(kinds.values()))


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
