"""Measures models, explains how they are answered, and verifies stored choices."""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

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
from tuner.cli.output import SHORT_KEY, CandidateRow, print_candidates
from tuner.cli.work import Asked, asked, asked_again, work_options
from tuner.device import device_fingerprint
from tuner.errors import TunerError
from tuner.formatting import (
    candidate_name,
    counted,
    describe_answer,
    in_use,
    percent,
    printable,
)
from tuner.paths import cache_path
from tuner.tuning import answer_key
from tuner.workload import device_digest

if TYPE_CHECKING:
    from tuner.api import Explanation
    from tuner.tuning import Outcome


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
    help="End waiting and measuring after so many seconds.",
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
    database: str | None,
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
    file = cache_path(database)
    how = {
        "time_budget_s": others.pop("time_budget"),
        "wait_s": others.pop("wait"),
        "seed": others.pop("seed"),
        "trigger": "forced" if others.pop("force") else None,
        "deadline": time.monotonic() + (math.inf if max_seconds is None else max_seconds),
    }
    results = [_Result(*call) for call in dict.fromkeys(product(model_files, num_envs))]
    several = len(results) > 1
    pending = results
    while pending and time.monotonic() < how["deadline"]:
        for result in pending:
            if time.monotonic() >= how["deadline"]:
                break
            if several:
                click.echo(printable(result.name), err=True)
            try:
                result.measure(file, others, how)
            except (TunerError, click.ClickException) as error:
                if not several:
                    raise
                result.error = " ".join(str(error).split())
                click.echo(printable(f"tuner: {result.model_file}: {result.error}"), err=True)
        how["trigger"] = None
        pending = [result for result in pending if until_decided and result.can_continue]
    if as_json:
        found = [result.as_json() | {"database": str(file)} for result in results]
        print_json(found if several else found[0])
    elif several:
        for result in results:
            click.echo(printable(f"{result.name}: {result}"))
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
    what: Asked | None = None
    outcome: Outcome | None = None
    error: str | None = None

    @property
    def name(self) -> str:
        return f"{self.model_file}, {counted(self.num_envs, 'environment')}"

    def measure(self, file: Path, work: dict[str, Any], how: dict[str, Any]) -> None:
        """Look up or measure, or continue to measure."""
        what = self.what or asked(model_file=self.model_file, num_envs=self.num_envs, **work)
        self.what = what
        if not self.nothing_to_tune:
            self.outcome = answer_key(what.request(file, **how))

    @property
    def nothing_to_tune(self) -> bool:
        """Each thread gets at most one environment."""
        return self.what is not None and self.num_envs <= self.what.key.workload.nthread

    @property
    def decided(self) -> bool:
        return self.nothing_to_tune or bool(self.outcome and self.outcome.answer.decided)

    @property
    def can_continue(self) -> bool:
        """Another measurement may decide: a repeated look-up measures no more."""
        return bool(self.outcome and self.outcome.source == "measured" and not self.decided)

    def __str__(self) -> str:
        if self.error:
            return f"failed: {self.error}"
        if self.nothing_to_tune:
            return f"nothing to tune, {in_use(None, True)}: at most one environment per thread"
        if self.what is None or self.outcome is None:
            return "not measured: --max-seconds is over"
        about = {"model_file": str(self.model_file), "pool": self.what.here.pool}
        facts = self.outcome.answer._asdict() | self.what.key.workload._asdict() | about
        return f"{self.outcome.source}: {describe_answer(facts)}"

    def as_json(self) -> dict[str, Any]:
        """Return the result for programs."""
        about = {"model_file": str(self.model_file), "num_envs": self.num_envs}
        if self.nothing_to_tune:
            return about | {"source": "nothing to tune", "chunk_size": None, "decided": True}
        if self.outcome is None or self.what is None:
            return about | {"source": "failed" if self.error else "none", "error": self.error}
        source, answer, miss, _, verdict, similar = self.outcome
        return {
            **about,
            "source": source,
            "key": self.what.key,
            **answer._asdict(),
            "trigger": miss.trigger if miss else None,
            "warm_start_key": similar.key if similar else None,
            "estimates": [
                asdict(e) | {"candidate": e.candidate.chunk_size}
                for e in (verdict.estimates if verdict else ())
            ],
        }


def _print_result(result: _Result, file: Path) -> None:
    if result.outcome is None or result.what is None:
        click.echo(str(result))
        return
    _, answer, miss, _, verdict, similar = result.outcome
    estimates = {e.candidate.chunk_size: e for e in (verdict.estimates if verdict else ())}
    timings = {None if n == "None" else int(n): ms for n, ms in answer.per_candidate_ms.items()}
    default = timings.get(None)
    rows: list[CandidateRow] = []
    for chunk, ms in timings.items():
        if (e := estimates.get(chunk)) is not None:
            rows.append((chunk, ms, e.relative, e.low, e.high, e.samples))
        else:  # a hit knows the times alone
            rows.append((chunk, ms, ms / default if default else None, None, None, None))
    print_candidates(rows, answer.chunk_size)
    click.echo()
    click.echo(printable(str(result)).replace("; next: ", "\nnext:     "))
    if miss is not None:
        because = miss.reason
        if similar is not None:
            differences = "; ".join(map(str, (*similar.differences, *similar.environment)))
            because += f"; warm-started from {similar.key[:SHORT_KEY]} ({differences})"
        click.echo(printable(f"because:  {because}"))
    click.echo(f"key:      {result.what.key}")
    click.echo(printable(f"database: {file}"))


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
            if key:
                raise click.ClickException(f"{name}: not verified: {error}") from error
            told.append({"key": name, "verified": False, "what": str(error)})
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
    if line["chunk_size"] == line["was"]:
        return f"{line['was']} is undecided now"
    return f"{line['was']} is withdrawn: {in_use(line['chunk_size'], line['decided'])}"


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
    answer = answer_key(what.request(file, trigger="verify", time_budget_s=time_budget)).answer
    return {
        "was": before.chunk_size,
        "chunk_size": answer.chunk_size,
        "gain": answer.gain,
        "decided": answer.decided,
        "held": answer.chunk_size == before.chunk_size and answer.decided,
    }
