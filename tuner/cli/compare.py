"""Compares the choices of several keys, and what they would cost each other."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import click

from tuner.candidates import native_chunk_size
from tuner.cli.keys import choice_of, decided_of, gain_of
from tuner.cli.options import (
    database_option,
    existing,
    filter_options,
    json_option,
    keys_argument,
    print_json,
    selected,
    the_key,
)
from tuner.cli.output import SHORT_KEY, Column, print_table
from tuner.formatting import counted, number, relative, short_paths

if TYPE_CHECKING:
    from pathlib import Path

    from tuner.store.queries import By, Selection

WAYS: dict[str, By] = {"device": "device", "num-envs": "num_envs", "nthread": "nthread"}
MAX_DISTANCE = 2.0
"""A timed chunk size stands for one at most this many times larger or smaller."""
MOST = 60
"""Keys at once: the number of costs grows with their square."""
ABREAST = 6
"""Choices in one table of costs: as many as fit a line of 80 columns."""


@click.command()
@keys_argument()
@click.option(
    "--by",
    type=click.Choice(list(WAYS)),
    help="Compare KEY with the keys that differ from it in this alone.  [default: device]",
)
@filter_options
@json_option("the keys, and the costs")
@database_option
def compare(
    keys: tuple[str, ...], by: str | None, as_json: bool, database: str | None, **filters: Any
) -> None:
    """Compare the choices of keys, and what each would cost the others.

    One KEY is compared with the same work (model and run parameters) on other devices, or with
    --by on the same device with other numbers of environments or threads; filters narrow these
    down. Several KEYs are compared with each other, and without KEY all keys that the filters
    select. "per thr." is the number of chunks per thread.

    The second table says how much slower the key of a line steps with the choice of the column's
    key than with its own choice, by its own timings. "~" means that the chunk_size was not timed
    there and the closest timed one (at most twice as large or small) stands for it; "-" is
    unknown.

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
        raise click.UsageError("give several KEYs, or one KEY with --by or filters")
    if not names and (by or not filtered):
        raise click.UsageError("give KEY, several KEYs, or filters such as --model")
    if len(names) < 2:
        names = _found(file, names, WAYS[by or "device"], selection)
    if len(names) > MOST:
        raise click.ClickException(
            f"received {counted(len(names), 'key')}, at most {MOST} can be compared: "
            "add filters (--model, --device, --num-envs, --since)"
        )
    rows = [row | _chunks(row) for row in read_compared(file, names)]
    costs = _costs(rows)
    if as_json:
        print_json({"keys": rows, "costs": costs})
        return
    _print_keys(rows)
    _print_costs(rows, costs)


def _found(file: Path, names: list[str], way: By, selection: Selection) -> list[str]:
    """List the keys that differ from a named one in one thing, or that filters select."""
    from tuner.store.queries import comparable_keys, read_overview

    meant = [
        row["tuning_key"]
        for row in read_overview(file, selection, order="envs", columns=("tuning_key",))
    ]
    if not names:
        if len(meant) < 2:
            raise click.ClickException(
                f"nothing to compare: these filters select {counted(len(meant), 'key')} "
                "(`tuner list` takes the same filters)"
            )
        return meant
    (name,) = names
    left = {name, *meant}
    found = [key for key in comparable_keys(file, name, way) if key in left]
    if len(found) < 2:
        raise click.ClickException(
            f"no other key differs from {name} only in {way.replace('_', '-')}: try another --by "
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
    found = []
    for here in rows:
        own = _cost_of(here, here["chunk_size"])
        for there in rows:
            cost = _cost_of(here, there["chunk_size"])
            known = own and cost and "none" not in (choice_of(here), choice_of(there))
            found.append(
                {
                    "tuning_key": here["tuning_key"],
                    "with_choice_of": there["tuning_key"],
                    "chunk_size": there["chunk_size"],
                    "timed_chunk_size": cost[1] if known and cost else None,
                    "exact": cost[2] if known and cost else None,
                    "slower": cost[0] / own[0] - 1 if known and own and cost else None,
                }
            )
    return found


def _cost_of(row: dict[str, Any], chunk_size: int | None) -> tuple[float, int | None, bool] | None:
    """Say what a choice costs a key, by the key's own timings.

    Returns:
        Milliseconds, the chunk size that was timed (None is the default), and whether it is the
        one asked for; None if nothing close was timed or there are fewer environments.
    """
    envs, threads = row["num_envs"], row["nthread"]
    if chunk_size is not None and envs and chunk_size > envs:
        return None
    timings = {None if k == "None" else int(k): ms for k, ms in row["per_candidate_ms"].items()}
    native = native_chunk_size(envs, threads) if envs and threads else None
    if chunk_size == native and chunk_size not in timings:
        chunk_size = None  # the default cuts the same chunks, and was timed
    if chunk_size in timings:
        return timings[chunk_size], chunk_size, True
    if chunk_size is None:
        return None
    apart = {k: abs(math.log(k / chunk_size)) for k in timings if k}
    closest = min(apart, key=lambda k: (apart[k], k), default=None)
    if closest is None or apart[closest] > math.log(MAX_DISTANCE):
        return None
    return timings[closest], closest, False


def _print_keys(rows: list[dict[str, Any]]) -> None:
    names = short_paths(row["model_file"] for row in rows)
    print_table(
        [
            Column("", "right"),
            Column("key"),
            Column("model", yields=True),
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
                names[row["model_file"]],
                _device(row),
                str(row["num_envs"] or ""),
                str(row["nthread"] or ""),
                choice_of(row),
                number(row["chunks_per_thread"], 1),
                gain_of(row),
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
