"""Training tables of tiled and of Triton kernels, and what the features of a model are for them."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd

from farm.forest.features import Seen, see
from farm.forest.timing import Timing
from farm.gpus import find_gpu
from farm.kernels import Configuration
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


def triton_table(lines: list[str]) -> pd.DataFrame:
    """A row for each line, as in `16x256x256 f16i4 nt scale=none:row tile_k=128`: the rest of a configuration, and what differs from tiles of
    16 x 64 x 64 with four warps."""
    rows = []
    for line in lines:
        *problem, given = line.split() if "tile" in line or "tma" in line else (*line.split(), "")
        usual = {"tile_m": 16, "tile_n": 64, "tile_k": 64, "warps": 4, "stages": 3, "group_m": 1}
        kernel = usual | {name: int(value) for name, value in (each.split("=") for each in given.split(",") if each)}
        parameters = ",".join(f"{name}={value}" for name, value in kernel.items())
        columns = Configuration.parse(f"triton({parameters}) {' '.join(problem)}").columns()
        rows.append(columns | {"runtime_ms": 1.0, "power_w": None, "energy_mj": None})
    return configurations(pd.DataFrame(rows))


def seen(frame: pd.DataFrame, timing: Timing) -> Seen:
    vocabulary = vocabulary_of(frame)
    return see(vocabulary.complete(frame), vocabulary, H200, timing)
