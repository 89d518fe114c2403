"""Stores the models of the evaluation with the final one: `farm.registry.held_out` reads them."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd

from farm.forest.predictor import Predictor
from farm.registry.held_out import SHAPE, fold_folder
from trainer.table import types_of


class FoldModelStore:
    """Writes such a folder while the models are fitted: they need not all be in memory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._unseen: list[pd.DataFrame] = []

    def keep(self, model: Predictor, training: pd.DataFrame, held_out: pd.DataFrame) -> None:
        """Keeps the model of the next fold: it was fitted on the rows `training` and judged on the rows `held_out`."""
        fold = fold_folder(self._folder, len(self._unseen))
        model.save(fold)
        training[SHAPE].drop_duplicates().to_parquet(fold / "trained_on.parquet", index=False)
        self._unseen.append(held_out[SHAPE].drop_duplicates().assign(fold=len(self._unseen)))

    def finish(self, configured: pd.DataFrame) -> None:
        """Writes what all folds share."""
        if not self._unseen:
            return
        pd.concat(self._unseen).to_parquet(self._folder / "shapes.parquet", index=False)
        (self._folder / "kinds.json").write_text(json.dumps(kinds_of(configured)), encoding="utf-8")


def kinds_of(configured: pd.DataFrame) -> list[str]:
    """`tiled f32:f32:f32 nn` and so on: every combination that a model of these rows can predict."""
    return sorted(set(configured["family"] + " " + types_of(configured) + " " + configured["layout"]))
