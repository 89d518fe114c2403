"""Lanes: dispatch that costs the same at any size, with counters; failures are kept one by one.

Batches name their jobs, so that a job's row changes only when the job ends. What was in a batch during the upgrade is
dispatched again; suspicions against single jobs are forgotten.

Revises: 0001
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

TIME = postgresql.TIMESTAMP(timezone=True)
NOW = sa.text("clock_timestamp()")
ZERO = sa.text("0")

# Rows that change while a campaign runs: room on each page for the next version, and a vacuum that keeps up.
STORAGE = {
    "lanes": "fillfactor = 50",
    "batches": "fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000",
    "devices": "fillfactor = 50",
    "hosts": "fillfactor = 50",
    "jobs": "fillfactor = 80",
    "returned_jobs": "autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000",
}


def upgrade() -> None:
    _create_lanes()
    _create_failures()
    _upgrade_jobs()
    _create_returned_jobs()
    _upgrade_batches()
    _upgrade_campaigns()
    _upgrade_devices()
    _upgrade_trainings()
    for table, options in STORAGE.items():
        op.execute(f"ALTER TABLE {table} SET ({options})")


def _create_lanes() -> None:
    op.create_table(
        "lanes",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("campaign_id", sa.BigInteger(), nullable=False),
        sa.Column("pool_id", sa.BigInteger(), nullable=False),
        sa.Column("cursor", sa.Uuid(), nullable=True),
        sa.Column("fresh", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("jobs", sa.BigInteger(), server_default=ZERO, nullable=False),
        sa.Column("done", sa.BigInteger(), server_default=ZERO, nullable=False),
        sa.Column("invalid", sa.BigInteger(), server_default=ZERO, nullable=False),
        sa.Column("dead", sa.BigInteger(), server_default=ZERO, nullable=False),
        sa.ForeignKeyConstraint(["campaign_id"], ["campaigns.id"], name=op.f("fk_lanes_campaign_id")),
        sa.ForeignKeyConstraint(["pool_id"], ["pools.id"], name=op.f("fk_lanes_pool_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_lanes")),
        sa.UniqueConstraint("campaign_id", "pool_id", name=op.f("uq_lanes_campaign_id_pool_id")),
    )
    op.execute("""
        INSERT INTO lanes (campaign_id, pool_id, jobs, done, invalid, dead)
        SELECT campaign_id, pool_id, count(*), count(*) FILTER (WHERE state = 'done'),
            count(*) FILTER (WHERE state = 'invalid'), count(*) FILTER (WHERE state = 'dead')
        FROM jobs GROUP BY campaign_id, pool_id
    """)


def _create_failures() -> None:
    op.create_table(
        "failures",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("lane_id", sa.BigInteger(), nullable=False),
        sa.Column("batch_id", sa.BigInteger(), nullable=True),
        sa.Column("device_id", sa.BigInteger(), nullable=True),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("at", TIME, server_default=NOW, nullable=False),
        sa.CheckConstraint("kind IN ('invalid', 'failed', 'killed')", name=op.f("ck_failures_kind_known")),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_failures_job_id")),
        sa.ForeignKeyConstraint(["lane_id"], ["lanes.id"], name=op.f("fk_failures_lane_id")),
        sa.ForeignKeyConstraint(["batch_id"], ["batches.id"], name=op.f("fk_failures_batch_id")),
        sa.ForeignKeyConstraint(["device_id"], ["devices.id"], name=op.f("fk_failures_device_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_failures")),
    )
    op.execute("""
        INSERT INTO failures (job_id, lane_id, kind, message)
        SELECT j.id, l.id, coalesce(j.error_class, 'failed'), j.error
        FROM jobs j JOIN lanes l USING (campaign_id, pool_id) WHERE j.error IS NOT NULL ORDER BY j.id
    """)
    op.create_index(op.f("ix_failures_job_id"), "failures", ["job_id"])
    op.create_index("ix_failures_lane_id_kind", "failures", ["lane_id", "kind"])
    op.create_index("ix_failures_device_id_at", "failures", ["device_id", "at"])


def _upgrade_jobs() -> None:
    for index in ("uq_jobs_any_device", "ix_jobs_batch_id", "ix_jobs_campaign_id_state", "ix_jobs_pending"):
        op.drop_index(index, table_name="jobs")
    op.drop_constraint("uq_jobs_campaign_id_configuration_id_pool_id", "jobs")
    op.drop_constraint("ck_jobs_state_known", "jobs")
    op.add_column("jobs", sa.Column("lane_id", sa.BigInteger(), nullable=True))
    op.execute("""
        UPDATE jobs j SET lane_id = l.id, solo = false,
            state = CASE WHEN j.state IN ('done', 'invalid', 'dead') THEN j.state ELSE 'open' END
        FROM lanes l WHERE l.campaign_id = j.campaign_id AND l.pool_id = j.pool_id
    """)
    op.alter_column("jobs", "lane_id", nullable=False)
    op.alter_column("jobs", "state", server_default="open")
    op.create_foreign_key(op.f("fk_jobs_lane_id"), "jobs", "lanes", ["lane_id"], ["id"])
    op.create_unique_constraint(op.f("uq_jobs_lane_id_configuration_id"), "jobs", ["lane_id", "configuration_id"])
    op.create_check_constraint(op.f("ck_jobs_state_known"), "jobs", "state IN ('open', 'done', 'invalid', 'dead')")


def _create_returned_jobs() -> None:
    op.create_table(
        "returned_jobs",
        sa.Column("job_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("lane_id", sa.BigInteger(), nullable=False),
        sa.Column("solo", sa.Boolean(), nullable=False),
        sa.Column("avoid_device_id", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_returned_jobs_job_id")),
        sa.ForeignKeyConstraint(["lane_id"], ["lanes.id"], name=op.f("fk_returned_jobs_lane_id")),
        sa.ForeignKeyConstraint(["avoid_device_id"], ["devices.id"], name=op.f("fk_returned_jobs_avoid_device_id")),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_returned_jobs")),
    )
    op.create_index("ix_returned_jobs_order", "returned_jobs", ["lane_id", "solo", "avoid_device_id", "job_id"])


def _upgrade_batches() -> None:
    for index in ("ix_batches_open", "ix_batches_campaign_id_finished_at", "ix_batches_campaign_id_id"):
        op.drop_index(index, table_name="batches")
    op.add_column("batches", sa.Column("lane_id", sa.BigInteger(), nullable=True))
    op.add_column(
        "batches",
        sa.Column("job_ids", postgresql.ARRAY(sa.BigInteger()), server_default=sa.text("'{}'"), nullable=False),
    )
    op.alter_column("batches", "job_ids", server_default=None)
    op.add_column("batches", sa.Column("gflop", sa.DOUBLE_PRECISION(), server_default=ZERO, nullable=False))
    op.add_column("batches", sa.Column("busy_until", TIME, nullable=True))
    for column in ("done", "invalid", "dead"):
        op.add_column("batches", sa.Column(column, sa.BigInteger(), server_default=ZERO, nullable=False))
    op.add_column("batches", sa.Column("folded", sa.Boolean(), server_default=sa.text("false"), nullable=False))
    op.execute("""
        UPDATE batches b SET folded = true,
            lane_id = coalesce(
                (SELECT lane_id FROM jobs WHERE batch_id = b.id LIMIT 1),
                (SELECT min(id) FROM lanes WHERE campaign_id = b.campaign_id)
            )
    """)
    op.execute("""
        UPDATE batches SET state = 'released', finished_at = clock_timestamp(), lease_token = NULL,
            lease_expires_at = NULL, current_job_id = NULL, end_reason = 'the database was upgraded'
        WHERE state IN ('queued', 'leased')
    """)
    op.drop_constraint("fk_jobs_batch_id", "jobs")
    for column in ("campaign_id", "pool_id", "batch_id", "error_class", "error"):
        op.drop_column("jobs", column)
    op.alter_column("batches", "lane_id", nullable=False)
    op.drop_column("batches", "campaign_id")
    op.create_foreign_key(op.f("fk_batches_lane_id"), "batches", "lanes", ["lane_id"], ["id"])
    op.create_index("ix_batches_unfolded", "batches", ["lane_id"], postgresql_where=sa.text("NOT folded"))
    op.create_index("ix_batches_lane_id_finished_at", "batches", ["lane_id", "finished_at"])


def _upgrade_campaigns() -> None:
    op.drop_constraint("ck_campaigns_state_known", "campaigns")
    op.create_check_constraint(
        op.f("ck_campaigns_state_known"), "campaigns", "state IN ('active', 'paused', 'done', 'cancelled')"
    )
    op.create_index("ix_campaigns_open", "campaigns", ["id"], postgresql_where=sa.text("state IN ('active', 'paused')"))


def _upgrade_devices() -> None:
    op.add_column("devices", sa.Column("state_changed_at", TIME, server_default=NOW, nullable=False))
    op.add_column("devices", sa.Column("vanished_at", TIME, nullable=True))
    op.add_column("devices", sa.Column("measured", sa.BigInteger(), server_default=ZERO, nullable=False))
    op.execute("""
        UPDATE devices d SET measured = (SELECT count(*) FROM measurements r WHERE r.device_id = d.id)
    """)


def _upgrade_trainings() -> None:
    op.add_column("trainings", sa.Column("sent_at", TIME, nullable=True))
    op.add_column("trainings", sa.Column("starts", sa.SmallInteger(), server_default=ZERO, nullable=False))
    op.add_column("trainings", sa.Column("heard_of_at", TIME, nullable=True))


def downgrade() -> None:
    """Paused campaigns become active; errors are the last of each job; batches in hand are dispatched again."""
    for table, options in STORAGE.items():
        op.execute(f"ALTER TABLE {table} RESET ({', '.join(o.split(' =')[0] for o in options.split(', '))})")
    for column in ("sent_at", "starts", "heard_of_at"):
        op.drop_column("trainings", column)
    for column in ("state_changed_at", "vanished_at", "measured"):
        op.drop_column("devices", column)
    op.drop_index("ix_campaigns_open", table_name="campaigns")
    op.execute("UPDATE campaigns SET state = 'active' WHERE state = 'paused'")
    op.drop_constraint("ck_campaigns_state_known", "campaigns")
    op.create_check_constraint(
        op.f("ck_campaigns_state_known"), "campaigns", "state IN ('active', 'done', 'cancelled')"
    )
    _downgrade_batches()
    _downgrade_jobs()
    op.drop_table("returned_jobs")
    op.drop_table("failures")
    op.drop_constraint("fk_jobs_lane_id", "jobs")
    op.drop_column("jobs", "lane_id")
    op.drop_table("lanes")


def _downgrade_batches() -> None:
    op.drop_index("ix_batches_lane_id_finished_at", table_name="batches")
    op.drop_index("ix_batches_unfolded", table_name="batches")
    op.add_column("batches", sa.Column("campaign_id", sa.BigInteger(), nullable=True))
    op.execute("UPDATE batches b SET campaign_id = l.campaign_id FROM lanes l WHERE l.id = b.lane_id")
    op.execute("""
        UPDATE batches SET state = 'released', finished_at = clock_timestamp(), lease_token = NULL,
            lease_expires_at = NULL, current_job_id = NULL, end_reason = 'the database was downgraded'
        WHERE state IN ('queued', 'leased')
    """)
    op.alter_column("batches", "campaign_id", nullable=False)
    op.drop_constraint("fk_batches_lane_id", "batches")
    for column in ("lane_id", "job_ids", "gflop", "busy_until", "done", "invalid", "dead", "folded"):
        op.drop_column("batches", column)
    op.create_foreign_key(op.f("fk_batches_campaign_id"), "batches", "campaigns", ["campaign_id"], ["id"])
    op.create_index("ix_batches_campaign_id_id", "batches", ["campaign_id", "id"])
    op.create_index("ix_batches_campaign_id_finished_at", "batches", ["campaign_id", "finished_at"])
    op.create_index(
        "ix_batches_open", "batches", ["queue", "state"], postgresql_where=sa.text("state IN ('queued', 'leased')")
    )


def _downgrade_jobs() -> None:
    for column in ("campaign_id", "pool_id", "batch_id"):
        op.add_column("jobs", sa.Column(column, sa.BigInteger(), nullable=True))
    for column in ("error_class", "error"):
        op.add_column("jobs", sa.Column(column, sa.Text(), nullable=True))
    op.drop_constraint("ck_jobs_state_known", "jobs")
    op.drop_constraint("uq_jobs_lane_id_configuration_id", "jobs")
    op.execute("""
        UPDATE jobs j SET campaign_id = l.campaign_id, pool_id = l.pool_id,
            state = CASE WHEN j.state <> 'open' THEN j.state
                WHEN c.state = 'cancelled' THEN 'cancelled' ELSE 'pending' END
        FROM lanes l JOIN campaigns c ON c.id = l.campaign_id WHERE l.id = j.lane_id
    """)
    op.execute("""
        UPDATE jobs j SET error_class = f.kind, error = f.message
        FROM failures f
        WHERE f.job_id = j.id AND j.state <> 'done' AND NOT EXISTS (
            SELECT 1 FROM failures newer WHERE newer.job_id = f.job_id AND newer.id > f.id
        )
    """)
    op.alter_column("jobs", "state", server_default="pending")
    for column in ("campaign_id", "pool_id"):
        op.alter_column("jobs", column, nullable=False)
    op.create_foreign_key(op.f("fk_jobs_campaign_id"), "jobs", "campaigns", ["campaign_id"], ["id"])
    op.create_foreign_key(op.f("fk_jobs_pool_id"), "jobs", "pools", ["pool_id"], ["id"])
    op.create_foreign_key(op.f("fk_jobs_batch_id"), "jobs", "batches", ["batch_id"], ["id"])
    op.create_unique_constraint(
        op.f("uq_jobs_campaign_id_configuration_id_pool_id"), "jobs", ["campaign_id", "configuration_id", "pool_id"]
    )
    op.create_check_constraint(
        op.f("ck_jobs_state_known"),
        "jobs",
        "state IN ('pending', 'queued', 'running', 'done', 'invalid', 'dead', 'cancelled')",
    )
    op.create_index(
        "uq_jobs_any_device",
        "jobs",
        ["campaign_id", "configuration_id"],
        unique=True,
        postgresql_where=sa.text("any_device"),
    )
    op.create_index("ix_jobs_batch_id", "jobs", ["batch_id"], postgresql_where=sa.text("batch_id IS NOT NULL"))
    op.create_index("ix_jobs_campaign_id_state", "jobs", ["campaign_id", "state"])
    op.create_index(
        "ix_jobs_pending",
        "jobs",
        ["campaign_id", "pool_id", "solo", "configuration_id"],
        postgresql_where=sa.text("state = 'pending'"),
    )
