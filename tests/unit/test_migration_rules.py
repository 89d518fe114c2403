"""Migrations keep to what docs/upgrading.md allows, so that programs of the release before go on."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from farm import __version__
from farm.db import migrate
from farm.db.migrate import MIGRATIONS
from farm.db.roles import RIGHTS
from support.migration_rules import FIRST_RULED, Release, contracting, releases, ruled_migrations, violations

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


# --- expand and contract -------------------------------------------------------------------------------

EXPANDING = [
    'op.create_table("moods", sa.Column("id", sa.Text(), nullable=False))',
    'op.create_index("ix_jobs_mood", "jobs", ["mood"])',
    'op.add_column("jobs", sa.Column("mood", sa.Text()))',
    'op.add_column("jobs", sa.Column("mood", sa.Text(), nullable=False, server_default="good"))',
    'op.alter_column("jobs", "mood", server_default="good")',
    'op.execute("ALTER TABLE tokens ADD COLUMN mood text")',
    "op.execute(\"ALTER TABLE tokens ADD COLUMN mood text NOT NULL DEFAULT 'good', ADD COLUMN age numeric(4, 2)\")",
    'op.execute("ALTER TABLE jobs DROP CONSTRAINT ck_jobs_mood, ADD CONSTRAINT ck_jobs_mood CHECK (mood IN (1, 2))")',
    'op.execute("CREATE TABLE moods (id int NOT NULL); ALTER TABLE moods ADD CONSTRAINT u UNIQUE (id)")',
    'op.execute("CREATE TABLE moods (id int); CREATE UNIQUE INDEX u ON moods (id)")',
    'op.execute("UPDATE jobs SET solo = false")',
    'op.execute("DROP VIEW IF EXISTS v_measurements")',
    'op.execute("-- DROP TABLE jobs")',
]
CONTRACTING = [
    'op.drop_column("tokens", "name")',
    'op.drop_table("web_sessions")',
    'op.rename_table("tokens", "keys")',
    'op.alter_column("tokens", "name", new_column_name="title")',
    'op.alter_column("tokens", "name", type_=sa.Integer())',
    'op.alter_column("tokens", "name", nullable=False)',
    'op.add_column("tokens", sa.Column("mood", sa.Text(), nullable=False))',
    'op.create_unique_constraint("uq", "tokens", ["name"])',
    'op.create_index("uq", "tokens", ["name"], unique=True)',
    'op.batch_alter_table("tokens")',
    'op.get_bind().exec_driver_sql("SELECT 1")',
    'op.execute(Path("0040.sql").read_text())',
    'op.execute("ALTER TABLE tokens DROP COLUMN name")',
    'op.execute("ALTER TABLE tokens DROP name")',
    'op.execute("alter table tokens rename column name to title")',
    'op.execute("ALTER TABLE tokens ALTER COLUMN name TYPE int")',
    'op.execute("ALTER TABLE tokens ALTER name SET NOT NULL")',
    'op.execute("ALTER TABLE tokens ADD COLUMN mood text NOT NULL")',
    'op.execute("ALTER TABLE tokens ADD mood numeric(4, 2) NOT NULL, ADD age int")',
    "op.execute(\"ALTER TABLE tokens ADD CONSTRAINT ck CHECK (name <> '')\")",
    'op.execute("ALTER TABLE tokens ADD CONSTRAINT u UNIQUE (name)")',
    'op.execute("SELECT 1; DROP TABLE tokens")',
    'op.execute("DROP FUNCTION worker_land")',
    'op.execute("CREATE UNIQUE INDEX u ON tokens (name)")',
    'op.execute("REVOKE SELECT ON tokens FROM farm_web")',
    'op.execute(f"ALTER TABLE tokens DROP COLUMN {name}")',
    "op.execute(TAKEN)",
    "helper()",
]


def migration(operation: str, **declared: str) -> str:
    names = "\n".join(f'{name} = "{value}"' for name, value in {"revision": "0042", **declared}.items())
    helper = 'def helper():\n    op.drop_column("tokens", "name")\n'
    return f'{names}\nTAKEN = "DROP TABLE tokens"\n{helper}def upgrade():\n    {operation}\ndef downgrade():\n    op.drop_table("a")\n'


@pytest.mark.parametrize("operation", EXPANDING)
def test_a_migration_may_expand(operation: str) -> None:
    assert list(contracting(migration(operation))) == []
    assert violations(migration(operation), [Release("0.2.0", "0040")]) == []


@pytest.mark.parametrize("operation", CONTRACTING)
def test_a_migration_that_contracts_is_refused(operation: str) -> None:
    assert len(list(contracting(migration(operation)))) == 1
    (wrong,) = violations(migration(operation), [Release("0.2.0", "0040")])
    assert "takes away" in wrong


RELEASES = [Release("0.1.0", "0036"), Release("0.2.0", "0040"), Release("0.3.0", None)]
DROP = 'op.drop_column("tokens", "name")'


@pytest.mark.parametrize(
    ("operation", "declared", "wrong"),
    [
        (DROP, {"contracts": "0.2.0", "workers_from": "0040", "services_from": "0040"}, None),
        (DROP, {"contracts": "0.2.0", "workers_from": "0042", "services_from": "0042"}, None),
        (DROP, {"contracts": "0.3.0", "workers_from": "0042", "services_from": "0042"}, "no release of that version"),
        (DROP, {"contracts": "9.9.9", "workers_from": "0042", "services_from": "0042"}, "no release of that version"),
        (
            DROP,
            {"contracts": "0.2.0", "workers_from": "0036", "services_from": "0040"},
            "workers_from: programs from before",
        ),
        (DROP, {"contracts": "0.2.0", "workers_from": "0040"}, "services_from: programs from before"),
        (
            DROP,
            {"contracts": "0.2.0", "workers_from": "0043", "services_from": "0040"},
            "workers_from: programs from before",
        ),
        ("pass", {"contracts": "0.2.0", "workers_from": "0040", "services_from": "0040"}, "nothing is taken away"),
        ("pass", {"workers_from": "0042"}, "does not serve 0.2.0"),
        ("pass", {"services_from": "0041"}, "does not serve 0.2.0"),
        ("pass", {"workers_from": "0040", "services_from": "0036"}, None),
    ],
)
def test_a_migration_contracts_only_for_a_release_that_no_longer_uses_it(
    operation: str, declared: dict[str, str], wrong: str | None
) -> None:
    found = violations(migration(operation, **declared), RELEASES)
    assert [wrong in one for one in found if wrong is not None] == ([] if wrong is None else [True]), found
    assert bool(found) is (wrong is not None)


@pytest.mark.parametrize("path", ruled_migrations(), ids=lambda path: path.stem)
def test_each_migration_keeps_to_the_rules(path: Path) -> None:
    assert violations(path.read_text(), releases()) == [], "docs/upgrading.md says what a migration may do"


def test_the_rules_find_what_earlier_migrations_took_away() -> None:
    earlier = [path for path in (MIGRATIONS / "versions").glob("[0-9]*_*.py") if path.name < FIRST_RULED]
    assert {path.name[:4] for path in earlier if list(contracting(path.read_text()))} >= {"0025", "0030"}


def test_releases_are_listed_in_their_order_up_to_this_version() -> None:
    known = releases()
    assert known[-1] == Release(__version__, None)
    revisions = [one.revision or "" for one in known[:-1]]
    assert all(revisions)
    assert revisions == sorted(revisions)
    assert [one.version for one in known] == sorted(
        {one.version for one in known}, key=lambda v: [*map(int, v.split("."))]
    )


def test_the_document_lists_the_releases() -> None:
    modules = [path.read_text() for path in sorted((MIGRATIONS / "versions").glob("[0-9]*_*.py"))]
    text = (MIGRATIONS.parent / "docs" / "upgrading.md").read_text()
    for release in releases():
        needed = release.revision or migrate.head()
        declared = [re.findall(r'^(?:workers|services)_from = "(\d+)"', one, re.MULTILINE) for one in modules]
        oldest = max(one for each in declared for one in each if one <= needed)
        assert f"| {release.version} | {needed} | {oldest} |" in text
