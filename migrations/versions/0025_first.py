"""The first revision: the tables of `0025_first.sql`, and the views, functions and triggers of `migrations/sql/`.

Revisions 0001 to 0024 existed before the first release and are gone. A database at the former revision 0025 has the same schema
and stays as it is, hence the number. An older one is refused (`farm.errors.DatabaseTooOld`).

Revises: nothing
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from alembic import op

from farm.db import migrate

revision = "0025"
down_revision = None
branch_labels = None
depends_on = None
# The functions of workers are those of the former revision 0024.
workers_from = "0024"
sql = migrate.sql_files()

_TABLES = Path(__file__).with_suffix(".sql")


def upgrade() -> None:
    migrate.run_sql(op.get_bind(), _TABLES)


def downgrade() -> None:
    """Views and triggers go with the tables."""
    op.execute(f"DROP TABLE {_created('TABLE', [_TABLES])} CASCADE")
    op.execute(f"DROP FUNCTION IF EXISTS {_created('FUNCTION', (migrate.MIGRATIONS / name for name in sql))}")


def _created(kind: str, files: Iterable[Path]) -> str:
    """The names of what the files create of a kind, separated by commas."""
    statement = re.compile(rf"^CREATE (?:OR REPLACE )?{kind} (\w+)", re.MULTILINE)
    return ", ".join(name for file in files for name in statement.findall(file.read_text()))
