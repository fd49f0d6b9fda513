"""The tuning database: models, devices, keys, runs, samples, verdicts, and views for people.

Literals only: a migration must do the same thing whatever the code around it becomes.

Revision ID: 0001
Revises:
"""

import sqlalchemy as sa
from alembic import op
from alembic.util import CommandError

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

# STRICT refuses a value of another type than the column's: a NumPy integer would otherwise
# be stored as a BLOB, and a text in place of a time would sort above every number.
STRICT = {"sqlite_strict": True}
# Clustered by its key: the samples of a run lie together, and no second index repeats the key.
CLUSTERED = {"sqlite_strict": True, "sqlite_with_rowid": False}

# STRICT knows INTEGER and REAL only; a server needs to be told that eight bytes are meant.
LONG: sa.types.TypeEngine[int] = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
NUMBER: sa.types.TypeEngine[float] = sa.Double().with_variant(sa.REAL(), "sqlite")

MODEL_COUNTS = ("nq", "nv", "nbody", "njnt", "nu", "ngeom", "nsensordata", "n_variants")


def upgrade() -> None:
    """Make everything: there is nothing before this."""
    facts_tables()
    run_tables()
    views()


def downgrade() -> None:
    """Refuse: going back would drop what was measured."""
    raise CommandError("tuner's migrations only go forward: put a backup of the file back instead")


def facts_tables() -> None:
    """What a key is made of. A fact that nobody stated is NULL: unknown, not zero."""
    op.create_table(
        "model",
        sa.Column("model_id", sa.Integer, nullable=False),
        sa.Column("digest", sa.Text, nullable=False),
        *(sa.Column(name, sa.Integer) for name in MODEL_COUNTS),
        sa.Column("other_facts", sa.Text),
        sa.PrimaryKeyConstraint("model_id", name="pk_model"),
        sa.UniqueConstraint("digest", name="uq_model_digest"),
        *(sa.CheckConstraint(f"{name} >= 0", name=f"ck_model_{name}") for name in MODEL_COUNTS),
        **STRICT,
    )
    op.create_table(
        "device",
        sa.Column("device_id", sa.Integer, nullable=False),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("system", sa.Text),
        sa.Column("machine", sa.Text),
        sa.Column("cpu_count", sa.Integer),
        sa.Column("other_facts", sa.Text),
        sa.PrimaryKeyConstraint("device_id", name="pk_device"),
        sa.UniqueConstraint("digest", name="uq_device_digest"),
        sa.CheckConstraint("cpu_count >= 1", name="ck_device_cpu_count"),
        **STRICT,
    )
    op.create_table(
        "tuning_key",
        sa.Column("key_id", sa.Integer, nullable=False),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("model_id", sa.Integer),
        sa.Column("device_id", sa.Integer),
        sa.Column("backend_type", sa.Text),
        sa.Column("num_envs", sa.Integer),
        sa.Column("nthread", sa.Integer),
        sa.Column("dtype", sa.Text),
        sa.Column("post_step_forward_sensor", sa.Integer),
        sa.Column("bench_nsteps", sa.Integer),
        sa.PrimaryKeyConstraint("key_id", name="pk_tuning_key"),
        sa.UniqueConstraint("digest", name="uq_tuning_key_digest"),
        sa.ForeignKeyConstraint(["model_id"], ["model.model_id"], name="fk_tuning_key_model"),
        sa.ForeignKeyConstraint(["device_id"], ["device.device_id"], name="fk_tuning_key_device"),
        sa.CheckConstraint("length(digest) BETWEEN 1 AND 1000", name="ck_tuning_key_digest"),
        sa.CheckConstraint("num_envs >= 1", name="ck_tuning_key_num_envs"),
        sa.CheckConstraint("nthread >= 1", name="ck_tuning_key_nthread"),
        sa.CheckConstraint(
            "post_step_forward_sensor IN (0, 1)", name="ck_tuning_key_post_step_forward_sensor"
        ),
        sa.CheckConstraint("bench_nsteps >= 1", name="ck_tuning_key_bench_nsteps"),
        **STRICT,
    )
    op.create_index("ix_tuning_key_model_id", "tuning_key", ["model_id"])
    op.create_index("ix_tuning_key_device_id", "tuning_key", ["device_id"])


def run_tables() -> None:
    """What was measured, and what it says. Times are UTC, ISO 8601, with a Z."""
    op.create_table(
        "run",
        sa.Column("run_id", sa.Integer, nullable=False),
        sa.Column("key_id", sa.Integer, nullable=False),
        sa.Column("uid", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("plan", sa.Text),
        sa.Column("work", sa.Text),
        sa.Column("pool", sa.Text),
        sa.Column("pool_version", sa.Text),
        sa.Column("seed", LONG),
        sa.Column("samples", sa.Integer, nullable=False),
        sa.Column("time_budget_seconds", NUMBER),
        sa.Column("pool_seconds", NUMBER),
        sa.Column("started_utc", sa.Text),
        sa.Column("finished_utc", sa.Text, nullable=False),
        sa.Column("model_file", sa.Text),
        sa.Column("hostname", sa.Text),
        sa.Column("pid", sa.Integer),
        sa.Column("load_average", NUMBER),
        sa.Column("tuner_version", sa.Text),
        sa.Column("mujoco_version", sa.Text),
        sa.Column("python_version", sa.Text),
        sa.Column("message", sa.Text),
        sa.Column("failed_chunk_sizes", sa.Text),
        sa.Column("other_facts", sa.Text),
        sa.PrimaryKeyConstraint("run_id", name="pk_run"),
        sa.UniqueConstraint("uid", name="uq_run_uid"),
        sa.ForeignKeyConstraint(
            ["key_id"], ["tuning_key.key_id"], name="fk_run_key", ondelete="CASCADE"
        ),
        sa.CheckConstraint(
            "state IN ('complete', 'cut short', 'failed', 'imported')", name="ck_run_state"
        ),
        sa.CheckConstraint("samples >= 0", name="ck_run_samples"),
        sa.CheckConstraint(
            "time_budget_seconds BETWEEN 0 AND 1e12", name="ck_run_time_budget_seconds"
        ),
        sa.CheckConstraint("pool_seconds BETWEEN 0 AND 1e12", name="ck_run_pool_seconds"),
        sa.CheckConstraint("load_average BETWEEN 0 AND 1e12", name="ck_run_load_average"),
        sa.CheckConstraint("started_utc LIKE '____-__-__T__:__:__%Z'", name="ck_run_started_utc"),
        sa.CheckConstraint("finished_utc LIKE '____-__-__T__:__:__%Z'", name="ck_run_finished_utc"),
        **STRICT,
    )
    op.create_index("ix_run_key_id", "run", ["key_id", "finished_utc"])
    op.create_table(
        "sample",
        sa.Column("run_id", sa.Integer, nullable=False),
        sa.Column("sample_order", sa.Integer, nullable=False),
        sa.Column("round", sa.Integer, nullable=False),
        sa.Column("chunk_size", sa.Integer),
        sa.Column("nanoseconds", LONG, nullable=False),
        sa.Column("warm_up", sa.Integer, nullable=False),
        sa.Column("steps", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("run_id", "sample_order", name="pk_sample"),
        sa.ForeignKeyConstraint(
            ["run_id"], ["run.run_id"], name="fk_sample_run", ondelete="CASCADE"
        ),
        sa.CheckConstraint("sample_order >= 0", name="ck_sample_sample_order"),
        sa.CheckConstraint("round >= 0", name="ck_sample_round"),
        sa.CheckConstraint("chunk_size >= 1", name="ck_sample_chunk_size"),
        sa.CheckConstraint("nanoseconds > 0", name="ck_sample_nanoseconds"),
        sa.CheckConstraint("warm_up IN (0, 1)", name="ck_sample_warm_up"),
        sa.CheckConstraint("steps >= 1", name="ck_sample_steps"),
        **CLUSTERED,
    )
    op.create_table(
        "verdict",
        sa.Column("key_digest", sa.Text, nullable=False),
        sa.Column("chunk_size", sa.Integer),
        sa.Column("decided", sa.Integer, nullable=False),
        sa.Column("reason", sa.Text),
        sa.Column("gain", NUMBER),
        sa.Column("gain_low", NUMBER),
        sa.Column("gain_high", NUMBER),
        sa.Column("runs", sa.Integer, nullable=False),
        sa.Column("samples", sa.Integer, nullable=False),
        sa.Column("latest_run_id", sa.Integer, nullable=False),
        sa.Column("last_measured_utc", sa.Text, nullable=False),
        sa.Column("per_candidate_ms", sa.Text),
        sa.PrimaryKeyConstraint("key_digest", name="pk_verdict"),
        sa.ForeignKeyConstraint(
            ["key_digest"], ["tuning_key.digest"], name="fk_verdict_key", ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["latest_run_id"], ["run.run_id"], name="fk_verdict_latest_run", ondelete="CASCADE"
        ),
        sa.CheckConstraint("chunk_size >= 1", name="ck_verdict_chunk_size"),
        sa.CheckConstraint("decided IN (0, 1)", name="ck_verdict_decided"),
        sa.CheckConstraint(
            "decided = 1 OR reason IS NOT NULL AND reason IN ('budget', 'noise', 'too few')",
            name="ck_verdict_reason",
        ),
        sa.CheckConstraint(
            "last_measured_utc LIKE '____-__-__T__:__:__%Z'", name="ck_verdict_last_measured_utc"
        ),
        sa.CheckConstraint(
            "gain_low BETWEEN -1e12 AND gain AND gain_high BETWEEN gain AND 1e12",
            name="ck_verdict_gain",
        ),
        sa.CheckConstraint("runs >= 1", name="ck_verdict_runs"),
        sa.CheckConstraint("samples >= 0", name="ck_verdict_samples"),
        **CLUSTERED,
    )
    op.create_index("ix_verdict_latest_run_id", "verdict", ["latest_run_id"])


def views() -> None:
    """Tables for people, with names that read like sentences."""
    # The median is the mean of the middle one or two, because SQLite has no median of its own.
    # It is found apart from the rest, so that a condition on the key reaches the tables: no
    # database carries one into a subquery that aggregates over a window.
    op.execute(
        """
        CREATE VIEW candidate_timing AS
        SELECT tuning_key, chunk_size, samples, min_ms, median_ms, mean_ms,
               median_ms / max(CASE WHEN chunk_size IS NULL THEN median_ms END)
                   OVER (PARTITION BY tuning_key) AS relative_to_default
        FROM (
            SELECT tuning_key, chunk_size, samples, min_ms, mean_ms,
                   (SELECT avg(ms) FROM (
                        SELECT sample.nanoseconds / 1e6 / sample.steps AS ms,
                               row_number() OVER (
                                   ORDER BY sample.nanoseconds * 1.0 / sample.steps
                               ) AS place
                        FROM run JOIN sample ON sample.run_id = run.run_id
                        WHERE run.key_id = timed.key_id AND sample.warm_up = 0
                          AND (sample.chunk_size = timed.chunk_size
                               OR sample.chunk_size IS NULL AND timed.chunk_size IS NULL)
                    ) AS ranked
                    WHERE 2 * place BETWEEN timed.samples AND timed.samples + 2) AS median_ms
            FROM (
                SELECT tuning_key.digest AS tuning_key, tuning_key.key_id, sample.chunk_size,
                       count(*) AS samples,
                       min(sample.nanoseconds / 1e6 / sample.steps) AS min_ms,
                       avg(sample.nanoseconds / 1e6 / sample.steps) AS mean_ms
                FROM tuning_key
                JOIN run ON run.key_id = tuning_key.key_id
                JOIN sample ON sample.run_id = run.run_id
                WHERE sample.warm_up = 0
                GROUP BY tuning_key.digest, tuning_key.key_id, sample.chunk_size
            ) AS timed
        ) AS compared
        """
    )
    op.execute(
        """
        CREATE VIEW tuning_overview AS
        SELECT tuning_key.digest AS tuning_key,
               latest.model_file,
               model.nq, model.nv, model.nbody, model.n_variants,
               device.system, device.machine, device.cpu_count,
               tuning_key.backend_type, tuning_key.num_envs, tuning_key.nthread, tuning_key.dtype,
               tuning_key.post_step_forward_sensor, tuning_key.bench_nsteps,
               verdict.chunk_size, verdict.decided, verdict.reason,
               verdict.gain, verdict.gain_low, verdict.gain_high,
               (SELECT count(*) FROM run WHERE run.key_id = tuning_key.key_id) AS runs,
               (SELECT sum(run.samples) FROM run WHERE run.key_id = tuning_key.key_id) AS samples,
               verdict.last_measured_utc
        FROM tuning_key
        LEFT JOIN model ON model.model_id = tuning_key.model_id
        LEFT JOIN device ON device.device_id = tuning_key.device_id
        LEFT JOIN verdict ON verdict.key_digest = tuning_key.digest
        LEFT JOIN run AS latest ON latest.run_id = verdict.latest_run_id
        """
    )
    op.execute(
        """
        CREATE VIEW run_history AS
        SELECT tuning_key.digest AS tuning_key, run.run_id, run.state, run.plan, run.work,
               run.pool, run.pool_version, run.started_utc, run.finished_utc,
               run.pool_seconds, run.time_budget_seconds,
               run.samples,
               run.hostname, run.pid, run.load_average, run.model_file,
               run.tuner_version, run.mujoco_version, run.python_version, run.message
        FROM run JOIN tuning_key ON tuning_key.key_id = run.key_id
        """
    )
