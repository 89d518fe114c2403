"""People whom an OpenID provider signs in: the table `oidc_users`, and the subject and role of their sessions.

Programs of the revision before go on: they accept no session with another issuer than theirs.

Revises: 0036
"""

from __future__ import annotations

from alembic import op

revision = "0037"
down_revision = "0036"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE web_sessions ADD COLUMN subject text, ADD COLUMN role text")
    op.execute("""
        CREATE TABLE oidc_users (
            issuer text NOT NULL,
            subject text NOT NULL,
            name text NOT NULL,
            created_at timestamptz DEFAULT clock_timestamp() NOT NULL,
            CONSTRAINT pk_oidc_users PRIMARY KEY (issuer, subject),
            CONSTRAINT uq_oidc_users_name UNIQUE (name)
        )
    """)


def downgrade() -> None:
    op.execute("DROP TABLE oidc_users")
    op.execute("DELETE FROM web_sessions WHERE subject IS NOT NULL")
    op.execute("ALTER TABLE web_sessions DROP COLUMN subject, DROP COLUMN role")
