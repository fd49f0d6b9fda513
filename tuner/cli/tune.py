"""`tuner tune`: answer a model's key from the database, or measure it and show how."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tuner.candidates import native_chunk_size
from tuner.cli.options import (
    FINDING,
    FiniteRange,
    database_option,
    print_json,
    time_budget_option,
)
from tuner.cli.tables import (
    SHORT_KEY,
    Column,
    candidate_name,
    counted,
    milliseconds,
    print_table,
    printable,
    relative,
)
from tuner.cli.work import asked, opened, work_options
from tuner.paths import cache_path
from tuner.tuning import Request, answer_key
from tuner.workload import CacheKey

if TYPE_CHECKING:
    from tuner.records import Answer, Estimate, Miss, Outcome, SimilarKey


@click.command()
@work_options
@time_budget_option("Seconds of the pool's time that measuring may take.")
@click.option(
    "--wait",
    type=FiniteRange(),
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
def tune(
    time_budget: float,
    wait: float | None,
    seed: int | None,
    force: bool,
    as_json: bool,
    database: str | None,
    **work: Any,
) -> None:
    """Measure which chunk_size steps MODEL.xml fastest, or tell what is known.

    The model is let fall and move for a second first, so that contacts and differences between
    environments are those of real work. Exits with 3 if the result is undecided.

    \b
    Example:
      tuner tune examples/quadruped.xml --num-envs 1024
    """
    file = cache_path(database)
    what = asked(**work)
    key, facts = what.key, what.key.workload
    if facts.num_envs <= facts.nthread:
        _print_nothing_to_tune(facts.num_envs, facts.nthread, as_json)
        return

    outcome = answer_key(
        Request(
            key,
            file,
            what.here,
            lambda: opened(what),
            trigger="forced" if force else None,
            time_budget_s=time_budget,
            wait_s=wait,
            seed=seed,
            model_file=str(what.model_file),
        )
    )
    if as_json:
        print_json(_as_json(outcome, key, file))
    else:
        _print_outcome(outcome, key, file)
    if not outcome.answer.decided:
        click.get_current_context().exit(FINDING)


def _print_nothing_to_tune(num_envs: int, nthread: int, as_json: bool) -> None:
    if as_json:
        print_json({"source": "nothing to tune", "chunk_size": None, "decided": True})
    else:
        click.echo(
            f"nothing to tune: {counted(num_envs, 'environment')} on {counted(nthread, 'thread')} "
            "can only be cut one way; the native default does"
        )


def _print_outcome(outcome: Outcome, key: CacheKey, file: Path) -> None:
    answer = outcome.answer
    estimates = {e.candidate.chunk_size: e for e in _estimates(outcome)}
    names = sorted(answer.per_candidate_ms, key=_numerically)
    choice = str(answer.chunk_size)
    columns = [
        Column("chunk_size", "right"),
        Column("ms per step", "right"),
        Column("to default", "right"),
    ]
    if estimates:
        columns += [Column("95 % interval", "right"), Column("samples", "right")]
    print_table(
        columns,
        [_row(name, answer, estimates)[: len(columns)] for name in names],
        marked=names.index(choice) if choice in names else None,
    )
    click.echo("\n" + printable(f"{outcome.source}: {_sentence(outcome, key)}"))
    if outcome.miss is not None:
        click.echo(printable(f"because:  {_because(outcome.miss, outcome.near)}"))
    click.echo(f"key:      {key}")
    click.echo(f"database: {file}")


def _because(miss: Miss, near: SimilarKey | None) -> str:
    if near is None:
        return miss.reason
    differences = "; ".join(map(str, (*near.differences, *near.environment)))
    return f"{miss.reason}; begun from {near.key[:SHORT_KEY]} ({differences})"


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
    from tuner.racing.verdict import explain_verdict
    from tuner.records import Candidate, Verdict

    native = native_chunk_size(key.workload.num_envs, key.workload.nthread)
    answer, race = outcome.answer, outcome.race
    # The timings are of all runs, so the seconds are told only where there is but this one.
    alone = race is not None and len(race.samples) == answer.samples
    seconds = race.pool_seconds if race and alone else None
    verdict = Verdict(
        candidate=Candidate(answer.chunk_size),
        decided=answer.decided,
        reason=answer.reason,
        gain=answer.gain,
        gain_low=answer.gain_low,
        gain_high=answer.gain_high,
    )
    if answer.pinned_because is not None:
        return f"{candidate_name(answer.chunk_size)} is pinned: {answer.pinned_because}"
    sentence = explain_verdict(verdict, timings=answer.samples, pool_seconds=seconds)
    if not answer.decided:
        sentence += " (--force)" if answer.reason == "noise" else " (--force, --time-budget)"
    return f"{sentence}; the native default here is {native}"


def _estimates(outcome: Outcome) -> tuple[Estimate, ...]:
    """List what was estimated; after a hit that is not known, only the times are."""
    return outcome.verdict.estimates if outcome.verdict else ()


def _as_json(outcome: Outcome, key: CacheKey, file: Path) -> dict[str, Any]:
    answer = outcome.answer
    race = outcome.race
    return {
        "source": outcome.source,
        "occasion": outcome.miss.trigger if outcome.miss else None,
        "near_key": outcome.near.key if outcome.near else None,
        "pinned_because": answer.pinned_because,
        "key": str(key),
        "database": str(file),
        "chunk_size": answer.chunk_size,
        "native_chunk_size": native_chunk_size(key.workload.num_envs, key.workload.nthread),
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
        "num_envs": key.workload.num_envs,
        "nthread": key.workload.nthread,
    }
