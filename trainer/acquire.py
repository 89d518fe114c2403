"""Which configurations of a domain a model learns most from, per second of device time (pure).

A round's problems are chosen among many that were drawn from the domain, so that the domain's density is in the draw. A kernel
on a problem promises to teach as much as the model is unsure of it, and costs what measuring such a row has cost so far.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from sklearn.ensemble import ExtraTreesRegressor

from farm.forest.columns import EXTENTS, NONE
from farm.forest.predictor import Predictor
from farm.groups import Groups
from farm.kernels import FAMILIES
from trainer.forest import ForestSettings, fit
from trainer.row_keys import distinct, ordered_key
from trainer.table import configurations, kernel_columns, with_added_columns

_Floats = np.ndarray[Any, np.dtype[np.float64]]

NEAR = 0.5
"""Two problems of a type and layout are near-duplicates where no extent differs by more than this many factors of two."""

_SHARPNESS = 2.0
"""Problems are drawn in proportion to their gain per second to this power. 0 would be at random, infinity the best alone."""

_NOISE = 2e-3
"""Of a measurement, in logarithms: no prediction is more certain than that."""

PROBES = 4
"""Rows that a kernel needs in a type before the model's estimate of its errors is used: trees that never saw a kernel agree as much
about it as about its neighbours."""

FAST = ForestSettings(trees=16)
"""Of the models between rounds: the registered model is fitted once, at the end."""


@dataclass(frozen=True)
class Candidate:
    """A problem that may be measured next: its rows of the candidate table, one for each kernel that can run it."""

    # The problem's types, layout, scale factors, fused operations and whether it has groups, and its extents: m, n, k, the batch, the
    # groups with rows and the rows of the largest.
    kind: str
    extents: tuple[int, ...]
    rows: Sequence[int]


def expected_error(model: Predictor, frame: pd.DataFrame) -> _Floats:
    """How far off the model expects to be, in logarithms, for each row [rows]: the spread of its trees above a floor.

    A row of a family, type or layout that was never measured has the largest.
    """
    found = np.full(len(frame), np.nan)
    known = model.known(frame)
    if known.any():
        rows = model.vocabulary.complete(frame[known])
        _, spreads = model.outputs(rows, model.see(rows))
        found[known] = spreads["runtime_ms"]
    largest = np.nanmax(found) if known.any() else 1.0
    error: _Floats = np.nan_to_num(found, nan=float(largest)) + _floor(found)
    return error


def probes(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of a table of measurements that decide what `with_probes` finds: `PROBES` of each kernel and what it tells apart."""
    added = with_added_columns(table)
    columns = [added[name] for name in ("ab", "scale", "fused", "sparsity", "family", "parameters")]
    key = ordered_key((codes, len(values)) for codes, values in map(distinct, [added["groups"] != NONE, *columns]))
    return table[(pd.Series(key).groupby(key).cumcount() < PROBES).to_numpy()]


def with_probes(error: _Floats, measured: pd.DataFrame, candidates: pd.DataFrame) -> _Floats:
    """Expected errors of candidates [rows], with the largest for kernels that have fewer than `PROBES` measured rows of the type,
    the scale factors, the fused operations and the sparsity, in groups or without.

    Both tables have raw columns, with one column for each kernel parameter.
    """
    kernel = ["ab", "scale", "fused", "groups", "sparsity", *kernel_columns(candidates)]
    both = pd.concat([with_added_columns(each)[kernel] for each in (measured, candidates)], ignore_index=True)
    both["groups"] = both["groups"] != NONE
    which = both.groupby(kernel, dropna=False, sort=False).ngroup().to_numpy()
    rows = np.bincount(which[: len(measured)], minlength=which.max() + 1)
    return np.where(rows[which[len(measured) :]] < PROBES, error.max(), error)


def _floor(spreads: _Floats) -> float:
    """Half the median: trees that agree by chance are not certain."""
    return max(0.5 * float(np.nanmedian(spreads)), _NOISE) if np.isfinite(spreads).any() else 0.5


def measuring_cost(measured: pd.DataFrame, candidates: pd.DataFrame) -> _Floats:
    """Device seconds that measuring each candidate [rows] takes, learned from `cost_s` of measured rows.

    Both tables have raw columns, with one column for each kernel parameter. Rows with power cost more, at random: the
    median of what trees say leaves them out.
    """
    of_measured, of_candidates = (_cost_features(each) for each in (measured, candidates))
    # A column without groups would change what trees draw of the others.
    varies = max(of_measured[:, -1].max(), of_candidates[:, -1].max()) > 0
    x, asked = (each if varies else each[:, :-1] for each in (of_measured, of_candidates))
    y = np.log(np.maximum(measured["cost_s"].to_numpy("float64"), 1e-3))
    usable = np.isfinite(y)
    if usable.sum() < 2:
        return np.ones(len(candidates))
    forest = ExtraTreesRegressor(n_estimators=16, min_samples_leaf=3, random_state=0).fit(x[usable], y[usable])
    found: _Floats = np.exp(forest.predict(asked))
    return found


def _cost_features(frame: pd.DataFrame) -> _Floats:
    """[rows, features]; the last one is of the matrices B of groups, which operands are made of: 0 without groups."""
    added = with_added_columns(frame)
    m, n, k, batch = (np.log2(added[name].to_numpy("float64")) for name in (*EXTENTS, "batch"))
    matrices = {text: len(groups.sizes) if (groups := Groups.parse(text)) else 1 for text in added["groups"].unique()}
    families = pd.Categorical(frame["family"], categories=list(FAMILIES)).codes
    tile = frame["tile"].fillna(0).to_numpy("float64") if "tile" in frame else np.zeros(len(frame))
    narrow = frame["ab"].isin(["f16", "bf16", "f8e4m3", "i8"]).to_numpy("float64")
    of_b = np.log2(added["groups"].map(matrices).to_numpy("float64"))
    return np.column_stack([m, n, k, m + n + k + batch, families, tile, narrow, of_b])


def choose(
    candidates: Sequence[Candidate],
    error: _Floats,
    cost: _Floats,
    *,
    problems: int,
    kernels: int,
    taken: Sequence[Candidate],
    rng: np.random.Generator,
) -> list[int]:
    """The rows to measure: up to `kernels` kernels of each of up to `problems` candidates.

    Kernels of a problem are drawn in proportion to their expected error over their cost, without replacement; problems in
    proportion to what their kernels promise per second, sharpened. Near-duplicates of a chosen problem, and of `taken` ones,
    are passed over.

    Args:
        error: expected error of each row of the candidate table [rows].
        cost: device seconds of each row [rows].
        taken: what the round has already.
    """
    picked: list[tuple[float, Candidate, list[int]]] = []
    for candidate in candidates:
        rows = np.asarray(candidate.rows)
        gain = error[rows] ** 2 / cost[rows]
        chosen = rows[np.argsort(_exponential(gain, rng))[:kernels]]
        promised = float(np.sum(error[chosen] ** 2) / np.sum(cost[chosen]))
        picked.append((promised, candidate, chosen.tolist()))
    order = np.argsort(_exponential(np.array([promised for promised, _, _ in picked]) ** _SHARPNESS, rng))
    kept, found = list(taken), list[int]()
    for place in order:
        _, candidate, chosen_rows = picked[place]
        if len(kept) - len(taken) >= problems:
            break
        if any(_near(candidate, other) for other in kept):
            continue
        kept.append(candidate)
        found += chosen_rows
    return found


def _exponential(weights: _Floats, rng: np.random.Generator) -> _Floats:
    """Keys whose smallest are a weighted sample without replacement (Efraimidis and Spirakis, 2006)."""
    found: _Floats = rng.exponential(size=len(weights)) / np.maximum(weights, 1e-300)
    return found


def _near(one: Candidate, other: Candidate) -> bool:
    ratios = (abs(np.log2(a / b)) for a, b in zip(one.extents, other.extents, strict=True))
    return one.kind == other.kind and all(ratio < NEAR for ratio in ratios)


def fast_model(device_type: str, table: pd.DataFrame) -> Predictor:
    """A model of these measurements, in seconds and without an evaluation."""
    return fit(device_type, configurations(table), FAST)
