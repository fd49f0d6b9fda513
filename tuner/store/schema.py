"""The names of tables and columns, for SQLAlchemy Core. Not their definition.

Migrations are the schema's only author; a test compares these names with what they made.
"""

from sqlalchemy import column, table

from tuner.store.fields import DEVICE_FIELDS, MODEL_FIELDS, RUN_PARAMETERS

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
