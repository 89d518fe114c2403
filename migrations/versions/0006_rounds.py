"""Rounds of a search: lanes have a number and may have rules of their own, and what short rounds measured is no result.

`v_all_measurements` is what `v_measurements` was; `v_measurements` is that without the rows of short rounds.

Revises: 0005
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

# Whatever columns the view has, so that this revision need not name them.
V_MEASUREMENTS = """
CREATE VIEW v_measurements AS
SELECT a.*, coalesce(l.round, 0::smallint) AS round
FROM v_all_measurements a LEFT JOIN jobs j ON j.id = a.job_id LEFT JOIN lanes l ON l.id = j.lane_id
WHERE l.rules IS NULL
"""


def upgrade() -> None:
    op.add_column("lanes", sa.Column("round", sa.SmallInteger(), server_default=sa.text("0"), nullable=False))
    op.add_column("lanes", sa.Column("rules", postgresql.JSONB()))
    op.add_column("lanes", sa.Column("later", sa.BigInteger(), server_default=sa.text("0"), nullable=False))
    op.add_column("lanes", sa.Column("decided", sa.BigInteger()))
    op.drop_constraint("uq_lanes_campaign_id_pool_id", "lanes")
    op.create_unique_constraint(
        op.f("uq_lanes_campaign_id_pool_id_round"), "lanes", ["campaign_id", "pool_id", "round"]
    )
    op.execute("ALTER VIEW v_measurements RENAME TO v_all_measurements")
    op.execute(V_MEASUREMENTS)


# What short rounds measured would pass for results. In this order, by what refers to what.
FORGET_SHORT_ROUNDS = (
    """
    UPDATE campaigns SET state = 'cancelled', finished_at = clock_timestamp()
    WHERE state IN ('active', 'paused') AND EXISTS (
        SELECT 1 FROM lanes l WHERE l.campaign_id = campaigns.id AND l.decided IS DISTINCT FROM l.done AND l.rules IS NOT NULL
    )
    """,
    "UPDATE campaigns SET document = document - 'search' WHERE document ? 'search'",
    """
    UPDATE devices d SET measured = d.measured - s.done
    FROM (
        SELECT b.device_id, sum(b.done) AS done FROM batches b JOIN lanes l ON l.id = b.lane_id
        WHERE l.rules IS NOT NULL AND b.folded GROUP BY b.device_id
    ) s
    WHERE d.id = s.device_id
    """,
    "ALTER TABLE measurements DISABLE TRIGGER USER",  # it is append-only
    "DELETE FROM measurements r USING jobs j, lanes l WHERE j.id = r.job_id AND l.id = j.lane_id AND l.rules IS NOT NULL",
    "ALTER TABLE measurements ENABLE TRIGGER USER",
    *(
        f"DELETE FROM {table} o USING lanes l WHERE l.id = o.lane_id AND l.rules IS NOT NULL"
        for table in ("returned_jobs", "failures", "batches", "jobs")
    ),
    "DELETE FROM lanes WHERE rules IS NOT NULL",
)


def downgrade() -> None:
    """What short rounds measured goes; a search that is not at its last round is cancelled."""
    op.execute("DROP VIEW v_measurements")
    op.execute("ALTER VIEW v_all_measurements RENAME TO v_measurements")
    for statement in FORGET_SHORT_ROUNDS:
        op.execute(statement)
    op.drop_constraint("uq_lanes_campaign_id_pool_id_round", "lanes")
    op.create_unique_constraint(op.f("uq_lanes_campaign_id_pool_id"), "lanes", ["campaign_id", "pool_id"])
    for name in ("decided", "later", "rules", "round"):
        op.drop_column("lanes", name)
