"""Kernels are signed by who built them. Those that were built before are built again, as nobody vouches for them.

Workers before this revision load a kernel without looking at its signature.

Revises: 0020
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("kernels", sa.Column("signature", sa.Text()))
    op.execute("""
        UPDATE kernels SET state = 'wanted', starts = 0, sent_at = NULL, finished_at = NULL, wanted_at = clock_timestamp()
        WHERE state = 'built'
    """)
    op.create_check_constraint(
        op.f("ck_kernels_built_is_signed"), "kernels", "state <> 'built' OR signature IS NOT NULL"
    )


def downgrade() -> None:
    op.drop_constraint(op.f("ck_kernels_built_is_signed"), "kernels")
    op.drop_column("kernels", "signature")
