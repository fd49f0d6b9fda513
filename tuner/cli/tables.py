"""Tables and sentences for people, on a terminal or in a pipe. Prints to stdout."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

WIDE = 1000
"""Columns of a pipe: nothing is cut there."""


def console(*, stderr: bool = False) -> Console:
    """Make a console; rich itself honours NO_COLOR and leaves colours out of a pipe."""
    out = Console(stderr=stderr, highlight=False, soft_wrap=True)
    return out if out.is_terminal else Console(stderr=stderr, highlight=False, width=WIDE)


def print_table(
    columns: Sequence[tuple[str, str]], rows: Iterable[Sequence[str]], marked: int | None = None
) -> None:
    """Print a table.

    Args:
        columns: Heading and "left" or "right" of each.
        rows: Texts, one per column.
        marked: Number of the row to set off, the choice say.
    """
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading, side in columns:
        table.add_column(heading, justify="left" if side == "left" else "right", no_wrap=True)
    for number, row in enumerate(rows):
        table.add_row(*map(Text, row), style="bold green" if number == marked else None)
    console().print(table)


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
