"""`tuner list` and `tuner show`: what the database holds, for people and for programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tuner.cli.options import database_option, existing, print_json
from tuner.cli.tables import (
    candidate_name,
    console,
    milliseconds,
    percent,
    print_table,
    relative,
)

SHORT_KEY = 11


@click.command("list")
@database_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON: a list of keys.")
def list_keys(database: str | None, as_json: bool) -> None:
    """List the keys: one line each, the last measured first.

    \b
    Example:
      tuner list --json
    """
    from tuner.store.ledger import read_overview

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
            ("runs", "right"),
            ("last measured", "left"),
        ],
        [
            (
                row["tuning_key"][:SHORT_KEY],
                Path(row["model_file"] or "").name[:18],
                str(row["num_envs"] or ""),
                str(row["nthread"] or ""),
                candidate_name(row["chunk_size"]) if row["runs"] else "none",
                percent(row["gain"]),
                str(row["runs"] or 0),
                (row["last_measured_utc"] or "")[:16].replace("T", " "),
            )
            for row in rows
        ],
    )


@click.command()
@click.argument("key")
@database_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON: the key's facts and runs.")
def show(key: str, database: str | None, as_json: bool) -> None:
    """Show one key: its facts, its verdict, its candidates and its runs.

    KEY is a digest as `tuner list` prints it; its first characters are enough.

    \b
    Example:
      tuner show k1_3f9a
    """
    from tuner.store.ledger import read_key

    file = existing(database)
    facts = read_key(file, _the_key(file, key))
    if as_json:
        print_json(facts)
        return
    _print_overview(facts["overview"])
    _print_candidates(facts["candidates"], facts["overview"]["chunk_size"])
    _print_runs(facts["runs"])


def _the_key(file: Path, prefix: str) -> str:
    from tuner.store.ledger import find_keys

    found = find_keys(file, prefix)
    if prefix in found:
        return prefix
    if not found:
        raise click.ClickException(f"no key starts with {prefix!r}: `tuner list` shows all")
    if len(found) > 1:
        few = ", ".join(found[:3]) + (", ..." if len(found) > 3 else "")
        raise click.ClickException(
            f"{len(found)} keys start with {prefix!r}: {few}; give more of it"
        )
    return found[0]


def _print_overview(overview: dict[str, Any]) -> None:
    out = console()
    for name, value in overview.items():
        if value is not None:
            out.print(f"{name:<25} {value}", markup=False)
    if overview["runs"] and overview["chunk_size"] is None:
        out.print(f"{'chunk_size':<25} the native default", markup=False)


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
            ("plan", "left"),
            ("samples", "right"),
            ("pool s", "right"),
            ("work", "left"),
        ],
        [
            (
                run["finished_utc"][:19].replace("T", " "),
                run["state"],
                run["plan"] or "",
                str(run["samples"]),
                f"{run['pool_seconds']:.2f}" if run["pool_seconds"] is not None else "",
                run["work"] or "",
            )
            for run in runs
        ],
    )
