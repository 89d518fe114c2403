"""Sessions of browsers, which the web page kept as a token in a cookie before.

Revises: 0021
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    now = sa.text("clock_timestamp()")
    op.create_table(
        "web_sessions",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("sha256", sa.LargeBinary(), nullable=False),
        sa.Column("token_id", sa.BigInteger()),
        sa.Column("login", sa.Text()),
        sa.Column("issuer", sa.Text()),
        sa.Column("origin", sa.Text(), nullable=False),
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("browser", sa.Text(), nullable=False),
        sa.Column("created_at", sa.TIMESTAMP(timezone=True), server_default=now, nullable=False),
        sa.Column("last_used_at", sa.TIMESTAMP(timezone=True), server_default=now, nullable=False),
        sa.Column("idle_limit", postgresql.INTERVAL(), nullable=False),
        sa.Column("expires_at", sa.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("ended_at", sa.TIMESTAMP(timezone=True)),
        sa.CheckConstraint("(token_id IS NULL) = (login IS NOT NULL)", name=op.f("ck_web_sessions_one_holder")),
        sa.CheckConstraint("(login IS NULL) = (issuer IS NULL)", name=op.f("ck_web_sessions_issuer_of_login")),
        sa.ForeignKeyConstraint(["token_id"], ["tokens.id"], name=op.f("fk_web_sessions_token_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_web_sessions")),
        sa.UniqueConstraint("sha256", name=op.f("uq_web_sessions_sha256")),
    )


def downgrade() -> None:
    op.drop_table("web_sessions")
