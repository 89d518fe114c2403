"""Which rows are held out together when a model is evaluated."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
from sklearn.model_selection import GroupKFold, KFold

from trainer.table import held_out_together, kernel_columns

FOLDS = 5
SEED = 20241116
"""Of every shuffle, so that two trainings on one table hold out the same rows. The number itself means nothing."""

Rows = np.ndarray[Any, np.dtype[np.intp]]
Splits = Iterator[tuple[Rows, Rows]]
"""Positions of (training, held-out) rows. A kind that a table cannot be split by gives none."""

Split = Callable[[pd.DataFrame], Splits]
"""How a table is split."""


def by_shape(frame: pd.DataFrame) -> Splits:
    """Nothing of what `held_out_together` names on both sides: how a model does on new problems."""
    return _split(frame, held_out_together(frame))


def by_nk(frame: pd.DataFrame) -> Splits:
    """No pair (n, k) on both sides: new weights, as of another model's layer, under batches of any size."""
    return _grouped(frame, ["n", "k"])


def by_m(frame: pd.DataFrame) -> Splits:
    """No m on both sides: new batch sizes."""
    return _grouped(frame, ["m"])


def by_kernel(frame: pd.DataFrame) -> Splits:
    """No family with the same parameters on both sides: new kernels, on shapes that others were measured on."""
    return _grouped(frame, kernel_columns(frame))


def by_size(frame: pd.DataFrame) -> Splits:
    """The tenth of the shapes, with their batches, that have the most operations held out: extrapolation."""
    flops = 2.0 * frame["m"] * frame["n"] * frame["k"] * frame["batch"]
    shapes = np.sort(flops[~frame.duplicated(["m", "n", "k", "batch"])].to_numpy())
    if len(shapes) < _MIN_SHAPES_FOR_TENTH:
        return
    large = (flops >= shapes[-(len(shapes) // 10)]).to_numpy()
    if not large.all():
        yield np.flatnonzero(~large), np.flatnonzero(large)


def by_device(frame: pd.DataFrame) -> Splits:
    """All that one card alone measured held out: how a model does on another card of the type. Card by card, or several cards
    at a time where there are more cards than folds."""
    devices = frame["device_uuid"].to_numpy(object) if "device_uuid" in frame else np.full(len(frame), "", object)
    names, counts = np.unique(devices[devices != ""].astype(str), return_counts=True)
    # The card with the most rows first, each to the group with the fewest.
    groups: list[list[str]] = [[] for _ in range(min(FOLDS, len(names)))]
    rows = [0] * len(groups)
    for card in np.argsort(-counts, kind="stable").tolist():
        fewest = rows.index(min(rows))
        groups[fewest].append(str(names[card]))
        rows[fewest] += int(counts[card])
    for group in groups if len(names) > 1 else ():
        own = np.isin(devices, group)
        yield np.flatnonzero(~own), np.flatnonzero(own)


def by_row(frame: pd.DataFrame) -> Splits:
    """Rows at random. Other kernels of a held-out row's shape stay in training, so this flatters; it is here because the
    literature reports it (GPPerf, arXiv 2411.16954)."""
    yield from KFold(n_splits=min(FOLDS, len(frame)), shuffle=True, random_state=SEED).split(frame)


_MIN_SHAPES_FOR_TENTH = 10


def _grouped(frame: pd.DataFrame, columns: Sequence[str]) -> Splits:
    return _split(frame, np.asarray(frame.groupby(list(columns), sort=True, dropna=False).ngroup(), "intp"))


def _split(frame: pd.DataFrame, groups: Rows) -> Splits:
    """Rows of one number [rows] are on one side."""
    count = len(np.unique(groups))
    if count > 1:
        splitter = GroupKFold(n_splits=min(FOLDS, count), shuffle=True, random_state=SEED)
        yield from splitter.split(frame, groups=groups)


HEADLINE = "unseen_shapes"
KERNELS = "unseen_kernels"

FOLD_KINDS: dict[str, Split] = {
    HEADLINE: by_shape,
    "unseen_nk": by_nk,
    "unseen_m": by_m,
    KERNELS: by_kernel,
    "largest_tenth": by_size,
    "another_card": by_device,
    "random_rows": by_row,
}
"""Every model is evaluated on each of these; the first is the one that counts, and that intervals are calibrated on. Those of
kernels that were never measured are calibrated on `KERNELS`."""
