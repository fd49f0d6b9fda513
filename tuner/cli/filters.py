"""The options by which commands choose keys or runs: the same names, and the same meaning."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from tuner.cli.options import Command, FiniteRange
from tuner.records import LARGEST_INTEGER

if TYPE_CHECKING:
    from tuner.store.queries import Selection

UNITS = {"h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1)}
NEVER, ALWAYS = "", "~"
"""Texts before and after each time that the database can hold."""


def _text(_: click.Context, __: click.Parameter, text: str | None) -> str | None:
    if text == "":  # a shell's unset variable, in which all would be meant
        raise click.BadParameter("it is empty: leave it out where all are meant")
    return text


def _moment(text: str | None, more: timedelta) -> str | None:
    """Read a day or an age as a time that the database may hold, or its beginning."""
    if text is None:
        return None
    number, unit = text[:-1], UNITS.get(text[-1:])
    try:
        if unit is not None and number.isascii() and number.isdecimal():
            return f"{datetime.now(UTC) - unit * int(number):%Y-%m-%dT%H:%M:%S}"
        return (date.fromisoformat(text) + more).isoformat()
    except OverflowError:
        return NEVER if unit else ALWAYS  # before there were years, or after
    except ValueError:
        raise click.BadParameter(
            f"{text[:40]!r} is neither a day, such as 2026-01-31, nor an age, such as 12h, 7d or 3w"
        ) from None


def _since(_: click.Context, __: click.Parameter, text: str | None) -> str | None:
    return _moment(text, timedelta())


def _until(_: click.Context, __: click.Parameter, text: str | None) -> str | None:
    return _moment(text, timedelta(days=1))  # that whole day


OPTIONS = (
    click.option("--key", metavar="PREFIX", callback=_text, help="Keys that start so."),
    click.option(
        "--model",
        metavar="GLOB",
        callback=_text,
        help="Keys whose model file's name, or whole path, matches a pattern with * and ?.",
    ),
    click.option(
        "--device",
        metavar="TEXT",
        callback=_text,
        help="Keys of CPUs, or instruction sets, with TEXT in their name.",
    ),
    click.option(
        "--num-envs", metavar="N", type=click.IntRange(min=1), help="Keys of N environments."
    ),
    click.option(
        "--min-gain",
        metavar="PERCENT",
        type=FiniteRange(),
        help="Keys whose choice is measured to save so much of the default's time.",
    ),
    click.option(
        "--decided/--undecided",
        default=None,
        help="Keys that are decided, by timings or by a pin; or those that are not.",
    ),
    click.option(
        "--since",
        metavar="WHEN",
        callback=_since,
        help="What was measured on a day (2026-01-31, UTC) or later, or at most so long ago "
        "(12h, 7d, 3w).",
    ),
    click.option(
        "--until",
        metavar="WHEN",
        callback=_until,
        help="What was measured on a day (2026-01-31, UTC) or earlier, or longer ago than that "
        "(12h, 7d, 3w).",
    ),
)


def filter_options(command: Command) -> Command:
    """Add the filters; all that are given hold together."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


def selected(*, num_envs: int | None, min_gain: float | None, **others: Any) -> Selection:
    """Say what `filter_options` describe."""
    from tuner.store.queries import Selection

    return Selection(
        num_envs=None if num_envs is None else min(num_envs, LARGEST_INTEGER),
        min_gain=None if min_gain is None else min_gain / 100,
        **others,
    )
