"""The options that describe a workload, and the pool and states made from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from tuner.cli.options import Command
from tuner.device import device_fingerprint, usable_cpus
from tuner.formatting import POOL_NAMES, counted
from tuner.model_facts import model_signature
from tuner.tuning import Request, StepInputs
from tuner.workload import CacheKey, make_cache_key

if TYPE_CHECKING:
    from tuner.environment import Environment

OPTIONS = (
    click.option(
        "--nthread",
        type=click.IntRange(1, 4096),
        default=usable_cpus,
        show_default="the CPUs this process may use",
        help="Threads of the pool.",
    ),
    click.option(
        "--nstep",
        type=click.IntRange(1, 10**6),
        default=5,
        show_default=True,
        help="Physics steps in one step of the pool.",
    ),
    click.option(
        "--dtype",
        type=click.Choice(["float32", "float64"]),
        default="float64",
        show_default=True,
        help="Scalar type of the environments.",
    ),
    click.option(
        "--post-step-forward-sensor",
        is_flag=True,
        help="End a step with a forward pass for its sensors.",
    ),
    click.option(
        "--pool",
        "pool_name",
        type=click.Choice(["rollout", "batch-env"]),
        default="rollout",
        show_default=True,
        help="The pool that steps the environments.",
    ),
)


def work_options(*, several: bool) -> Callable[[Command], Command]:
    """Make MODEL.xml and the options of the run parameters.

    Args:
        several: Whether several models and numbers of environments may be given.
    """
    path = click.Path(path_type=Path)
    model = (
        click.argument("model_files", metavar="MODEL.xml...", type=path, nargs=-1, required=True)
        if several
        else click.argument("model_file", metavar="MODEL.xml", type=path)
    )
    envs = click.option(
        "--num-envs",
        type=click.IntRange(1, 10**7),
        required=True,
        multiple=several,
        help="Environments in one step" + ("; repeatable." if several else "."),
    )

    def add(command: Command) -> Command:
        for option in reversed((model, envs, *OPTIONS)):
            command = option(command)
        return command

    return add


class Asked(NamedTuple):
    """The workload that a command was called for."""

    model: Any
    key: CacheKey
    here: Environment
    pool_name: str
    model_file: Path
    """Absolute: `tuner verify` may run in another folder."""

    def request(self, file: Path, **how: Any) -> Request:
        """Ask for the key; `how` are fields of `tuner.tuning.Request`."""
        model_file = str(self.model_file)
        return Request(
            self.key, file, self.here, lambda: opened(self), model_file=model_file, **how
        )


def asked(*, model_file: Path, nstep: int, pool_name: str, **parameters: Any) -> Asked:
    """Load the model and make the key that `work_options` describe.

    Args:
        model_file: The model.
        nstep: Physics steps in one step of the pool.
        pool_name: A name of `tuner.pools.POOLS`.
        **parameters: num_envs, nthread, dtype and post_step_forward_sensor.
    """
    from tuner.environment import environment_of_class
    from tuner.model_file import load_model
    from tuner.pools import pool_class

    model = load_model(model_file)
    key = make_cache_key(
        backend_type="mujoco",
        model_sig=model_signature(model, 1),
        device=device_fingerprint(),
        bench_nsteps=nstep,
        **parameters,
    )
    here = environment_of_class(pool_class(pool_name))
    return Asked(model, key, here, pool_name, model_file.absolute())


def asked_again(file: Path, key: str, model_file: Path | None = None) -> Asked:
    """Rebuild the workload of a stored key from its row and its model file.

    Args:
        file: The database.
        key: The key.
        model_file: Its model file, if it has moved.

    Raises:
        click.ClickException: if it belongs to another machine, its model file is missing or has
            changed, or the command line cannot make its pool.
    """
    from tuner.store.queries import read_key

    row = read_key(file, key)["overview"]
    stored, pool = row["model_file"], row["pool"]
    if row["num_envs"] is None:
        raise click.ClickException("its facts are not known, only its digest: tune it again")
    if model_file is None and stored is None:
        raise click.ClickException("its model file is not known: name it with --model-file")
    model_file = model_file or Path(stored)
    if not model_file.exists():
        raise click.ClickException(
            f"there is no model file {model_file.absolute()}: name it with KEY and --model-file"
        )
    if pool not in POOL_NAMES:
        raise click.ClickException(
            f"it was measured with the pool {pool}, which only its own job can make"
        )
    what = asked(
        model_file=model_file,
        nstep=row["bench_nsteps"],
        pool_name=POOL_NAMES[pool],
        post_step_forward_sensor=bool(row["post_step_forward_sensor"]),
        **{name: row[name] for name in ("num_envs", "nthread", "dtype")},
    )
    if what.key != key:
        raise click.ClickException(
            f"it belongs to another machine, or its model {model_file} has changed: "
            f"the key here is {what.key}"
        )
    return what


SEED_OF_STATES = 0
"""All measurements of a model step the same states: timings of other states do not compare."""


@contextmanager
def opened(what: Asked) -> Iterator[StepInputs]:
    """Make the pool and the states and controls that it steps."""
    from tuner.cli.output import race_progress
    from tuner.errors import PoolError
    from tuner.model_file import captured_warnings
    from tuner.pools import POOLS
    from tuner.states import prepare_states

    facts = what.key.workload
    # MuJoCo would write its warnings to a file in the working directory.
    with (
        captured_warnings(),
        POOLS[what.pool_name](what.model, nbatch=facts.num_envs, nthread=facts.nthread) as pool,
    ):
        work = prepare_states(
            what.model, facts.num_envs, nstep=facts.bench_nsteps, seed=SEED_OF_STATES
        )
        for warning in work.warnings:
            click.echo(f"MuJoCo warns: {warning}", err=True)
        if work.has_diverged:
            raise PoolError(
                f"{work.diverged} of {counted(work.trajectories, 'simulated environment')} "
                "diverge: no verdict, use the default. Check the model's time step, masses and "
                "actuator gains"
            )
        click.echo(f"states: {work.description}", err=True)
        with race_progress() as progress:
            yield StepInputs(
                pool, work.state, work.control, work.description, progress, what.model.opt.timestep
            )
