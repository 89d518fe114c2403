"""Imports inside the farm point one way: every module is in a layer of pyproject.toml, and no modules import each other."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    """The imports of the programs, inside functions too; without those that only type checkers see."""
    return grimp.build_graph("farm", "workers", "trainer", exclude_type_checking_imports=True, cache_dir=None)


def layers() -> list[str]:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (found,) = (contract["layers"] for contract in contracts if contract["type"] == "layers")
    return [name.strip() for layer in found for name in layer.split(":")]


def test_every_module_is_in_one_layer(graph: grimp.ImportGraph) -> None:
    known = layers()
    packages = {"farm", "farm.schema"}  # which bring nothing of their own but names
    of = {
        module: [layer for layer in known if module == layer or module.startswith(f"{layer}.")]
        for module in graph.modules - packages
        if module.startswith("farm.")
    }
    assert {module: found for module, found in of.items() if len(found) != 1} == {}
    assert [layer for layer in known if layer not in graph.modules] == []


def cycles(modules: set[str], imported_by: Callable[[str], set[str]]) -> Iterator[set[str]]:
    """The sets of modules of which each imports all others, directly or by others of them (Tarjan)."""
    number, lowest, path = dict[str, int](), dict[str, int](), list[str]()

    def visit(module: str) -> Iterator[set[str]]:
        number[module] = lowest[module] = len(number)
        path.append(module)
        for other in imported_by(module):
            if other not in number:
                yield from visit(other)
            if other in path:
                lowest[module] = min(lowest[module], lowest[other])
        if lowest[module] == number[module]:
            place = path.index(module)
            if len(path) - place > 1:
                yield set(path[place:])
            del path[place:]

    for module in sorted(modules):
        if module not in number:
            yield from visit(module)


def test_no_modules_import_each_other(graph: grimp.ImportGraph) -> None:
    assert list(cycles(graph.modules, graph.find_modules_directly_imported_by)) == []


def test_cycles_are_found() -> None:
    imports = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": {"e"}, "e": set(), "f": {"f", "a"}}
    assert list(cycles(set(imports), imports.__getitem__)) == [{"b", "c"}]
