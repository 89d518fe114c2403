"""Who changed what is kept and cannot be changed, and owners have quotas.

Revises: 0022
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None

_NOW = sa.text("clock_timestamp()")

_REFUSE = """
CREATE FUNCTION refuse_audit_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'rows of audit stay as they are (%)', TG_OP
        USING ERRCODE = 'insufficient_privilege', HINT = 'farm audit trim removes old ones.';
END
$$
"""
_TRIGGER = """
CREATE TRIGGER audit_stays BEFORE UPDATE OR DELETE OR TRUNCATE ON audit
FOR EACH STATEMENT EXECUTE FUNCTION refuse_audit_change()
"""


def upgrade() -> None:
    op.add_column("campaigns", sa.Column("submitted_by", sa.Text()))
    op.add_column("campaigns", sa.Column("estimated_s", sa.Float()))
    op.create_table(
        "audit",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), primary_key=True),
        sa.Column("at", sa.DateTime(timezone=True), server_default=_NOW, nullable=False),
        sa.Column("who", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("way", sa.Text(), nullable=False),
        sa.Column("origin", sa.Text(), nullable=False),
        sa.Column("operation", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("key", sa.Text()),
        sa.Column("before", JSONB()),
        sa.Column("after", JSONB()),
        sa.CheckConstraint("role IN ('read', 'submit', 'operate')", name=op.f("ck_audit_role_known")),
        sa.CheckConstraint("way IN ('cli', 'api', 'page')", name=op.f("ck_audit_way_known")),
    )
    op.create_index("ix_audit_at", "audit", ["at"])
    op.execute(_REFUSE)
    op.execute(_TRIGGER)
    # Also in sessions that set session_replication_role, which turns other triggers off.
    op.execute("ALTER TABLE audit ENABLE ALWAYS TRIGGER audit_stays")
    op.create_table(
        "quotas",
        sa.Column("owner", sa.Text(), primary_key=True),
        sa.Column("open_jobs", sa.BigInteger()),
        sa.Column("device_seconds", sa.Float()),
        sa.Column("min_priority", sa.SmallInteger(), nullable=False),
        sa.Column("max_priority", sa.SmallInteger(), nullable=False),
    )


def downgrade() -> None:
    op.drop_table("quotas")
    op.drop_table("audit")
    op.execute("DROP FUNCTION refuse_audit_change()")
    op.drop_column("campaigns", "estimated_s")
    op.drop_column("campaigns", "submitted_by")
