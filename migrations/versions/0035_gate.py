"""Fused operations with a gate: `gemm_bytes` counts half of the columns of D.

Workers before this revision do not know `swiglu`.

Revises: 0034
"""

from __future__ import annotations

revision = "0035"
down_revision = "0034"
branch_labels = None
depends_on = None
workers_from = "0035"
sql = ("sql/functions/gemm_bytes.sql",)


def upgrade() -> None:
    """The file of `sql` replaces the function."""


def downgrade() -> None:
    """The function stays, because it counts products without a gate as before. Older versions cannot read rows with a gate."""
