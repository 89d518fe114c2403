"""Which lanes wait for which kernels is found in the index, however many jobs wait.

Revises: 0006
"""

from __future__ import annotations

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("ix_waiting_jobs_by_lane", "waiting_jobs", ["lane_id", "kernel_id", "job_id"])
    op.drop_index("ix_waiting_jobs_lane_id", "waiting_jobs")


def downgrade() -> None:
    op.create_index("ix_waiting_jobs_lane_id", "waiting_jobs", ["lane_id"])
    op.drop_index("ix_waiting_jobs_by_lane", "waiting_jobs")
