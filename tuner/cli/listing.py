"""`tuner list`: which keys there are, for people and for programs."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from tuner.cli.options import FiniteRange, database_option, existing, print_json_lines
from tuner.cli.tables import SHORT_KEY, Column, candidate_name, percent, print_table
from tuner.records import LARGEST_INTEGER

if TYPE_CHECKING:
    from tuner.store.overview import Order

ORDERS = ("key", "model", "envs", "gain", "measured")
UNITS = {"h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1)}
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


def _moment(_: click.Context, __: click.Parameter, text: str | None) -> str | None:
    """Read a day or an age as the beginning of a time that the database holds."""
    if text is None:
        return None
    number, unit = text[:-1], UNITS.get(text[-1:])
    try:
        if unit is not None and number.isascii() and number.isdecimal():
            return f"{datetime.now(UTC) - unit * int(number):%Y-%m-%dT%H:%M:%S}"
        return date.fromisoformat(text).isoformat()
    except OverflowError:
        return ""  # before there were years
    except ValueError:
        raise click.BadParameter(
            f"{text[:40]!r} is neither a day, such as 2026-01-31, nor an age, such as 12h, 7d or 3w"
        ) from None


@click.command("list")
@click.option(
    "--model",
    metavar="GLOB",
    help="Keys whose model file's name, or whole path, matches a pattern with * and ?.",
)
@click.option(
    "--device", metavar="TEXT", help="Keys of CPUs, or instruction sets, with TEXT in their name."
)
@click.option(
    "--num-envs",
    metavar="N",
    type=click.IntRange(min=1),
    help="Keys of N environments.",
)
@click.option(
    "--min-gain",
    metavar="PERCENT",
    type=FiniteRange(),
    help="Keys whose choice is measured to save so much of the default's time.",
)
@click.option(
    "--decided/--undecided",
    default=None,
    help="Keys that are decided, by timings or by a pin; or those that are not.",
)
@click.option(
    "--since",
    metavar="WHEN",
    callback=_moment,
    help="Keys measured since a day (2026-01-31, UTC) or for an age (12h, 7d, 3w).",
)
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
    model: str | None,
    device: str | None,
    num_envs: int | None,
    min_gain: float | None,
    decided: bool | None,
    since: str | None,
    order: Order,
    reverse: bool,
    as_json: bool,
    database: str | None,
) -> None:
    """List the keys: one line each, the last measured first. All filters hold together.

    \b
    Example:
      tuner list
      tuner list --model 'humanoid*' --min-gain 5 --sort gain
      tuner list --undecided --since 7d --json
    """
    from tuner.store.overview import Wanted, read_overview

    wanted = Wanted(
        model=model,
        device=device,
        num_envs=None if num_envs is None else min(num_envs, LARGEST_INTEGER),
        least_gain=None if min_gain is None else min_gain / 100,
        decided=decided,
        since=since,
    )
    columns = ("*",) if as_json else SHOWN
    rows = read_overview(existing(database), wanted, order=order, reverse=reverse, columns=columns)
    if as_json:
        print_json_lines(rows)
        return
    if not rows and any(value is not None for value in wanted):
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
