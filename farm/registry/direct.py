"""Asks a model straight from its folder: the same code and the same arrays as through MLflow, whose import takes seconds.

A model's code says that it can be asked so by `INTERFACE` in its module `predictor`. Models whose code does not say it, and
tables of a user, which MLflow checks against the model's signature, go through MLflow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from farm.errors import NotPredictable, first_line
from farm.registry.stored_code import predictor_module

INTERFACE = 1
"""Of `Predictor.load`, `Predictor.predicted` and `Vocabulary.raw_columns`, which this module uses."""


class DirectModel:
    """A model that was loaded without MLflow. `pull` loads it through MLflow where that is needed."""

    def __init__(self, folder: Path, predictor: Any, pull: Callable[[], Any]) -> None:
        self._folder = folder
        self._predictor = predictor
        self._pull = pull

    @classmethod
    def load(cls, folder: Path, pull: Callable[[], Any]) -> DirectModel | None:
        """The model in that folder; None where only MLflow can load it."""
        code, forest = folder / "artifacts" / "code", folder / "artifacts" / "forest"
        if not (code / "predictor.py").is_file() or not (forest / "model.json").is_file():
            return None
        try:
            module = predictor_module(code)
            if getattr(module, "INTERFACE", None) != INTERFACE:
                return None
            return cls(folder, module.Predictor.load(forest), pull)
        except (ImportError, OSError, ValueError, LookupError):
            return None  # MLflow says what is wrong

    def answers(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Sequence[Any]]:
        """Output columns of rows of raw columns. Raises `NotPredictable`."""
        # As MLflow does: columns that the model does not take are left out, and the others are in the model's order.
        names = [name for name in self._predictor.vocabulary.raw_columns if any(name in row for row in rows)]
        columns = {name: [row.get(name, math.nan) for row in rows] for name in names}
        try:
            found: dict[str, Sequence[Any]] = self._predictor.predicted(columns)
        except ValueError as error:
            raise NotPredictable(why=first_line(error)) from error
        return found

    @cached_property
    def metadata(self) -> dict[str, Any]:
        """What the trainer wrote beside the model: device type, kernel families, sizes."""
        import yaml

        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        described = yaml.load((self._folder / "MLmodel").read_text(encoding="utf-8"), Loader=loader)
        return described.get("metadata") or {}

    @cached_property
    def pulled(self) -> Any:
        """The same model as an `mlflow.pyfunc.PyFuncModel`."""
        return self._pull()


def metadata_of(model: Any) -> dict[str, Any]:
    """What the trainer wrote beside a pulled or directly loaded model."""
    return model.metadata if isinstance(model, DirectModel) else model.metadata.metadata or {}
