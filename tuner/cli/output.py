"""Tables and progress for people. rich is imported when it is needed.

Stored text is always plain text here: no markup, no control characters.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, TypeVar

import click

from tuner.formatting import (
    candidate_name,
    milliseconds,
    printable,
    relative,
    relative_interval,
)

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
GAP = "  "


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
    """Print aligned lines; rich's own tables take 2 ms a line.

    Args:
        columns: Headings and how the columns are set.
        rows: Texts, one per column.
        marked: Number of the row to highlight, such as the choice.
        err: Print to stderr.
    """
    from rich.cells import cell_len, set_cell_size

    to = console(err=err)
    lines = [[c.heading for c in columns], *([printable(text) for text in row] for row in rows)]
    widths = [max(map(cell_len, texts)) for texts in zip(*lines, strict=True)]
    yielding = [place for place, column in enumerate(columns) if column.yields]
    for _ in range(sum(widths) + len(GAP) * (len(widths) - 1) - to.width if yielding else 0):
        widths[max(yielding, key=widths.__getitem__)] -= 1
    for number, texts in enumerate(lines, start=-1):
        cells = []
        for column, width, text in zip(columns, widths, texts, strict=True):
            room = width - cell_len(text)
            if room < 0:
                cells.append(f"{set_cell_size(text, max(width, 1) - 1)}…")
            else:
                cells.append(" " * room + text if column.side == "right" else text + " " * room)
        line = GAP.join(cells).rstrip()
        if not to.no_color and number in (-1, marked):
            line = click.style(
                line, bold=number < 0 or None, fg="green" if number == marked else None
            )
        # Line by line: one large write to a pipe that is closed meanwhile reports no error.
        click.echo(line, err=err)


CandidateRow: TypeAlias = tuple[
    int | None, float | None, float | None, float | None, float | None, int | None
]
"""A chunk size, its milliseconds per step, its time over the default's with the ends of its
interval, and its samples; None is unknown."""


def print_candidates(candidates: Iterable[CandidateRow], choice: int | None) -> None:
    """Print candidates by their size, the default first; the choice is highlighted."""
    ordered = sorted(candidates, key=lambda candidate: candidate[0] or 0)
    names = ("chunk_size", "ms per step", "to default", "95 % interval", "samples")
    shown = len(names) if any(candidate[5] for candidate in ordered) else 3
    rows = []
    for chunk, ms, ratio, low, high, samples in ordered:
        ends = "" if chunk is None else relative_interval(low, high)
        row = (candidate_name(chunk), milliseconds(ms), relative(ratio), ends, str(samples or ""))
        rows.append(row[:shown])
    marked = [place for place, candidate in enumerate(ordered) if candidate[0] == choice]
    columns = [Column(name, "right") for name in names[:shown]]
    print_table(columns, rows, marked[0] if marked else None)


def print_facts(facts: Mapping[str, str]) -> None:
    """Print a name and a text per line; long texts wrap between words."""
    from textwrap import wrap

    indent = max(map(len, facts)) + 2
    room = max(40, console().width - indent)
    for name, text in facts.items():
        lines = wrap(printable(text), room, break_long_words=False, break_on_hyphens=False)
        click.echo(f"{name:<{indent}}" + f"\n{' ' * indent}".join(lines))


@contextmanager
def race_progress() -> Iterator[Callable[[Progress], None]]:
    """Show a race: a bar on a terminal, elsewhere a line every two seconds."""
    last = -LINE_EVERY_S
    with amount_progress("measuring") as show_amount:

        def show(progress: Progress) -> None:
            nonlocal last
            now = time.monotonic()
            if sys.stderr.isatty():
                done = int(LONG * progress.seconds / (progress.budget_s or 1.0))
                show_amount(done, LONG, _standing(progress))
            elif now - last >= LINE_EVERY_S:
                last = now
                click.echo(f"measuring: {_standing(progress)}", err=True)

        yield show


def _standing(progress: Progress) -> str:
    left = max(0.0, progress.budget_s - progress.seconds)
    leader = "the default leads"
    if progress.leader.chunk_size is not None:
        spread = relative_interval(progress.low, progress.high)
        leader = f"chunk {progress.leader} at {relative(progress.relative)} ({spread})"
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
