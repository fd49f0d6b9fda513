"""Tables for people, on a terminal or in a pipe. Prints to stdout."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

import click

from tuner.texts import candidate_name, milliseconds, percent, printable, relative

__all__ = [
    "SHORT_KEY",
    "candidate_name",
    "milliseconds",
    "percent",
    "print_table",
    "printable",
    "relative",
    "styled",
]

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


def styled(text: str, **style: Any) -> str:
    """Colour a text, unless the user does not want colours; click takes them out of a pipe."""
    return text if os.environ.get("NO_COLOR") else click.style(text, **style)
