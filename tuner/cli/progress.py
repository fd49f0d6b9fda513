"""How a race looks while it runs: a bar on a terminal, a line now and then elsewhere. On stderr."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar

from tuner.cli.tables import console, relative

if TYPE_CHECKING:
    from tuner.race import Progress

LINE_EVERY_S = 2.0


@contextmanager
def race_progress() -> Iterator[Callable[[Progress], None]]:
    """Show a race: its survivors, its leader with its interval, the time left."""
    out = console(stderr=True)
    if not out.is_terminal:
        yield _plain_lines()
        return
    bar = Bar(TextColumn("measuring"), BarColumn(20), TextColumn("{task.description}"), console=out)
    task = bar.add_task("warming up", total=1.0)

    def show(progress: Progress) -> None:
        if not bar.live.is_started:
            bar.start()
        share = min(1.0, progress.seconds / progress.budget_s) if progress.budget_s else 1.0
        bar.update(task, completed=share, description=_standing(progress))

    try:
        yield show
    finally:
        bar.stop()


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
        leader = (
            f"chunk {progress.leader} leads at {relative(progress.relative)} "
            f"({relative(progress.low)} to {relative(progress.high)})"
        )
    return f"{progress.survivors} candidates in the race, {leader}, at most {left:.1f} s left"
