"""Workers announce their version and refuse what it cannot read; a stop of a campaign reaches the leases in hand.

From here on the database says from which revision on workers may stay: see `workers_from` in `farm.db.migrate`.

Revises: 0015
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

workers_from = "0016"


def upgrade() -> None:
    op.create_table(
        "compatible_revisions",
        sa.Column("program", sa.Text(), nullable=False),
        sa.Column("oldest", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("program", name=op.f("pk_compatible_revisions")),
    )
    op.create_table(
        "worker_versions",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("revision", sa.Text(), nullable=False),
        sa.Column("vocabulary", sa.Text(), nullable=False),
        sa.Column(
            "first_seen_at", sa.TIMESTAMP(timezone=True), nullable=False, server_default=sa.text("clock_timestamp()")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_worker_versions")),
        sa.UniqueConstraint(
            "version", "revision", "vocabulary", name=op.f("uq_worker_versions_version_revision_vocabulary")
        ),
    )
    for table in ("devices", "failures"):
        op.add_column(table, sa.Column("worker_version_id", sa.BigInteger()))
        op.create_foreign_key(
            op.f(f"fk_{table}_worker_version_id"),
            table,
            "worker_versions",
            ["worker_version_id"],
            ["id"],
        )
    op.add_column("devices", sa.Column("claim_error", sa.Text()))
    op.add_column("devices", sa.Column("claim_error_at", sa.TIMESTAMP(timezone=True)))
    op.add_column("batches", sa.Column("stopped", sa.Boolean(), nullable=False, server_default="false"))
    _kinds("'invalid', 'unsupported', 'failed', 'killed'")
    op.create_index(
        "ix_returned_jobs_unsupported",
        "returned_jobs",
        ["lane_id", "refused_by", "job_id"],
        postgresql_where=sa.text("refused_by[1] < 0"),
    )


def downgrade() -> None:
    op.drop_index("ix_returned_jobs_unsupported", "returned_jobs")
    op.execute("UPDATE returned_jobs SET refused_by = ARRAY(SELECT i FROM unnest(refused_by) i WHERE i > 0 ORDER BY i)")
    op.execute("DELETE FROM failures WHERE kind = 'unsupported'")
    _kinds("'invalid', 'failed', 'killed'")
    op.drop_column("batches", "stopped")
    op.drop_column("devices", "claim_error_at")
    op.drop_column("devices", "claim_error")
    for table in ("devices", "failures"):
        op.drop_column(table, "worker_version_id")
    op.drop_table("worker_versions")
    op.drop_table("compatible_revisions")


def _kinds(listed: str) -> None:
    op.drop_constraint(op.f("ck_failures_kind_known"), "failures")
    op.create_check_constraint(op.f("ck_failures_kind_known"), "failures", f"kind IN ({listed})")
