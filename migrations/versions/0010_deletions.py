"""Deleted campaigns and imports: their rows leave the tables and are kept here until they are restored or vacuumed.

Measurements stay append-only, except for a transaction that sets `farm.deleting`.

Revises: 0009
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

_NOW = sa.text("clock_timestamp()")

APPEND_ONLY = """
CREATE OR REPLACE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'TRUNCATE' AND current_setting('farm.deleting', true) = 'on' THEN
        RETURN NULL;
    END IF;
    RAISE EXCEPTION 'the table % is append-only', TG_TABLE_NAME;
END
$$
"""
APPEND_ONLY_BEFORE = """
CREATE OR REPLACE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the table % is append-only', TG_TABLE_NAME;
END
$$
"""


def upgrade() -> None:
    op.create_table(
        "deletions",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), primary_key=True),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("deleted_at", sa.TIMESTAMP(timezone=True), server_default=_NOW, nullable=False),
        sa.Column("deleted_by", sa.Text(), nullable=False),
        sa.Column("jobs", sa.BigInteger(), nullable=False),
        sa.Column("rows", sa.BigInteger(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("kernels", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.CheckConstraint("kind IN ('campaign', 'import')", name="ck_deletions_kind_known"),
    )
    op.create_index("ix_deletions_key", "deletions", ["key"])
    op.create_table(
        "deleted_rows",
        sa.Column("deletion_id", sa.BigInteger(), nullable=False),
        sa.Column("source_table", sa.Text(), nullable=False),
        sa.Column("part", sa.BigInteger(), nullable=False),
        sa.Column("content", postgresql.JSONB(), nullable=False),
        sa.PrimaryKeyConstraint("deletion_id", "source_table", "part", name="pk_deleted_rows"),
        sa.ForeignKeyConstraint(
            ["deletion_id"], ["deletions.id"], name="fk_deleted_rows_deletion_id", ondelete="CASCADE"
        ),
    )
    # A batch that is deleted is looked for among failures.
    op.create_index("ix_failures_batch_id", "failures", ["batch_id"])
    op.execute(APPEND_ONLY)


def downgrade() -> None:
    op.execute(APPEND_ONLY_BEFORE)
    op.drop_index("ix_failures_batch_id", "failures")
    op.drop_table("deleted_rows")
    op.drop_table("deletions")
