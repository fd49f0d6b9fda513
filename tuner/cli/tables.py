"""Tables for people, on a terminal or in a pipe. Prints to stdout."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

import click

GAP = "  "
SHORT_KEY = 11
"""Characters of a key that stand for it in a table."""


def print_table(
    columns: Sequence[tuple[str, str]], rows: Iterable[Sequence[str]], marked: int | None = None
) -> None:
    """Print a table, as wide as its texts.

    Args:
        columns: Heading and "left" or "right" of each.
        rows: Texts, one per column.
        marked: Number of the row to set off, the choice say.
    """
    texts = [
        [heading for heading, _ in columns],
        *([printable(text) for text in row] for row in rows),
    ]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    lines = []
    for number, row in enumerate(texts, start=-1):
        line = GAP.join(
            text.rjust(width) if side == "right" else text.ljust(width)
            for text, width, (_, side) in zip(row, widths, columns, strict=True)
        ).rstrip()
        lines.append(styled(line, bold=number == -1, fg="green" if number == marked else None))
    click.echo("\n".join(lines))


def printable(text: str) -> str:
    """Keep a stored text from moving the cursor or breaking the line."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def styled(text: str, **style: Any) -> str:
    """Colour a text, unless the user does not want colours; click takes them out of a pipe."""
    return text if os.environ.get("NO_COLOR") else click.style(text, **style)


def milliseconds(value: float | None) -> str:
    """Write a time of one step."""
    return "" if value is None else f"{value:.4g}"


def relative(value: float | None) -> str:
    """Write a time over the native default's as a difference: 0.94 is -6.0 %."""
    if value is None:
        return ""
    difference = round((value - 1) * 100, 1)
    return "0.0 %" if difference == 0 else f"{difference:+.1f} %"


def percent(value: float | None) -> str:
    """Write a share in per cent."""
    return "" if value is None else f"{value * 100:.1f} %"


def candidate_name(chunk_size: Any) -> str:
    """Name a candidate in a table."""
    return "default" if chunk_size in (None, "None") else str(chunk_size)
