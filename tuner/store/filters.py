"""Which keys, or which of their runs, are meant: one set of filters for all that choose some.

A filter of keys goes by the line of `tuning_overview`, so that every command means the keys that
`tuner list` shows. A time is that of what a command handles: a run's end, or a key's last one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

FILE_NAME = "replace(model_file, rtrim(model_file, replace(model_file, '/', '')), '')"
"""The part of a path after its last slash: SQLite has no function for it."""


class Selection(NamedTuple):
    """What is meant; None does not matter."""

    key: str | None = None
    """The first characters of the key, with or without its scheme."""
    model: str | None = None
    """A pattern with * and ? for the model's file: its name, or the whole path."""
    device: str | None = None
    """A part of the CPU's model or of the instruction set, small or capital."""
    num_envs: int | None = None
    min_gain: float | None = None
    """The share that the measured choice saves at least."""
    decided: bool | None = None
    """Pinned keys are decided: by somebody."""
    since: str | None = None
    """A time as the database holds it, or its beginning."""
    until: str | None = None
    """Likewise; what is meant ended before it."""


EVERYTHING = Selection()
OF_KEYS = {
    "key": "(substr(tuning_key, 1, length(:key)) = :key"
    " OR substr(tuning_key, 1, 3 + length(:key)) = 'k1_' || :key)",
    "model": f"(model_file GLOB :model OR {FILE_NAME} GLOB :model)",
    "device": "(instr(lower(cpu_model), lower(:device)) OR instr(lower(machine), lower(:device)))",
    "num_envs": "num_envs = :num_envs",
    "min_gain": "gain >= :min_gain AND pinned_because IS NULL",
    "decided": "coalesce(decided, 0) + (pinned_because IS NOT NULL) > 0 = :decided",
}
"""Conditions on a line of `tuning_overview`."""
OF_TIMES = {"since": "{moment} >= :since", "until": "{moment} < :until"}


Condition = tuple[str, dict[str, Any]]
"""In SQL, with its parameters."""


def on_overview(selection: Selection) -> Condition:
    """Write the condition on a line of `tuning_overview`."""
    given = _given(selection)
    return _all(_keys(given) + _times(given, "last_measured_utc")), given


def on_runs(selection: Selection, moment: str) -> Condition:
    """Write the condition on a row that has a `tuning_key.digest`.

    Args:
        selection: What is meant.
        moment: The column of the time.
    """
    given = _given(selection)
    keys = _keys(given)
    chosen = f"tuning_key.digest IN (SELECT tuning_key FROM tuning_overview WHERE {_all(keys)})"
    return _all(([chosen] if keys else []) + _times(given, moment)), given


def _given(selection: Selection) -> dict[str, Any]:
    return {name: value for name, value in selection._asdict().items() if value is not None}


def _keys(given: Iterable[str]) -> list[str]:
    return [OF_KEYS[name] for name in given if name in OF_KEYS]


def _times(given: Iterable[str], moment: str) -> list[str]:
    return [OF_TIMES[name].format(moment=moment) for name in given if name in OF_TIMES]


def _all(conditions: list[str]) -> str:
    return " AND ".join(conditions) or "1"
