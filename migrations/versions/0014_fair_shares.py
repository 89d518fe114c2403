"""Fair shares that outlive a coordinator, and failed jobs that are found by the index, however many wait.

Revises: 0013
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import ARRAY

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

_REFUSALS = """
UPDATE returned_jobs r SET refused_by = ARRAY(
    SELECT DISTINCT f.device_id FROM failures f WHERE f.job_id = r.job_id AND f.kind = 'invalid' AND f.device_id IS NOT NULL
    ORDER BY f.device_id
)
WHERE r.solo OR r.avoid_device_id IS NOT NULL
"""


def upgrade() -> None:
    op.create_table(
        "fair_shares",
        sa.Column("resource", sa.Text(), primary_key=True),
        sa.Column("priority", sa.SmallInteger(), primary_key=True, autoincrement=False),
        sa.Column("owner", sa.Text(), primary_key=True),
        sa.Column("campaign_id", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("virtual_s", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("resource", "priority", "owner", "campaign_id", name=op.f("pk_fair_shares")),
    )
    op.add_column("returned_jobs", sa.Column("refused_by", ARRAY(sa.BigInteger()), nullable=False, server_default="{}"))
    op.execute(_REFUSALS)
    op.create_check_constraint(
        op.f("ck_returned_jobs_only_retries_are_refused"),
        "returned_jobs",
        "solo OR avoid_device_id IS NOT NULL OR refused_by = '{}'",
    )
    op.drop_index("ix_returned_jobs_order", "returned_jobs")
    op.create_index(
        "ix_returned_jobs_order",
        "returned_jobs",
        ["lane_id", "solo", sa.text("coalesce(avoid_device_id, 0)"), "refused_by", "job_id"],
    )


def downgrade() -> None:
    op.drop_index("ix_returned_jobs_order", "returned_jobs")
    op.create_index("ix_returned_jobs_order", "returned_jobs", ["lane_id", "solo", "avoid_device_id", "job_id"])
    op.drop_constraint(op.f("ck_returned_jobs_only_retries_are_refused"), "returned_jobs")
    op.drop_column("returned_jobs", "refused_by")
    op.drop_table("fair_shares")
