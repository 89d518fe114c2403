"""Fitting the constants of `farm.forest.timing`: regularised least squares on logarithms of times."""

from __future__ import annotations

import numpy as np

from farm.forest.card import Card
from farm.forest.numeric import Array, Floats
from farm.forest.timing import CONSTANTS, LEVELS, OF_TILES, Loops, Timing, start, time_ms
from trainer.blas import one_thread
from trainer.normal_equations import NormalEquations

MIN_PROBLEMS = 100
"""Problems of a family and width of elements below which the roofline stands. A grid of a few sizes does not tell latency from
bandwidth: constants that were fitted to the 78 shapes of such a grid were off by a factor of two on other shapes, the roofline
by a third (`benchmarks/fresh_shapes.py`)."""

_MOST = 4000
"""Rows that the constants of one family and width are fitted on: more hardly change them."""

_STEPS = 7
_NOISE = 0.05
"""Residuals of the formula, about; those above three times as much count linearly (Huber, Ann. Math. Stat. 35, 1964)."""

_PRIOR = {"base": 0.3, "kernel": 12.0, "layout": 12.0, "kernel in layout": 96.0}
_USUAL_PRIOR = 24.0
"""One over the variance of a level's part of a constant, before anything is measured: for all levels not named above."""

_FEW_ROWS = 20
_OF_FEW = {"kernel": 96.0, "kernel in layout": 384.0}
_NOISE_OF_FEW = 0.2
"""With fewer rows of a kernel in the mean, what replaces these: constants of kernels of their own would follow each row, and nothing would be
left to learn of what the formula misses. Kernels that were drawn at random for each problem have such tables."""

_OF_LAYOUTS = ("step_ms", "issue", "block_ms", "l2")
"""The constants that a kernel may have others of in each layout."""

_KERNEL, _WITHIN = LEVELS.index("kernel"), LEVELS.index("kernel in layout")

_NUDGE = 1e-3

_MAX_STEP = 1.0
"""Of a constant's logarithm: the formula is far from linear beyond."""


def fit_timing(loops: Loops, runtime_ms: Floats, card: Card, seed: int = 0) -> Timing:
    """The constants of each family and width of elements that has enough rows; none on a CPU."""
    keys: list[Array] = []
    logs: list[Floats] = []
    if card.multiprocessors > 1:
        draw = np.random.default_rng(seed)
        for base in np.unique(loops.keys[0, loops.usable]):
            rows = np.flatnonzero((loops.keys[0] == base) & loops.usable)
            # Problems that move the same bytes count once.
            if len(np.unique(loops["bytes"][rows])) < MIN_PROBLEMS:
                continue
            if len(rows) > _MOST:
                rows = np.sort(draw.choice(rows, _MOST, replace=False))
            with one_thread():
                found, fitted = _fit(loops.part(rows), np.log(runtime_ms[rows]), card)
            keys.append(found)
            logs.append(fitted)
    if not keys:
        return Timing.none()
    every = np.concatenate(keys)
    order = np.argsort(every)
    return Timing(every[order], np.concatenate(logs)[order])


def _fit(loops: Loops, y: Floats, card: Card) -> tuple[Array, Floats]:
    """Keys, and logarithms of the constants [keys, constants]: Levenberg-Marquardt with Huber's weights."""
    # The normal equations ask for rows of one kernel together.
    order = np.argsort(loops.keys[_KERNEL], kind="stable")
    loops, y = loops.part(order), y[order]
    keys, place = np.unique(loops.keys, return_inverse=True)
    place = place.reshape(loops.keys.shape)
    few = len(y) < _FEW_ROWS * len(np.unique(place[_KERNEL]))
    noise, priors = (_NOISE_OF_FEW, _PRIOR | _OF_FEW) if few else (_NOISE, _PRIOR)
    prior = np.empty(len(keys))
    for name, found in zip(LEVELS, place, strict=True):
        prior[found] = priors.get(name, _USUAL_PRIOR)
    # Where all rows have one tile, the base has its part of the constants.
    same = [name in OF_TILES and np.all(found == found[0]) for name, found in zip(LEVELS, place, strict=True)]
    shared = [found for level, found in enumerate(place) if level not in (_KERNEL, _WITHIN) and not same[level]]
    begin = start(len(y))
    w = np.zeros((len(keys), len(CONSTANTS)))

    def constants(w: Floats) -> Floats:
        found: Floats = begin + w[place].sum(axis=0).T
        return found

    def predicted(logs: Floats) -> Floats:
        found: Floats = np.log(time_ms(logs, loops, card)["time"])
        return found

    def slopes_of(logs: Floats, which: Array) -> Floats:
        now, slopes = predicted(logs), np.empty((len(y), len(which)))
        for place, constant in enumerate(which):
            nudged = logs.copy()
            nudged[constant] += _NUDGE
            slopes[:, place] = (predicted(nudged) - now) / _NUDGE
        return slopes

    def loss(w: Floats) -> float:
        off = np.abs(y - predicted(constants(w))) / noise
        return float(np.where(off < 3, off**2 / 2, 3 * off - 4.5).sum() + 0.5 * (prior[:, None] * w**2).sum())

    # Constants of what no row has stay: the fewer there are, the faster is a step.
    felt = np.flatnonzero(slopes_of(begin, np.arange(len(CONSTANTS))).any(axis=0))
    within = np.flatnonzero(np.isin(np.array(list(CONSTANTS))[felt], _OF_LAYOUTS))
    normal = NormalEquations(place[_KERNEL], place[_WITHIN], shared, within, prior)
    best, damping = loss(w), 1.0
    for _ in range(_STEPS):
        logs = constants(w)
        slopes, off = slopes_of(logs, felt), y - predicted(logs)
        weight = 1 / np.maximum(np.abs(off) / (3 * noise), 1.0) / noise**2
        downhill = np.zeros((len(w), len(felt)))
        for which in place:
            np.add.at(downhill, which, slopes * (weight * off)[:, None])
        downhill -= prior[:, None] * w[:, felt]
        normal.weigh(slopes * np.sqrt(weight)[:, None])
        before = best
        for _ in range(8):
            step = normal.step(damping, downhill)
            tried = w.copy()
            tried[:, felt] += step * min(1.0, _MAX_STEP / float(np.abs(step).max()))
            if (reached := loss(tried)) < best:
                w, best, damping = tried, reached, max(damping / 5, 1e-4)
                break
            damping *= 4
        if before - best < 1e-3 * before:
            break
    return keys, w
