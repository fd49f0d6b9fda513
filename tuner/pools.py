"""What a pool is, and adapters for real ones: mujoco.rollout, MuJoCoUni's BatchEnvPool.

A pool steps many copies of one model on threads; `chunk_size` says how many of them one work
item holds. Everything is checked here before native code sees it, because native code does not
check: up to mujoco 3.11 `chunk_size=0` kills the process and a negative one hangs for ever.
Nothing here reads a clock, keeps a result or knows which chunk_size is good.
"""

from __future__ import annotations

import os
import threading
from copy import copy
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeAlias

import mujoco
import numpy as np
import numpy.typing as npt
from mujoco import rollout as mujoco_rollout

from tuner.candidates import whole_number
from tuner.errors import ArgumentError, PoolError
from tuner.formatting import counted

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

FloatArray: TypeAlias = npt.NDArray[np.float64]

STATE = int(mujoco.mjtState.mjSTATE_FULLPHYSICS)
"""What a row of states holds: time, positions, velocities, activations, plugin state."""

CONTROL = int(mujoco.mjtState.mjSTATE_CTRL)
_MOST_THREADS = 4096
# Native code aborts the whole process when the system refuses it a thread, so an absurd number
# has to stop here.
_BEYOND_STATE = {
    name.removeprefix("mjENBL_").lower(): int(bit)
    for name, bit in mujoco.mjtEnableBit.__members__.items()
    if name in ("mjENBL_SLEEP", "mjENBL_IPC")  # the latter is MuJoCo 4's
}


class Pool(Protocol):
    """Anything that steps a fixed batch of environments, cut into work items."""

    def step(
        self,
        state: Any,
        /,
        *,
        nstep: int,
        control: Any = None,
        chunk_size: int | None = None,
        return_sensor: bool = False,
        post_step_forward_sensor: bool = False,
    ) -> Any:
        """Steps every environment `nstep` times.

        Args:
            state: Where to start, (nbatch, nstate), rows of mjSTATE_FULLPHYSICS. Not changed.
            nstep: Physics steps, >= 1.
            control: Controls, (nbatch, nstep, nu); None means zeros.
            chunk_size: Environments in one work item; None is the pool's own rule.
            return_sensor: Also return the sensors.
            post_step_forward_sensor: Refresh the sensors with one forward pass on the final
                state; without it they are those of the last step, one time step old.

        Returns:
            The final state (nbatch, nstate) float64, or with `return_sensor` that and the
            sensors (nbatch, nsensordata) float64. A later step does not overwrite them.
        """


class OpenPool(Pool, Protocol):
    """A pool that owns threads, so it has to be closed."""

    def close(self) -> None:
        """Ends the threads. The pool cannot step any more."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class PoolFactory(Protocol):
    """How a pool is made."""

    def __call__(self, model: Any, /, *, nbatch: int, nthread: int) -> OpenPool:
        """Makes a pool of `nbatch` environments on `nthread` threads."""


class RolloutPool:
    """A pool over `mujoco.rollout.Rollout` with BatchEnvPool's face: needs nothing but mujoco.

    Results do not depend on `chunk_size` or `nthread`, bit for bit, and they are those of
    BatchEnvPool: an environment starts from its state row alone, without warm start, with
    controls, applied forces, mocap poses and equality flags at the model's defaults.

    Rollout records whole trajectories, so a pool keeps a buffer of nbatch x nstep x nstate
    numbers (and one for sensors) and reuses it; what a step returns is a copy. Steps from
    several Python threads take turns. After a fork the child has no worker threads: there a
    step raises, where the native pool would wait for ever.
    """

    def __init__(self, model: Any, *, nbatch: int, nthread: int) -> None:
        """Starts the threads.

        Args:
            model: The `mujoco.MjModel` of every environment. Copied: later changes to it
                do not reach the pool.
            nbatch: Number of environments, >= 1.
            nthread: Number of worker threads, >= 1; one is a thread of its own as well.

        Raises:
            ArgumentError: An argument is not what it has to be.
            PoolError: MuJoCo could not make the threads or their data, or the model's steps
                depend on more than its state.
        """
        if not isinstance(model, mujoco.MjModel):
            raise ArgumentError(
                f"model must be a mujoco.MjModel, received {type(model).__name__}: "
                "load one with tuner.model_file.load_model(path)"
            )
        for flag, bit in _BEYOND_STATE.items():
            if model.opt.enableflags & bit:
                raise PoolError(
                    f'mujoco.rollout cannot step a model with <flag {flag}="enable"/>: what it '
                    "keeps outside the state would make results depend on chunk_size. "
                    "Disable the flag"
                )
        self.nbatch = whole_number(nbatch, "nbatch")
        self.nthread = whole_number(nthread, "nthread", most=_MOST_THREADS)
        self.nstate = int(mujoco.mj_stateSize(model, STATE))
        self.nsensordata = int(model.nsensordata)
        self.nu = int(model.nu)
        try:
            self._models = [copy(model)] * self.nbatch
            self._refreshers = [_sensor_model(model)] * self.nbatch
            self._data = [mujoco.MjData(model) for _ in range(self.nthread)]
            self._rollout: Any = mujoco_rollout.Rollout(nthread=self.nthread)
        except (MemoryError, RuntimeError, ValueError, mujoco.FatalError) as error:
            raise PoolError(
                f"mujoco.rollout cannot be set up for {counted(nbatch, 'environment')} on "
                f"{counted(nthread, 'thread')}: {error}. Try fewer."
            ) from error
        self._process = os.getpid()
        self._turn = threading.Lock()
        self._trajectory: FloatArray = np.empty((self.nbatch, 0, self.nstate))
        self._readings: FloatArray = np.empty((self.nbatch, 0, self.nsensordata))

    def step(
        self,
        state: npt.ArrayLike,
        *,
        nstep: int,
        control: npt.ArrayLike | None = None,
        chunk_size: int | None = None,
        return_sensor: bool = False,
        post_step_forward_sensor: bool = False,
    ) -> Any:
        """Steps every environment `nstep` times, as `Pool.step` describes.

        With `post_step_forward_sensor` the sensors come from a second pass over the final
        states, on the same threads, cut by the same `chunk_size`: one forward pass and a
        plain Euler update that is thrown away (rollout can only step). BatchEnvPool does
        the forward pass inside the first work item, so it hands out half as many items.

        Args:
            state: Where to start, (nbatch, nstate). Not changed.
            nstep: Physics steps, >= 1.
            control: (nbatch, nstep, nu), or held over all steps (nbatch, nu) or
                (nbatch, 1, nu); None is zeros.
            chunk_size: Environments in one work item, a whole number >= 1; anything above
                nbatch is one work item. None is max(1, nbatch // (10 * nthread)).
            return_sensor: Also return the sensors.
            post_step_forward_sensor: Refresh them on the final state; without effect
                where no sensors are returned.

        Returns:
            state (nbatch, nstate), or (state, sensordata (nbatch, nsensordata)); float64,
            the caller's own.

        Raises:
            ArgumentError: An argument has the wrong kind, value or shape.
            PoolError: The pool is closed, belongs to another process, or cannot step.
        """
        nstep = whole_number(nstep, "nstep")
        if chunk_size is not None:
            chunk_size = min(whole_number(chunk_size, "chunk_size"), self.nbatch)
        start = self._states(state)
        controls = self._controls(control, nstep)
        with self._turn:
            self._trajectory = _room(self._trajectory, nstep)
            readings = None
            if return_sensor and not post_step_forward_sensor:
                readings = self._readings = _room(self._readings, nstep)
            self._run(self._models, nstep, start, controls, self._trajectory, readings, chunk_size)
            final = self._trajectory[:, -1].copy()
            if not return_sensor:
                return final
            if readings is not None:
                return final, readings[:, -1].copy()
            refreshed: FloatArray = np.empty((self.nbatch, 1, self.nsensordata))
            self._run(self._refreshers, 1, final, None, None, refreshed, chunk_size)
            return final, refreshed[:, 0]

    def close(self) -> None:
        """Ends the threads and frees their data. Closing twice is fine."""
        with self._turn:
            # In a forked child there is no thread to join, and joining would hang.
            if self._rollout is not None and self._process == os.getpid():
                self._rollout.close()
                self._rollout = None
                self._data = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _run(
        self,
        models: list[Any],
        nstep: int,
        start: FloatArray,
        controls: FloatArray | None,
        trajectory: FloatArray | None,
        readings: FloatArray | None,
        chunk_size: int | None,
    ) -> None:
        """One pass over the batch, straight into the given arrays."""
        if self._rollout is None:
            raise PoolError("the pool is closed: make a new one")
        if self._process != os.getpid():
            raise PoolError("the pool's threads stayed in the parent: make a pool after the fork")
        try:
            self._rollout.rollout(
                models,
                self._data,
                start,
                controls,
                # Without this a step that has no controls would run on whatever controls each
                # thread saw last, and the result would depend on who did which work item.
                control_spec=0 if controls is None else CONTROL,
                skip_checks=True,
                nstep=nstep,
                state=trajectory,
                sensordata=readings,
                chunk_size=chunk_size,
            )
        except (RuntimeError, TypeError, ValueError, mujoco.FatalError) as error:
            raise PoolError(f"mujoco.rollout cannot step: {error}") from error

    def _states(self, state: npt.ArrayLike) -> FloatArray:
        rows = _numbers("state", state)
        if rows.shape != (self.nbatch, self.nstate):
            raise ArgumentError(
                f"state must have shape (nbatch, nstate) = {(self.nbatch, self.nstate)}, "
                f"received {rows.shape}: rows are mjSTATE_FULLPHYSICS, see mujoco.mj_getState"
            )
        return rows

    def _controls(self, control: npt.ArrayLike | None, nstep: int) -> FloatArray | None:
        if control is None or self.nu == 0:
            return None
        values = _numbers("control", control)
        if values.shape == (self.nbatch, self.nu):
            values = values[:, np.newaxis]
        whole = (self.nbatch, nstep, self.nu)
        if values.shape not in (whole, (self.nbatch, 1, self.nu)):
            raise ArgumentError(
                f"control must have shape (nbatch, nstep, nu) = {whole}, or "
                f"{(self.nbatch, self.nu)} to hold it, received {values.shape}"
            )
        return np.ascontiguousarray(np.broadcast_to(values, whole))


def open_batch_env_pool(model: Any, /, *, nbatch: int, nthread: int) -> OpenPool:
    """MuJoCoUni's own `BatchEnvPool`, as it is.

    It does not check chunk_size (see the top of this module), and a step without controls
    after one with controls runs on left-over ones: give it both.

    Raises:
        ArgumentError: `nbatch` or `nthread` is not a whole number >= 1.
        PoolError: MuJoCoUni is missing, does not fit the mujoco that is installed, or
            refuses the model.
    """
    whole_number(nbatch, "nbatch")
    whole_number(nthread, "nthread", most=_MOST_THREADS)
    kind = _batch_env_pool()
    try:
        pool: OpenPool = kind(model, nbatch=nbatch, nthread=nthread)
    except (MemoryError, RuntimeError, TypeError, ValueError) as error:
        raise PoolError(f"BatchEnvPool cannot be set up: {error}") from error
    return pool


def _batch_env_pool() -> Any:
    try:
        from mujoco_uni.batch_env import BatchEnvPool
    except (ImportError, OSError) as error:
        raise PoolError(
            f"MuJoCoUni's BatchEnvPool cannot be imported ({error}): in an environment of its "
            "own, because it needs mujoco 3.11.0, run pip install 'tuner[uni]'"
        ) from error
    return BatchEnvPool


def pool_class(name: str) -> type:
    """Find the class of a pool that a command line names, before there is a pool.

    Raises:
        PoolError: its package is missing.
    """
    kind: type = RolloutPool if name == "rollout" else _batch_env_pool()
    return kind


POOLS: Mapping[str, PoolFactory] = {"rollout": RolloutPool, "batch-env": open_batch_env_pool}
"""The pools a command line can name."""


def _numbers(name: str, values: npt.ArrayLike) -> FloatArray:
    """The values as native code wants them: contiguous float64. Copies only if they are not."""
    array = np.asarray(values)
    if array.dtype.kind not in "fiu":
        raise ArgumentError(f"{name} must hold real numbers, received dtype {array.dtype}")
    return np.ascontiguousarray(array, dtype=np.float64)


def _room(buffer: FloatArray, nstep: int) -> FloatArray:
    """The buffer itself while steps keep their length: fresh pages cost more than the copy."""
    nbatch, length, width = buffer.shape
    return buffer if length == nstep else np.empty((nbatch, nstep, width))


def _sensor_model(model: Any) -> Any:
    """A copy whose single step computes a forward pass's sensors and little else.

    Sensors are computed before a step integrates, so how it integrates does not touch them;
    Runge-Kutta would pay for three more forward passes. Automatic reset would replace the
    sensors of a state that is out of bounds by those of the initial pose.
    """
    sensing = copy(model)
    if sensing.opt.integrator == mujoco.mjtIntegrator.mjINT_RK4:
        sensing.opt.integrator = mujoco.mjtIntegrator.mjINT_EULER
        sensing.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_EULERDAMP
    sensing.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_AUTORESET
    return sensing
