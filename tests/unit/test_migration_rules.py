"""Migrations that workers of the version before would not survive must say so: see docs/operating.md, Upgrades."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from farm.db.migrate import MIGRATIONS
from farm.db.roles import RIGHTS

_BREAKS = {"drop_column", "drop_table", "rename_table"}
_SQL = re.compile(r"\b(?:RENAME|DROP\s+(?:TABLE|COLUMN))\b", re.IGNORECASE)


def breaking(source: str) -> list[str]:
    """The operations of a migration's `upgrade` that take something from workers, or ask something new of what they write."""
    (upgrade,) = (one for one in ast.parse(source).body if isinstance(one, ast.FunctionDef) and one.name == "upgrade")
    return [ast.unparse(call) for call in ast.walk(upgrade) if isinstance(call, ast.Call) and _breaks(call)]


def _breaks(call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    words = [one.value for one in call.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
    named = {one.arg: ast.unparse(one.value) for one in call.keywords}
    if name == "execute":
        return any(_SQL.search(word) for word in words)
    if not words or words[0] not in RIGHTS:
        return False
    if name == "add_column":
        column = ast.unparse(call.args[1])
        return "nullable=False" in column and "server_default" not in column
    if name == "alter_column":
        return named.keys() >= {"new_column_name"} or "type_" in named or named.get("nullable") == "False"
    return name in _BREAKS


def _declares(source: str, revision: str) -> bool:
    return f'workers_from = "{revision}"' in source


@pytest.mark.parametrize("path", sorted((MIGRATIONS / "versions").glob("[0-9]*_*.py")), ids=lambda path: path.stem)
def test_a_migration_that_breaks_older_workers_says_so(path: Path) -> None:
    revision, source = path.name.partition("_")[0], path.read_text()
    assert not breaking(source) or _declares(source, revision), (
        f"{path.name}: {breaking(source)} breaks workers of the version before. Change it, or declare workers_from."
    )


@pytest.mark.parametrize(
    ("operation", "breaks"),
    [
        ('op.add_column("jobs", sa.Column("mood", sa.Text()))', False),
        ('op.add_column("jobs", sa.Column("mood", sa.Text(), nullable=False, server_default="good"))', False),
        ('op.add_column("failures", sa.Column("mood", sa.Text(), nullable=False))', True),
        ('op.create_table("moods")', False),
        ('op.drop_column("jobs", "solo")', True),
        ('op.drop_column("tokens", "name")', False),
        ('op.rename_table("batches", "parcels")', True),
        ('op.alter_column("devices", "type", new_column_name="kind")', True),
        ('op.alter_column("devices", "state_reason", nullable=False)', True),
        ('op.alter_column("devices", "state_reason", server_default="none")', False),
        ('op.execute("ALTER TABLE jobs RENAME COLUMN solo TO alone")', True),
        ('op.execute("UPDATE jobs SET solo = false")', False),
    ],
)
def test_what_breaks_older_workers_is_found(operation: str, breaks: bool) -> None:
    assert bool(breaking(f"def upgrade():\n    {operation}\n")) is breaks
