"""Names that are imported when they are first used, so that a module which mentions them costs nothing to import (PEP 562)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def load(named: str) -> Any:
    """What `module:name` names."""
    module, _, name = named.partition(":")
    return getattr(import_module(module), name)


def names_of(package: str, modules: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """The `__getattr__` of a package. `modules` says which module of the package defines which names."""
    if clash := {name for names in modules.values() for name in names} & set(modules):
        raise ValueError(f"{package}: {', '.join(sorted(clash))} would be the module as soon as that is imported")
    homes = {name: f"{package}.{module}" for module, names in modules.items() for name in names}

    def getattr_of_package(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(homes[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return getattr_of_package
