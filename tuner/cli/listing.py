"""`tuner list`: which keys there are, for people and for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tuner.cli.filters import filter_options, selected
from tuner.cli.options import database_option, existing, print_json_lines
from tuner.cli.tables import SHORT_KEY, Column, candidate_name, percent, print_table

if TYPE_CHECKING:
    from tuner.store.queries import Order

ORDERS = ("key", "model", "envs", "gain", "measured")
SHOWN = (
    "tuning_key",
    "model_file",
    "num_envs",
    "nthread",
    "chunk_size",
    "gain",
    "decided",
    "reason",
    "pinned_because",
    "last_measured_utc",
)
"""Columns of the overview that the table needs: adding up runs would take longer than the rest."""


@click.command("list")
@filter_options
@click.option(
    "--sort",
    "order",
    type=click.Choice(ORDERS),
    default="measured",
    show_default=True,
    help="By which column; the greatest gain and the last measured come first.",
)
@click.option("--reverse", is_flag=True, help="The other way round.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: a list of keys.")
@database_option
def list_keys(
    order: Order,
    reverse: bool,
    as_json: bool,
    database: str | None,
    **filters: Any,
) -> None:
    """List the keys: one line each, the last measured first. All filters hold together.

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
        print_json_lines(rows)
        return
    if not rows and any(value is not None for value in selection):
        click.echo("no key is like that: `tuner list` without filters shows all", err=True)
        return
    print_table(
        [
            Column("key"),
            Column("model", yields=True),
            Column("envs", "right"),
            Column("thr.", "right"),
            Column("choice", "right"),
            Column("gain", "right"),
            Column("decided", yields=True),
            Column("measured"),
        ],
        [
            (
                row["tuning_key"][:SHORT_KEY],
                (row["model_file"] or "").rpartition("/")[2],
                str(row["num_envs"] or ""),
                str(row["nthread"] or ""),
                choice_of(row),
                percent(row["gain"]) if row["pinned_because"] is None else "",
                decided_of(row),
                (row["last_measured_utc"] or "")[:10],
            )
            for row in rows
        ],
    )


def choice_of(row: dict[str, Any]) -> str:
    """Name what a row of the overview answers."""
    answers = row["last_measured_utc"] is not None or row["pinned_because"] is not None
    return candidate_name(row["chunk_size"]) if answers else "none"


def decided_of(row: dict[str, Any]) -> str:
    """Say whether a row of the overview is decided, and why not."""
    if row["pinned_because"] is not None:
        return "pinned"
    if not row["last_measured_utc"]:
        return "no"
    return "yes" if row["decided"] else f"no: {row['reason']}"
