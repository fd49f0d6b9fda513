"""More identity, validators, a verdict for each software stack, pins, and what was looked up.

A row from before keeps all it had; what it does not know stays NULL, which means unknown.
Literals only: a migration must do the same thing whatever the code around it becomes.

Revision ID: 0002
Revises: 0001
"""

from typing import Any

import sqlalchemy as sa
from alembic import op
from alembic.util import CommandError

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

STRICT = {"sqlite_strict": True}
CLUSTERED = {"sqlite_strict": True, "sqlite_with_rowid": False}
NUMBER: sa.types.TypeEngine[float] = sa.Double().with_variant(sa.REAL(), "sqlite")

DEVICE_FACTS: tuple[tuple[str, sa.types.TypeEngine[Any], str | None], ...] = (
    ("cpu_model", sa.Text(), None),
    ("usable_cpus", sa.Integer(), ">= 1"),
    ("cpu_quota", NUMBER, "BETWEEN 0 AND 1e12"),
    ("threads_per_core", sa.Integer(), ">= 1"),
    ("unequal_cores", sa.Integer(), "IN (0, 1)"),
    ("numa_nodes", sa.Integer(), ">= 1"),
)
MODEL_SETTINGS = ("integrator", "solver", "cone", "jacobian")
MODEL_COUNTS = (
    "iterations",
    "ls_iterations",
    "noslip_iterations",
    "ccd_iterations",
    "disableflags",
    "enableflags",
    "ntendon",
    "neq",
    "npair",
    "nmesh",
    "nhfield",
    "nplugin",
    "nflex",
)


def upgrade() -> None:
    """Widen the facts, then make the verdicts anew beside the old ones."""
    for view in ("run_history", "tuning_overview"):
        op.execute(f"DROP VIEW {view}")
    for name, kind, rule in DEVICE_FACTS:
        add_column("device", name, kind, rule)
    for name in MODEL_SETTINGS:
        add_column("model", name, sa.Text())
    for name in MODEL_COUNTS:
        add_column("model", name, sa.Integer(), ">= 0")
    run_columns()
    verdict_for_each_stack()
    new_tables()
    views()


def downgrade() -> None:
    """Refuse: going back would drop what was measured."""
    raise CommandError("tuner's migrations only go forward: put a backup of the file back instead")


def add_column(
    table: str, name: str, kind: sa.types.TypeEngine[Any], rule: str | None = None
) -> None:
    """Add a column with a named rule, which alembic leaves out on SQLite."""
    text = kind.compile(dialect=op.get_bind().dialect)
    check = f" CONSTRAINT ck_{table}_{name} CHECK ({name} {rule})" if rule else ""
    op.execute(f"ALTER TABLE {table} ADD COLUMN {name} {text}{check}")


def run_columns() -> None:
    """What a run was made for, by what method, what it chose by itself, and where it is from."""
    add_column("run", "method", sa.Text())
    add_column(
        "run",
        "occasion",
        sa.Text(),
        "IN ('new', 'near', 'adopted', 'outdated', 'resumed', 'forced', 'verify', 'stated')",
    )
    add_column("run", "near_key", sa.Text())
    add_column("run", "has_choice", sa.Integer(), "IN (0, 1)")
    add_column("run", "chosen_chunk_size", sa.Integer(), ">= 1")
    add_column("run", "origin", sa.Text())
    add_column("run", "imported_utc", sa.Text(), "LIKE '____-__-__T__:__:__%Z'")
    # Until now a verdict was its latest run's own.
    op.execute(
        """
        UPDATE run SET
            has_choice = EXISTS (SELECT 1 FROM verdict WHERE verdict.latest_run_id = run.run_id),
            chosen_chunk_size = (
                SELECT verdict.chunk_size FROM verdict WHERE verdict.latest_run_id = run.run_id
            )
        """
    )
    op.execute("UPDATE run SET occasion = 'stated' WHERE state = 'imported'")


def verdict_for_each_stack() -> None:
    """Give a key a verdict for each software stack that it was measured with.

    Otherwise two jobs with different pools would undo each other's verdict for ever.
    """
    op.drop_index("ix_verdict_latest_run_id", "verdict")
    op.rename_table("verdict", "verdict_of_0001")
    op.create_table(
        "verdict",
        sa.Column("key_digest", sa.Text, nullable=False),
        sa.Column("stack", sa.Text, nullable=False),
        sa.Column("mujoco_version", sa.Text),
        sa.Column("pool", sa.Text),
        sa.Column("pool_version", sa.Text),
        sa.Column("method", sa.Text),
        sa.Column("chunk_size", sa.Integer),
        sa.Column("decided", sa.Integer, nullable=False),
        sa.Column("reason", sa.Text),
        sa.Column("gain", NUMBER),
        sa.Column("gain_low", NUMBER),
        sa.Column("gain_high", NUMBER),
        sa.Column("expected_loss", NUMBER),
        sa.Column("between_runs", NUMBER),
        sa.Column("runs", sa.Integer, nullable=False),
        sa.Column("imported_runs", sa.Integer, nullable=False),
        sa.Column("samples", sa.Integer, nullable=False),
        sa.Column("pool_seconds", NUMBER),
        sa.Column("latest_run_id", sa.Integer, nullable=False),
        sa.Column("last_measured_utc", sa.Text, nullable=False),
        sa.Column("per_candidate_ms", sa.Text),
        sa.PrimaryKeyConstraint("key_digest", "stack", name="pk_verdict"),
        sa.ForeignKeyConstraint(
            ["key_digest"], ["tuning_key.digest"], name="fk_verdict_key", ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["latest_run_id"], ["run.run_id"], name="fk_verdict_latest_run", ondelete="CASCADE"
        ),
        sa.CheckConstraint("chunk_size >= 1", name="ck_verdict_chunk_size"),
        sa.CheckConstraint("decided IN (0, 1)", name="ck_verdict_decided"),
        sa.CheckConstraint(
            "CASE decided WHEN 1 THEN reason IS NULL OR reason = 'tie' ELSE reason IS NOT NULL "
            "AND reason IN ('budget', 'noise', 'too few', 'contradiction') END",
            name="ck_verdict_reason",
        ),
        sa.CheckConstraint(
            "last_measured_utc LIKE '____-__-__T__:__:__%Z'", name="ck_verdict_last_measured_utc"
        ),
        sa.CheckConstraint(
            "gain_low BETWEEN -1e12 AND gain AND gain_high BETWEEN gain AND 1e12",
            name="ck_verdict_gain",
        ),
        sa.CheckConstraint("expected_loss BETWEEN 0 AND 1e12", name="ck_verdict_expected_loss"),
        sa.CheckConstraint("between_runs BETWEEN 0 AND 1e12", name="ck_verdict_between_runs"),
        sa.CheckConstraint("runs >= 1", name="ck_verdict_runs"),
        sa.CheckConstraint("imported_runs BETWEEN 0 AND runs", name="ck_verdict_imported_runs"),
        sa.CheckConstraint("samples >= 0", name="ck_verdict_samples"),
        sa.CheckConstraint("pool_seconds BETWEEN 0 AND 1e12", name="ck_verdict_pool_seconds"),
        **CLUSTERED,
    )
    op.execute(
        """
        INSERT INTO verdict
        SELECT old.key_digest,
               coalesce(run.pool, '?') || ' ' || coalesce(run.pool_version, '?') || ', mujoco '
                   || coalesce(run.mujoco_version, '?') || ', method ?',
               run.mujoco_version, run.pool, run.pool_version, NULL,
               old.chunk_size, old.decided, CASE WHEN old.decided = 0 THEN old.reason END,
               old.gain, old.gain_low, old.gain_high, NULL, NULL,
               old.runs, run.state = 'imported', old.samples, run.pool_seconds,
               old.latest_run_id, old.last_measured_utc, old.per_candidate_ms
        FROM verdict_of_0001 AS old JOIN run ON run.run_id = old.latest_run_id
        """
    )
    op.drop_table("verdict_of_0001")
    op.create_index("ix_verdict_latest_run_id", "verdict", ["latest_run_id"])


def new_tables() -> None:
    """What holds a verdict valid, what a person decided, and how often answers were asked for."""
    op.create_table(
        "validator",
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("policy", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_validator"),
        sa.CheckConstraint(
            "name IN ('mujoco_version', 'pool', 'pool_version', 'method')",
            name="ck_validator_name",
        ),
        sa.CheckConstraint(
            "policy IN ('exact', 'same minor', 'ignore')", name="ck_validator_policy"
        ),
        **CLUSTERED,
    )
    op.execute(
        """
        INSERT INTO validator (name, policy) VALUES
            ('mujoco_version', 'same minor'),
            ('pool', 'exact'),
            ('pool_version', 'same minor'),
            ('method', 'exact')
        """
    )
    op.create_table(
        "pin",
        sa.Column("key_digest", sa.Text, nullable=False),
        sa.Column("chunk_size", sa.Integer),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("pinned_utc", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("key_digest", name="pk_pin"),
        sa.ForeignKeyConstraint(
            ["key_digest"], ["tuning_key.digest"], name="fk_pin_key", ondelete="CASCADE"
        ),
        sa.CheckConstraint("chunk_size >= 1", name="ck_pin_chunk_size"),
        sa.CheckConstraint("pinned_utc LIKE '____-__-__T__:__:__%Z'", name="ck_pin_pinned_utc"),
        **CLUSTERED,
    )
    op.create_table(
        "lookup",
        sa.Column("key_digest", sa.Text, nullable=False),
        sa.Column("day_utc", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("lookups", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("key_digest", "day_utc", "kind", name="pk_lookup"),
        sa.CheckConstraint("length(key_digest) BETWEEN 1 AND 1000", name="ck_lookup_key_digest"),
        sa.CheckConstraint("day_utc LIKE '____-__-__'", name="ck_lookup_day_utc"),
        sa.CheckConstraint(
            "kind IN ('hit', 'pinned', 'near', 'miss', 'resumed')", name="ck_lookup_kind"
        ),
        sa.CheckConstraint("lookups >= 1", name="ck_lookup_lookups"),
        **CLUSTERED,
    )


def views() -> None:
    """Tables for people: those of before with what is new, and three about quality."""
    op.execute(
        """
        CREATE VIEW tuning_overview AS
        SELECT tuning_key.digest AS tuning_key,
               latest.model_file,
               model.nq, model.nv, model.nbody, model.n_variants,
               device.system, device.machine, device.cpu_model, device.cpu_count,
               device.usable_cpus, device.cpu_quota,
               tuning_key.backend_type, tuning_key.num_envs, tuning_key.nthread, tuning_key.dtype,
               tuning_key.post_step_forward_sensor, tuning_key.bench_nsteps,
               CASE WHEN pin.key_digest IS NULL THEN verdict.chunk_size ELSE pin.chunk_size
               END AS chunk_size,
               pin.reason AS pinned_because,
               verdict.decided, verdict.reason,
               verdict.gain, verdict.gain_low, verdict.gain_high,
               (SELECT count(*) FROM run WHERE run.key_id = tuning_key.key_id) AS runs,
               (SELECT sum(run.samples) FROM run WHERE run.key_id = tuning_key.key_id) AS samples,
               verdict.pool, verdict.stack, verdict.last_measured_utc
        FROM tuning_key
        LEFT JOIN model ON model.model_id = tuning_key.model_id
        LEFT JOIN device ON device.device_id = tuning_key.device_id
        LEFT JOIN verdict ON verdict.key_digest = tuning_key.digest AND verdict.stack = (
            SELECT newest.stack FROM verdict AS newest
            WHERE newest.key_digest = tuning_key.digest
            ORDER BY newest.last_measured_utc DESC, newest.stack LIMIT 1
        )
        LEFT JOIN run AS latest ON latest.run_id = verdict.latest_run_id
        LEFT JOIN pin ON pin.key_digest = tuning_key.digest
        """
    )
    op.execute(
        """
        CREATE VIEW run_history AS
        SELECT tuning_key.digest AS tuning_key, run.run_id, run.state, run.occasion,
               run.plan, run.work, run.method, run.near_key,
               run.pool, run.pool_version, run.started_utc, run.finished_utc,
               run.pool_seconds, run.time_budget_seconds,
               run.samples, run.has_choice, run.chosen_chunk_size,
               run.hostname, run.pid, run.load_average, run.model_file,
               run.tuner_version, run.mujoco_version, run.python_version, run.message,
               run.origin, run.imported_utc
        FROM run JOIN tuning_key ON tuning_key.key_id = run.key_id
        """
    )
    op.execute(
        """
        CREATE VIEW choice_quality AS
        SELECT verdict.key_digest AS tuning_key, verdict.stack, verdict.chunk_size,
               verdict.decided, verdict.reason, verdict.gain, verdict.gain_low, verdict.gain_high,
               verdict.expected_loss, verdict.between_runs,
               verdict.runs, verdict.imported_runs, verdict.samples, verdict.pool_seconds,
               verdict.last_measured_utc
        FROM verdict
        """
    )
    op.execute(
        """
        CREATE VIEW winner_flips AS
        SELECT tuning_key, runs, flips, flips * 1.0 / nullif(runs - 1, 0) AS flip_rate
        FROM (
            SELECT tuning_key.digest AS tuning_key, count(*) AS runs,
                   sum(CASE WHEN coalesce(run.chosen_chunk_size, 0) <> (
                       SELECT coalesce(before.chosen_chunk_size, 0) FROM run AS before
                       WHERE before.key_id = run.key_id
                         AND before.has_choice = 1 AND before.state <> 'imported'
                         AND (before.finished_utc, before.uid) < (run.finished_utc, run.uid)
                       ORDER BY before.finished_utc DESC, before.uid DESC LIMIT 1
                   ) THEN 1 ELSE 0 END) AS flips
            FROM tuning_key JOIN run ON run.key_id = tuning_key.key_id
            WHERE run.has_choice = 1 AND run.state <> 'imported'
            GROUP BY tuning_key.digest
        ) AS counted
        """
    )
    op.execute(
        """
        CREATE VIEW hit_rate AS
        SELECT day_utc, sum(lookups) AS lookups,
               sum(CASE WHEN kind IN ('hit', 'pinned') THEN lookups ELSE 0 END) AS hits,
               sum(CASE WHEN kind IN ('hit', 'pinned') THEN lookups ELSE 0 END) * 1.0
                   / sum(lookups) AS hit_rate
        FROM lookup
        GROUP BY day_utc
        """
    )
