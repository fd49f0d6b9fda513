"""Tables and progress for people, drawn by rich, which is imported when it is needed.

Stored text is always plain text here: no markup, no control characters.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar

import click

from tuner.formatting import printable, relative

if TYPE_CHECKING:
    from rich.console import Console

    from tuner.racing.race import Progress

Item = TypeVar("Item")

SHORT_KEY = 11
"""Characters of a key that stand for it in a table."""
PIPE_WIDTH = 240
"""Columns where the output is not a terminal: nothing there should be cut."""
LINE_EVERY_S = 2.0
LONG = 200_000
"""Samples, or bytes, from which on a progress bar is shown."""
BAR = 5
"""Marks on each side of a bar."""
WIDEST_BAR, FINEST_BAR = 0.1, 0.01
"""Bounds of the difference that fills a side: an outlier must not flatten all others, and a
negligible difference must not look large."""


class Column(NamedTuple):
    """A column of a table."""

    heading: str
    side: Literal["left", "right"] = "left"
    yields: bool = False
    """Its texts may be cut where the table is wider than the terminal."""


def console(*, err: bool = False) -> Console:
    """Make a console on stdout or stderr."""
    from rich.console import Console

    stream = sys.stderr if err else sys.stdout
    width = None if stream.isatty() else PIPE_WIDTH
    return Console(file=stream, width=width, markup=False, emoji=False, highlight=False)


def print_table(
    columns: Sequence[Column],
    rows: Iterable[Sequence[str]],
    marked: int | None = None,
    *,
    err: bool = False,
) -> None:
    """Print a table.

    Args:
        columns: Headings and how the columns are set.
        rows: Texts, one per column.
        marked: Number of the row to highlight, such as the choice.
        err: Print to stderr.
    """
    from rich.table import Table
    from rich.text import Text

    to = console(err=err)
    table = Table(
        box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="" if to.no_color else "bold"
    )
    for column in columns:
        table.add_column(
            Text(column.heading),
            justify=column.side,
            no_wrap=not column.yields,
            overflow="ellipsis",
        )
    for place, row in enumerate(rows):
        cells = (Text(printable(text), no_wrap=True, overflow="ellipsis") for text in row)
        table.add_row(*cells, style="green" if place == marked else None)
    with to.capture() as capture:
        to.print(table)
    # Line by line: one large write to a pipe that is closed meanwhile reports no error.
    for line in capture.get().splitlines():
        click.echo(line.rstrip(), err=err)


def print_facts(facts: Mapping[str, str]) -> None:
    """Print a name and a text per line; long texts wrap between words."""
    from textwrap import wrap

    indent = max(map(len, facts)) + 2
    room = max(40, console().width - indent)
    for name, text in facts.items():
        lines = wrap(printable(text), room, break_long_words=False, break_on_hyphens=False)
        click.echo(f"{name:<{indent}}" + f"\n{' ' * indent}".join(lines))


def bar(difference: float | None, largest: float) -> str:
    """Draw how far a time is from the default's; to the left is faster.

    Args:
        difference: Share of the default's time; None draws nothing.
        largest: The difference that fills a side.
    """
    if difference is None:
        return ""
    drawn = "#" * min(BAR, round(BAR * abs(difference) / largest))
    return f"{drawn:>{BAR}}|" if difference < 0 else f"{'':>{BAR}}|{drawn}"


@contextmanager
def race_progress() -> Iterator[Callable[[Progress], None]]:
    """Show a race: a bar on a terminal, elsewhere a line every two seconds."""
    if not sys.stderr.isatty():
        yield _plain_lines()
        return
    with amount_progress("measuring") as show_amount:
        yield lambda progress: show_amount(
            int(LONG * progress.seconds / (progress.budget_s or 1.0)), LONG, _standing(progress)
        )


def _plain_lines() -> Callable[[Progress], None]:
    last = -LINE_EVERY_S

    def show(progress: Progress) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= LINE_EVERY_S:
            last = now
            click.echo(f"measuring: {_standing(progress)}", err=True)

    return show


def _standing(progress: Progress) -> str:
    left = max(0.0, progress.budget_s - progress.seconds)
    leader = "the default leads"
    if progress.leader.chunk_size is not None:
        low = relative(progress.low).removesuffix(" %")
        leader = (
            f"chunk {progress.leader} at {relative(progress.relative)} "
            f"({low} to {relative(progress.high)})"
        )
    return f"{progress.survivors} in the race, {leader}, {left:.1f} s left"


def showing(description: str) -> Callable[[Sequence[Item]], Iterator[Item]]:
    """Show on a terminal how far an iteration through a list is; elsewhere it is silent."""

    def through(items: Sequence[Item]) -> Iterator[Item]:
        if not sys.stderr.isatty():
            yield from items
            return
        from rich.progress import track

        yield from track(items, description, console=console(err=True), transient=True)

    return through


@contextmanager
def amount_progress(description: str) -> Iterator[Callable[..., None]]:
    """Show on a terminal how much of a long task is done; elsewhere it is silent.

    Yields:
        A function of the amount done, the total, and optionally a text beside the bar.
    """
    if not sys.stderr.isatty():
        yield lambda *_: None
        return
    from rich.progress import BarColumn, Progress, TextColumn

    parts = (TextColumn(description), BarColumn(10), TextColumn("{task.fields[text]}"))
    # no refreshing thread: it would disturb what is being timed
    with Progress(*parts, console=console(err=True), auto_refresh=False, transient=True) as shown:
        task = shown.add_task("", text="", visible=False)

        def show(done: int, total: int, text: str = "") -> None:
            if total >= LONG:
                shown.update(
                    task, completed=done, total=total, text=text, visible=True, refresh=True
                )

        yield show
