"""The code that is stored with a model is imported alike with MLflow and without."""

from __future__ import annotations

import ast
from pathlib import Path

import farm
from farm.registry import stored_code

ROOT = Path(farm.__file__).parent.parent


def loader(path: Path) -> str:
    """The function that imports the code, without its docstring."""
    tree = ast.parse(path.read_text())
    (found,) = [one for one in tree.body if isinstance(one, ast.FunctionDef) and one.name == "predictor_module"]
    found.body = [one for one in found.body if not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant))]
    return ast.unparse(found)


def test_the_farm_imports_the_code_of_a_model_as_the_model_does() -> None:
    assert loader(Path(stored_code.__file__)) == loader(ROOT / "trainer" / "model" / "gemm_forest.py")
