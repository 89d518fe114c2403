"""The scripts of `docs/`, which is no package: the prose check, the tables of keys, the hooks of the site."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).parents[2] / "docs"


def docs_script(name: str) -> ModuleType:
    """`docs/NAME.py`, run anew as a module."""
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
