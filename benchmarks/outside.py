"""How errors and intervals change with the distance to what was measured.

    python -m benchmarks.outside

The rows of the dataset `domain` are held out, and each one's distance is to the nearest problem of the other folds, of the same
family and types (`farm/forest/reach.py`). Four ways to hold rows out:

  shapes      folds by (m, n, k): interpolation
  work        five blocks by 2·m·n·k, so that the first and the last are extrapolated
  m           five blocks by m
  kernels     folds by kernel: no distance, but kernels that were never measured
  grids       nothing of the domain in training: models of the shipped grids, asked about the domain's rows

Bounds of `shapes` and `kernels` are calibrated by their other folds, those of `work` and `m` by `shapes`, those of `grids` by the
grids' own held-out shapes and kernels. `widened` is as models do it, `plain` without widening by distance. The threshold of
the column `outside`, the weight of alignment and the distance at which intervals double were chosen by this. The test set chose
nothing: `test_set` says what models of the domain's rows claim of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import spearmanr

from benchmarks.common import markdown, write
from benchmarks.fresh_shapes import TRAINED_ON, TYPE, apart, rows
from farm.forest.columns import OUTPUTS
from farm.forest.predictor import Interval
from farm.forest.reach import FAR
from trainer.calibration import bounds, calibrate, lies, out_of_fold_bounds
from trainer.evaluate import OutOfFold, measured_outputs, out_of_fold
from trainer.folds import Splits, by_kernel, by_shape
from trainer.forest import ForestSettings, fit
from trainer.table import configurations

CLAIMS = (0.5, 0.8, 0.9)
EDGES = (0.0, 0.5, 1.0, 2.0, FAR, 4.0, 5.0, 7.0, np.inf)
FEWEST = 50
"""Rows below which a part says nothing."""

Held = tuple[pd.DataFrame, OutOfFold]
"""Configurations, and what models without them say of them."""


def blocks(of: Callable[[pd.DataFrame], pd.Series]) -> Callable[[pd.DataFrame], Splits]:
    """Five folds by quantiles of a number of each row."""

    def split(frame: pd.DataFrame) -> Splits:
        numbers = of(frame).to_numpy("float64")
        block = np.digitize(numbers, np.quantile(numbers, [0.2, 0.4, 0.6, 0.8]))
        for each in range(5):
            yield np.flatnonzero(block != each), np.flatnonzero(block == each)

    return split


def asked(training: pd.DataFrame, frame: pd.DataFrame) -> Held:
    """What a model of `training` says of the rows of `frame` that it knows."""
    model = fit(TYPE, training, ForestSettings())
    frame = frame[model.known(frame)]
    completed = model.vocabulary.complete(frame)
    outputs, spreads = model.outputs(completed, model.see(completed))
    predicted, spread = (pd.DataFrame(each, frame.index)[list(OUTPUTS)] for each in (outputs, spreads))
    return frame, OutOfFold(predicted, spread, np.zeros(len(frame)), lies(model.reach(completed), frame.index))


def parts(frame: pd.DataFrame, held: OutOfFold) -> dict[str, pd.Series]:
    """The groups of rows whose coverage is looked at, and bins of distance."""
    flops = 2.0 * frame["m"] * frame["n"] * frame["k"]
    aligned = (frame["n"] % 8 == 0) & (frame["k"] % 8 == 0)
    found = {"all": flops > 0}
    found |= {kind: held.where["kind"] == kind for kind in sorted(held.where["kind"].dropna().unique())}
    found |= {"up to 10^8 flops": flops <= 1e8, "above 10^11 flops": flops > 1e11}
    found |= {"n and k multiples of 8": aligned, "odd n or k": ~aligned}
    for low, high in pairwise(EDGES):
        within = (held.where["distance"] >= low) & (held.where["distance"] < high)
        found[f"{low:g} to {high:g} octaves" if np.isfinite(high) else f"{low:g} octaves and more"] = within
    return found


def figures(frame: pd.DataFrame, held: OutOfFold, inside: Mapping[str, Mapping[float, pd.Series]]) -> dict[str, Any]:
    """Of each part: rows, errors, and the coverage in percent by claim and way of making bounds."""
    said = held.predicted["runtime_ms"].notna()
    error = 100 * (held.predicted["runtime_ms"] / frame["runtime_ms"] - 1).abs()
    found = {}
    for name, which in parts(frame, held).items():
        own = which & said
        if own.sum() >= FEWEST:
            found[name] = {
                "rows": int(own.sum()),
                **{"mean_error_pct": float(error[own].mean()), "median_error_pct": float(error[own].median())},
                "coverage_pct": {
                    way: {f"{100 * claim:g}": 100 * float(of_claim[claim][own].mean()) for claim in CLAIMS}
                    for way, of_claim in inside.items()
                },
            }
    return found


def between(frame: pd.DataFrame, within: pd.DataFrame) -> pd.Series:
    return frame["runtime_ms"].between(within["runtime_ms_low"], within["runtime_ms_high"])


def ways(held: OutOfFold) -> dict[str, pd.DataFrame]:
    """Where rows lie, as it is, and as if all were near."""
    return {"widened": held.where, "plain": held.where.assign(distance=held.where["distance"] * 0.0)}


def own_folds(held: Held, *, unmeasured: bool = False) -> dict[str, dict[float, pd.Series]]:
    """Which rows lie between bounds that the other folds calibrate."""
    frame, of = held
    tables = (measured_outputs(frame), of.predicted, of.spreads, of.fold)
    return {
        way: {c: between(frame, out_of_fold_bounds(*tables, c, where, unmeasured=unmeasured)) for c in CLAIMS}
        for way, where in ways(of).items()
    }


def calibrated(shapes: Held, kernels: Held) -> dict[str, dict[str, Interval]]:
    """The intervals that held-out shapes and kernels make."""
    found: dict[str, dict[str, Interval]] = {"widened": {}, "plain": {}}
    for (frame, held), unmeasured in ((shapes, False), (kernels, True)):
        for way, where in ways(held).items():
            tables = (measured_outputs(frame), held.predicted, held.spreads)
            found[way] |= calibrate(*tables, where, unmeasured=unmeasured)
    return found


def by_others(held: Held, intervals: Mapping[str, Mapping[str, Interval]]) -> dict[str, dict[float, pd.Series]]:
    """Which rows lie between bounds by intervals of other rows."""
    frame, of = held
    return {
        way: {c: between(frame, bounds(intervals[way], of.predicted, of.spreads, c, where)) for c in CLAIMS}
        for way, where in ways(of).items()
    }


def worst(found: Mapping[str, Any], way: str, fewest: int = 100) -> tuple[float, str]:
    """The coverage that is furthest from what is claimed, in points, over parts with enough rows."""
    return max(
        (abs(covered - float(claim)), f"{name}, {claim}%")
        for name, one in found.items()
        if one["rows"] >= fewest
        for claim, covered in one["coverage_pct"][way].items()
    )


def main() -> None:
    test = rows("domain-test")
    apart_from = pd.concat([test, rows("domain-kernels")])
    domain = configurations(apart(rows(*TRAINED_ON["domain"]), apart_from))
    grid = configurations(apart(rows(*TRAINED_ON["grid"]), apart_from))

    def held(frame: pd.DataFrame, split: Callable[[pd.DataFrame], Splits]) -> Held:
        return frame, out_of_fold(TYPE, frame, split(frame), ForestSettings())

    shapes, kernels = held(domain, by_shape), held(domain, by_kernel)
    intervals = calibrated(shapes, kernels)
    of_grid = calibrated(held(grid, by_shape), held(grid, by_kernel))
    everything = {
        "shapes": (shapes, own_folds(shapes)),
        "kernels": (kernels, own_folds(kernels, unmeasured=True)),
    }
    of_work = held(domain, blocks(lambda frame: 1.0 * frame["m"] * frame["n"] * frame["k"]))
    of_m = held(domain, blocks(lambda frame: frame["m"]))
    everything |= {"work": (of_work, by_others(of_work, intervals)), "m": (of_m, by_others(of_m, intervals))}
    beyond = asked(grid, domain)
    everything["grids"] = (beyond, by_others(beyond, of_grid))
    tested = asked(domain, configurations(test))
    everything["test_set"] = (tested, by_others(tested, intervals))

    found: dict[str, Any] = {}
    lines, summary = [], []
    for folds, ((frame, of), inside) in everything.items():
        error = (of.predicted["runtime_ms"] / frame["runtime_ms"]).map(np.log).abs()
        both = error.notna() & np.isfinite(of.where["distance"])
        rank = float(spearmanr(of.where["distance"][both], error[both])[0])
        found[folds] = {"rank_correlation": rank, "parts": figures(frame, of, inside)}
        for name, one in found[folds]["parts"].items():
            covered = (
                "/".join(f"{each:.0f}" for each in one["coverage_pct"][way].values()) for way in ("widened", "plain")
            )
            lines.append([folds, name, one["rows"], one["mean_error_pct"], one["median_error_pct"], *covered])
        off = [worst(found[folds]["parts"], way) for way in ("widened", "plain")]
        found[folds]["worst_coverage_points"] = {
            way: points for way, (points, _) in zip(("widened", "plain"), off, strict=True)
        }
        summary.append([folds, rank, *(f"{points:.1f} ({part})" for points, part in off)])
    heads = ["held out", "rows of", "rows", "mean error, %", "median, %", "in 50/80/90% intervals, %", "not widened"]
    of_all = ["held out", "rank correlation of distance and error", "coverage off by most, points", "not widened"]
    write("outside", found, f"{markdown(of_all, summary)}\n\n{markdown(heads, lines)}", repetitions=1)


if __name__ == "__main__":
    main()
