"""Finds keys to compare, and reads what is compared. Standard library only."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from tuner.store.fields import RUN_PARAMETERS
from tuner.store.lookup import timings_of
from tuner.store.views import Row, one_moment

By = Literal["device", "num_envs", "nthread"]
SAME = {
    "model": "other.model_id = mine.model_id",
    "device": "other.device_id = mine.device_id",
    **{name: f"other.{name} IS mine.{name}" for name in RUN_PARAMETERS},
}
"""A key that was stored by its text alone knows nothing to compare by: it finds itself only."""
DIFFERING: dict[By, tuple[tuple[str, ...], str]] = {
    # a device that has more cores is given more threads
    "device": (("device", "nthread"), "other.device_id <> mine.device_id"),
    "num_envs": (("num_envs",), "other.num_envs <> mine.num_envs"),
    "nthread": (("nthread",), "other.nthread <> mine.nthread"),
}
"""What may differ, and what has to."""
COLUMNS = """
    SELECT overview.tuning_key, model_file, system, machine, cpu_model, cpu_count, usable_cpus,
           num_envs, nthread, overview.chunk_size, pinned_because, overview.decided,
           overview.reason, overview.gain, overview.gain_low, overview.gain_high, overview.stack,
           overview.last_measured_utc, verdict.per_candidate_ms
    FROM tuning_overview AS overview LEFT JOIN verdict
        ON verdict.key_digest = overview.tuning_key AND verdict.stack = overview.stack
"""


def keys_alike(database: Path, key: str, by: By) -> list[str]:
    """List the keys that differ from one in one thing, the key itself among them.

    Raises:
        SchemaError, DatabaseError: as `one_moment`.
    """
    free, differs = DIFFERING[by]
    same = [condition for name, condition in SAME.items() if name not in free]
    conditions = " AND ".join([*same, differs])
    with one_moment(database) as rows:
        found = rows(
            "SELECT other.digest FROM tuning_key AS mine JOIN tuning_key AS other "
            f"ON other.digest = mine.digest OR {conditions} "
            "LEFT JOIN device ON device.device_id = other.device_id WHERE mine.digest = ? "
            "ORDER BY other.num_envs, other.nthread, device.cpu_model, other.digest",
            (key,),
        )
    return [row["digest"] for row in found]


def read_compared(database: Path, keys: Sequence[str]) -> list[Row]:
    """Read what `tuner compare` shows of some keys, in their order, timings as numbers.

    Raises:
        SchemaError, DatabaseError: as `one_moment`.
    """
    with one_moment(database) as rows:
        found = [row for key in keys for row in rows(f"{COLUMNS} WHERE tuning_key = ?", (key,))]
    return [row | {"per_candidate_ms": timings_of(row["per_candidate_ms"])} for row in found]
