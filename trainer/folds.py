"""Which rows are held out together when a model is evaluated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
from sklearn.model_selection import GroupKFold, KFold

FOLDS = 5
SEED = 20241116
"""Of every shuffle, so that two trainings on one table hold out the same rows. The number itself means nothing."""

Rows = np.ndarray[Any, np.dtype[np.intp]]
Splits = Iterator[tuple[Rows, Rows]]


def by_shape(frame: pd.DataFrame) -> Splits:
    """Positions of (training, held-out) rows with no shape (m, n, k) on both sides: how a model does on new problems."""
    shape = frame.groupby(["m", "n", "k"], sort=True).ngroup().to_numpy()
    splitter = GroupKFold(n_splits=min(FOLDS, len(np.unique(shape))), shuffle=True, random_state=SEED)
    yield from splitter.split(frame, groups=shape)


def by_row(frame: pd.DataFrame) -> Splits:
    """Positions of (training, held-out) rows at random.

    Other kernels of a held-out row's shape stay in training, so this flatters; it is here because the literature
    reports it (GPPerf, arXiv 2411.16954).
    """
    yield from KFold(n_splits=min(FOLDS, len(frame)), shuffle=True, random_state=SEED).split(frame)


FOLD_KINDS: dict[str, Callable[[pd.DataFrame], Splits]] = {"unseen_shapes": by_shape, "random_rows": by_row}
"""Every model is evaluated on each of these; the first is the one that counts."""

HEADLINE = "unseen_shapes"
