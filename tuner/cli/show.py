"""`tuner show` and `tuner history`: one key, its candidates and its runs."""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tuner.cli.listing import choice_of
from tuner.cli.options import database_option, existing, key_argument, print_json, the_key
from tuner.cli.tables import (
    FINEST_BAR,
    SHORT_KEY,
    WIDEST_BAR,
    Column,
    bar,
    candidate_name,
    counted,
    interval,
    milliseconds,
    minute,
    percent,
    print_facts,
    print_table,
    printable,
    relative,
)
from tuner.store.schema import RUN_PARAMETERS

if TYPE_CHECKING:
    from tuner.records import Estimate


@click.command()
@key_argument()
@click.option("--json", "as_json", is_flag=True, help="Print JSON: all there is about the key.")
@database_option
def show(key: str, as_json: bool, database: str | None) -> None:
    """Show one key: its facts, its verdict, its candidates and the runs behind it.

    The candidates' times are the samples' own. How they compare with the default is what all
    runs say of samples taken side by side, with its 95 % interval: a candidate that was timed
    while the machine was busy is not slower for it. A bar to the left is faster.

    KEY is a digest as `tuner list` prints it; its first characters are enough.

    \b
    Example:
      tuner show k1_3f9a
    """
    from tuner.racing.meta_analysis import judge_runs
    from tuner.store.queries import read_behind, read_key

    file = existing(database)
    name = the_key(file, key)
    found = read_key(file, name)
    behind = read_behind(file, name)
    verdict = judge_runs(behind.runs.values(), num_envs=behind.num_envs, nthread=behind.nthread)
    _add_estimates(found["candidates"], verdict.estimates)
    if as_json:
        print_json(found)
        return
    print_facts(_facts(found))
    _print_candidates(found["candidates"], found["overview"]["chunk_size"])
    _print_runs(found["runs"])


def _add_estimates(candidates: list[dict[str, Any]], estimates: Iterable[Estimate]) -> None:
    known = {estimate.candidate.chunk_size: estimate for estimate in estimates}
    for row in candidates:
        estimate = known.get(row["chunk_size"])
        told = (estimate.relative, estimate.low, estimate.high) if estimate else (None,) * 3
        for name, value in zip(("relative", "relative_low", "relative_high"), told, strict=True):
            row[name] = value if value is not None and isfinite(value) else None


def _facts(found: dict[str, Any]) -> dict[str, str]:
    overview, verdicts = found["overview"], found["verdicts"]
    told = {
        "key": overview["tuning_key"],
        "model file": overview["model_file"],
        "model": _listed(found["model"]),
        "device": _listed(found["device"]),
        "work": _listed(
            {name: overview[name] for name in RUN_PARAMETERS if overview[name] is not None}
        ),
        "choice": choice_of(overview),
        "pinned": overview["pinned_because"],
    }
    for place, verdict in enumerate(verdicts, start=1):
        told["verdict" if place == 1 else f"verdict {place}"] = _verdict(verdict)
    if verdicts:
        told["expected loss"] = percent(verdicts[0]["expected_loss"])
        told["between runs"] = percent(verdicts[0]["between_runs"])
    told["runs"] = f"{overview['runs']} with {counted(overview['samples'] or 0, 'sample')}"
    return {name: text for name, text in told.items() if text}


def _listed(facts: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in facts.items())


def _verdict(row: dict[str, Any]) -> str:
    choice = candidate_name(row["chunk_size"])
    gain = ""
    if row["chunk_size"] is not None and row["gain"] is not None:
        ends = interval(row["gain_low"], row["gain_high"])
        gain = f", {percent(row['gain'])} faster than the default ({ends})"
    decided = "decided" if row["decided"] else f"undecided ({row['reason']})"
    return f"{choice}{gain}, {decided}; for {row['stack']}"


def _print_candidates(candidates: list[dict[str, Any]], choice: int | None) -> None:
    if not candidates:
        return
    click.echo()
    ratios = [row["relative"] or row["relative_to_default"] for row in candidates]
    differences = [None if ratio is None else ratio - 1 for ratio in ratios]
    furthest = max((abs(d) for d in differences if d is not None), default=0.0)
    largest = min(WIDEST_BAR, max(FINEST_BAR, furthest))
    names = [row["chunk_size"] for row in candidates]
    print_table(
        [
            Column("chunk_size", "right"),
            Column("samples", "right"),
            Column("median ms", "right"),
            Column("to default", "right"),
            Column("95 % interval", "right"),
            Column("  faster|slower"),
        ],
        [
            (
                candidate_name(row["chunk_size"]),
                str(row["samples"]),
                milliseconds(row["median_ms"]),
                relative(ratio),
                _interval(row),
                "   " + bar(difference, largest),
            )
            for row, ratio, difference in zip(candidates, ratios, differences, strict=True)
        ],
        marked=names.index(choice) if choice in names else None,
    )


def _interval(row: dict[str, Any]) -> str:
    low, high = row["relative_low"], row["relative_high"]
    if row["chunk_size"] is None or low is None or high is None:
        return ""
    return f"{relative(low)} to {relative(high)}"


def _print_runs(runs: list[dict[str, Any]]) -> None:
    click.echo()
    stacks = list(dict.fromkeys(_stack(run) for run in runs))
    print_table(
        [
            Column("finished UTC"),
            Column("occasion"),
            Column("state"),
            Column("chose", "right"),
            Column("samples", "right"),
            Column("stack", "right"),
            Column("near key"),
        ],
        [
            (
                minute(run["finished_utc"]),
                run["occasion"] or "",
                run["state"],
                _chose(run),
                str(run["samples"]),
                str(stacks.index(_stack(run)) + 1),
                (run["near_key"] or "")[:SHORT_KEY],
            )
            for run in runs
        ],
    )
    for place, stack in enumerate(stacks, start=1):
        click.echo(printable(f"stack {place}: {stack}"))
    for note in dict.fromkeys(run[name] for run in runs for name in ("work", "message")):
        if note:
            click.echo(printable(note))


def _stack(run: dict[str, Any]) -> str:
    pool = f"{run['pool'] or '?'} {run['pool_version'] or '?'}"
    return f"{pool}, mujoco {run['mujoco_version'] or '?'}, method {run['method'] or '?'}"


def _chose(run: dict[str, Any]) -> str:
    return candidate_name(run["chosen_chunk_size"]) if run["has_choice"] else "-"


@click.command()
@key_argument()
@click.option("--json", "as_json", is_flag=True, help="Print JSON: the verdict and the runs.")
@database_option
def history(key: str, as_json: bool, database: str | None) -> None:
    """Show run by run what each chose, and what it says of the verdict of all of them.

    "gain" is what a run's own choice saves by that run alone, with its 95 % interval; the column
    after it is what the same run says of the verdict's choice, if that is not the default. A run
    of another software stack than the verdict's has no part in it, and is shown without. "!" marks
    a choice that differs from the choice before.

    KEY is a digest as `tuner list` prints it; its first characters are enough.

    \b
    Example:
      tuner history k1_3f9a
    """
    from tuner.store.queries import read_key

    file = existing(database)
    name = the_key(file, key)
    found = read_key(file, name)
    verdict = next(iter(found["verdicts"]), None)
    runs = _judged_alone(file, name, found["runs"], verdict)
    if as_json:
        print_json({"tuning_key": name, "verdict": verdict, "runs": runs})
        return
    _print_history(runs, verdict)
    if verdict is not None:
        flips = sum(run["flipped"] for run in runs)
        chose = sum(map(_chose_by_itself, runs))
        told = f"{flips} in {counted(chose, 'run')} that chose"
        print_facts({"verdict": _verdict(verdict), "flips": told})


def _judged_alone(
    file: Path, key: str, runs: list[dict[str, Any]], verdict: dict[str, Any] | None
) -> list[dict[str, Any]]:
    """Add to each run what it says by itself."""
    from tuner.racing.meta_analysis import judge_runs
    from tuner.store.queries import read_behind

    behind = read_behind(file, key)
    told: list[dict[str, Any]] = []
    before: list[int | None] = []
    for run in runs:
        record = behind.runs.get(run["run_id"])
        alone: tuple[Estimate, ...] = ()
        if record is not None:
            work = {"num_envs": behind.num_envs, "nthread": behind.nthread}
            alone = judge_runs([record], **work).estimates
        chosen = run["chosen_chunk_size"]
        flipped = False
        if _chose_by_itself(run):
            flipped = bool(before) and before[-1] != chosen
            before.append(chosen)
        told.append(
            run
            | _gain_of(alone if run["has_choice"] else (), chosen, "gain")
            | _gain_of(alone, verdict["chunk_size"] if verdict else None, "gain_of_verdict")
            | {"flipped": flipped}
        )
    return told


def _chose_by_itself(run: dict[str, Any]) -> bool:
    """Tell whether a run counts among those whose choices may flip, as `winner_flips` does."""
    return bool(run["has_choice"]) and run["state"] != "imported"


def _gain_of(
    estimates: Iterable[Estimate], chunk_size: int | None, name: str
) -> dict[str, float | None]:
    """Say what estimates say of one candidate, as a share of the default's time."""
    gains: tuple[float | None, ...] = (None, None, None)
    for estimate in estimates:
        if estimate.candidate.chunk_size == chunk_size:
            gains = (1 - estimate.relative, 1 - estimate.high, 1 - estimate.low)
    return {
        name + end: gain if gain is not None and isfinite(gain) else None
        for end, gain in zip(("", "_low", "_high"), gains, strict=True)
    }


def _print_history(runs: list[dict[str, Any]], verdict: dict[str, Any] | None) -> None:
    columns = [
        Column("finished UTC"),
        Column("occasion", yields=True),
        Column("chose", "right"),
        Column("gain", "right"),
        Column("95 % interval", "right"),
    ]
    if verdict is not None and verdict["chunk_size"] is not None:
        columns.append(Column(f"of {verdict['chunk_size']}", "right"))
    print_table(
        columns,
        [
            (
                minute(run["finished_utc"]),
                (run["occasion"] or "")
                + ("" if run["state"] == "complete" else f", {run['state']}"),
                _chose(run) + ("!" if run["flipped"] else ""),
                percent(run["gain"]),
                interval(run["gain_low"], run["gain_high"]) if run["chosen_chunk_size"] else "",
                percent(run["gain_of_verdict"]),
            )[: len(columns)]
            for run in runs
        ],
    )
