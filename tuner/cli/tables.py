"""Tables for people, on a terminal or in a pipe. Prints to stdout."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import click

from tuner.formatting import (
    candidate_name,
    counted,
    interval,
    milliseconds,
    minute,
    number,
    percent,
    printable,
    relative,
)

__all__ = [
    "FINEST_BAR",
    "LINE",
    "SHORT_KEY",
    "WIDEST_BAR",
    "Column",
    "bar",
    "candidate_name",
    "counted",
    "interval",
    "milliseconds",
    "minute",
    "number",
    "percent",
    "print_facts",
    "print_table",
    "printable",
    "relative",
    "set_in",
    "styled",
    "width",
]

GAP = "  "
SHORT_KEY = 11
"""Characters of a key that stand for it in a table."""
LINE = 80
"""Columns of the narrowest terminal; a table does not grow with the window, so that what is
pasted somewhere looks as it did."""
NARROWEST = 6
"""Columns that are left to a text, however little room there is."""
CUT = "~"
"""Stands for the rest of a text that was cut."""
BAR = 5
"""Marks on each side of a bar."""
WIDEST_BAR, FINEST_BAR = 0.1, 0.01
"""The differences that fill a side at most, since a candidate that is far off must not flatten
all others, and at least, since what is hardly a difference must not look like one."""


class Column(NamedTuple):
    """A column of a table."""

    heading: str
    side: Literal["left", "right"] = "left"
    yields: bool = False
    """It holds texts that may be cut where the table would be wider than the terminal."""


def print_table(
    columns: Sequence[Column], rows: Iterable[Sequence[str]], marked: int | None = None
) -> None:
    """Print a table, as wide as its texts, and at most as wide as a terminal.

    Args:
        columns: What stands over them, and how they are set.
        rows: Texts, one per column.
        marked: Number of the row to set off, the choice say.
    """
    texts = [
        [column.heading for column in columns],
        *([printable(text) for text in row] for row in rows),
    ]
    wanted = [max(map(width, column)) for column in zip(*texts, strict=True)]
    widths = _fitting(columns, wanted)
    lines = []
    for place, row in enumerate(texts, start=-1):
        line = GAP.join(
            set_in(text, room, column.side)
            for text, room, column in zip(row, widths, columns, strict=True)
        ).rstrip()
        if place in (-1, marked):
            line = styled(line, bold=place == -1, fg="green" if place == marked else None)
        lines.append(line)
    click.echo("\n".join(lines))


def _fitting(columns: Sequence[Column], widths: list[int]) -> list[int]:
    """Take from the widest columns that yield, until the line is short enough."""
    yielding = [number for number, column in enumerate(columns) if column.yields]
    for _ in range(sum(widths) + len(GAP) * (len(widths) - 1) - LINE):
        widest = max(yielding, key=lambda number: widths[number], default=None)
        if widest is None or widths[widest] <= NARROWEST:
            break
        widths[widest] -= 1
    return widths


def set_in(text: str, room: int, side: str) -> str:
    """Set a text into so many columns; one that is too long is cut, and shows it."""
    free = room - width(text)
    if free < 0:
        text = _beginning(text, room - len(CUT)) + CUT
        free = room - width(text)
    return " " * free + text if side == "right" else text + " " * free


def _beginning(text: str, room: int) -> str:
    """Cut a text to so many columns, letter by letter from its start: it may be very long."""
    taken = 0
    for place, letter in enumerate(text):
        taken += width(letter)
        if taken > room:
            return text[:place]
    return text


def width(text: str) -> int:
    """Count the columns that a text takes on a terminal: some letters take two, some none."""
    if text.isascii():
        return len(text)
    from unicodedata import category, east_asian_width

    return sum(
        0 if category(letter) in ("Mn", "Me") else 2 if east_asian_width(letter) in "FW" else 1
        for letter in text
    )


def print_facts(facts: Mapping[str, str]) -> None:
    """Print what is said of one thing: a name and a text a line, long texts wrapped under it."""
    from textwrap import wrap

    indent = max(map(len, facts)) + len(GAP)
    for name, text in facts.items():
        # a text with spaces only where it may be broken: a path or a digest stays whole
        lines = wrap(printable(text), LINE - indent, break_long_words=False, break_on_hyphens=False)
        click.echo(f"{name:<{indent}}" + f"\n{' ' * indent}".join(lines))


def bar(difference: float | None, largest: float) -> str:
    """Draw how far a time is from the default's: to the left is faster.

    Args:
        difference: Share of the default's time; None draws nothing.
        largest: The difference that fills a side.
    """
    if difference is None:
        return ""
    marks = min(BAR, round(BAR * abs(difference) / largest))
    drawn = "#" * marks
    return f"{drawn:>{BAR}}|" if difference < 0 else f"{'':>{BAR}}|{drawn}"


def styled(text: str, **style: Any) -> str:
    """Colour a text, unless the user does not want colours; click takes them out of a pipe."""
    return text if os.environ.get("NO_COLOR") else click.style(text, **style)
