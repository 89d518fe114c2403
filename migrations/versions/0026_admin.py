"""Tokens of administrators: the role admin, in tokens and in the audit.

Revises: 0025
"""

from __future__ import annotations

from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None

_CONSTRAINTS = {"audit": "ck_audit_role_known", "tokens": "ck_tokens_ck_tokens_role_known"}


def upgrade() -> None:
    _allow("read", "submit", "operate", "admin")


def downgrade() -> None:
    """Revokes the tokens of administrators, which older versions do not know. In the audit they become operators."""
    op.execute(
        "UPDATE tokens SET role = 'operate', revoked_at = coalesce(revoked_at, clock_timestamp()) WHERE role = 'admin'"
    )
    op.execute("ALTER TABLE audit DISABLE TRIGGER audit_stays")
    op.execute("UPDATE audit SET role = 'operate' WHERE role = 'admin'")
    op.execute("ALTER TABLE audit ENABLE ALWAYS TRIGGER audit_stays")
    _allow("read", "submit", "operate")


def _allow(*roles: str) -> None:
    known = ", ".join(f"'{role}'" for role in roles)
    for table, name in _CONSTRAINTS.items():
        op.execute(f"ALTER TABLE {table} DROP CONSTRAINT {name}, ADD CONSTRAINT {name} CHECK (role IN ({known}))")
