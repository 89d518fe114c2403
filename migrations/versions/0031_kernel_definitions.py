"""Kernels of users: the table `kernel_definitions`, and `refused` as the kind of a failure.

Revises: 0030
"""

from __future__ import annotations

from alembic import op

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None
workers_from = "0030"


def upgrade() -> None:
    op.execute(
        "CREATE TABLE kernel_definitions (id bigint NOT NULL, file text NOT NULL, definition jsonb NOT NULL, "
        "submitted_by text, submitted_at timestamptz DEFAULT clock_timestamp() NOT NULL, "
        "CONSTRAINT pk_kernel_definitions PRIMARY KEY (id))"
    )
    _allow("invalid", "unsupported", "failed", "killed", "corrupted", "refused")


def downgrade() -> None:
    """Kernels that were refused become failures, which older versions know."""
    op.execute("UPDATE failures SET kind = 'failed' WHERE kind = 'refused'")
    _allow("invalid", "unsupported", "failed", "killed", "corrupted")
    op.execute("DROP TABLE kernel_definitions")


def _allow(*kinds: str) -> None:
    known = ", ".join(f"'{kind}'" for kind in kinds)
    op.execute(
        "ALTER TABLE failures DROP CONSTRAINT ck_failures_kind_known, "
        f"ADD CONSTRAINT ck_failures_kind_known CHECK (kind IN ({known}))"
    )
