"""Devices on probation; jobs that failed on one device alone wait for another; pauses between attempts.

Workers before this revision do not know the state `probation`.

Revises: 0017
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

workers_from = "0018"


def upgrade() -> None:
    _states("'active', 'probation', 'drained', 'quarantined'")
    op.add_column("devices", sa.Column("failed_trials", sa.SmallInteger(), nullable=False, server_default="0"))
    op.add_column("devices", sa.Column("next_trial_at", sa.TIMESTAMP(timezone=True)))
    op.add_column("devices", sa.Column("left_at", sa.TIMESTAMP(timezone=True)))
    op.add_column("returned_jobs", sa.Column("exhausted", sa.Boolean(), nullable=False, server_default="false"))
    op.add_column("returned_jobs", sa.Column("not_before", sa.TIMESTAMP(timezone=True)))
    op.create_index("ix_returned_jobs_exhausted", "returned_jobs", ["job_id"], postgresql_where=sa.text("exhausted"))


def downgrade() -> None:
    op.execute("""
        UPDATE returned_jobs SET refused_by = array_remove(refused_by, avoid_device_id)
        WHERE exhausted
    """)
    op.drop_index("ix_returned_jobs_exhausted", "returned_jobs")
    op.drop_column("returned_jobs", "not_before")
    op.drop_column("returned_jobs", "exhausted")
    op.execute("UPDATE devices SET state = 'active', state_reason = NULL WHERE state = 'probation'")
    for column in ("left_at", "next_trial_at", "failed_trials"):
        op.drop_column("devices", column)
    _states("'active', 'drained', 'quarantined'")


def _states(listed: str) -> None:
    op.drop_constraint(op.f("ck_devices_state_known"), "devices")
    op.create_check_constraint(op.f("ck_devices_state_known"), "devices", f"state IN ({listed})")
