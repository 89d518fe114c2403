"""Campaigns that choose what to measure: the purpose of a lane, trainings that decide on rounds, and test sets kept apart.

Revises: 0011
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

# A problem of a test set must not be measured to learn from. Statement by statement, as jobs come by the thousand.
_KEEP_APART = """
CREATE FUNCTION keep_test_sets_apart() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    problem text;
BEGIN
    SELECT format('%sx%sx%s %s %s', c.m, c.n, c.k, c.ab, c.layout) INTO problem
    FROM (SELECT DISTINCT lane_id FROM new_jobs) n
    JOIN lanes l ON l.id = n.lane_id AND l.purpose = 'learn'
    JOIN lanes t ON t.campaign_id = l.campaign_id AND t.pool_id = l.pool_id AND t.purpose = 'test'
    JOIN new_jobs j ON j.lane_id = l.id
    JOIN configurations c ON c.id = j.configuration_id
    WHERE EXISTS (
        SELECT FROM jobs o JOIN configurations d ON d.id = o.configuration_id
        WHERE o.lane_id = t.id AND (d.m, d.n, d.k, d.ab, d.layout) = (c.m, c.n, c.k, c.ab, c.layout)
    )
    LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'the problem % is in the test set of its campaign and cannot be learned from', problem
            USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END
$$
"""


def upgrade() -> None:
    op.add_column("lanes", sa.Column("purpose", sa.Text()))
    op.create_check_constraint(op.f("ck_lanes_purpose_known"), "lanes", "purpose IN ('test', 'learn')")
    op.add_column("trainings", sa.Column("lane_id", sa.BigInteger()))
    op.create_unique_constraint(op.f("uq_trainings_lane_id"), "trainings", ["lane_id"])
    op.execute(_KEEP_APART)
    op.execute(
        "CREATE TRIGGER keep_test_sets_apart AFTER INSERT ON jobs REFERENCING NEW TABLE AS new_jobs "
        "FOR EACH STATEMENT EXECUTE FUNCTION keep_test_sets_apart()"
    )


def downgrade() -> None:
    op.execute("DROP TRIGGER keep_test_sets_apart ON jobs")
    op.execute("DROP FUNCTION keep_test_sets_apart()")
    op.execute("DELETE FROM trainings WHERE lane_id IS NOT NULL")
    op.drop_constraint(op.f("uq_trainings_lane_id"), "trainings")
    op.drop_column("trainings", "lane_id")
    op.drop_constraint(op.f("ck_lanes_purpose_known"), "lanes")
    op.drop_column("lanes", "purpose")
