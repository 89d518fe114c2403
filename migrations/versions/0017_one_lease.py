"""A device holds one lease at a time.

Workers of the version before stay: the claim of a second batch fails, and that batch is sent again.

Revises: 0016
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

# What a device held beside its newest batch goes back as the coordinator takes back a lease that has passed, without a suspect.
_RETURN_OLDER = """
WITH older AS (
    SELECT id, job_ids FROM (
        SELECT id, job_ids, row_number() OVER (PARTITION BY device_id ORDER BY claimed_at DESC, id DESC) AS place
        FROM batches WHERE state = 'leased'
    ) leased WHERE place > 1
), again AS (
    INSERT INTO returned_jobs (job_id, lane_id, solo, refused_by)
    SELECT j.id, j.lane_id, j.solo, CASE WHEN j.solo THEN ARRAY(
        SELECT CASE WHEN f.kind = 'unsupported' THEN coalesce(-f.worker_version_id, f.device_id) ELSE f.device_id END
        FROM failures f
        WHERE f.job_id = j.id AND f.kind IN ('invalid', 'unsupported') AND f.device_id IS NOT NULL
        GROUP BY 1 ORDER BY 1
    ) ELSE '{}' END
    FROM older o CROSS JOIN unnest(o.job_ids) AS u(job_id) JOIN jobs j ON j.id = u.job_id
    WHERE j.state = 'open'
    ON CONFLICT DO NOTHING
)
UPDATE batches b SET state = 'released', finished_at = clock_timestamp(), lease_token = NULL, lease_expires_at = NULL,
    busy_until = NULL, current_job_id = NULL, end_reason = 'its device held another batch as well'
FROM older o WHERE b.id = o.id
"""


def upgrade() -> None:
    op.execute("LOCK TABLE batches IN SHARE ROW EXCLUSIVE MODE")  # nobody claims between the two
    op.execute(_RETURN_OLDER)
    op.add_column("batches", sa.Column("abandoned", sa.Boolean(), nullable=False, server_default="false"))
    op.create_index(
        "uq_batches_device_id",
        "batches",
        ["device_id"],
        unique=True,
        postgresql_where=sa.text("state = 'leased' AND NOT abandoned"),
    )


def downgrade() -> None:
    op.drop_index("uq_batches_device_id", "batches")
    op.drop_column("batches", "abandoned")
