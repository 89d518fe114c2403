"""Learning which kernels a library chooses, and what these take: see `farm.forest.choice`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from farm.forest.card import Card
from farm.forest.choice import CONSTANTS, KERNELS, OF_KERNELS, TILES, Choices, kinds, sizes_of, time_ms
from farm.forest.completed_rows import Configurations
from farm.forest.numeric import Floats
from farm.forest.physics import Work
from farm.kernels import FAMILIES
from trainer.blas import one_thread

FAMILY = next(family.name for family in FAMILIES.values() if family.chooses)
CHOSEN = ("chosen_tile_m", "chosen_tile_n", "chosen_slices", "chosen_waves", "chosen_algorithm")
"""Columns of facts about the chosen kernel from measurements of the family; NaN where they are unknown."""

FACTS = ("tile", "split_k", "waves", "algorithm_id")
"""What the details of a measurement of the family say about the chosen kernel; the first has both extents of its tile."""

MIN_ROWS = 60
"""Of a kind of problem, below which the roofline stands."""

_MIN_OF_KERNEL = 4
_STEPS = 12
_NOISE, _HUBER = 0.1, 3.0
"""Residuals of the formula, about; those above three times as much count linearly."""

_PRIOR, _KERNEL_PRIOR = 1.0, 16.0
"""One over the variance of a constant's logarithm: of what is supposed, and of what a kernel adds to that of its kind."""

_NUDGE = 1e-3
_WHOLE = 0.99
"""Blocks of one product for each multiprocessor and wave: 1 and more, up to rounding in `waves`."""


def chosen(details: Any) -> tuple[float, ...]:
    """`CHOSEN` of a measurement's details, which are a mapping, JSON text, or nothing."""
    stated = json.loads(details) if isinstance(details, str) and details else details
    if not isinstance(stated, Mapping):
        return (math.nan,) * len(CHOSEN)
    tile, *numbers = FACTS
    rows, _, columns = str(stated.get(tile, "")).partition("x")
    return tuple(map(_number, (rows, columns, *(stated.get(name) for name in numbers))))


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


def fit_choices(configured: pd.DataFrame, rows: Configurations, runtime_ms: Floats, card: Card) -> Choices:
    """The kernels of each kind of problem with enough rows that name the chosen kernel. None on a CPU. Rows with groups are left out:
    a library has other kernels for them."""
    if card.multiprocessors <= 1 or not set(CHOSEN) <= set(configured):
        return Choices.none()
    tile_m, tile_n, slices, waves, algorithm = configured[list(CHOSEN)].to_numpy("float64").T
    known = (configured["family"] == FAMILY).to_numpy() & (tile_m > 0) & (tile_n > 0) & (slices > 0) & (waves > 0)
    known &= ~rows.grouped
    # A library's matrices lie column by column: its tile's rows are columns here.
    with np.errstate(divide="ignore", invalid="ignore"):
        # cuBLASLt counts the waves of one product in its Hopper kernels (algorithm 66), and of the whole batch in older ones.
        # Where one product has too few blocks for the waves, those of the whole batch were counted.
        resident = np.ceil(rows["m"] / tile_n) * np.ceil(rows["n"] / tile_m) * slices / (card.multiprocessors * waves)
        resident = np.maximum(1.0, np.round(np.where(resident < _WHOLE, resident * rows["batch"], resident)))
    tiles = np.array([tile_n, tile_m, resident])
    sizes, kind = sizes_of(rows, Work.of(rows, card)), kinds(rows)
    found = {}
    for each in np.unique(kind[known]):
        own = np.flatnonzero(known & (kind == each))
        if len(own) >= MIN_ROWS:
            found[int(each)] = _fit(tiles[:, own], algorithm[own], sizes[:, own], slices[own], runtime_ms[own], card)
    if not found:
        return Choices.none()
    return Choices(FAMILY, np.array(sorted(found), "int64"), np.array([found[each] for each in sorted(found)]))


def _fit(tiles: Floats, algorithm: Floats, sizes: Floats, slices: Floats, runtime_ms: Floats, card: Card) -> Floats:
    """Tiles and constants of the kernels of one kind, [tiles and constants, kernels], by least squares with Huber's weights."""
    _, which, often = np.unique(np.vstack([algorithm, tiles[:2]]), axis=1, return_inverse=True, return_counts=True)
    which = which.ravel()
    usual = np.argsort(-often, kind="stable")[:KERNELS]
    usual = usual[often[usual] >= min(_MIN_OF_KERNEL, often.max())]
    is_of = (which == usual[:, None]).astype("float64")  # [kernels, rows]
    y, begin = np.log(runtime_ms), np.log(np.array(list(CONSTANTS.values())))
    count, own = len(begin), OF_KERNELS * len(usual)
    priors = np.sqrt(np.concatenate([np.full(count, _PRIOR), np.full(own, _KERNEL_PRIOR)]))

    def logs(w: Floats) -> Floats:
        every = np.repeat((begin + w[:count])[:, None], len(y), axis=1)
        every[:OF_KERNELS] += w[count:].reshape(OF_KERNELS, -1) @ is_of
        return every

    def predicted(of: Floats) -> Floats:
        found: Floats = np.log(time_ms(np.vstack([tiles, np.exp(of)]), sizes, slices, card))
        return found

    def off(w: Floats) -> Floats:
        return np.concatenate([(predicted(logs(w)) - y) / _NOISE, priors * w])

    def slopes(w: Floats) -> Floats:
        of = logs(w)
        now, found = predicted(of), np.empty((count, len(y)))
        for constant in range(count):
            nudged = of.copy()
            nudged[constant] += _NUDGE
            found[constant] = (predicted(nudged) - now) / (_NUDGE * _NOISE)
        of_rows = np.vstack([found, (found[:OF_KERNELS, None] * is_of).reshape(own, -1)]).T
        return np.vstack([of_rows, np.diag(priors)])

    with one_thread():
        w = least_squares(off, np.zeros(count + own), slopes, loss="huber", f_scale=_HUBER, max_nfev=_STEPS).x
    constants = np.repeat((begin + w[:count])[:, None], len(usual), axis=1)
    constants[:OF_KERNELS] += w[count:].reshape(OF_KERNELS, -1)
    found = np.full((len(TILES) + count, KERNELS), np.nan)
    found[: len(TILES), : len(usual)] = [[np.median(values[which == each]) for each in usual] for values in tiles]
    found[len(TILES) :, : len(usual)] = np.exp(constants)
    return found
