"""`tuner compare`: the same work on several devices, or one device's at several sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tuner.candidates import native_chunk_size
from tuner.cli.filters import filter_options, selected
from tuner.cli.listing import choice_of, decided_of
from tuner.cli.options import database_option, existing, keys_argument, print_json, the_key
from tuner.cli.tables import SHORT_KEY, Column, counted, number, percent, print_table, relative

if TYPE_CHECKING:
    from pathlib import Path

    from tuner.store.queries import By, Selection

WAYS: dict[str, By] = {"device": "device", "num-envs": "num_envs", "nthread": "nthread"}
MOST = 60
"""Keys at once: what they cost each other grows with their square."""
ABREAST = 6
"""Choices in a table of what they cost elsewhere: as many as fit a line."""


@click.command()
@keys_argument()
@click.option(
    "--by",
    type=click.Choice(list(WAYS)),
    help="Compare KEY with the keys that differ from it in this alone.  [default: device]",
)
@filter_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON: the keys, and the costs.")
@database_option
def compare(
    keys: tuple[str, ...], by: str | None, as_json: bool, database: str | None, **filters: Any
) -> None:
    """Compare what keys chose, and what each one's choice would cost the others.

    With one KEY: the same work (model and run parameters) on other devices, whatever their
    numbers of threads, or on the same device with other numbers of environments or threads;
    filters leave some of these out. With several: these. Without: those that the filters mean.
    "per thr." is how many chunks a thread gets.

    The second table says how much slower a step of a line's key would be with the choice of a
    column's key than with its own, by the timings of the line's key. A choice is carried over as
    the chunk_size that it is, and the default as the rule that it is, whatever it amounts to
    there. "~" marks a choice that was not timed there: the nearest timed one, at most twice as
    far, stands for it; "-" is unknown.

    \b
    Example:
      tuner compare k1_3f9a
      tuner compare k1_3f9a --by num-envs
      tuner compare k1_3f9a k1_77c0
      tuner compare --model 'quad*' --num-envs 1024
    """
    from tuner.store.queries import read_compared

    selection = selected(**filters)
    filtered = any(value is not None for value in selection)
    file = existing(database)
    names = list(dict.fromkeys(the_key(file, key) for key in keys))
    if len(names) > 1 and (by or filtered):
        raise click.UsageError("give either several keys, or one and --by or filters")
    if not names and (by or not filtered):
        raise click.UsageError("say which: KEY, several, or filters alone, such as --model")
    if len(names) < 2:
        names = _found(file, names, WAYS[by or "device"], selection)
    if len(names) > MOST:
        raise click.ClickException(
            f"{counted(len(names), 'key')} at once would be no comparison, {MOST} is the most: "
            "filters leave some out (--model, --device, --num-envs, --since)"
        )
    rows = [row | _chunks(row) for row in read_compared(file, names)]
    costs = _costs(rows)
    if as_json:
        print_json({"keys": rows, "costs": costs})
        return
    _print_keys(rows)
    _print_costs(rows, costs)


def _found(file: Path, names: list[str], way: By, selection: Selection) -> list[str]:
    """List the keys that differ from a named one in one thing, or those that filters mean."""
    from tuner.store.queries import keys_alike, read_overview

    meant = [
        row["tuning_key"]
        for row in read_overview(file, selection, order="envs", columns=("tuning_key",))
    ]
    if not names:
        if len(meant) < 2:
            raise click.ClickException(
                f"there is nothing to compare: these filters mean {counted(len(meant), 'key')} "
                "(`tuner list` takes the same ones)"
            )
        return meant
    (name,) = names
    left = {name, *meant}
    found = [key for key in keys_alike(file, name, way) if key in left]
    if len(found) < 2:
        raise click.ClickException(
            f"no key is like {name} but for its {way.replace('_', '-')}: try another --by "
            f"({', '.join(WAYS)}), other filters, or name several keys"
        )
    return found


def _chunks(row: dict[str, Any]) -> dict[str, Any]:
    """Say how many chunks a thread gets with a row's choice."""
    envs, threads, chunk = row["num_envs"], row["nthread"], row["chunk_size"]
    if not envs or not threads:
        return {"chunks_per_thread": None}
    chunk = chunk or native_chunk_size(envs, threads)
    return {"chunks_per_thread": -(-envs // chunk) / threads}


def _costs(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    from tuner.transfer import Place, slower

    told = []
    for here in rows:
        place = Place(here["num_envs"], here["nthread"], here["per_candidate_ms"])
        for there in rows:
            found = None
            if choice_of(here) != "none" and choice_of(there) != "none":
                found = slower(place, here["chunk_size"], there["chunk_size"])
            told.append(
                {
                    "tuning_key": here["tuning_key"],
                    "with_choice_of": there["tuning_key"],
                    "chunk_size": there["chunk_size"],
                    "timed_chunk_size": found[1].timed if found else None,
                    "exact": found[1].exact if found else None,
                    "slower": found[0] if found else None,
                }
            )
    return told


def _print_keys(rows: list[dict[str, Any]]) -> None:
    print_table(
        [
            Column("", "right"),
            Column("key"),
            Column("device", yields=True),
            Column("envs", "right"),
            Column("thr.", "right"),
            Column("choice", "right"),
            Column("per thr.", "right"),
            Column("gain", "right"),
            Column("decided", yields=True),
        ],
        [
            (
                str(place),
                row["tuning_key"][:SHORT_KEY],
                _device(row),
                str(row["num_envs"] or ""),
                str(row["nthread"] or ""),
                choice_of(row),
                number(row["chunks_per_thread"], 1),
                percent(row["gain"]) if row["pinned_because"] is None else "",
                decided_of(row),
            )
            for place, row in enumerate(rows, start=1)
        ],
    )


def _device(row: dict[str, Any]) -> str:
    cpus, name = row["usable_cpus"] or row["cpu_count"], row["cpu_model"] or row["machine"]
    return f"{cpus or '?'} x {name or '?'}"


def _print_costs(rows: list[dict[str, Any]], costs: list[dict[str, Any]]) -> None:
    size = len(rows)
    for first in range(0, size, ABREAST):
        columns = range(first, min(size, first + ABREAST))
        click.echo()
        print_table(
            [Column("slower", "right"), *(Column(f"with {k + 1}'s", "right") for k in columns)],
            [
                (str(line + 1), *(_cost(costs[line * size + k]) for k in columns))
                for line in range(size)
            ],
        )


def _cost(cost: dict[str, Any]) -> str:
    if cost["slower"] is None:
        return "-"
    return ("" if cost["exact"] else "~") + relative(1 + cost["slower"])
