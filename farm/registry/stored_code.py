"""Imports the code that is stored with a model, without installing anything."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType


# The same function as in `trainer/model/gemm_forest.py`. That file is stored with each model and has to do without this
# package, and importing it imports MLflow, which takes seconds. A test compares the two.
def predictor_module(folder: Path) -> ModuleType:
    """The module `predictor` of the package in `folder`, which is imported under a name made of its content.

    Raises `ImportError`.
    """
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    name = f"gemm_forest_{digest.hexdigest()[:16]}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            name, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
        if spec is None or spec.loader is None:
            raise ImportError(f"the model's code is missing: {folder}")
        package = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(package)
        sys.modules[name] = package
    return importlib.import_module(f"{name}.predictor")
