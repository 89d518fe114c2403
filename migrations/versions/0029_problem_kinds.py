"""Scale factors, fused operations and groups: the columns `scale`, `fused` and `groups` of configurations.

Workers before this revision would measure the plain product.

Revises: 0028
"""

from __future__ import annotations

from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None
workers_from = "0029"
sql = (
    "sql/functions/element_bytes.sql",
    "sql/functions/gemm_bytes.sql",
    "sql/functions/test_sets.sql",
    "sql/views/v_all_measurements.sql",
    "sql/views/v_best_kernels.sql",
    "sql/views/v_measurements.sql",
)

_COLUMNS = ("scale", "fused", "groups")
_VIEWS = "v_measurements, v_sentinels, v_all_measurements, v_best_kernels"


def upgrade() -> None:
    op.execute(f"DROP VIEW IF EXISTS {_VIEWS}")
    for name in _COLUMNS:
        op.execute(f"ALTER TABLE configurations ADD COLUMN {name} text NOT NULL DEFAULT 'none'")


def downgrade() -> None:
    op.execute(f"DROP VIEW IF EXISTS {_VIEWS}")
    op.execute("DROP FUNCTION IF EXISTS keep_test_sets_apart CASCADE")  # with its trigger
    op.execute("DROP FUNCTION IF EXISTS gemm_bytes, bytes_of_b, active_groups, scale_factors")
    for name in _COLUMNS:
        op.execute(f"ALTER TABLE configurations DROP COLUMN {name}")
