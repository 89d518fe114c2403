"""Names that are imported when they are first used, so that a module which mentions them costs nothing to import (PEP 562)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any


def load(named: str) -> Any:
    """What `module:name` names."""
    module, _, name = named.partition(":")
    return getattr(import_module(module), name)


def names_of(package: str) -> Callable[[str], Any]:
    """The `__getattr__` of a package: a name that its block `if TYPE_CHECKING:` imports is imported when it is first used."""

    @cache
    def homes() -> dict[str, str]:
        with open(str(sys.modules[package].__file__), encoding="utf-8") as file:  # noqa: PTH123 - pathlib takes 5 ms to import
            return modules_of(package, file.read())

    def getattr_of_package(name: str) -> Any:
        if name.startswith("__") or name not in homes():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(homes()[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return getattr_of_package


def modules_of(package: str, source: str) -> dict[str, str]:
    """The module of each name that the `if` blocks of a package import. Raises `ValueError` for a name that is also a module."""
    import ast

    blocks = (node.body for node in ast.parse(source).body if isinstance(node, ast.If))
    imports = (node for body in blocks for node in body if isinstance(node, ast.ImportFrom))
    homes = {alias.name: str(node.module) for node in imports for alias in node.names}
    if clash := homes.keys() & {home.removeprefix(f"{package}.") for home in homes.values()}:
        raise ValueError(f"{package}: {', '.join(sorted(clash))} would be the module as soon as that is imported")
    return homes
