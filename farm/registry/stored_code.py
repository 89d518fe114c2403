"""Imports the code that is stored with a model, without installing anything."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any


def predictor_module(folder: Path) -> Any:
    """The module `predictor` of the package in that folder, under a name made of its content.

    As a registered model loads it: see `trainer/model/gemm_forest.py`, which has to do without this package. Raises
    `ImportError`.
    """
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    name = f"gemm_stored_{digest.hexdigest()[:16]}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            name, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
        if spec is None or spec.loader is None:
            raise ImportError(f"the code of the models is missing: {folder}")
        package = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(package)
        sys.modules[name] = package
    return importlib.import_module(f"{name}.predictor")
