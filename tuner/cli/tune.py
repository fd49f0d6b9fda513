"""`tuner tune`: answer a model's key from the database, or measure it and show how."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tuner.candidates import native_chunk_size
from tuner.cli.options import FINDING, database_option, print_json
from tuner.cli.progress import race_progress
from tuner.cli.tables import candidate_name, milliseconds, print_table, relative
from tuner.device import device_fingerprint
from tuner.keys import CacheKey, make_cache_key
from tuner.paths import cache_path
from tuner.processors import usable_cpus
from tuner.resolve import GRACE_S, TIME_BUDGET_S, answer_key
from tuner.workload import model_signature

if TYPE_CHECKING:
    from tuner.answers import Answer, Miss, Outcome
    from tuner.records import Estimate
    from tuner.tuning import Work

MOTION_SEED = 0
"""Every tuning of a model times the same moved states: the work is a part of what is compared."""


@click.command()
@click.argument("model_file", metavar="MODEL.xml", type=click.Path(path_type=Path))
@click.option(
    "--num-envs", type=click.IntRange(1, 10**7), required=True, help="Environments in one step."
)
@click.option(
    "--nthread",
    type=click.IntRange(1, 4096),
    default=usable_cpus,
    show_default="the CPUs this process may use",
    help="Threads of the pool.",
)
@click.option(
    "--nstep",
    type=click.IntRange(1, 10**6),
    default=5,
    show_default=True,
    help="Physics steps in one step of the pool.",
)
@click.option(
    "--dtype",
    type=click.Choice(["float32", "float64"]),
    default="float64",
    show_default=True,
    help="Scalar type of the environments.",
)
@click.option(
    "--post-step-forward-sensor",
    is_flag=True,
    help="End a step with a forward pass for its sensors.",
)
@click.option(
    "--pool",
    "pool_name",
    type=click.Choice(["rollout", "batch-env"]),
    default="rollout",
    show_default=True,
    help="What steps the environments.",
)
@click.option(
    "--time-budget",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    default=TIME_BUDGET_S,
    show_default=True,
    help="Seconds of the pool's time that measuring may take.",
)
@click.option(
    "--wait",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    show_default="the time budget and 5 more",
    help="Seconds to wait for another process of this machine that is measuring.",
)
@click.option(
    "--seed", type=click.IntRange(0, 2**63 - 1), help="Draw the order of the timings from this."
)
@click.option("--force", is_flag=True, help="Measure again, and add the run to what is known.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
@database_option
@click.pass_context
def tune(
    ctx: click.Context,
    model_file: Path,
    num_envs: int,
    nthread: int,
    nstep: int,
    dtype: str,
    post_step_forward_sensor: bool,
    pool_name: str,
    time_budget: float,
    wait: float | None,
    seed: int | None,
    force: bool,
    as_json: bool,
    database: str | None,
) -> None:
    """Measure which chunk_size steps MODEL.xml fastest, or tell what is known.

    The model is let fall and move for a second first, so that contacts and differences between
    environments are those of real work. Exits with 3 if the result is undecided.

    \b
    Example:
      tuner tune examples/quadruped.xml --num-envs 1024
    """
    from tuner.model_file import load_model
    from tuner.tuning import measure_and_save

    file = cache_path(database)
    model = load_model(model_file)
    key = make_cache_key(
        backend_type="mujoco",
        model_sig=model_signature(model, 1),
        device=device_fingerprint(),
        num_envs=num_envs,
        nthread=nthread,
        dtype=dtype,
        post_step_forward_sensor=post_step_forward_sensor,
        bench_nsteps=nstep,
    )
    if num_envs <= nthread:
        _print_nothing_to_tune(num_envs, nthread, as_json)
        return

    def measure(miss: Miss) -> Outcome:
        with _work(pool_name, model, key) as work, race_progress() as progress:
            return measure_and_save(
                key,
                file,
                work,
                miss=miss,
                time_budget_s=time_budget,
                seed=seed,
                model_file=str(model_file),
                progress=progress,
            )

    wait_s = time_budget + GRACE_S if wait is None else wait
    outcome = answer_key(key, file, measure, wait_s=wait_s, force=force)
    if as_json:
        print_json(_as_json(outcome, key, file))
    else:
        _print_outcome(outcome, key, file)
    if not outcome.answer.decided:
        ctx.exit(FINDING)


def _print_nothing_to_tune(num_envs: int, nthread: int, as_json: bool) -> None:
    if as_json:
        print_json({"source": "nothing to tune", "chunk_size": None, "decided": True})
    else:
        click.echo(
            f"nothing to tune: {num_envs} environments on {nthread} threads can only be cut one "
            "way; the native default does"
        )


@contextmanager
def _work(pool_name: str, model: Any, key: CacheKey) -> Iterator[Work]:
    """Make the pool and what it is to step; the pool is closed at the end."""
    from tuner.model_file import captured_warnings
    from tuner.motion import WORK_MOVED, moved_state
    from tuner.pools import POOLS
    from tuner.tuning import Work

    facts = key.facts
    # MuJoCo would write its warnings to a file in the working directory.
    with (
        captured_warnings(),
        POOLS[pool_name](model, nbatch=facts.num_envs, nthread=facts.nthread) as pool,
    ):
        click.echo(f"preparing: {facts.num_envs} environments fall and move", err=True)
        state, control = moved_state(
            model, facts.num_envs, nstep=facts.bench_nsteps, seed=MOTION_SEED
        )
        yield Work(pool, state, control, WORK_MOVED)


def _print_outcome(outcome: Outcome, key: CacheKey, file: Path) -> None:
    answer = outcome.answer
    estimates = {e.candidate.chunk_size: e for e in _estimates(outcome)}
    names = sorted(answer.per_candidate_ms, key=_numerically)
    choice = str(answer.chunk_size)
    print_table(
        [
            ("chunk_size", "right"),
            ("ms per step", "right"),
            ("to default", "right"),
            ("95 % interval", "right"),
            ("samples", "right"),
        ],
        [_row(name, answer, estimates) for name in names],
        marked=names.index(choice) if choice in names else None,
    )
    click.echo(f"\n{outcome.source}: {_sentence(outcome, key)}")
    click.echo(f"key:      {key}")
    click.echo(f"database: {file}")


def _row(name: str, answer: Answer, estimates: dict[int | None, Estimate]) -> tuple[str, ...]:
    ms = answer.per_candidate_ms[name]
    default = answer.per_candidate_ms.get("None")
    estimate = estimates.get(None if name == "None" else int(name))
    if estimate is None:
        ratio = ms / default if default else None
        return candidate_name(name), milliseconds(ms), relative(ratio), "", ""
    interval = f"{relative(estimate.low)} to {relative(estimate.high)}" if name != "None" else ""
    return (
        candidate_name(name),
        milliseconds(ms),
        relative(estimate.relative),
        interval,
        str(estimate.samples),
    )


def _numerically(name: str) -> int:
    return 0 if name == "None" else int(name)


def _sentence(outcome: Outcome, key: CacheKey) -> str:
    from tuner.records import Candidate, Verdict
    from tuner.selection import explain_verdict

    native = native_chunk_size(key.facts.num_envs, key.facts.nthread)
    seconds = outcome.race.pool_seconds if outcome.race else None
    answer = outcome.answer
    verdict = Verdict(
        candidate=Candidate(answer.chunk_size),
        decided=answer.decided,
        reason=answer.reason,
        gain=answer.gain,
        gain_low=answer.gain_low,
        gain_high=answer.gain_high,
    )
    sentence = explain_verdict(verdict, timings=answer.samples, pool_seconds=seconds)
    if not answer.decided:
        sentence += " (--force, --time-budget)"
    return f"{sentence} (the native default here is {native})"


def _estimates(outcome: Outcome) -> tuple[Estimate, ...]:
    """List what was estimated; after a hit that is not known, only the times are."""
    return outcome.race.verdict.estimates if outcome.race else ()


def _as_json(outcome: Outcome, key: CacheKey, file: Path) -> dict[str, Any]:
    answer = outcome.answer
    race = outcome.race
    return {
        "source": outcome.source,
        "key": str(key),
        "database": str(file),
        "chunk_size": answer.chunk_size,
        "native_chunk_size": native_chunk_size(key.facts.num_envs, key.facts.nthread),
        "decided": answer.decided,
        "reason": answer.reason,
        "gain": answer.gain,
        "gain_low": answer.gain_low,
        "gain_high": answer.gain_high,
        "per_candidate_ms": answer.per_candidate_ms,
        "candidates": [
            {
                "chunk_size": e.candidate.chunk_size,
                "samples": e.samples,
                "ms": e.milliseconds,
                "relative": e.relative,
                "relative_low": e.low,
                "relative_high": e.high,
            }
            for e in _estimates(outcome)
        ],
        "samples": answer.samples,
        "pool_seconds": race.pool_seconds if race else None,
        "num_envs": key.facts.num_envs,
        "nthread": key.facts.nthread,
    }
