"""Fitting: random forests on normalised targets, turned into the arrays that a model is stored as."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from sklearn.ensemble import RandomForestRegressor

from trainer.model.features import features
from trainer.model.physics import Roofline
from trainer.model.predictor import POWER, RUNTIME, SLOWDOWN, Predictor
from trainer.model.trees import Trees
from trainer.table import vocabulary_of

_Array = np.ndarray[Any, np.dtype[Any]]

_SPLITTING = {SLOWDOWN: 1e-3}
"""What a target weighs where a tree splits, against 1. A slowdown is a few percent at the power limit and noise elsewhere:
it is learned along the splits that tell times and powers apart, and has no say in them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForestSettings:
    """How forests are grown. All of it is logged with a model."""

    trees: int = 300
    min_samples_leaf: int = 1
    # Share of the features that a split may choose from.
    max_features: float = 0.5
    # Rows that one tree is grown on, at the most: bounds the size of a model and the time of a training.
    max_rows_per_tree: int = 20_000
    seed: int = 0
    # Threads. A trainer shares its machine with workers that measure.
    jobs: int = 2


def fit(device_type: str, configured: pd.DataFrame, settings: ForestSettings) -> Predictor:
    """Learns from one row per configuration (see `trainer.table.configurations`).

    Runtime, power and slowdown are learned together where every row has power. Otherwise runtime is learned from all
    rows, and the others from those that have power; where none has, the model predicts no power.
    """
    vocabulary = vocabulary_of(configured)
    complete = vocabulary.complete(configured)
    roofline = Roofline.of(complete, configured["runtime_ms"], vocabulary.element_bytes)
    reference_ms = roofline.time_ms(complete, vocabulary.element_bytes)
    _, x = features(complete, vocabulary)
    runtime_ms, power_w, energy_mj = configured[["runtime_ms", "power_w", "energy_mj"]].to_numpy("float64").T
    learned = {
        RUNTIME: np.log(runtime_ms / reference_ms),
        POWER: np.log(power_w),
        SLOWDOWN: np.log(energy_mj / (power_w * runtime_ms)),
    }
    every, powered = np.full(len(x), True), np.isfinite(power_w)
    groups = {(RUNTIME, POWER, SLOWDOWN): every} if powered.all() else {(RUNTIME,): every, (POWER, SLOWDOWN): powered}
    forests = {
        targets: _grow(x[rows], {target: learned[target][rows] for target in targets}, settings)
        for targets, rows in groups.items()
        if rows.any()
    }
    return Predictor(device_type, vocabulary, roofline, forests)


def _grow(x: _Array, targets: Mapping[str, _Array], settings: ForestSettings) -> Trees:
    """A forest for some targets [rows], which are scaled so that each has its weight in a split."""
    y = np.column_stack(list(targets.values()))
    mean, scale = y.mean(axis=0), y.std(axis=0)
    scale[scale == 0] = 1.0
    scale /= [_SPLITTING.get(target, 1.0) for target in targets]
    forest = RandomForestRegressor(
        n_estimators=settings.trees,
        min_samples_leaf=settings.min_samples_leaf,
        max_features=settings.max_features,
        max_samples=min(len(x), settings.max_rows_per_tree),
        random_state=settings.seed,
        n_jobs=settings.jobs,
    )
    scaled = (y - mean) / scale
    forest.fit(x, scaled if scaled.shape[1] > 1 else scaled[:, 0])
    return as_arrays(forest, mean, scale)


def as_arrays(forest: RandomForestRegressor, mean: _Array, scale: _Array) -> Trees:
    """The nodes of a fitted forest, with leaf values in the units of the targets."""
    grown = [estimator.tree_ for estimator in forest.estimators_]
    counts = np.array([tree.node_count for tree in grown])
    roots = np.concatenate([[0], np.cumsum(counts)[:-1]]).astype("int32")
    own = np.arange(counts.sum(), dtype="int32")
    offset = np.repeat(roots, counts)
    feature = np.concatenate([tree.feature for tree in grown])
    leaf = feature < 0
    left = np.concatenate([tree.children_left for tree in grown]) + offset
    right = np.concatenate([tree.children_right for tree in grown]) + offset
    value = np.concatenate([tree.value[:, :, 0] for tree in grown]) * scale + mean
    return Trees(
        roots=roots,
        feature=np.where(leaf, 0, feature).astype("int16"),
        threshold=np.where(leaf, np.inf, np.concatenate([tree.threshold for tree in grown])),
        left=np.where(leaf, own, left).astype("int32"),
        right=np.where(leaf, own, right).astype("int32"),
        value=np.where(leaf[:, None], value, 0.0).astype("float32"),
        depth=max(int(tree.max_depth) for tree in grown),
    )
