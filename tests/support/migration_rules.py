"""What the migrations of a release may do to programs of the release before: docs/upgrading.md, "What a migration may do"."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from farm.db.migrate import DECLARATIONS, MIGRATIONS

FIRST_RULED = "0036"
"""Migrations from this one on follow the rules. Those before it are older than the first release."""


@dataclass(frozen=True, slots=True)
class Release:
    """A release, and the revision of the database that it needs; None: it is in development and needs the newest."""

    version: str
    revision: str | None


def releases() -> list[Release]:
    """The releases of migrations/releases.toml, the oldest first."""
    found = tomllib.loads((MIGRATIONS / "releases.toml").read_text())["releases"]
    return [Release(one["version"], one.get("revision")) for one in found]


def violations(source: str, known: Sequence[Release]) -> list[str]:
    """What is wrong with a migration, as its file has it."""
    tree = ast.parse(source)
    declared = _declared(tree)
    own = declared["revision"]
    before = [one for one in known if one.revision is not None and one.revision < own]
    taken = list(contracting(source))
    if "contracts" in declared:
        return list(_wrong_contract(declared, before, taken))
    found = [f"{one}: takes away what programs of the release before use" for one in taken]
    if before:
        oldest = before[-1].revision
        assert oldest is not None
        found += [
            f"{name} = {declared[name]!r}: does not serve {before[-1].version}, of revision {oldest}"
            for name in DECLARATIONS.values()
            if name in declared and declared[name] > oldest
        ]
    return found


def _wrong_contract(declared: Mapping[str, str], before: Sequence[Release], taken: Sequence[str]) -> Iterator[str]:
    release = next((one for one in before if one.version == declared["contracts"]), None)
    if release is None or release.revision is None:
        yield f"contracts = {declared['contracts']!r}: no release of that version and an earlier revision is in releases.toml"
        return
    for name in DECLARATIONS.values():
        if not release.revision <= declared.get(name, "") <= declared["revision"]:
            yield f"{name}: programs from before {release.version}, of revision {release.revision}, use what this takes away"
    if not taken:
        yield "contracts: nothing is taken away"


def _declared(tree: ast.Module) -> dict[str, str]:
    """The names of the module that are bound to a text."""
    return {
        one.targets[0].id: one.value.value
        for one in tree.body
        if isinstance(one, ast.Assign)
        and isinstance(one.targets[0], ast.Name)
        and isinstance(one.value, ast.Constant)
        and isinstance(one.value.value, str)
    }


def contracting(source: str) -> Iterator[str]:
    """The operations of `upgrade`, and of the functions that it calls, that older programs may not survive.

    An operation that cannot be read, because its text is made elsewhere, is one of them.
    """
    tree = ast.parse(source)
    calls = [
        call for function in _reached(tree, "upgrade") for call in ast.walk(function) if isinstance(call, ast.Call)
    ]
    operations = [call for call in calls if isinstance(call.func, ast.Attribute) and _is_op(call.func)]
    texts = {id(call): _text(call.args[0], tree) if call.args else None for call in operations}
    created = {table for call in operations for table in _created(call, texts[id(call)])}
    for call in operations:
        assert isinstance(call.func, ast.Attribute)
        if call.func.attr == "execute":
            text = texts[id(call)]
            if text is None:
                yield f"{ast.unparse(call)}, which cannot be read"
            else:
                yield from (one for one in _statements(text) if _sql_contracts(one, created))
        elif _contracts(call.func.attr, call, created):
            yield ast.unparse(call)


def _reached(tree: ast.Module, name: str) -> list[ast.FunctionDef]:
    """The function of that name, and those of the module that it calls, directly or not."""
    functions = {one.name: one for one in tree.body if isinstance(one, ast.FunctionDef)}
    found: dict[str, ast.FunctionDef] = {}
    waiting = [name]
    while waiting:
        called = waiting.pop()
        if called in functions and called not in found:
            found[called] = functions[called]
            waiting += [one.id for one in ast.walk(functions[called]) if isinstance(one, ast.Name)]
    return list(found.values())


def _is_op(function: ast.Attribute) -> bool:
    return isinstance(function.value, ast.Name) and function.value.id == "op"


def _text(node: ast.expr, tree: ast.Module) -> str | None:
    """The text of an argument; parts that are filled in are `?`. None: it is made elsewhere."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(str(one.value) if isinstance(one, ast.Constant) else "?" for one in node.values)
    if isinstance(node, ast.Name):
        return _declared(tree).get(node.id)
    return None


def _statements(text: str) -> list[str]:
    without_comments = re.sub(r"--[^\n]*|/\*.*?\*/", " ", text, flags=re.DOTALL)
    return [" ".join(one.split()) for one in without_comments.split(";") if one.strip()]


_CREATED = re.compile(r"\bCREATE TABLE (?:IF NOT EXISTS )?(\w+)", re.IGNORECASE)
_ALTERED = re.compile(r"^ALTER TABLE (?:IF EXISTS )?(?:ONLY )?(\w+) (.*)", re.IGNORECASE)
_TAKES_AWAY = re.compile(
    r"^(?:DROP (?:TABLE|FUNCTION|SEQUENCE|SCHEMA|TYPE)|TRUNCATE|REVOKE|ALTER (?:FUNCTION|SEQUENCE|TYPE|VIEW|INDEX)|DO\b"
    r"|CREATE (?:OR REPLACE )?(?:CONSTRAINT )?TRIGGER|CREATE (?:OR REPLACE )?RULE|CREATE UNIQUE INDEX)",
    re.IGNORECASE,
)
_NARROWS = re.compile(
    r"\bRENAME\b|\bDROP (?!CONSTRAINT|DEFAULT|NOT NULL|IDENTITY)|\bSET NOT NULL|\bTYPE\b|\bSET SCHEMA\b|\bOWNER TO\b"
    r"|\bADD (?:CONSTRAINT \w+ )?(?:UNIQUE|PRIMARY KEY|FOREIGN KEY|EXCLUDE)|ROW LEVEL SECURITY",
    re.IGNORECASE,
)
_ADDED = re.compile(r"^ADD (?:COLUMN )?(?:IF NOT EXISTS )?(?!CONSTRAINT|CHECK)\w+ (.*)", re.IGNORECASE)
_CHECK = re.compile(r"\bADD CONSTRAINT ([\w?]+) CHECK", re.IGNORECASE)


def _sql_contracts(statement: str, created: set[str]) -> bool:
    if _TAKES_AWAY.search(statement):
        unique = re.match(r"CREATE UNIQUE INDEX .*?\bON (\w+)", statement, re.IGNORECASE)
        return unique is None or unique[1] not in created
    altered = _ALTERED.match(statement)
    if altered is None or altered[1] in created:
        return False
    actions = altered[2]
    if _NARROWS.search(actions):
        return True
    added = [found[1] for one in _split(actions) if (found := _ADDED.match(one))]
    if any(
        "not null" in one.lower() and not re.search(r"\b(?:default|generated)\b", one, re.IGNORECASE) for one in added
    ):
        return True
    # A check that replaces one of the same name widens it. A new one may refuse what older programs write.
    return any(f"DROP CONSTRAINT {name}" not in actions for name in _CHECK.findall(actions))


def _split(actions: str) -> list[str]:
    """The actions of ALTER TABLE: at commas outside parentheses."""
    depth, parts = 0, [""]
    for character in actions:
        depth += {"(": 1, ")": -1}.get(character, 0)
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [one.strip() for one in parts]


def _created(call: ast.Call, text: str | None) -> list[str]:
    assert isinstance(call.func, ast.Attribute)
    if call.func.attr == "create_table" and text is not None:
        return [text]
    return _CREATED.findall(text or "") if call.func.attr == "execute" else []


_HARMLESS = {"create_table", "create_index", "drop_index", "create_table_comment", "f", "bulk_insert", "inline_literal"}
_OF_TABLES = {"add_column", "alter_column", "create_unique_constraint", "create_check_constraint", "create_foreign_key"}


def _contracts(name: str, call: ast.Call, created: set[str]) -> bool:
    """Whether an operation of alembic may harm older programs. One that is not known may."""
    named = {one.arg: ast.unparse(one.value) for one in call.keywords}
    words = [one.value for one in call.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
    if name == "create_index" and named.get("unique") == "True":
        return len(words) < 2 or words[1] not in created
    if name in _HARMLESS:
        return False
    if name in _OF_TABLES and set(words[:2]) & created:
        return False
    if name == "add_column" and len(call.args) > 1:
        column = ast.unparse(call.args[1])
        return "nullable=False" in column and "server_default" not in column
    if name == "alter_column":
        return bool(named.keys() & {"new_column_name", "type_"}) or named.get("nullable") == "False"
    return True


def ruled_migrations() -> list[Path]:
    """The files of migrations that follow the rules."""
    found = sorted((MIGRATIONS / "versions").glob("[0-9]*_*.py"))
    return [path for path in found if path.name.partition("_")[0] >= FIRST_RULED]
