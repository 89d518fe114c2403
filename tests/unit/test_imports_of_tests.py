"""Tests share what lies in tests/support, and nothing else: a test module can be changed without a look at the others."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]


def imported(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom):
            yield node.module or ""
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names)


def test_no_module_imports_a_test_module_or_a_helper_from_beside_it() -> None:
    beside = {file.stem for file in TESTS.rglob("*.py")} - {file.stem for file in (TESTS / "chaos").rglob("*.py")}
    beside -= {"__init__", "conftest"}
    beside |= {"tests"}
    wrong = [
        f"{file.relative_to(TESTS)}: {name}"
        for file in sorted(TESTS.rglob("*.py"))
        for name in imported(file)
        if name.split(".")[0] in beside
    ]
    assert wrong == []
