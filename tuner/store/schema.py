"""The columns that a key's facts have: which, of what type, and how much each one matters.

One list for all that goes by fields: writing a key, finding its nearest relative, explaining
what differs. docs/adding-a-key-field.md says what else a new one needs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from sqlalchemy import column, table

from tuner.records import LARGEST_INTEGER

LARGEST_NUMBER = 1e12
"""The largest fractional fact that the schema takes."""


LONGEST_TEXT = 100_000
"""Characters of a text of a run: a longer one could never come into another database."""


class Field(NamedTuple):
    """A fact of a key that has a column of its own."""

    kind: type
    weight: float
    """How far apart two keys are that differ in it, for the search of a near relative."""


COUNT = Field(int, 3)
SETTING = Field(int, 1)
NAME = Field(str, 1)

MODEL_FIELDS = {
    "nq": COUNT,
    "nv": COUNT,
    "nbody": COUNT,
    "njnt": COUNT,
    "nu": COUNT,
    "ngeom": COUNT,
    "nsensordata": Field(int, 1),
    "n_variants": COUNT,
    "integrator": NAME,
    "solver": NAME,
    "cone": NAME,
    "jacobian": NAME,
    "iterations": SETTING,
    "ls_iterations": SETTING,
    "noslip_iterations": SETTING,
    "ccd_iterations": SETTING,
    "disableflags": SETTING,
    "enableflags": SETTING,
    "ntendon": SETTING,
    "neq": SETTING,
    "npair": SETTING,
    "nmesh": SETTING,
    "nhfield": SETTING,
    "nplugin": SETTING,
    "nflex": SETTING,
}
DEVICE_FIELDS = {
    "system": Field(str, 1),
    "machine": Field(str, 4),
    "cpu_count": Field(int, 1),
    "cpu_model": Field(str, 3),
    "usable_cpus": Field(int, 2),
    "cpu_quota": Field(float, 2),
    "threads_per_core": Field(int, 1),
    "unequal_cores": Field(bool, 2),
    "numa_nodes": Field(int, 1),
}
RUN_PARAMETERS = {
    "backend_type": Field(str, 4),
    "num_envs": Field(int, 1),
    "nthread": Field(int, 2),
    "dtype": Field(str, 1),
    "post_step_forward_sensor": Field(bool, 1),
    "bench_nsteps": Field(int, 1),
}


def fitting(value: Any, kind: type) -> Any:
    """Give a fact as its column holds it; None if it does not fit there."""
    if kind is bool:
        return int(value) if type(value) is bool else None
    if kind is float:
        number = type(value) in (int, float) and 0 <= value <= LARGEST_NUMBER
        return float(value) if number else None
    if kind is int:
        return value if type(value) is int and 0 <= value <= LARGEST_INTEGER else None
    return value if type(value) is kind else None


def storable_text(text: str) -> str:
    """Write a text so that a database can hold it: file names may hold bytes that are no text."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")


model = table(
    "model",
    *map(column, ("model_id", "digest", *MODEL_FIELDS, "other_facts")),
)
device = table(
    "device",
    *map(column, ("device_id", "digest", *DEVICE_FIELDS, "other_facts")),
)
tuning_key = table(
    "tuning_key",
    *map(column, ("key_id", "digest", "model_id", "device_id", *RUN_PARAMETERS)),
)
run = table(
    "run",
    *map(
        column,
        (
            "run_id",
            "key_id",
            "uid",
            "state",
            "plan",
            "work",
            "pool",
            "pool_version",
            "seed",
            "samples",
            "time_budget_seconds",
            "pool_seconds",
            "started_utc",
            "finished_utc",
            "model_file",
            "hostname",
            "pid",
            "load_average",
            "tuner_version",
            "mujoco_version",
            "python_version",
            "message",
            "failed_chunk_sizes",
            "other_facts",
            "method",
            "occasion",
            "near_key",
            "has_choice",
            "chosen_chunk_size",
            "origin",
            "imported_utc",
        ),
    ),
)
sample = table(
    "sample",
    *map(
        column,
        ("run_id", "sample_order", "round", "chunk_size", "nanoseconds", "warm_up", "steps"),
    ),
)
verdict = table(
    "verdict",
    *map(
        column,
        (
            "key_digest",
            "stack",
            "mujoco_version",
            "pool",
            "pool_version",
            "method",
            "chunk_size",
            "decided",
            "reason",
            "gain",
            "gain_low",
            "gain_high",
            "expected_loss",
            "between_runs",
            "runs",
            "imported_runs",
            "samples",
            "pool_seconds",
            "latest_run_id",
            "last_measured_utc",
            "per_candidate_ms",
        ),
    ),
)
validator = table("validator", *map(column, ("name", "policy")))
pin = table("pin", *map(column, ("key_digest", "chunk_size", "reason", "pinned_utc")))
lookup = table("lookup", *map(column, ("key_digest", "day_utc", "kind", "lookups")))
