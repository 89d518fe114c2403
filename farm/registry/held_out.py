"""Predictions for unseen shapes, by the fold models of a version's evaluation, which the trainer keeps with its run.

A folder holds the files of each fold's model, `shapes.parquet` with m, n, k and the fold whose model has not seen the shape,
and for each fold the shapes that its model was trained on. The two lists come from different sources, so they contradict each
other where a fold leaks.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from farm.errors import FarmError
from farm.gemm import ADDED_COLUMNS
from farm.groups import NONE
from farm.kernels import Configuration
from farm.registry.models import ModelInfo, load, signed_files
from farm.registry.outputs import OUTPUTS
from farm.registry.predictions import predict_table, raw_columns
from farm.registry.trust import Trust

if TYPE_CHECKING:
    import pandas as pd

    from farm.forest.numeric import Floats

FOLDER = "held_out"
"""The folder of a training's run."""

SHAPE = ["m", "n", "k"]
_WEIGHTS = ["n", "k"]

_KIND = ["family", "ab", "cd", "acc", "layout"]
"""Of what a model refuses a row, with `ADDED_COLUMNS`."""

_REFUSALS = (FarmError, ValueError, TypeError, LookupError, AttributeError)
"""Errors by which any kind of model may refuse rows."""


def fold_folder(folder: Path, number: int) -> Path:
    """The folder of a fold's model."""
    return folder / f"fold_{number}"


class HeldOut:
    """The fold models in a folder. Raises `FileNotFoundError` where there are none."""

    def __init__(self, folder: Path) -> None:
        import pandas as pd

        self._folder = folder
        self._shapes = pd.read_parquet(folder / "shapes.parquet")
        self.kinds: tuple[str, ...] = tuple(json.loads((folder / "kinds.json").read_text(encoding="utf-8")))

    def leak(self) -> str | None:
        """Describes shapes that a fold's model should not have seen and was trained on; None without a leak."""
        import pandas as pd

        for number in sorted(self._shapes["fold"].unique()):
            trained_on = pd.read_parquet(fold_folder(self._folder, number) / "trained_on.parquet")
            both = self._shapes[self._shapes["fold"] == number].merge(trained_on, on=SHAPE)
            if len(both):
                m, n, k = both.iloc[0][SHAPE]
                return (
                    f"{len(both):,} shapes that should be unseen were in its training, such as {m}x{n}x{k} "
                    f"in fold {number}: its errors are meaningless"
                )
        return None

    def fold_of(self, rows: pd.DataFrame) -> pd.Series:
        """The fold whose model has not seen the row's shape; NaN for shapes that are not in the training table.

        The fold of a row with groups is that of its n and k, which are held out with every m where the table has groups; NaN where
        several folds have them.
        """
        import pandas as pd

        found = pd.Series(_folds(self._shapes, rows, SHAPE), rows.index)
        if "groups" not in rows:
            return found
        one = self._shapes.groupby(_WEIGHTS)["fold"].transform("nunique") == 1
        return found.where(rows["groups"].fillna(NONE) == NONE, _folds(self._shapes[one], rows, _WEIGHTS))

    def predict(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Predictions of each row by the model that has not seen its shape; NaN where that model cannot predict the row."""
        import pandas as pd

        predicted = pd.DataFrame(float("nan"), rows.index, list(OUTPUTS))
        fold = self.fold_of(rows)
        for number in sorted(fold.dropna().unique()):
            asked = rows[fold == number]
            predicted.loc[asked.index] = answers(self._model(int(number)).predict, asked)
        return predicted

    def _model(self, fold: int) -> Any:
        from farm.forest.predictor import Predictor

        return Predictor.load(fold_folder(self._folder, fold))


def _folds(shapes: pd.DataFrame, rows: pd.DataFrame, columns: list[str]) -> Floats:
    """The fold with these columns of each row; NaN where there is none."""
    import pandas as pd

    known = shapes.drop_duplicates(columns).set_index(columns)["fold"].astype("float64")
    found: Floats = known.reindex(pd.MultiIndex.from_frame(rows[columns])).to_numpy().astype("float64", copy=False)
    return found


def answers(ask: Callable[[pd.DataFrame], pd.DataFrame], rows: pd.DataFrame) -> pd.DataFrame:
    """A model's prediction of each row; NaN for rows of a kind (family, types, layout, scale factors, fused operations, sparsity, in a
    batch or not, in groups or not) that it refuses."""
    import pandas as pd

    try:
        return ask(rows)[list(OUTPUTS)]
    except _REFUSALS:
        usual = pd.DataFrame(dict(ADDED_COLUMNS), rows.index)
        added = rows.reindex(columns=usual.columns).fillna(usual)
        added["batch"], added["groups"] = added["batch"] > 1, added["groups"] != NONE
        kinds = [part for _, part in rows.groupby([*_KIND, *(added[name] for name in added)], sort=False)]
        if len(kinds) < 2:
            return pd.DataFrame(float("nan"), rows.index, list(OUTPUTS))
        return pd.concat([answers(ask, part) for part in kinds]).loc[rows.index]


def held_out_files(uri: str, model: ModelInfo, to: Path, trust: Trust | None = None) -> Path | None:
    """Downloads the fold models of a version into the new folder `to`; None without any. Raises `ModelNotTrusted`."""
    files = signed_files(uri, model, trust)
    paths = files.of_run(FOLDER)
    if not paths:
        return None
    files.save_of_run(paths, to)
    return to / FOLDER


def predict_held_out(
    uri: str, model: ModelInfo, configuration: Configuration, trust: Trust | None = None
) -> float | None:
    """The runtime in ms that a version predicts for an unseen shape.

    The prediction is by the fold model that has not seen the shape, or by the registered model where the shape is not in the
    training table. None without fold models, where these leak, and where they cannot predict such rows.
    Raises `RegistryUnreachable`, `ModelNotTrusted`, `ModelUnreadable`.
    """
    import pandas as pd

    with TemporaryDirectory(prefix="held-out-") as folder:
        final = load(uri, model, trust)
        files = held_out_files(uri, model, Path(folder), trust)
        held_out = None if files is None else HeldOut(files)
        if held_out is None or held_out.leak() is not None:
            return None
        row = pd.DataFrame.from_records([raw_columns(configuration)])
        if held_out.fold_of(row).notna().all():
            predicted = held_out.predict(row)
        else:
            predicted = answers(partial(predict_table, final), row)
    runtime_ms = float(predicted["runtime_ms"].iloc[0])
    return runtime_ms if runtime_ms > 0 else None
