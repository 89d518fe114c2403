"""Batches of products: the column `batch` of configurations.

Workers before this revision would measure one product of a batch.

Revises: 0027
"""

from __future__ import annotations

from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None
workers_from = "0028"
sql = (
    "sql/functions/test_sets.sql",
    "sql/views/v_all_measurements.sql",
    "sql/views/v_best_kernels.sql",
    "sql/views/v_measurements.sql",
)

_VIEWS = "v_measurements, v_sentinels, v_all_measurements, v_best_kernels"


def upgrade() -> None:
    op.execute(f"DROP VIEW IF EXISTS {_VIEWS}")
    op.execute(
        "ALTER TABLE configurations ADD COLUMN batch bigint NOT NULL DEFAULT 1 "
        "CONSTRAINT ck_configurations_batch_positive CHECK (batch > 0)"
    )


def downgrade() -> None:
    op.execute(f"DROP VIEW IF EXISTS {_VIEWS}")
    op.execute("DROP FUNCTION IF EXISTS keep_test_sets_apart CASCADE")  # with its trigger
    op.execute("ALTER TABLE configurations DROP COLUMN batch")
