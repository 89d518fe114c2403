"""The models of the evaluation, kept beside the final one: what a version says of shapes that it has not seen.

A folder holds the code of the models once, the files of each fold's model, `shapes.parquet` with m, n, k and the fold
whose model has not seen the shape, and for each fold the shapes that its model was really trained on. The two are written
from different things, so a fold that leaks contradicts itself, today and whenever the version is compared again.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

from farm.errors import FarmError
from farm.registry import load_mlflow, mlflow_warnings_ignored
from trainer.model.columns import OUTPUTS
from trainer.model.predictor import Predictor
from trainer.packaging import copy_code

SHAPE = ["m", "n", "k"]

_KIND = ["family", "ab", "cd", "acc", "layout"]
_REFUSALS = (FarmError, ValueError, TypeError, LookupError, AttributeError)
"""How a model of whatever making may refuse rows."""


class Keeper:
    """Writes such a folder while the models are fitted: they need not all be in memory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._unseen: list[pd.DataFrame] = []

    def keep(self, model: Predictor, training: pd.DataFrame, held_out: pd.DataFrame) -> None:
        """Keeps the model of the next fold: it was fitted on the rows `training` and judged on the rows `held_out`."""
        fold = _fold_folder(self._folder, len(self._unseen))
        model.save(fold)
        training[SHAPE].drop_duplicates().to_parquet(fold / "trained_on.parquet", index=False)
        self._unseen.append(held_out[SHAPE].drop_duplicates().assign(fold=len(self._unseen)))

    def finish(self, configured: pd.DataFrame) -> None:
        """Writes what all folds share."""
        if not self._unseen:
            return
        copy_code(self._folder / "code")
        pd.concat(self._unseen).to_parquet(self._folder / "shapes.parquet", index=False)
        (self._folder / "kinds.json").write_text(json.dumps(kinds_of(configured)), encoding="utf-8")


class HeldOut:
    """Such a folder, read. Raises `FileNotFoundError` where there is none."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._shapes = pd.read_parquet(folder / "shapes.parquet")
        self.kinds: tuple[str, ...] = tuple(json.loads((folder / "kinds.json").read_text(encoding="utf-8")))

    def leak(self) -> str | None:
        """How the folder contradicts itself: shapes that a fold's model is said not to know, and was trained on."""
        for number in sorted(self._shapes["fold"].unique()):
            trained_on = pd.read_parquet(_fold_folder(self._folder, number) / "trained_on.parquet")
            both = self._shapes[self._shapes["fold"] == number].merge(trained_on, on=SHAPE)
            if len(both):
                m, n, k = both.iloc[0][SHAPE]
                return (
                    f"{len(both):,} shapes that it is said not to have seen were in its training, as {m}x{n}x{k} "
                    f"in fold {number}: its errors mean nothing"
                )
        return None

    def fold_of(self, rows: pd.DataFrame) -> pd.Series:
        """The fold whose model has not seen the row's shape; NaN where the version never had the shape at all."""
        known = self._shapes.drop_duplicates(SHAPE).set_index(SHAPE)["fold"].astype("float64")
        return pd.Series(known.reindex(pd.MultiIndex.from_frame(rows[SHAPE])).to_numpy(), rows.index)

    def predict(self, rows: pd.DataFrame) -> pd.DataFrame:
        """What the version says of each row by the model that has not seen its shape; NaN where there is no such model,
        or it does not know rows of that kind."""
        predicted = pd.DataFrame(np.nan, rows.index, list(OUTPUTS))
        fold = self.fold_of(rows)
        for number in sorted(fold.dropna().unique()):
            asked = rows[fold == number]
            model = self._model(int(number))
            predicted.loc[asked.index] = answers(model.predict, asked)
        return predicted

    def _model(self, fold: int) -> Predictor:
        load_mlflow()
        with mlflow_warnings_ignored():
            from trainer.model.gemm_forest import predictor_module
        loaded: Predictor = predictor_module(self._folder / "code").Predictor.load(_fold_folder(self._folder, fold))
        return loaded


def _fold_folder(folder: Path, number: int) -> Path:
    return folder / f"fold_{number}"


def answers(ask: Callable[[pd.DataFrame], pd.DataFrame], rows: pd.DataFrame) -> pd.DataFrame:
    """What a model says of each row, and NaN for all rows of a kind (family, types, layout) that it refuses."""
    try:
        return ask(rows)[list(OUTPUTS)]
    except _REFUSALS:
        kinds = [part for _, part in rows.groupby(_KIND, sort=False)]
        if len(kinds) < 2:
            return pd.DataFrame(np.nan, rows.index, list(OUTPUTS))
        return pd.concat([answers(ask, part) for part in kinds]).loc[rows.index]


def kinds_of(configured: pd.DataFrame) -> list[str]:
    """`tiled f32:f32:f32 nn` and so on: every combination that a model of these rows can be asked about."""
    types = configured["ab"] + ":" + configured["cd"] + ":" + configured["acc"]
    return sorted(set(configured["family"] + " " + types + " " + configured["layout"]))
