"""How numbers and stored texts are written for people: in tables, pictures and the report."""

from __future__ import annotations

from typing import Any

MOST_DIGITS = 1e4
"""Per cent from which on only the magnitude is told."""


def printable(text: str) -> str:
    """Keep a stored text from moving the cursor or breaking the line."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def milliseconds(value: float | None) -> str:
    """Write a time of one step."""
    return "" if value is None else f"{value:.4g}"


def relative(value: float | None) -> str:
    """Write a time over the native default's as a difference: 0.94 is -6.0 %."""
    return "" if value is None else _per_cent(value - 1, "+")


def percent(value: float | None) -> str:
    """Write a share in per cent."""
    return "" if value is None else _per_cent(value, "")


def _per_cent(share: float, sign: str) -> str:
    """Write a share; no zero has a sign, and no timing gone astray makes a table wide."""
    rounded = round(share * 100, 1)
    if rounded == 0:
        return "0.0 %"
    return f"{rounded:{sign}{'.1f' if abs(rounded) < MOST_DIGITS else '.0e'}} %"


def candidate_name(chunk_size: Any) -> str:
    """Name a candidate in a table."""
    return "default" if chunk_size in (None, "None") else str(chunk_size)


def interval(low: float | None, high: float | None) -> str:
    """Write the ends of an interval of shares."""
    return "" if low is None or high is None else f"{percent(low)} to {percent(high)}"


def counted(number: int, what: str) -> str:
    """Write how many there are: "1 run", "2 runs", "12,000 runs"."""
    digits = f"{number:,}" if number >= 10_000 else str(number)
    return f"{digits} {what}" + ("" if number == 1 else "s")


def minute(moment: str | None) -> str:
    """Write a stored time to the minute."""
    return (moment or "")[:16].replace("T", " ")


def number(value: float | None, digits: int = 2) -> str:
    """Write a number that may be unknown."""
    return "" if value is None else f"{value:.{digits}f}"
