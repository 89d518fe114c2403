"""Weights of fewer bits than activations: the bytes of problems with them.

Revises: 0031
"""

from __future__ import annotations

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None
workers_from = "0030"
sql = ("sql/functions/element_bytes.sql", "sql/functions/gemm_bytes.sql")


def upgrade() -> None:
    """Nothing but functions changes."""


def downgrade() -> None:
    """The functions of before compute the same for the problems of before."""
