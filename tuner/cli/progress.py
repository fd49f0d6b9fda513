"""How a race looks while it runs: a bar on a terminal, a line now and then elsewhere. On stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import click

from tuner.cli.tables import relative

if TYPE_CHECKING:
    from tuner.racing.race import Progress

Item = TypeVar("Item")

LINE_EVERY_S = 2.0
TICKS = 1000
"""Of a whole bar."""


@contextmanager
def race_progress() -> Iterator[Callable[[Progress], None]]:
    """Show a race: its survivors, its leader with its interval, the time left."""
    if not sys.stderr.isatty():
        yield _plain_lines()
        return
    bar = click.progressbar(
        length=TICKS,
        file=sys.stderr,
        width=10,
        show_eta=False,
        show_percent=False,
        item_show_func=lambda standing: standing,
    )
    with bar:

        def show(progress: Progress) -> None:
            spent = progress.seconds / progress.budget_s if progress.budget_s else 1.0
            bar.update(min(TICKS, int(TICKS * spent)) - bar.pos, _standing(progress))

        yield show


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


def showing(deed: str) -> Callable[[Sequence[Item]], Iterator[Item]]:
    """Show on a terminal how far something goes through a list; elsewhere it is silent."""

    def through(items: Sequence[Item]) -> Iterator[Item]:
        hidden = not sys.stderr.isatty()
        with click.progressbar(items, label=deed, file=sys.stderr, hidden=hidden) as bar:
            yield from bar

    return through


LONG = 200_000
"""Samples, or bytes, from which on it is worth a bar."""


@contextmanager
def amount_progress(deed: str) -> Iterator[Callable[[int, int], None]]:
    """Show on a terminal how much of something long is done; elsewhere it is silent."""
    if not sys.stderr.isatty():
        yield lambda _, __: None
        return
    with click.progressbar(length=TICKS, label=deed, file=sys.stderr, show_eta=False) as bar:

        def show(done: int, total: int) -> None:
            if total >= LONG:
                bar.update(max(0, TICKS * done // total - bar.pos))

        yield show
