"""How far a training is, for who waits for it.

Revises: 0010
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("trainings", sa.Column("progress", sa.Float()))


def downgrade() -> None:
    op.drop_column("trainings", "progress")
