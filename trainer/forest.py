"""Fitting: extremely randomised trees on normalised targets, turned into the arrays that a model is stored as."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from sklearn.ensemble import ExtraTreesRegressor
from sklearn.tree import ExtraTreeRegressor

from farm.both_times import time_of
from farm.forest.burst import BURST_ROWS, Bursts, inputs
from farm.forest.card import Card
from farm.forest.choice import Choices
from farm.forest.completed_rows import Configurations
from farm.forest.features import efforts_of, loops_of, see
from farm.forest.predictor import POWER, ROOFLINE, ROWS_AT_ONCE, RUNTIME, SLOWDOWN, Interval, Predictor
from farm.forest.timing import Timing
from farm.forest.trees import Trees
from farm.forest.vocabulary import Vocabulary
from trainer.burst import fit_bursts
from trainer.cards import card_of
from trainer.choice import fit_choices
from trainer.energy import fit_energies
from trainer.table import MEASURED, protocol_of, vocabulary_of
from trainer.timing import fit_timing

_Array = np.ndarray[Any, np.dtype[Any]]

_SPLITTING = {SLOWDOWN: 1e-3}
"""What a target weighs where a tree splits, against 1. A slowdown is a few percent at the power limit and noise elsewhere:
it is learned along the splits that tell powers apart, and has no say in them."""

_MIN_OF_BURST_LEAF = 3
"""Rows of a leaf of the burst's trees: ratios have about a percent of noise."""

_ROWS_FOR_THREADS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ForestSettings:
    """How forests are grown. All of it is logged with a model.

    Extremely randomised trees (Geurts et al., Machine Learning 63, 2006): a threshold is drawn for each feature, and the best
    of these splits. Two dozen of them are nearly as good as a hundred here, and better than a random forest (`docs/models.md`).
    """

    trees: int = 24
    min_samples_leaf: int = 1
    # Share of the features that a split may choose from.
    max_features: float = 1.0
    # Rows that one tree is grown on at most. Larger tables are dealt out to the trees, each row as often as the others.
    max_rows_per_tree: int = 60_000
    seed: int = 0
    # Threads. A trainer shares its machine with workers that measure.
    jobs: int = 2


def fit(
    device_type: str,
    configured: pd.DataFrame,
    settings: ForestSettings,
    intervals: Mapping[str, Interval] | None = None,
) -> Predictor:
    """Learns from one row per configuration (see `trainer.table.configurations`).

    The runtime has a forest of its own, on all rows; power and slowdown are learned together, on the rows that have power.
    Where none has, the model predicts no power. The burst time is learned as its ratio to a settled runtime, on the rows that
    have both. `intervals` are of held-out rows (see `trainer.calibration`).
    """
    vocabulary = vocabulary_of(configured)
    rows = vocabulary.complete(configured)
    card = card_of(device_type, configured, rows)
    runtime_ms, burst_ms, power_w, energy_mj = configured[[*MEASURED]].to_numpy("float64").T
    timing = fit_timing(loops_of(rows, vocabulary, card), runtime_ms, card, settings.seed)
    choices = fit_choices(configured, rows, runtime_ms, card)
    x, names, reference_ms, roofline_ms = _inputs(rows, vocabulary, card, timing, choices)
    efforts = efforts_of(rows, vocabulary, card)
    energies = fit_energies(efforts, runtime_ms, power_w, card)
    learned = {
        RUNTIME: np.log(runtime_ms / reference_ms),
        ROOFLINE: np.log(runtime_ms / roofline_ms),
        POWER: np.log(power_w if energies is None else power_w / energies.power_w(efforts, runtime_ms, card)),
        SLOWDOWN: np.log(energy_mj / (power_w * runtime_ms)),
    }
    groups = {(RUNTIME,): np.full(len(x), True), (POWER, SLOWDOWN): np.isfinite(power_w)}
    sizes = dict.fromkeys(groups, settings.trees)
    if len(timing.keys) or choices:
        # Both have a say in the runtime, and together as many trees as one would have.
        groups[(ROOFLINE,)] = groups[(RUNTIME,)]
        sizes[(ROOFLINE,)] = max(1, settings.trees // 3)
        sizes[(RUNTIME,)] = max(1, settings.trees - sizes[(ROOFLINE,)])
    grown = {
        targets: _grow(
            x[which], {target: learned[target][which] for target in targets}, replace(settings, trees=sizes[targets])
        )
        for targets, which in groups.items()
        if which.any()
    }
    importance = dict(zip(names, grown[(RUNTIME,)].importance, strict=True))
    forests = {targets: each.trees for targets, each in grown.items()}
    protocol = protocol_of(configured)
    made = Predictor(
        card, vocabulary, tuple(names), forests, intervals or {}, importance, timing, choices, energies, protocol,
        time_of(protocol), int(np.isfinite(burst_ms).sum()),
    )  # fmt: skip
    if made.time != "settled" or np.isfinite(burst_ms).sum() < BURST_ROWS:
        return made
    return replace(made, bursts=_bursts(made, rows, runtime_ms, burst_ms, settings))


def _bursts(
    model: Predictor, rows: Configurations, runtime_ms: _Array, burst_ms: _Array, settings: ForestSettings
) -> Bursts:
    """The ratio of both times for a model without it."""
    seen = (model.see(part) for part in rows.parts(ROWS_AT_ONCE))
    x = np.concatenate([inputs(each.matrix(model.features), each, model.energies, model.card) for each in seen])
    steady = replace(settings, min_samples_leaf=max(settings.min_samples_leaf, _MIN_OF_BURST_LEAF))
    return fit_bursts(x, rows.kinds, runtime_ms, burst_ms, lambda x, y: _grow(x, {"burst": y}, steady).trees)


def _inputs(
    rows: Configurations, vocabulary: Vocabulary, card: Card, timing: Timing, choices: Choices
) -> tuple[_Array, list[str], _Array, _Array]:
    """The features that vary [rows, features] with their names, and both reference times.

    Rows are taken in pieces: all features of a million rows at once, with what they are computed from, take gigabytes.
    """
    x, reference_ms, roofline_ms = np.empty((0, 0), "float32"), np.empty(len(rows)), np.empty(len(rows))
    names: list[str] = []
    start = 0
    for part in rows.parts(ROWS_AT_ONCE):
        seen = see(part, vocabulary, card, timing, choices)
        if not names:
            names = list(seen.plain)
            x = np.empty((len(rows), len(names)), "float32")
        place = slice(start, start + len(part))
        x[place], reference_ms[place], roofline_ms[place] = seen.matrix(names), seen.reference_ms, seen.roofline_ms
        start = place.stop
    varying = np.flatnonzero(x.min(axis=0) < x.max(axis=0)).tolist() or [0]
    return x[:, varying], [names[index] for index in varying], reference_ms, roofline_ms


@dataclass(frozen=True)
class _Grown:
    trees: Trees
    # Of each feature; together 1.
    importance: list[float]


def _grow(x: _Array, targets: Mapping[str, _Array], settings: ForestSettings) -> _Grown:
    """A forest for some targets [rows], which are scaled so that each has its weight in a split."""
    y = np.column_stack(list(targets.values()))
    mean, scale = y.mean(axis=0), y.std(axis=0)
    scale[scale == 0] = 1.0
    scale /= [_SPLITTING.get(target, 1.0) for target in targets]
    scaled = (y - mean) / scale
    trees = _trees(x, scaled if scaled.shape[1] > 1 else scaled[:, 0], settings)
    importance = np.mean([tree.tree_.compute_feature_importances() for tree in trees], axis=0)
    return _Grown(as_arrays(trees, mean, scale), importance.tolist())


def _trees(x: _Array, y: _Array, settings: ForestSettings) -> list[Any]:
    """scikit-learn's trees for the targets [rows] or [rows, targets]."""
    growing = {
        "min_samples_leaf": settings.min_samples_leaf,
        "max_features": settings.max_features,
    }
    if len(x) <= settings.max_rows_per_tree:
        # Below, handing trees to threads takes longer than growing them.
        jobs = settings.jobs if len(x) > _ROWS_FOR_THREADS else 1
        forest = ExtraTreesRegressor(settings.trees, **growing, random_state=settings.seed, n_jobs=jobs)
        return list(forest.fit(x, y).estimators_)
    shuffled = np.random.default_rng(settings.seed).permutation(len(x))

    def grown(number: int) -> Any:
        # A copy of its own rows: a tree that picks them from all, as scikit-learn's samples do, takes almost twice as long.
        first = number * settings.max_rows_per_tree
        rows = np.sort(shuffled.take(np.arange(first, first + settings.max_rows_per_tree), mode="wrap"))
        return ExtraTreeRegressor(**growing, random_state=settings.seed + number).fit(x[rows], y[rows])

    with ThreadPoolExecutor(settings.jobs) as threads:
        return list(threads.map(grown, range(settings.trees)))


def as_arrays(forest: Iterable[Any], mean: _Array, scale: _Array) -> Trees:
    """The nodes of fitted trees of scikit-learn, with leaf values in the units of the targets.

    scikit-learn numbers nodes as it grows them, the left child before all of the right one's side. Here children are put side
    by side, level by level, so that one index leads to both.
    """
    grown = [estimator.tree_ for estimator in forest]
    counts = np.array([tree.node_count for tree in grown])
    roots = np.concatenate([[0], np.cumsum(counts)[:-1]]).astype("int32")
    parts = [_side_by_side(tree, root) for tree, root in zip(grown, roots, strict=True)]
    feature, threshold, left, order = (np.concatenate(part) for part in zip(*parts, strict=True))
    value = np.concatenate([tree.value[:, :, 0] for tree in grown])[order] * scale + mean
    return Trees(
        roots=roots,
        feature=feature.astype("int16"),
        threshold=threshold,
        left=left.astype("int32"),
        value=np.where((left == np.arange(len(left)))[:, None], value, 0.0).astype("float32"),
        depth=max(int(tree.max_depth) for tree in grown),
    )


def _side_by_side(tree: Any, root: int) -> tuple[_Array, _Array, _Array, _Array]:
    """(feature, threshold, left child, where the node was) of one tree whose first node has the number `root`."""
    level, order = np.array([0]), [np.array([0])]
    while len(level):
        inner = level[tree.children_left[level] >= 0]
        level = np.column_stack([tree.children_left[inner], tree.children_right[inner]]).ravel()
        order.append(level)
    was = np.concatenate(order)
    now = np.empty_like(was)
    now[was] = np.arange(len(was))
    leaf = tree.children_left[was] < 0
    left = np.where(leaf, np.arange(len(was)), now[tree.children_left[was]])
    feature = np.where(leaf, 0, tree.feature[was])
    # Compared with float32: rounded down, a threshold still parts the same numbers.
    exact = tree.threshold[was]
    threshold = exact.astype("float32")
    threshold = np.where(threshold > exact, np.nextafter(threshold, np.float32(-np.inf)), threshold)
    return feature, np.where(leaf, np.float32(np.inf), threshold), left + root, was + root
