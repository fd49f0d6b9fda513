"""Lists and shows stored keys, pins them and deletes them."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable
from math import isfinite
from typing import TYPE_CHECKING, Any

import click

from tuner.cli.options import (
    database_option,
    existing,
    filter_options,
    json_option,
    key_argument,
    keys_argument,
    print_json,
    selected,
    the_key,
    until,
)
from tuner.cli.output import SHORT_KEY, Column, print_candidates, print_facts, print_table
from tuner.formatting import (
    candidate_name,
    counted,
    describe_choice,
    interval,
    minute,
    percent,
    printable,
    short_paths,
    tune_command,
)
from tuner.records import LARGEST_INTEGER
from tuner.store.schema import RUN_PARAMETERS

if TYPE_CHECKING:
    from tuner.records import Estimate
    from tuner.store.queries import Order

ORDERS = ("key", "model", "envs", "gain", "measured")
SHOWN = (
    "tuning_key",
    "model_file",
    "num_envs",
    "nthread",
    "bench_nsteps",
    "chunk_size",
    "gain",
    "decided",
    "reason",
    "pinned_because",
    "last_measured_utc",
)
"""Columns of the overview that the table needs; counting runs takes longer than all of these."""


@click.command("list")
@filter_options
@click.option(
    "--sort",
    "order",
    type=click.Choice(ORDERS),
    default="measured",
    show_default=True,
    help="Sort by a column: greatest gain first, last measured first.",
)
@click.option("--reverse", is_flag=True, help="Reverse the order.")
@json_option("a list of keys")
@database_option
def list_keys(
    order: Order, reverse: bool, as_json: bool, database: str | None, **filters: Any
) -> None:
    """List the stored keys, one line each.

    Filters must all match. A choice marked "no" under "decided" is provisional: jobs use it until
    more timings decide.

    \b
    Example:
      tuner list
      tuner list --model 'humanoid*' --min-gain 5 --sort gain
      tuner list --undecided --since 7d --json
    """
    from tuner.store.queries import read_overview

    selection = selected(**filters)
    columns = ("*",) if as_json else SHOWN
    rows = read_overview(
        existing(database), selection, order=order, reverse=reverse, columns=columns
    )
    if as_json:
        print_json(rows)
        return
    if not rows and any(value is not None for value in selection):
        click.echo("no key matches: `tuner list` without filters shows all keys", err=True)
        return
    _print_list(rows)


def _print_list(rows: list[dict[str, Any]]) -> None:
    names = short_paths(row["model_file"] for row in rows)
    same = Counter((row["model_file"], row["num_envs"], row["nthread"]) for row in rows)
    columns: dict[Column, Callable[[dict[str, Any]], str]] = {
        Column("key"): lambda row: row["tuning_key"][:SHORT_KEY],
        Column("model", yields=True): lambda row: names[row["model_file"]],
        Column("envs", "right"): lambda row: str(row["num_envs"] or ""),
        Column("thr.", "right"): lambda row: str(row["nthread"] or ""),
        Column("steps", "right"): lambda row: str(row["bench_nsteps"] or ""),
        Column("choice", "right"): choice_of,
        Column("gain", "right"): gain_of,
        Column("decided", yields=True): decided_of,
        Column("measured"): lambda row: (row["last_measured_utc"] or "")[:10],
    }
    if max(same.values(), default=1) == 1:  # the physics steps per call tell nothing apart
        del columns[Column("steps", "right")]
    print_table(list(columns), [[write(row) for write in columns.values()] for row in rows])


def choice_of(row: dict[str, Any]) -> str:
    """Name the choice of a row of the overview."""
    answers = row["last_measured_utc"] is not None or row["pinned_because"] is not None
    return candidate_name(row["chunk_size"]) if answers else "none"


def gain_of(row: dict[str, Any]) -> str:
    """Write the gain of a row of the overview; the gain of a pinned choice is not measured."""
    return percent(row["gain"]) if row["pinned_because"] is None else ""


def decided_of(row: dict[str, Any]) -> str:
    """Say whether a row of the overview is decided, and why not."""
    if row["pinned_because"] is not None:
        return "pinned"
    if not row["last_measured_utc"]:
        return "no"
    return "yes" if row["decided"] else f"no: {row['reason']}"


@click.command()
@key_argument()
@json_option("all that is stored of the key")
@database_option
def show(key: str, as_json: bool, database: str | None) -> None:
    """Show one key: its facts, verdict, candidates and runs.

    KEY is the start of a key as `tuner list` prints it, or a model's file name.

    "to default" compares samples that were taken side by side, over all runs, with its 95 %
    interval. In the table of runs, "gain" is what a run's own choice saves by that run alone, and
    "!" marks a choice that differs from the one before.

    \b
    Example:
      tuner show k1_3f9a
      tuner show quadruped.xml
    """
    from tuner.racing.meta_analysis import judge_runs
    from tuner.store.queries import read_behind, read_key

    file = existing(database)
    name = the_key(file, key)
    found = read_key(file, name)
    behind = read_behind(file, name)
    sizes = {"num_envs": behind.num_envs, "nthread": behind.nthread}
    estimates = judge_runs(behind.runs.values(), **sizes).estimates
    for row in found["candidates"]:
        values = _interval_of(estimates, row["chunk_size"])
        row |= zip(("relative", "relative_low", "relative_high"), values, strict=True)
    before: int | None = None
    chose = 0
    for run in found["runs"]:
        record = behind.runs.get(run["run_id"])
        alone = judge_runs([record], **sizes).estimates if record and run["has_choice"] else ()
        values = _interval_of(alone, run["chosen_chunk_size"])
        gains = [None if value is None else 1 - value for value in values]
        run |= zip(("gain", "gain_high", "gain_low"), gains, strict=True)
        run["flipped"] = False
        if run["has_choice"] and run["state"] != "imported":
            run["flipped"] = chose > 0 and run["chosen_chunk_size"] != before
            before, chose = run["chosen_chunk_size"], chose + 1
    if as_json:
        print_json(found)
        return
    print_facts(_facts(found, chose))
    if found["candidates"]:
        click.echo()
        names = ("relative_low", "relative_high", "samples")
        rows = []
        for row in found["candidates"]:
            ratio = row["relative"] or row["relative_to_default"]
            ends_and_samples = (row[name] for name in names)
            rows.append((row["chunk_size"], row["median_ms"], ratio, *ends_and_samples))
        print_candidates(rows, found["overview"]["chunk_size"])
    _print_runs(found["runs"])
    undecided = not found["overview"]["decided"] and found["overview"]["pinned_because"] is None
    if undecided and (command := tune_command(found["overview"])):
        click.echo(printable(f"next: {command}"))


def _interval_of(estimates: Iterable[Estimate], chunk_size: int | None) -> list[float | None]:
    """Find a candidate's time over the default's and its interval; None where unbounded."""
    for e in estimates:
        if e.candidate.chunk_size == chunk_size:
            return [value if isfinite(value) else None for value in (e.relative, e.low, e.high)]
    return [None, None, None]


def _facts(found: dict[str, Any], chose: int) -> dict[str, str]:
    overview, verdicts = found["overview"], found["verdicts"]
    work = {name: overview[name] for name in RUN_PARAMETERS if overview[name] is not None}
    facts = {
        "key": overview["tuning_key"],
        "model file": overview["model_file"],
        "model": _listed(found["model"]),
        "device": _listed(found["device"]),
        "work": _listed(work),
        "choice": choice_of(overview),
    }
    timings = {str(row["chunk_size"]): row["median_ms"] for row in found["candidates"]}
    answer = overview | {"gain_low": None, "gain_high": None, "per_candidate_ms": timings}
    if facts["choice"] != "none":
        newest = verdicts[0] if verdicts else {}
        ends = {name: newest.get(name) for name in ("gain_low", "gain_high")}
        facts["choice"] = describe_choice(answer | ends)
    for place, verdict in enumerate(verdicts, start=1):
        words = describe_choice(answer | {"pinned_because": None, "per_candidate_ms": {}} | verdict)
        decided = "decided" if verdict["decided"] else f"undecided ({verdict['reason']})"
        name = "verdict" if place == 1 else f"verdict {place}"
        facts[name] = f"{words.removeprefix('using ')}, {decided}; for {verdict['stack']}"
    if verdicts:
        facts["expected loss"] = percent(verdicts[0]["expected_loss"])
        facts["between runs"] = percent(verdicts[0]["between_runs"])
    flips = sum(run["flipped"] for run in found["runs"])
    facts["runs"] = f"{overview['runs']} with {counted(overview['samples'] or 0, 'sample')}"
    if chose > 1:
        facts["runs"] += f"; the choice flipped {flips} times in {counted(chose, 'run')} that chose"
    return {name: text for name, text in facts.items() if text}


def _listed(facts: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in facts.items())


def _print_runs(runs: list[dict[str, Any]]) -> None:
    click.echo()
    environments = list(dict.fromkeys(_environment(run) for run in runs))
    rows = []
    for run in runs:
        left = run["chosen_chunk_size"] is not None
        chose = candidate_name(run["chosen_chunk_size"]) if run["has_choice"] else "-"
        state = [run["occasion"], None if run["state"] == "complete" else run["state"]]
        rows.append(
            (
                minute(run["finished_utc"]),
                ", ".join(filter(None, state)),
                chose + ("!" if run["flipped"] else ""),
                percent(run["gain"]) if left else "",
                interval(run["gain_low"], run["gain_high"]) if left else "",
                str(run["samples"]),
                str(environments.index(_environment(run)) + 1),
                (run["near_key"] or "")[:SHORT_KEY],
            )
        )
    numbers = (Column(name, "right") for name in ("chose", "gain", "95 % interval", "samples"))
    trigger, similar = Column("trigger", yields=True), Column("similar", yields=True)
    print_table([Column("finished UTC"), trigger, *numbers, Column("env.", "right"), similar], rows)
    for place, environment in enumerate(environments, start=1):
        click.echo(printable(f"environment {place}: {environment}"))
    for note in dict.fromkeys(run[name] for run in runs for name in ("work", "message")):
        if note:
            click.echo(printable(note))


def _environment(run: dict[str, Any]) -> str:
    pool = f"{run['pool'] or '?'} {run['pool_version'] or '?'}"
    return f"{pool}, mujoco {run['mujoco_version'] or '?'}, protocol {run['method'] or '?'}"


def _chunk_size(_: click.Context, __: click.Parameter, text: str) -> int | None:
    if text == "default":
        return None
    digits = text.isascii() and text.isdecimal() and len(text) <= len(str(LARGEST_INTEGER))
    if digits and 1 <= int(text) <= LARGEST_INTEGER:
        return int(text)
    raise click.BadParameter(f"{text[:40]!r} is neither a whole number of 1 or more nor 'default'")


@click.command()
@key_argument()
@click.argument("chunk_size", metavar="CHUNK", callback=_chunk_size)
@click.option("--reason", required=True, help="The reason; it is logged with every use.")
@database_option
def pin(key: str, chunk_size: int | None, reason: str, database: str | None) -> None:
    """Fix a key's answer to CHUNK or "default", whatever is measured.

    KEY is the start of a key as `tuner list` prints it, or a model's file name.

    \b
    Example:
      tuner pin k1_3f9a 16 --reason "the job shares its node on Tuesdays"
    """
    from tuner.store.runs import pin as pin_key

    file = existing(database)
    name = the_key(file, key)
    if not reason.strip():
        raise click.BadParameter("it is empty: say why the key is pinned", param_hint="--reason")
    pin_key(file, name, chunk_size, reason.strip())
    click.echo(printable(f"{name} is pinned to {candidate_name(chunk_size)} until `tuner unpin`"))


@click.command()
@key_argument()
@database_option
def unpin(key: str, database: str | None) -> None:
    """Remove a pin: the key answers by its measurements again.

    \b
    Example:
      tuner unpin k1_3f9a
    """
    from tuner.store.runs import unpin as unpin_key

    file = existing(database)
    name = the_key(file, key)
    if not unpin_key(file, name):
        raise click.ClickException(f"{name} is not pinned: nothing was changed")
    click.echo(printable(f"{name} answers by its measurements again"))


@click.command()
@keys_argument()
@filter_options
@click.option(
    "--older-than",
    metavar="AGE",
    callback=until,
    help="Runs measured longer ago than AGE (12h, 7d, 3w); the same as --until AGE.",
)
@click.option("--yes", is_flag=True, help="Delete; without this nothing is changed.")
@json_option("what is deleted")
@database_option
def delete(
    keys: tuple[str, ...],
    older_than: str | None,
    yes: bool,
    as_json: bool,
    database: str | None,
    **filters: Any,
) -> None:
    """Delete keys or runs and give their space back; needs --yes.

    Without --yes it only says what would be deleted. KEYs and filters must all match; --since,
    --until and --older-than select single runs, and the verdicts are recomputed from the runs
    that are left. A key that loses all its runs is deleted. A pinned key stays, unless it is named
    and no time is given.

    \b
    Example:
      tuner delete k1_3f9a --yes
      tuner delete --model 'quad*' --older-than 52w
    """
    from tuner.store.runs import delete as delete_runs
    from tuner.store.runs import plan_deletion

    if older_than is not None:
        if filters["until"] is not None:
            raise click.UsageError("--older-than and --until mean the same: give one of them")
        filters["until"] = older_than
    selection = selected(**filters)
    if not keys and all(value is None for value in selection):
        raise click.UsageError("say what to delete: KEYs, or filters such as --older-than 52w")
    file = existing(database)
    names = list(dict.fromkeys(the_key(file, key) for key in keys))
    deletion = plan_deletion(file, selection, names)
    summary = (
        f"{counted(len(deletion.run_ids), 'run')} with {counted(deletion.samples, 'sample')} of "
        f"{counted(len(deletion.keys), 'key')}, "
        f"of which {counted(len(deletion.gone), 'key')} completely"
    )
    if not as_json:
        for key in deletion.keys[:20]:
            click.echo(printable(key), err=True)
        click.echo(f"would delete {summary}", err=True)
    freed = delete_runs(file, deletion) if yes and deletion.keys else 0
    if as_json:
        print_json({"done": yes, "bytes_freed": freed, **dataclasses.asdict(deletion)})
    elif yes:
        click.echo(f"deleted {summary}; {counted(freed, 'byte')} given back")
    elif deletion.keys:
        click.echo("nothing was changed: add --yes to delete")
