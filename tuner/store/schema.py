"""The tables and views of the database, each column listed once.

The migrations make the files; a test compares these tables with what they made. A fact of a
key carries in `Column.info` its Python type and its weight in the search for similar keys.
docs/adding-a-key-field.md says what else a new one needs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import sqlalchemy as sa

from tuner.records import LARGEST_INTEGER

LARGEST_NUMBER = 1e12
"""The largest fractional fact that the schema takes."""

LONGEST_TEXT = 100_000
"""Characters of a text of a run: imports refuse longer ones."""

NUMBER: sa.types.TypeEngine[float] = sa.Double().with_variant(sa.REAL(), "sqlite")
LONG: sa.types.TypeEngine[int] = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
TYPES: dict[type, Any] = {int: sa.Integer, bool: sa.Integer, str: sa.Text, float: NUMBER}
"""Truth values are stored as 0 and 1."""


class Field(NamedTuple):
    """A fact of a key that has a column of its own."""

    kind: type
    weight: float
    """The distance between two keys that differ in it."""


def _facts(kind: type, weight: float, *names: str) -> list[sa.Column[Any]]:
    field = Field(kind, weight)
    return [sa.Column(name, TYPES[kind], info={"field": field}) for name in names]


def _texts(*names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, sa.Text) for name in names]


def _numbers(*names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, NUMBER) for name in names]


def _required(kind: Any, *names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, kind, nullable=False) for name in names]


def _parent(column: str) -> sa.ForeignKey:
    return sa.ForeignKey(column, ondelete="CASCADE")


metadata = sa.MetaData()
model = sa.Table(
    "model",
    metadata,
    sa.Column("model_id", sa.Integer, primary_key=True),
    sa.Column("digest", sa.Text, nullable=False, unique=True),
    *_facts(int, 3, "nq", "nv", "nbody", "njnt", "nu", "ngeom"),
    *_facts(int, 1, "nsensordata"),
    *_facts(int, 3, "n_variants"),
    *_facts(str, 1, "integrator", "solver", "cone", "jacobian"),
    *_facts(int, 1, "iterations", "ls_iterations", "noslip_iterations", "ccd_iterations"),
    *_facts(int, 1, "disableflags", "enableflags"),
    *_facts(int, 1, "ntendon", "neq", "npair", "nmesh", "nhfield", "nplugin", "nflex"),
    sa.Column("other_facts", sa.Text),
)
device = sa.Table(
    "device",
    metadata,
    sa.Column("device_id", sa.Integer, primary_key=True),
    sa.Column("digest", sa.Text, nullable=False, unique=True),
    *_facts(str, 1, "system"),
    *_facts(str, 4, "machine"),
    *_facts(int, 1, "cpu_count"),
    *_facts(str, 3, "cpu_model"),
    *_facts(int, 2, "usable_cpus"),
    *_facts(float, 2, "cpu_quota"),
    *_facts(int, 1, "threads_per_core"),
    *_facts(bool, 2, "unequal_cores"),
    *_facts(int, 1, "numa_nodes"),
    sa.Column("other_facts", sa.Text),
)
tuning_key = sa.Table(
    "tuning_key",
    metadata,
    sa.Column("key_id", sa.Integer, primary_key=True),
    sa.Column("digest", sa.Text, nullable=False, unique=True),
    sa.Column("model_id", sa.ForeignKey("model.model_id")),
    sa.Column("device_id", sa.ForeignKey("device.device_id")),
    *_facts(str, 4, "backend_type"),
    *_facts(int, 1, "num_envs"),
    *_facts(int, 2, "nthread"),
    *_facts(str, 1, "dtype"),
    *_facts(bool, 1, "post_step_forward_sensor"),
    *_facts(int, 1, "bench_nsteps"),
)
run = sa.Table(
    "run",
    metadata,
    sa.Column("run_id", sa.Integer, primary_key=True),
    sa.Column("key_id", _parent("tuning_key.key_id"), nullable=False),
    sa.Column("uid", sa.Text, nullable=False, unique=True),
    *_required(sa.Text, "state"),
    *_texts("plan", "work", "pool", "pool_version"),
    sa.Column("seed", LONG),
    *_required(sa.Integer, "samples"),
    *_numbers("time_budget_seconds", "pool_seconds"),
    *_texts("started_utc"),
    *_required(sa.Text, "finished_utc"),
    *_texts("model_file", "hostname"),
    sa.Column("pid", sa.Integer),
    *_numbers("load_average"),
    *_texts("tuner_version", "mujoco_version", "python_version", "message"),
    *_texts("failed_chunk_sizes", "other_facts", "method", "occasion", "near_key"),
    sa.Column("has_choice", sa.Integer),
    sa.Column("chosen_chunk_size", sa.Integer),
    *_texts("origin", "imported_utc"),
)
sample = sa.Table(
    "sample",
    metadata,
    sa.Column("run_id", _parent("run.run_id"), primary_key=True),
    sa.Column("sample_order", sa.Integer, primary_key=True),
    *_required(sa.Integer, "round"),
    sa.Column("chunk_size", sa.Integer),
    *_required(LONG, "nanoseconds"),
    *_required(sa.Integer, "warm_up", "steps"),
)
verdict = sa.Table(
    "verdict",
    metadata,
    sa.Column("key_digest", _parent("tuning_key.digest"), primary_key=True),
    sa.Column("stack", sa.Text, primary_key=True),
    *_texts("mujoco_version", "pool", "pool_version", "method"),
    sa.Column("chunk_size", sa.Integer),
    *_required(sa.Integer, "decided"),
    *_texts("reason"),
    *_numbers("gain", "gain_low", "gain_high", "expected_loss", "between_runs"),
    *_required(sa.Integer, "runs", "imported_runs", "samples"),
    *_numbers("pool_seconds"),
    sa.Column("latest_run_id", _parent("run.run_id"), nullable=False),
    *_required(sa.Text, "last_measured_utc"),
    *_texts("per_candidate_ms"),
)
validator = sa.Table(
    "validator",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    *_required(sa.Text, "policy"),
)
pin = sa.Table(
    "pin",
    metadata,
    sa.Column("key_digest", _parent("tuning_key.digest"), primary_key=True),
    sa.Column("chunk_size", sa.Integer),
    *_required(sa.Text, "reason", "pinned_utc"),
)
lookup = sa.Table(  # part of schema 0002, no longer written
    "lookup",
    metadata,
    *(sa.Column(name, sa.Text, primary_key=True) for name in ("key_digest", "day_utc", "kind")),
    *_required(sa.Integer, "lookups"),
)

ENVIRONMENT_COLUMNS = ("mujoco_version", "pool", "pool_version", "method")
"""The columns of an Environment in `run` and `verdict`, in the order of its fields."""

RUN_ATTRIBUTES = {
    **{name: name for name in ("uid", "state", "work", "seed", "pool_seconds", "origin")},
    **{name: name for name in ("time_budget_seconds", "model_file", "message")},
    "plan": "strategy",
    "occasion": "trigger",
    "near_key": "warm_start_key",
}
"""Columns of `run` that hold an attribute of a Run as it is."""


def _fields(table: sa.Table) -> dict[str, Field]:
    return {str(column.name): column.info["field"] for column in table.columns if column.info}


MODEL_FIELDS = _fields(model)
DEVICE_FIELDS = _fields(device)
RUN_PARAMETERS = _fields(tuning_key)
FACTS: dict[str, sa.Column[Any]] = {
    column.name: column
    for table in (model, device, tuning_key)
    for column in table.columns
    if column.info
}
"""The columns of a key's facts by name."""


def _view(name: str, *columns: str) -> sa.TableClause:
    return sa.table(name, *map(sa.column, columns))


def _names(table: sa.Table, *without: str) -> list[str]:
    return [column.name for column in table.columns if column.name not in without]


tuning_overview = _view(
    "tuning_overview",
    *("tuning_key", "model_file", "nq", "nv", "nbody", "n_variants"),
    *("system", "machine", "cpu_model", "cpu_count", "usable_cpus", "cpu_quota"),
    *RUN_PARAMETERS,
    *("chunk_size", "pinned_because", "decided", "reason", "gain", "gain_low", "gain_high"),
    *("runs", "samples", "pool", "stack", "last_measured_utc"),
)
run_history = _view(
    "run_history",
    *("tuning_key", "run_id", "state", "occasion", "plan", "work", "method", "near_key"),
    *("pool", "pool_version", "started_utc", "finished_utc", "pool_seconds"),
    *("time_budget_seconds", "samples", "has_choice", "chosen_chunk_size", "hostname", "pid"),
    *("load_average", "model_file", "tuner_version", "mujoco_version", "python_version"),
    *("message", "origin", "imported_utc"),
)
choice_quality = _view(
    "choice_quality",
    "tuning_key",
    *_names(verdict, "key_digest", *ENVIRONMENT_COLUMNS, "latest_run_id", "per_candidate_ms"),
)
candidate_timing = _view(
    "candidate_timing",
    *("tuning_key", "chunk_size", "samples", "min_ms", "median_ms", "mean_ms"),
    "relative_to_default",
)


def fitting(value: Any, kind: type) -> Any:
    """Return a fact as its column holds it; None if it does not fit there."""
    if kind is bool:
        return int(value) if type(value) is bool else None
    if kind is float:
        number = type(value) in (int, float) and 0 <= value <= LARGEST_NUMBER
        return float(value) if number else None
    if kind is int:
        return value if type(value) is int and 0 <= value <= LARGEST_INTEGER else None
    return value if type(value) is kind else None


def storable_text(text: str) -> str:
    """Escape what a database text cannot hold: file names may hold undecodable bytes."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")
