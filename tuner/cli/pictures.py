"""`tuner plot` and `tuner report`: what the database holds, to be looked at."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import click

from tuner.cli.database import stats_lines
from tuner.cli.options import (
    Command,
    database_option,
    existing,
    keys_argument,
    stored_keys,
    the_key,
)
from tuner.cli.output import showing
from tuner.errors import ArgumentError, cannot_write
from tuner.formatting import counted

NEWEST = 200
"""Keys of a report, unless it is told otherwise: a page that browsers open without a pause."""


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
        help=f"The file to make, or to make anew: {' or '.join(endings)}.",
    )


@click.command()
@keys_argument(required=True)
@_output_option(".png", ".svg")
@click.option("--history", is_flag=True, help="The key run by run.")
@click.option("--compare", is_flag=True, help="Several keys over work items per thread.")
@database_option
def plot(
    keys: tuple[str, ...], output: Path, history: bool, compare: bool, database: str | None
) -> None:
    """Draw a key: the time of a step over chunk_size, with all samples, intervals, the choice.

    Times are relative to the native default's: of the same run for a sample, as the verdict
    compares them for an estimate. KEY is a digest as `tuner list` prints it; its first
    characters are enough.

    \b
    Example:
      tuner plot k1_3f9a -o quadruped.svg
      tuner plot k1_3f9a --history -o history.png
      tuner plot --compare k1_3f9a k1_77b0 -o devices.svg
    """
    from tuner import plots
    from tuner.study import MOST_CURVES, comparable, read_study

    if history and compare:
        raise click.UsageError("--history and --compare are two pictures: ask for one")
    if len(keys) > 1 and not compare:
        raise click.UsageError("several keys go into one picture with --compare only")
    file = existing(database)
    names = list(dict.fromkeys(the_key(file, key) for key in keys))
    if compare and not 2 <= len(names) <= MOST_CURVES:
        raise click.UsageError(f"--compare takes 2 to {MOST_CURVES} keys, received {len(names)}")

    def drawn() -> bytes:
        studies = [read_study(file, name) for name in names]
        if compare:
            for study in studies:
                if not comparable(study):
                    raise click.ClickException(
                        f"{study.key} has no curve to compare: it needs its number of environments "
                        "and threads and two candidates timed; leave it out"
                    )
            figure = plots.draw_comparison(studies)
        else:
            figure = (plots.draw_history if history else plots.draw_key)(studies[0])
        return plots.picture(figure, "png" if output.suffix.lower() == ".png" else "svg")

    _make(output, drawn, file)


@click.command()
@_output_option(".html", ".htm")
@click.option(
    "--key",
    "keys",
    metavar="KEY",
    multiple=True,
    shell_complete=stored_keys,
    help="Only this one; repeatable.",
)
@click.option(
    "--newest",
    type=click.IntRange(min=1),
    metavar="N",
    default=NEWEST,
    show_default=True,
    help="Only the N keys measured last.",
)
@database_option
def report(output: Path, keys: tuple[str, ...], newest: int, database: str | None) -> None:
    """Make one page with everything: it opens in a browser, without a network.

    It has a table of all keys to sort and search, charts of each key's candidates and history,
    devices compared, and the state of the database.

    \b
    Example:
      tuner report -o report.html
    """
    from tuner.report import make_page
    from tuner.store.maintenance import read_stats
    from tuner.store.queries import read_overview
    from tuner.study import Study, read_study

    file = existing(database)
    every = [row["tuning_key"] for row in read_overview(file)]
    names = list(dict.fromkeys(the_key(file, key) for key in keys)) or every[:newest]
    if not keys and len(names) < len(every):
        shown = counted(len(names), "key")
        click.echo(
            f"the {shown} measured last of {len(every)}: --newest N takes more, --key KEY others",
            err=True,
        )

    def page() -> bytes:
        studies: list[Study] = []
        for name in showing("reading")(names):
            with suppress(ArgumentError):  # somebody has forgotten it meanwhile
                studies.append(read_study(file, name))
        state = stats_lines(read_stats(file))
        return make_page(studies, state, source=str(file), total=len(every)).encode()

    _make(output, page, file)


def _make(output: Path, content: Callable[[], bytes], database: Path) -> None:
    """Write a file whole or not at all; whether it can be made shows before the work is done."""
    if output.exists() and output.samefile(database):
        raise click.ClickException(f"{output} is the database itself: name another file")
    partial = output.with_name(f"{output.name}.partial-{secrets.token_hex(4)}")
    with _blaming(output):
        stream = partial.open("xb")
    try:
        with stream:
            made = content()
            with _blaming(output):
                stream.write(made)
                stream.flush()
                os.fsync(stream.fileno())
        with _blaming(output):
            partial.replace(output)
    finally:
        with suppress(OSError):
            partial.unlink()
    click.echo(f"{output}: {len(made):,} bytes")


@contextmanager
def _blaming(output: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise click.ClickException(cannot_write(output, error)) from error
