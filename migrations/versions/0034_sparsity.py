"""Sparsity of B: the column `sparsity` of configurations.

Workers before this revision would measure the product with a dense B.

Revises: 0032
"""

from __future__ import annotations

from alembic import op

revision = "0034"
down_revision = "0032"
branch_labels = None
depends_on = None
workers_from = "0034"
sql = (
    "sql/functions/gemm_bytes.sql",
    "sql/functions/test_sets.sql",
    "sql/views/v_all_measurements.sql",
    "sql/views/v_best_kernels.sql",
    "sql/views/v_measurements.sql",
)

_VIEWS = "v_measurements, v_sentinels, v_all_measurements, v_best_kernels"


def upgrade() -> None:
    _drop()
    op.execute("ALTER TABLE configurations ADD COLUMN sparsity text NOT NULL DEFAULT 'none'")


def downgrade() -> None:
    _drop()
    op.execute("ALTER TABLE configurations DROP COLUMN sparsity")


def _drop() -> None:
    """Drops what reads the column, and the function, whose arguments change."""
    op.execute(f"DROP VIEW IF EXISTS {_VIEWS}")
    op.execute("DROP FUNCTION IF EXISTS keep_test_sets_apart CASCADE")  # with its trigger
    op.execute("DROP FUNCTION IF EXISTS gemm_bytes")
