"""Tokens: who may do what over HTTP. Of a token its SHA-256 is kept, so that the database gives none away.

Revises: 0008
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

_NOW = sa.text("clock_timestamp()")


def upgrade() -> None:
    op.create_table(
        "tokens",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), primary_key=True),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("sha256", sa.LargeBinary(), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=_NOW, nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True)),
        sa.Column("revoked_at", sa.DateTime(timezone=True)),
        sa.Column("last_used_at", sa.DateTime(timezone=True)),
        sa.CheckConstraint("role IN ('read', 'submit', 'operate')", name="ck_tokens_role_known"),
        sa.UniqueConstraint("sha256", name="uq_tokens_sha256"),
    )
    # A name is free again once its token was revoked.
    op.create_index("uq_tokens_name", "tokens", ["name"], unique=True, postgresql_where=sa.text("revoked_at IS NULL"))


def downgrade() -> None:
    op.drop_table("tokens")
