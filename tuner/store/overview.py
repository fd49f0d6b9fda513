"""Reads the overview of the keys: which of them, in which order. Standard library only.

What is asked for is asked of SQLite, so that of ten thousand keys only those wanted are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from tuner.store.views import Row, one_moment

Order = Literal["key", "model", "envs", "gain", "measured"]
FILE_NAME = "replace(model_file, rtrim(model_file, replace(model_file, '/', '')), '')"
"""The part of a path after its last slash: SQLite has no function for it."""
ORDERS: dict[Order, tuple[str, bool]] = {
    "key": ("tuning_key", False),
    "model": (FILE_NAME, False),
    "envs": ("num_envs", False),
    "gain": ("CASE WHEN pinned_because IS NULL THEN gain END", True),
    "measured": ("last_measured_utc", True),
}
"""What the keys go by, and whether the greatest is of the most interest."""


class Wanted(NamedTuple):
    """Which keys are wanted; None does not matter."""

    model: str | None = None
    """A pattern with * and ? for the model's file: its name, or the whole path."""
    device: str | None = None
    """A part of the CPU's model or of the instruction set, small or capital."""
    num_envs: int | None = None
    least_gain: float | None = None
    """The share that the measured choice saves at least."""
    decided: bool | None = None
    """Pinned keys are decided: by somebody."""
    since: str | None = None
    """A time as the database holds it, or its beginning."""


CONDITIONS = {
    "model": f"(model_file GLOB :model OR {FILE_NAME} GLOB :model)",
    "device": "(instr(lower(cpu_model), lower(:device)) OR instr(lower(machine), lower(:device)))",
    "num_envs": "num_envs = :num_envs",
    "least_gain": "gain >= :least_gain AND pinned_because IS NULL",
    "decided": "coalesce(decided, 0) + (pinned_because IS NOT NULL) > 0 = :decided",
    "since": "last_measured_utc >= :since",
}
ALL = Wanted()


def read_overview(
    database: Path,
    wanted: Wanted = ALL,
    *,
    order: Order = "measured",
    reverse: bool = False,
    columns: Sequence[str] = ("*",),
) -> list[Row]:
    """Read the view `tuning_overview`.

    Args:
        database: The file.
        wanted: Which keys.
        order: What they go by: the greatest gain and the last measured first, else the least.
        reverse: The other way round; what has no value comes last all the same.
        columns: The view's columns; SQLite does not work out those that are not asked for.

    Raises:
        SchemaError, DatabaseError: as `one_moment`.
    """
    known = {name: value for name, value in wanted._asdict().items() if value is not None}
    conditions = " AND ".join(CONDITIONS[name] for name in known) or "1"
    by, greatest_first = ORDERS[order]
    direction = "DESC" if greatest_first != reverse else "ASC"
    with one_moment(database) as rows:
        return rows(
            f"SELECT {', '.join(columns)} FROM tuning_overview WHERE {conditions} "
            f"ORDER BY {by} {direction} NULLS LAST, tuning_key",
            known,
        )
