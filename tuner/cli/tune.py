"""Measures models, explains how they are answered, and verifies stored choices."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from tuner.candidates import native_chunk_size
from tuner.cli.options import (
    FAILED,
    FINDING,
    FiniteRange,
    database_option,
    existing,
    json_option,
    key_argument,
    print_json,
    the_key,
    time_budget_option,
)
from tuner.cli.output import SHORT_KEY, Column, print_table
from tuner.cli.work import Asked, asked, asked_again, opened, work_options
from tuner.device import device_fingerprint
from tuner.errors import TunerError
from tuner.formatting import (
    candidate_name,
    counted,
    in_use,
    milliseconds,
    percent,
    printable,
    relative,
    relative_interval,
    short_paths,
    steps_per_second,
    tune_command,
)
from tuner.paths import cache_path
from tuner.tuning import Request, answer_key
from tuner.workload import CacheKey, device_digest

if TYPE_CHECKING:
    from tuner.api import Explanation
    from tuner.records import Estimate
    from tuner.store.lookup import Answer, Miss
    from tuner.store.queries import SimilarKey
    from tuner.tuning import Outcome


class _Settings(NamedTuple):
    """How `tuner tune` measures."""

    file: Path
    time_budget: float
    wait: float | None
    seed: int | None
    force: bool


def _answer(what: Asked, settings: _Settings) -> Outcome:
    """Answer from the database, or measure."""
    return answer_key(
        Request(
            what.key,
            settings.file,
            what.here,
            lambda: opened(what),
            trigger="forced" if settings.force else None,
            time_budget_s=settings.time_budget,
            wait_s=settings.wait,
            seed=settings.seed,
            model_file=str(what.model_file),
        )
    )


@click.command()
@work_options(several=True)
@time_budget_option("Seconds of the pool's time that one measurement may take.")
@click.option(
    "--until-decided",
    is_flag=True,
    help="Continue undecided measurements until they are decided.",
)
@click.option(
    "--max-seconds",
    type=FiniteRange(),
    metavar="SECONDS",
    help="Start no measurement after so many seconds.",
)
@click.option(
    "--wait",
    type=FiniteRange(),
    metavar="SECONDS",
    show_default="the time budget plus 5",
    help="Seconds to wait while another process of this machine measures.",
)
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), help="Seed of the order of the timings.")
@click.option("--force", is_flag=True, help="Measure again and add the run to the stored ones.")
@json_option("the result, or a list for several")
@database_option
def tune(
    model_files: tuple[Path, ...],
    num_envs: tuple[int, ...],
    until_decided: bool,
    max_seconds: float | None,
    as_json: bool,
    **others: Any,
) -> None:
    """Measure the fastest chunk_size of a model, or print the stored one.

    Several MODEL.xml and --num-envs are tuned one after the other. The states to step come from
    one second of simulation under random controls, so that contacts are realistic. Exits with 3
    if a result is undecided, with 1 if one failed.

    \b
    Example:
      tuner tune examples/quadruped.xml --num-envs 1024
      tuner tune a.xml b.xml --num-envs 512 --num-envs 1024 \\
          --until-decided --max-seconds 600
    """
    file = cache_path(others.pop("database"))
    names = ("time_budget", "wait", "seed", "force")
    settings = _Settings(file, *(others.pop(name) for name in names))
    end = time.monotonic() + (float("inf") if max_seconds is None else max_seconds)
    calls = dict.fromkeys((model, envs) for model in model_files for envs in num_envs)
    results = [_Result(model, envs, several=len(calls) > 1) for model, envs in calls]
    pending = results
    while pending and time.monotonic() < end:
        for result in pending:
            if time.monotonic() < end:
                result.measure(settings, others)
        settings = settings._replace(force=False)
        pending = [result for result in pending if until_decided and result.can_continue()]
    if as_json:
        found = [result.as_json(file) for result in results]
        print_json(found if len(found) > 1 else found[0])
    elif len(results) > 1:
        _print_results(results)
    else:
        _print_result(results[0], file)
    if any(result.error for result in results):
        click.get_current_context().exit(FAILED)
    if not all(result.decided for result in results):
        click.get_current_context().exit(FINDING)


@dataclass
class _Result:
    """What came of one model and number of environments."""

    model_file: Path
    num_envs: int
    several: bool
    """It is one of several: an error must not stop the others."""
    what: Asked | None = None
    outcome: Outcome | None = None
    error: str | None = None

    def measure(self, settings: _Settings, work: dict[str, Any]) -> None:
        """Look up or measure, or continue to measure."""
        if self.several:
            envs = counted(self.num_envs, "environment")
            click.echo(printable(f"{self.model_file}, {envs}"), err=True)
        try:
            self.what = self.what or asked(
                model_file=self.model_file, num_envs=self.num_envs, **work
            )
            if not self.nothing_to_tune:
                self.outcome = _answer(self.what, settings)
        except (TunerError, click.ClickException) as error:
            if not self.several:
                raise
            text = error.format_message() if isinstance(error, click.ClickException) else str(error)
            self.error = " ".join(text.split())
            click.echo(printable(f"tuner: {self.model_file}: {self.error}"), err=True)

    @property
    def nothing_to_tune(self) -> bool:
        """Tell whether each thread gets at most one environment."""
        return self.what is not None and self.num_envs <= self.what.key.workload.nthread

    @property
    def decided(self) -> bool:
        """Tell whether there is nothing left to measure."""
        return self.nothing_to_tune or bool(self.outcome and self.outcome.answer.decided)

    def can_continue(self) -> bool:
        """Tell whether another measurement may decide: a repeated look-up measures no more."""
        return bool(self.outcome and self.outcome.source == "measured" and not self.decided)

    def as_json(self, file: Path) -> dict[str, Any]:
        """Return the result for programs."""
        about = {"model_file": str(self.model_file), "num_envs": self.num_envs}
        if self.nothing_to_tune:
            return about | {"source": "nothing to tune", "chunk_size": None, "decided": True}
        if self.outcome is None or self.what is None:
            return about | {"source": "failed" if self.error else "none", "error": self.error}
        return about | _as_json(self.outcome, self.what.key, file)

    def next_step(self) -> str | None:
        """Return the command that continues an undecided measurement."""
        if self.decided or self.what is None:
            return None
        facts = self.what.key.workload._asdict()
        return tune_command(
            facts | {"model_file": str(self.model_file), "pool": self.what.here.pool}
        )


def _print_results(results: Sequence[_Result]) -> None:
    names = short_paths(str(result.model_file) for result in results)
    rows = []
    for result in results:
        cells = ("", "", "")
        state = "failed" if result.error else "not measured: --max-seconds is over"
        if result.nothing_to_tune:
            state = "nothing to tune, " + in_use(None, True)
        elif result.outcome is not None and result.what is not None:
            answer = result.outcome.answer
            cells = (
                candidate_name(answer.chunk_size),
                percent(answer.gain),
                _speed(answer, result.what.key),
            )
            state = f"{result.outcome.source}, {_in_use(answer)}"
        rows.append((names[str(result.model_file)], str(result.num_envs), *cells, state))
    print_table(
        [
            Column("model", yields=True),
            Column("envs", "right"),
            Column("choice", "right"),
            Column("gain", "right"),
            Column("speed", "right"),
            Column("state"),
        ],
        rows,
    )
    for command in filter(None, (result.next_step() for result in results)):
        click.echo(printable(f"next: {command}"))


def _print_result(result: _Result, file: Path) -> None:
    if result.nothing_to_tune and result.what is not None:
        threads = counted(result.what.key.workload.nthread, "thread")
        click.echo(
            f"nothing to tune, {in_use(None, True)}: {counted(result.num_envs, 'environment')} on "
            f"{threads} leave one environment per chunk"
        )
    elif result.outcome is None or result.what is None:
        click.echo("not measured: --max-seconds is over")
    else:
        _print_outcome(result.outcome, result.what.key, file)
        if command := result.next_step():
            click.echo(printable(f"next:     {command}"))


def _in_use(answer: Answer) -> str:
    return in_use(answer.chunk_size, answer.decided, answer.pinned_because is not None)


def _speed(answer: Answer, key: CacheKey) -> str:
    ms = answer.per_candidate_ms.get(str(answer.chunk_size))
    return steps_per_second(ms, key.workload.num_envs, key.workload.bench_nsteps)


def _print_outcome(outcome: Outcome, key: CacheKey, file: Path) -> None:
    answer = outcome.answer
    estimates = {e.candidate.chunk_size: e for e in _estimates(outcome)}
    names = sorted(answer.per_candidate_ms, key=_numerically)
    choice = str(answer.chunk_size)
    headings = ["chunk_size", "ms per step", "to default", "95 % interval", "samples"]
    columns = [Column(heading, "right") for heading in headings[: 5 if estimates else 3]]
    print_table(
        columns,
        [_row(name, answer, estimates)[: len(columns)] for name in names],
        marked=names.index(choice) if choice in names else None,
    )
    speed = _speed(answer, key)
    click.echo(f"\n{outcome.source}: {_in_use(answer)}" + (f", {speed}" if speed else ""))
    click.echo(printable(f"verdict:  {_sentence(outcome, key)}"))
    if outcome.miss is not None:
        click.echo(printable(f"because:  {_because(outcome.miss, outcome.near)}"))
    click.echo(f"key:      {key}")
    click.echo(printable(f"database: {file}"))


def _because(miss: Miss, similar: SimilarKey | None) -> str:
    if similar is None:
        return miss.reason
    differences = "; ".join(map(str, (*similar.differences, *similar.environment)))
    return f"{miss.reason}; warm-started from {similar.key[:SHORT_KEY]} ({differences})"


def _row(name: str, answer: Answer, estimates: dict[int | None, Estimate]) -> tuple[str, ...]:
    ms = answer.per_candidate_ms[name]
    default = answer.per_candidate_ms.get("None")
    estimate = estimates.get(None if name == "None" else int(name))
    if estimate is None:
        ratio = ms / default if default else None
        return candidate_name(name), milliseconds(ms), relative(ratio), "", ""
    return (
        candidate_name(name),
        milliseconds(ms),
        relative(estimate.relative),
        relative_interval(estimate.low, estimate.high) if name != "None" else "",
        str(estimate.samples),
    )


def _numerically(name: str) -> int:
    return 0 if name == "None" else int(name)


def _sentence(outcome: Outcome, key: CacheKey) -> str:
    from tuner.racing.verdict import explain_verdict
    from tuner.records import Candidate, Verdict

    answer, race = outcome.answer, outcome.race
    if answer.pinned_because is not None:
        return f"{candidate_name(answer.chunk_size)} is pinned: {answer.pinned_because}"
    # the seconds are known only where this run took all timings
    alone = race is not None and len(race.samples) == answer.samples
    verdict = Verdict(
        candidate=Candidate(answer.chunk_size),
        decided=answer.decided,
        reason=answer.reason,
        gain=answer.gain,
        gain_low=answer.gain_low,
        gain_high=answer.gain_high,
    )
    sentence = explain_verdict(
        verdict, timings=answer.samples, pool_seconds=race.pool_seconds if race and alone else None
    )
    native = native_chunk_size(key.workload.num_envs, key.workload.nthread)
    return f"{sentence}; the default chunk_size here is {native}"


def _estimates(outcome: Outcome) -> tuple[Estimate, ...]:
    """List the estimates; a hit knows only the times."""
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
        "nthread": key.workload.nthread,
    }


@click.command()
@work_options(several=False)
@time_budget_option("Seconds of the pool's time that the job has for measuring.")
@database_option
@json_option("the explanation")
def explain(time_budget: float, database: str | None, as_json: bool, **work: Any) -> None:
    """Explain whether a model is answered from the database.

    Prints which stored key answers, or the most similar one and how it differs field by field,
    and what the next job does. Measures and changes nothing.

    \b
    Example:
      tuner explain examples/quadruped.xml --num-envs 1024
    """
    from tuner.api import explain_key

    what = asked(**work)
    explanation = explain_key(cache_path(database), what.key, what.here, time_budget)
    if as_json:
        print_json(_explanation_as_json(explanation))
        return
    click.echo(str(explanation))


def _explanation_as_json(explanation: Explanation) -> dict[str, Any]:
    answer, near = explanation.answer, explanation.near
    return {
        "kind": explanation.kind,
        "key": str(explanation.key),
        "reason": explanation.reason,
        "chunk_size": answer.chunk_size if answer else None,
        "decided": answer.decided if answer else None,
        "nearest_key": near.key if near else None,
        "nearest_chunk_size": near.chunk_size if near else None,
        "differences": [difference._asdict() for difference in explanation.differences],
        "will_happen": explanation.will_happen,
    }


@click.command()
@key_argument(required=False)
@time_budget_option("Seconds of the pool's time for each key.")
@click.option(
    "--model-file",
    type=click.Path(path_type=Path),
    metavar="MODEL.xml",
    help="The model file of KEY, if it has moved since it was measured.",
)
@json_option("a list of keys")
@database_option
def verify(
    key: str | None,
    time_budget: float,
    model_file: Path | None,
    as_json: bool,
    database: str | None,
) -> None:
    """Time a key's choice against the default again, and store the run.

    A choice that has lost its gain is withdrawn. Without KEY, verifies all keys of this machine
    whose choice is not the default. Exits with 3 if a choice did not hold, or one of several
    could not be verified.

    \b
    Example:
      tuner verify k1_3f9a
    """
    from tuner.store.queries import keys_with_a_choice

    if model_file and not key:
        raise click.UsageError("--model-file needs KEY")
    file = existing(database)
    here = device_digest(device_fingerprint())
    names = [the_key(file, key)] if key else keys_with_a_choice(file, here)
    told = []
    for name in names:
        try:
            done = _verify(file, name, model_file, time_budget)
            told.append({"key": name, "verified": True, **done})
        except (click.ClickException, TunerError) as error:
            what = error.format_message() if isinstance(error, click.ClickException) else str(error)
            if key:
                raise click.ClickException(f"{name}: not verified: {what}") from error
            told.append({"key": name, "verified": False, "what": what})
    if as_json:
        print_json(told)
    for line in told if not as_json else ():
        click.echo(printable(f"{line['key']}: {_in_words(line)}"))
    if not names and not as_json:
        click.echo("nothing to verify: all keys of this machine use the default or are pinned")
    if not all(line["verified"] and line["held"] for line in told):
        click.get_current_context().exit(FINDING)


def _in_words(line: dict[str, Any]) -> str:
    if not line["verified"]:
        return f"not verified: {line['what']}"
    if line["held"]:
        return f"{line['chunk_size']} holds, {percent(line['gain'])}"
    was, choice = line["was"], candidate_name(line["chunk_size"])
    if line["chunk_size"] == was:
        return f"{was} is undecided now"
    stays = "the default stays" if line["chunk_size"] is None else f"{choice} is chosen"
    return f"{was} is withdrawn: {stays}" + ("" if line["decided"] else ", undecided")


def _verify(file: Path, key: str, model_file: Path | None, time_budget: float) -> dict[str, Any]:
    """Time one key's choice again."""
    from tuner.store.lookup import Answer, Miss, find_answer

    what = asked_again(file, key, model_file)
    before = find_answer(file, what.key, what.key.workload.num_envs, what.here)
    if isinstance(before, Answer) and before.pinned_because is not None:
        raise click.ClickException(
            f"it is pinned to {candidate_name(before.chunk_size)}: `tuner unpin` first"
        )
    if isinstance(before, Miss) or before.chunk_size is None:
        why = before.reason if isinstance(before, Miss) else "its choice is the default itself"
        raise click.ClickException(f"there is nothing to verify: {why}; `tuner tune` measures")
    request = Request(
        what.key,
        file,
        what.here,
        lambda: opened(what),
        trigger="verify",
        time_budget_s=time_budget,
        model_file=str(what.model_file),
    )
    answer = answer_key(request).answer
    return {
        "was": before.chunk_size,
        "chunk_size": answer.chunk_size,
        "gain": answer.gain,
        "decided": answer.decided,
        "held": answer.chunk_size == before.chunk_size and answer.decided,
    }
