"""Reads the overview of the keys: which of them, in which order. Standard library only.

What is asked for is asked of SQLite, so that of ten thousand keys only those wanted are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from tuner.store.filters import EVERYTHING, FILE_NAME, Selection, on_overview
from tuner.store.views import Row, one_moment

Order = Literal["key", "model", "envs", "gain", "measured"]
ORDERS: dict[Order, tuple[str, bool]] = {
    "key": ("tuning_key", False),
    "model": (FILE_NAME, False),
    "envs": ("num_envs", False),
    "gain": ("CASE WHEN pinned_because IS NULL THEN gain END", True),
    "measured": ("last_measured_utc", True),
}
"""What the keys go by, and whether the greatest is of the most interest."""


def read_overview(
    database: Path,
    selection: Selection = EVERYTHING,
    *,
    order: Order = "measured",
    reverse: bool = False,
    columns: Sequence[str] = ("*",),
) -> list[Row]:
    """Read the view `tuning_overview`.

    Args:
        database: The file.
        selection: Which keys.
        order: What they go by: the greatest gain and the last measured first, else the least.
        reverse: The other way round; what has no value comes last all the same.
        columns: The view's columns; SQLite does not work out those that are not asked for.

    Raises:
        SchemaError, DatabaseError: as `one_moment`.
    """
    condition, given = on_overview(selection)
    by, greatest_first = ORDERS[order]
    direction = "DESC" if greatest_first != reverse else "ASC"
    with one_moment(database) as rows:
        return rows(
            f"SELECT {', '.join(columns)} FROM tuning_overview WHERE {condition} "
            f"ORDER BY {by} {direction} NULLS LAST, tuning_key",
            given,
        )
