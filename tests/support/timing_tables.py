"""Training tables of tiled kernels, and what the features of a model are for them."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd

from farm.forest.features import Seen, see
from farm.forest.timing import Timing
from farm.gpus import find_gpu
from trainer.cards import card_of_gpu
from trainer.table import configurations, vocabulary_of

GPU = find_gpu("nvidia-h200")
assert GPU is not None


H200 = card_of_gpu("nvidia-h200", GPU)


def table(shapes: list[tuple[int, int, int]], tiles: tuple[int, ...] = (8, 16, 32), layout: str = "nn") -> pd.DataFrame:
    rows = pd.DataFrame(
        [(m, n, k, {"tile": tile}) for (m, n, k), tile in itertools.product(shapes, tiles)],
        columns=["m", "n", "k", "parameters"],
    )
    usual = {"ab": "f32", "cd": "f32", "acc": "f32", "layout": layout, "alpha": 1.0, "beta": 0.0, "family": "tiled"}
    return configurations(rows.assign(**usual, runtime_ms=1.0, power_w=np.nan, energy_mj=np.nan))


def seen(frame: pd.DataFrame, timing: Timing) -> Seen:
    vocabulary = vocabulary_of(frame)
    return see(vocabulary.complete(frame), vocabulary, H200, timing)
