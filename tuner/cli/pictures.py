"""`tuner plot` and `tuner report`: pictures of stored keys."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import click

from tuner.cli.database import stats_lines
from tuner.cli.options import (
    Command,
    database_option,
    existing,
    filter_options,
    keys_argument,
    selected,
    the_key,
)
from tuner.cli.output import showing
from tuner.errors import ArgumentError, cannot_write
from tuner.formatting import counted

NEWEST = 200
"""Keys of a report by default: a page that browsers open without a pause."""


def _output_option(*endings: str) -> Callable[[Command], Command]:
    def with_ending(_: click.Context, __: click.Parameter, file: Path) -> Path:
        if file.suffix.lower() not in endings:
            raise click.BadParameter(f"{str(file)!r} does not end in {' or '.join(endings)}")
        return file

    return click.option(
        "-o",
        "--output",
        metavar="FILE",
        type=click.Path(path_type=Path, dir_okay=False),
        required=True,
        callback=with_ending,
        help=f"The file to write; an existing one is replaced: {' or '.join(endings)}.",
    )


@click.command()
@keys_argument(required=True)
@_output_option(".svg", ".png", ".html")
@click.option("--history", is_flag=True, help="Draw the key run by run.")
@click.option("--compare", is_flag=True, help="Draw several keys over work items per thread.")
@database_option
def plot(
    keys: tuple[str, ...], output: Path, history: bool, compare: bool, database: str | None
) -> None:
    """Draw a key: the time of a step over chunk_size, with all samples, intervals, the choice.

    Times are relative to the native default. An .html file shows the numbers under the mouse,
    and opens without a network.

    \b
    Example:
      tuner plot k1_3f9a -o quadruped.svg
      tuner plot k1_3f9a --history -o history.png
      tuner plot --compare k1_3f9a k1_77b0 -o devices.html
    """
    from tuner.charts import MOST_CURVES, Form, Kind, draw, picture, read_chart_data

    if history and compare:
        raise click.UsageError("--history and --compare are two pictures: choose one")
    if len(keys) > 1 and not compare:
        raise click.UsageError("one picture of several keys needs --compare")
    file = existing(database)
    names = list(dict.fromkeys(the_key(file, key) for key in keys))
    if compare and not 2 <= len(names) <= MOST_CURVES:
        raise click.UsageError(f"--compare takes 2 to {MOST_CURVES} keys, received {len(names)}")
    kind: Kind = "comparison" if compare else "history" if history else "key"
    form = cast("Form", output.suffix.lower()[1:])

    def content() -> bytes:
        return draw(picture(kind, *(read_chart_data(file, name) for name in names)), form)

    _write(output, content, file)


@click.command()
@_output_option(".html")
@filter_options
@click.option(
    "--newest",
    type=click.IntRange(min=1),
    metavar="N",
    default=NEWEST,
    show_default=True,
    help="Only the N keys measured last.",
)
@database_option
def report(output: Path, newest: int, database: str | None, **filters: Any) -> None:
    """Make one page about all keys, or those that filters select; it opens without a network.

    It has a summary, a table of the keys to sort and search, charts of each key's candidates and
    history, devices compared, and the state of the database.

    \b
    Example:
      tuner report -o report.html
      tuner report --model '*hopper*' --since 7d -o week.html
    """
    from tuner.charts import read_chart_data
    from tuner.report import make_page
    from tuner.store.maintenance import read_stats
    from tuner.store.queries import read_overview

    file = existing(database)
    total = len(read_overview(file, columns=("tuning_key",)))
    chosen = read_overview(file, selected(**filters), columns=("tuning_key",))
    names = [row["tuning_key"] for row in chosen][:newest]
    if not names:
        raise click.ClickException("no key matches: `tuner list` shows all")
    if len(names) < len(chosen):
        shown = counted(len(names), "key")
        click.echo(f"the {shown} measured last of {len(chosen)}: --newest N takes more", err=True)

    def content() -> bytes:
        charts = []
        for name in showing("reading")(names):
            with suppress(ArgumentError):  # deleted in the meantime
                charts.append(read_chart_data(file, name))
        stats = stats_lines(read_stats(file))
        return make_page(charts, stats, source=str(file), total=total).encode()

    _write(output, content, file)


def _write(output: Path, content: Callable[[], bytes], database: Path) -> None:
    """Write a file whole or not at all; create it first, so that a bad path fails early."""
    if output.exists() and output.samefile(database):
        raise click.ClickException(f"{output} is the database itself: name another file")
    partial = output.with_name(f"{output.name}.partial-{secrets.token_hex(4)}")
    with _explained(output):
        stream = partial.open("xb")
    try:
        with stream:
            made = content()
            with _explained(output):
                stream.write(made)
                stream.flush()
                os.fsync(stream.fileno())
        with _explained(output):
            partial.replace(output)
    finally:
        with suppress(OSError):
            partial.unlink()
    click.echo(f"{output}: {len(made):,} bytes")


@contextmanager
def _explained(output: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise click.ClickException(cannot_write(output, error)) from error
