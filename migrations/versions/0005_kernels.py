"""Kernels that are built ahead of time, and the jobs that wait for them.

Revises: 0004
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB, TIMESTAMP

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

TIME = TIMESTAMP(timezone=True)
NOW = sa.text("clock_timestamp()")


def upgrade() -> None:
    _say_which_states("open", "waiting", "done", "invalid", "dead")
    op.create_table(
        "kernels",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("hash", sa.Text(), nullable=False),
        sa.Column("description", JSONB(), nullable=False),
        sa.Column("cutlass", sa.Text(), nullable=False),
        sa.Column("cuda", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), server_default="wanted", nullable=False),
        sa.Column("wanted_at", TIME, server_default=NOW, nullable=False),
        sa.Column("sent_at", TIME, nullable=True),
        sa.Column("starts", sa.SmallInteger(), server_default="0", nullable=False),
        sa.Column("started_at", TIME, nullable=True),
        sa.Column("heard_of_at", TIME, nullable=True),
        sa.Column("finished_at", TIME, nullable=True),
        sa.Column("builder", sa.Text(), nullable=True),
        sa.Column("record", JSONB(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("final", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.CheckConstraint("state IN ('wanted', 'building', 'built', 'failed')", name=op.f("ck_kernels_state_known")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_kernels")),
        sa.UniqueConstraint("hash", name=op.f("uq_kernels_hash")),
    )
    op.create_index("ix_kernels_open", "kernels", ["id"], postgresql_where=sa.text("state IN ('wanted', 'building')"))
    op.create_table(
        "kernel_code",
        sa.Column("hash", sa.Text(), nullable=False),
        sa.Column("code", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("hash", name=op.f("pk_kernel_code")),
    )
    op.execute("ALTER TABLE kernel_code ALTER COLUMN code SET STORAGE EXTERNAL")  # it does not compress much
    op.create_table(
        "waiting_jobs",
        sa.Column("kernel_id", sa.BigInteger(), nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("lane_id", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["kernel_id"], ["kernels.id"], name=op.f("fk_waiting_jobs_kernel_id")),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_waiting_jobs_job_id")),
        sa.ForeignKeyConstraint(["lane_id"], ["lanes.id"], name=op.f("fk_waiting_jobs_lane_id")),
        sa.PrimaryKeyConstraint("kernel_id", "job_id", name=op.f("pk_waiting_jobs")),
    )
    op.create_index(op.f("ix_waiting_jobs_job_id"), "waiting_jobs", ["job_id"])
    op.create_index(op.f("ix_waiting_jobs_lane_id"), "waiting_jobs", ["lane_id"])
    op.create_table(
        "builders",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("cutlass", sa.Text(), nullable=False),
        sa.Column("cuda", sa.Text(), nullable=False),
        sa.Column("slots", sa.BigInteger(), nullable=False),
        sa.Column("last_seen_at", TIME, server_default=NOW, nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_builders")),
    )


def downgrade() -> None:
    """Jobs that wait for kernels are dispatched at once."""
    op.execute("""
        INSERT INTO returned_jobs (job_id, lane_id, solo)
        SELECT j.id, j.lane_id, j.solo FROM jobs j JOIN lanes l ON l.id = j.lane_id
        WHERE j.state = 'waiting' AND j.configuration_id <= l.cursor
    """)
    op.execute("""
        UPDATE lanes l SET fresh = true WHERE EXISTS (
            SELECT 1 FROM jobs j
            WHERE j.lane_id = l.id AND j.state = 'waiting' AND (l.cursor IS NULL OR j.configuration_id > l.cursor)
        )
    """)
    op.execute("UPDATE jobs SET state = 'open' WHERE state = 'waiting'")
    for table in ("builders", "waiting_jobs", "kernel_code", "kernels"):
        op.drop_table(table)
    _say_which_states("open", "done", "invalid", "dead")


def _say_which_states(*states: str) -> None:
    op.drop_constraint("ck_jobs_state_known", "jobs")
    listed = ", ".join(f"'{state}'" for state in states)
    op.create_check_constraint(op.f("ck_jobs_state_known"), "jobs", f"state IN ({listed})")
