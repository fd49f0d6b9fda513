"""`tuner list` and `tuner show`: what the database holds, for people and for programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tuner.cli.options import database_option, existing, print_json, the_key
from tuner.cli.tables import (
    SHORT_KEY,
    candidate_name,
    milliseconds,
    percent,
    print_table,
    printable,
    relative,
)

LONGEST_MODEL = 16


@click.command("list")
@database_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON: a list of keys.")
def list_keys(database: str | None, as_json: bool) -> None:
    """List the keys: one line each, the last measured first.

    \b
    Example:
      tuner list --json
    """
    from tuner.store.views import read_overview

    rows = read_overview(existing(database))
    if as_json:
        print_json(rows)
        return
    print_table(
        [
            ("key", "left"),
            ("model", "left"),
            ("envs", "right"),
            ("threads", "right"),
            ("choice", "right"),
            ("gain", "right"),
            ("decided", "left"),
            ("measured", "left"),
        ],
        [
            (
                row["tuning_key"][:SHORT_KEY],
                Path(row["model_file"] or "").name[:LONGEST_MODEL],
                str(row["num_envs"] or ""),
                str(row["nthread"] or ""),
                candidate_name(row["chunk_size"]) if _answers(row) else "none",
                percent(row["gain"]) if row["pinned_because"] is None else "",
                _decided(row),
                (row["last_measured_utc"] or "")[:10],
            )
            for row in rows
        ],
    )


def _answers(row: dict[str, Any]) -> bool:
    return row["last_measured_utc"] is not None or row["pinned_because"] is not None


def _decided(row: dict[str, Any]) -> str:
    if row["pinned_because"] is not None:
        return "pinned"
    if not row["last_measured_utc"]:
        return "no"
    return "yes" if row["decided"] else f"no: {row['reason']}"


@click.command()
@click.argument("key")
@database_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON: the key's facts and runs.")
def show(key: str, database: str | None, as_json: bool) -> None:
    """Show one key: its facts, its verdict, its candidates and its runs.

    The candidates' times are the samples' own; the verdict compares samples taken side by side,
    so that a candidate timed while the machine was busy may look worse here than it is.

    KEY is a digest as `tuner list` prints it; its first characters are enough.

    \b
    Example:
      tuner show k1_3f9a
    """
    from tuner.store.views import read_key

    file = existing(database)
    facts = read_key(file, the_key(file, key))
    if as_json:
        print_json(facts)
        return
    _print_overview(facts["overview"])
    _print_candidates(facts["candidates"], facts["overview"]["chunk_size"])
    _print_runs(facts["runs"])


def _print_overview(overview: dict[str, Any]) -> None:
    choice = candidate_name(overview["chunk_size"]) if _answers(overview) else "none"
    told = overview | {"chunk_size": choice, "decided": _decided(overview)}
    for name in ("gain", "gain_low", "gain_high"):
        told[name] = percent(overview[name]) or None
    for name, value in told.items():
        if value is not None and name != "reason":
            click.echo(printable(f"{name:<25} {value}"))


def _print_candidates(candidates: list[dict[str, Any]], choice: int | None) -> None:
    click.echo()
    marked = [row["chunk_size"] for row in candidates]
    print_table(
        [
            ("chunk_size", "right"),
            ("samples", "right"),
            ("min ms", "right"),
            ("median ms", "right"),
            ("to default", "right"),
        ],
        [
            (
                candidate_name(row["chunk_size"]),
                str(row["samples"]),
                milliseconds(row["min_ms"]),
                milliseconds(row["median_ms"]),
                relative(row["relative_to_default"]),
            )
            for row in candidates
        ],
        marked=marked.index(choice) if choice in marked else None,
    )


def _print_runs(runs: list[dict[str, Any]]) -> None:
    click.echo()
    print_table(
        [
            ("finished", "left"),
            ("state", "left"),
            ("samples", "right"),
            ("pool s", "right"),
            ("host", "left"),
            ("load", "right"),
        ],
        [
            (
                run["finished_utc"][:19].replace("T", " "),
                run["state"],
                str(run["samples"]),
                _number(run["pool_seconds"]),
                (run["hostname"] or "")[:LONGEST_MODEL],
                _number(run["load_average"]),
            )
            for run in runs
        ],
    )
    for note in dict.fromkeys(run[name] for run in runs for name in ("work", "message")):
        if note:
            click.echo(printable(note))


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
