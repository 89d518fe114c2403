"""Leadership as a row: who leads, in which term, and until when on the database's clock.

Revises: 0012
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "leadership",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("term", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("token", sa.Uuid()),
        sa.Column("host", sa.Text()),
        sa.Column("pid", sa.BigInteger()),
        sa.Column("since", sa.TIMESTAMP(timezone=True)),
        sa.Column(
            "expires_at", sa.TIMESTAMP(timezone=True), nullable=False, server_default=sa.text("clock_timestamp()")
        ),
        sa.PrimaryKeyConstraint("name", name="pk_leadership"),
    )
    op.execute("INSERT INTO leadership (name) VALUES ('coordinator')")


def downgrade() -> None:
    op.drop_table("leadership")
