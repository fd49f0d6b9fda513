"""Runs with made-up timings, stored as a measurement stores them, and commands in this process."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest

from tuner.cli import main
from tuner.environment import PROTOCOL, Environment
from tuner.records import Candidate, Run, Sample, Verdict
from tuner.store.runs import save_run

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
HERE = Environment("4.0.0", "mujoco.rollout", "4.0.0", PROTOCOL)
FASTER: Mapping[int | None, float] = {None: 9.4, 4: 8.0, 8: 9.1, 32: 12.0}
"""Milliseconds of a step by chunk size: 4 wins clearly."""
ALIKE: Mapping[int | None, float] = {None: 8.0, 4: 8.8, 8: 9.1, 32: 12.0}
"""The default wins clearly."""


def a_run(number: int, costs: Mapping[int | None, float] = FASTER, **changes: Any) -> Run:
    """Make up the run of an hour, 1 % of noise on its timings; the same each time."""
    draw = random.Random(number)
    pairs = changes.pop("pairs", 12)
    best = min((chunk for chunk in costs if chunk), key=lambda chunk: costs[chunk])
    rounds: list[tuple[int, int | None]] = [(0, None), *((1, chunk) for chunk in costs)]
    rounds += [
        (2 + k // 2, chunk) for k in range(pairs) for chunk in ((None, best), (best, None))[k % 2]
    ]
    samples = tuple(
        Sample(
            candidate=Candidate(chunk),
            block=block,
            order=order,
            nanoseconds=round(costs[chunk] * 1e6 * draw.lognormvariate(0.0, 0.01)),
            warm_up=block == 0,
        )
        for order, (block, chunk) in enumerate(rounds)
    )
    facts: dict[str, Any] = {
        "state": "complete",
        "uid": f"{number:032x}",
        "finished": NOON + timedelta(hours=number),
        "strategy": "race",
        "samples": samples,
        "environment": HERE,
        "trigger": "new",
        "pool_seconds": sum(s.nanoseconds for s in samples) / 1e9,
        "model_file": "robots/quadruped.xml",
    }
    return Run(**(facts | changes))


def store(database: Path, key: str, *runs: Run) -> Verdict | None:
    """Store runs of a key, one after the other; the verdict after the last."""
    verdict = None
    for run in runs:
        verdict = save_run(database, key, run)
    return verdict


def rows_of(database: Path, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
    """Ask a database, or change it."""
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("PRAGMA foreign_keys = ON")
        return connection.execute(statement, parameters).fetchall()


def commands(group: click.Group = main) -> Iterator[tuple[str, ...]]:
    """List all commands, each as the words that call it; a group before its own."""
    for name, command in group.commands.items():
        yield (name,)
        if isinstance(command, click.Group):
            yield from ((name, *words) for words in commands(command))


class Told(NamedTuple):
    """What a command told."""

    code: int
    out: str
    err: str


class Shell:
    """Runs commands within this process: a new one takes half a second."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: object) -> Told:
        """Run a command."""
        self._capsys.readouterr()
        try:
            main([str(argument) for argument in arguments], prog_name="tuner")
            code: Any = 0
        except SystemExit as end:
            code = end.code
        return Told(code or 0, *self._capsys.readouterr())

    def refused(self, *arguments: object, code: int = 1) -> str:
        """Run a command that must be refused, in one clear line where the call itself is right."""
        told = self(*arguments)
        assert told.code == code, told
        assert told.out == ""
        assert "Error: " in told.err if code == 2 else told.err.startswith("tuner: ")
        assert code == 2 or told.err.count("\n") == 1, told.err
        assert not any(bad in told.err for bad in ("Traceback", "Error:  ", "NoneType"))
        return told.err


def contents(folder: Path) -> dict[str, bytes]:
    """Read all files of a folder."""
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}
