"""Which steps of the leader's turns fail, and which sessions hold a row.

Revises: 0014
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

# Where several transactions hold a row, its xmax is the number of their group. Of one, it is no such number, which raises.
_LOCKERS = """
CREATE FUNCTION lockers(row_xmax xid) RETURNS SETOF xid LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN NEXT row_xmax;
    BEGIN
        RETURN QUERY SELECT m.xid FROM pg_get_multixact_members(row_xmax) m;
    EXCEPTION WHEN OTHERS THEN
        NULL;
    END;
END $$
"""


def upgrade() -> None:
    op.add_column("leadership", sa.Column("failing", JSONB(), nullable=False, server_default="[]"))
    op.execute(_LOCKERS)


def downgrade() -> None:
    op.execute("DROP FUNCTION lockers(xid)")
    op.drop_column("leadership", "failing")
