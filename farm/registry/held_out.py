"""What a version says of shapes that it has not seen: the models of its evaluation, which the trainer keeps with its run.

A folder holds the files of each fold's model, `shapes.parquet` with m, n, k and the fold
whose model has not seen the shape, and for each fold the shapes that its model was really trained on. The two are written
from different things, so a fold that leaks contradicts itself, today and whenever the version is compared again.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from farm.errors import FarmError
from farm.kernels import Configuration
from farm.registry.models import OUTPUTS, ModelInfo, load, signed_files
from farm.registry.predictions import predict_table, raw_columns
from farm.registry.trust import Trust

if TYPE_CHECKING:
    import pandas as pd

FOLDER = "held_out"
"""The folder of a training's run."""

SHAPE = ["m", "n", "k"]

_KIND = ["family", "ab", "cd", "acc", "layout"]
_REFUSALS = (FarmError, ValueError, TypeError, LookupError, AttributeError)
"""How a model of whatever making may refuse rows."""


def fold_folder(folder: Path, number: int) -> Path:
    """Where the model of a fold lies."""
    return folder / f"fold_{number}"


class HeldOut:
    """Such a folder, read. Raises `FileNotFoundError` where there is none."""

    def __init__(self, folder: Path) -> None:
        import pandas as pd

        self._folder = folder
        self._shapes = pd.read_parquet(folder / "shapes.parquet")
        self.kinds: tuple[str, ...] = tuple(json.loads((folder / "kinds.json").read_text(encoding="utf-8")))

    def leak(self) -> str | None:
        """How the folder contradicts itself: shapes that a fold's model is said not to know, and was trained on."""
        import pandas as pd

        for number in sorted(self._shapes["fold"].unique()):
            trained_on = pd.read_parquet(fold_folder(self._folder, number) / "trained_on.parquet")
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
        import pandas as pd

        known = self._shapes.drop_duplicates(SHAPE).set_index(SHAPE)["fold"].astype("float64")
        return pd.Series(known.reindex(pd.MultiIndex.from_frame(rows[SHAPE])).to_numpy(), rows.index)

    def predict(self, rows: pd.DataFrame) -> pd.DataFrame:
        """What the version says of each row by the model that has not seen its shape; NaN where there is no such model,
        or it does not know rows of that kind."""
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


def answers(ask: Callable[[pd.DataFrame], pd.DataFrame], rows: pd.DataFrame) -> pd.DataFrame:
    """What a model says of each row, and NaN for all rows of a kind (family, types, layout) that it refuses."""
    import pandas as pd

    try:
        return ask(rows)[list(OUTPUTS)]
    except _REFUSALS:
        kinds = [part for _, part in rows.groupby(_KIND, sort=False)]
        if len(kinds) < 2:
            return pd.DataFrame(float("nan"), rows.index, list(OUTPUTS))
        return pd.concat([answers(ask, part) for part in kinds]).loc[rows.index]


def held_out_files(uri: str, model: ModelInfo, to: Path, trust: Trust | None = None) -> Path | None:
    """The folder of a version, downloaded into the new folder `to`; None where it has none. Raises `ModelNotTrusted`."""
    files = signed_files(uri, model, trust)
    paths = files.of_run(FOLDER)
    if not paths:
        return None
    files.save_of_run(paths, to)
    return to / FOLDER


def predict_held_out(
    uri: str, model: ModelInfo, configuration: Configuration, trust: Trust | None = None
) -> float | None:
    """The runtime in ms that a version says of a shape that it has not seen.

    By the model of its evaluation that the shape was held out of, or by the registered model where the version never had
    the shape. None where it kept no models of its evaluation, where these leak, and where they do not know such rows.
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
