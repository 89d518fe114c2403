"""What share of the best measured kernel's speed does a chooser reach that has measured nothing of the shape?

    python -m benchmarks.choosing            with nvMatmulHeuristics where `pip install nvidia-matmul-heuristics` was run

Each shape (m, n, k) of the farm's H200 rows is held out with all its kernels, 5 folds by shape, one model for all rows. A problem
is all that makes it one (`PROBLEM_COLUMNS`), and counts where at least four kernels of it were measured. The grid is CUTLASS SGEMM
(`paper-cutlass`): 28 kernels for each of 576 problems; for energy, all of them for its 36 shapes (`paper-cutlass-energy`). The tuned rows are CUTLASS 2.x in six types
(`cutlass-tuned`), the Hopper rows CUTLASS 3.x in f16 (`hopper-f16`), both beside cuBLASLt; for the grid its times are those of
`cutlass_vs_cublaslt.py --sweep`.

  share_of_best_pct   best measured time (or energy) of the problem over that of the chosen kernel. Of kernels that a chooser
                      cannot tell apart, the mean
  worst_pct           the least share of any problem

  this farm           the least predicted time, or energy
  first 3             the best of the three that it ranks first, once these are measured
  time alone          for energy: the least predicted time
  reference time      the least time that physics gives: what is known of the card and the tile, without learning
  random              one of the kernels at random: the mean share
  cuBLASLt            the library's own kernel against the best CUTLASS kernel; above 100 it is faster than all of them
  nvMatmulHeuristics  of its list for H200 in its order, the first kernel that was measured (tile, warps, stages, slices; it does
                      not name the swizzle). It knows kernels of tensor cores alone: for SGEMM it answers in TF32, so that it
                      applies to the tuned rows in f16, bf16 and tf32 only. Problems where none of its list was measured are
                      left out for it, and `problems` says how many are left. What it ranks higher was mostly not measured, so
                      that these are shares of its choice among a few, and no verdict on its list

Shares come from the rows themselves, so noise in the best makes them a little too small.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.common import RESULTS, markdown, write
from benchmarks.learning import H200, H200_ROWS, datasets
from farm.forest.features import see
from farm.gemm import ADDED_COLUMNS, PROBLEM_COLUMNS
from trainer.cards import card_of
from trainer.evaluate import out_of_fold
from trainer.folds import by_shape
from trainer.forest import ForestSettings
from trainer.table import configurations, parameter_names, vocabulary_of

PROBLEM = [*PROBLEM_COLUMNS]
BESIDE = "paper_cutlass_vs_cublaslt"
FEWEST = 4
FIRST = 3

_Array = np.ndarray[Any, np.dtype[np.float64]]
Ranking = Callable[[pd.DataFrame], "_Array | None"]
"""A score for each kernel of a problem, the least the best, NaN where it has none; None: it has nothing to say."""


def share_of_best(measured: _Array, score: _Array) -> float:
    """Best measured over measured of the kernel with the least score; the mean over kernels that share it."""
    chosen = score == np.nanmin(score)
    return float(np.mean(measured.min() / measured[chosen]))


def share_of_first(measured: _Array, score: _Array, count: int) -> float:
    """Best measured over the best of the `count` kernels that are ranked first."""
    return float(measured.min() / measured[np.argsort(score, kind="stable")[:count]].min())


def chosen(frame: pd.DataFrame, measured: str, rankings: Mapping[str, str]) -> list[dict[str, Any]]:
    """By chooser: mean and worst share over the problems of `frame` that have enough kernels.

    `rankings` maps choosers to columns of scores; `first 3` is of the first of them.
    """
    own, *others = rankings
    shares: dict[str, list[float]] = {name: [] for name in (own, "first 3", *others, "random")}
    kernels, first = [], rankings[own]
    for _, rows in frame.groupby(PROBLEM):
        if len(rows) < FEWEST:
            continue
        values = rows[measured].to_numpy("float64")
        kernels.append(len(rows))
        for name, column in rankings.items():
            score = rows[column].to_numpy("float64")
            if not np.isnan(score).all():
                shares[name].append(share_of_best(values, score))
        shares["first 3"].append(share_of_first(values, rows[first].to_numpy("float64"), FIRST))
        shares["random"].append(float(np.mean(values.min() / values)))
    return [said(name, found) | {"kernels": float(np.mean(kernels))} for name, found in shares.items() if found]


def said(chooser: str, shares: list[float]) -> dict[str, Any]:
    return {
        "chooser": chooser,
        "problems": len(shares),
        "share_of_best_pct": 100 * float(np.mean(shares)),
        "p10_pct": 100 * float(np.percentile(shares, 10)),
        "worst_pct": 100 * float(np.min(shares)),
    }


def against_library(rows_of: pd.DataFrame) -> list[dict[str, Any]]:
    """cuBLASLt's time, and that of CUTLASS kernels by who chose them, against the best CUTLASS kernel."""
    names = ("cuBLASLt", "CUTLASS, chosen by this farm", "either, chosen by this farm")
    shares: dict[str, list[float]] = {name: [] for name in names}
    for _, rows in rows_of.groupby(PROBLEM):
        times, predicted = rows["runtime_ms"].to_numpy("float64"), rows["predicted_runtime_ms"].to_numpy("float64")
        library = (rows["family"] == "cublaslt").to_numpy()
        cutlass = ~library
        if not library.any() or cutlass.sum() < FEWEST:
            continue
        own = times[cutlass][np.argmin(predicted[cutlass])]
        found = [times[library].min(), own]
        if not np.isnan(predicted).any():
            found.append(times[np.argmin(predicted)])
        for name, ms in zip(names, found, strict=False):
            shares[name].append(float(times[cutlass].min() / ms))
    return [said(name, found) for name, found in shares.items() if found]


def with_library(grid: pd.DataFrame) -> pd.DataFrame:
    """The grid with cuBLASLt's times of its problems, which no model is asked for."""
    found = json.loads((RESULTS / f"{BESIDE}.json").read_text())["problems"]
    rows = []
    for one in found:
        shape, types, layout = one["problem"].split()
        extents = dict(zip("mnk", map(int, shape.split("x")), strict=True))
        kinds = dict(zip(("ab", "cd", "acc"), types.split(":"), strict=True))
        scalars = {"layout": layout, "alpha": one["alpha"], "beta": one["beta"]}
        rows.append(
            {**extents, **kinds, **scalars, **ADDED_COLUMNS, "family": "cublaslt", "runtime_ms": one["cublaslt_ms"]}
        )
    return pd.concat([grid, pd.DataFrame(rows)], ignore_index=True)


# --- nvMatmulHeuristics ------------------------------------------------------------------------------

_PRECISION = {"f16": "HSH", "bf16": "TST", "tf32": "SSS"}
_LIST = 256


def heuristics() -> Callable[[pd.DataFrame], _Array] | None:
    """Ranks the kernels of a problem by the place they have in the tool's list; None where it is not installed."""
    try:
        import nvMatmulHeuristics as tool  # noqa: N813
    except ImportError:
        return None
    tool.NvMatmulHeuristicsInterface.__del__ = lambda _: None  # 0.1.0 ends the process where two have been made
    made: dict[str, Any] = {}

    def interface(precision: str) -> Any:
        if precision not in made:
            flags = tool.NvMatmulHeuristicsFlags.PERF_MODEL_BASED_AUTO_TUNING
            made[precision] = tool.NvMatmulHeuristicsInterface(
                tool.NvMatmulHeuristicsTarget.CUTLASS, precision, flags=flags
            )
        return made[precision]

    def rank(rows: pd.DataFrame) -> _Array:
        problem, found = rows.iloc[0], np.full(len(rows), np.nan)
        precision = _PRECISION.get(problem["ab"])
        if precision is None:
            return found
        asked, layout = (
            interface(precision),
            tool.NvMatmulHeuristicsMatmulLayout[f"{problem['layout'].upper()}_ROW_MAJOR"],
        )
        card = asked.createHardwareDescriptor()
        asked.setHardwarePredefinedGpu(card, tool.NvMatmulHeuristicsNvidiaGpu.H200_SXM)
        asked.loadInternalDiscoverySet(layout, card)
        places: dict[tuple[int, ...], int] = {}
        for place, one in enumerate(asked.get_with_mnk(*(int(problem[e]) for e in "mnk"), layout, _LIST, card)):
            kernel = one["kernel"]
            key = (kernel.cta_tile_m, kernel.cta_tile_n, kernel.cta_tile_k, kernel.warp_tile_m, kernel.warp_tile_n)
            places.setdefault((*key, kernel.stages, kernel.split_k), place)
        names = ("tile_m", "tile_n", "tile_k", "warp_m", "warp_n", "stages", "split_k")
        for index, kernel in enumerate(rows[list(names)].itertuples(index=False)):
            found[index] = places.get(tuple(int(value) for value in kernel), np.nan)
        return found

    return rank


# ------------------------------------------------------------------------------------------------------


def predicted(configured: pd.DataFrame, settings: ForestSettings) -> pd.DataFrame:
    """The configurations with what a model said of them that had not seen their shapes, and the reference time."""
    held = out_of_fold(H200, configured, by_shape(configured), settings).predicted.add_prefix("predicted_")
    vocabulary = vocabulary_of(configured)
    seen = see(vocabulary.complete(configured), vocabulary, card_of(H200, configured))
    return configured.join(held).assign(reference_ms=seen.reference_ms)


def measured_in(frame: pd.DataFrame, name: str) -> pd.DataFrame:
    """The rows of `frame` that a dataset has: some shapes are in two."""
    key = [*PROBLEM, "family", *parameter_names()]
    return configurations(datasets(name))[key].merge(frame, on=key, how="left", validate="one_to_one")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    frame = predicted(configurations(datasets(*H200_ROWS)), ForestSettings())
    grid, tuned, hopper, powered = (
        measured_in(frame, name) for name in ("paper-cutlass", "cutlass-tuned", "hopper-f16", "paper-cutlass-energy")
    )
    powered = powered[powered["family"] == "cutlass"]
    tuned_cutlass = tuned[tuned["family"] == "cutlass"].assign(place=np.nan)
    rank = heuristics()
    if rank is not None:
        for _, rows in tuned_cutlass.groupby(PROBLEM):
            tuned_cutlass.loc[rows.index, "place"] = rank(rows)

    time = {"this farm": "predicted_runtime_ms", "reference time": "reference_ms"}
    energy = {
        "this farm": "predicted_energy_mj",
        "time alone": "predicted_runtime_ms",
        "reference time": "reference_ms",
    }
    results = {
        ("grid", "time"): chosen(grid, "runtime_ms", time),
        ("grid", "energy"): chosen(powered, "energy_mj", energy),
        ("tuned", "time"): chosen(
            tuned_cutlass, "runtime_ms", time | ({"nvMatmulHeuristics": "place"} if rank is not None else {})
        ),
    }
    results["Hopper", "time"] = chosen(hopper[hopper["family"] == "cutlass3x"], "runtime_ms", time)
    if rank is not None:
        placed = tuned_cutlass.groupby(PROBLEM)["place"].transform(lambda places: places.notna().any())
        both = chosen(tuned_cutlass[placed], "runtime_ms", time | {"nvMatmulHeuristics": "place"})
        results["tuned, where nvMatmulHeuristics answers", "time"] = both
    figures = [
        {"rows": rows, "objective": objective, **one} for (rows, objective), found in results.items() for one in found
    ]
    library = [
        {"rows": name, **one}
        for name, rows in (("grid", with_library(grid)), ("tuned", tuned), ("Hopper", hopper))
        for one in against_library(rows)
    ]
    columns = ["chooser", "problems", "share_of_best_pct", "p10_pct", "worst_pct"]
    heads = ["chooser", "problems", "share of the best %", "10th percentile", "worst"]

    def row(one: Mapping[str, Any], *names: str) -> list[Any]:
        numbers = [f"{one[name]:.2f}" for name in columns[2:]]
        return [*(one[name] for name in names), one["chooser"], one["problems"], *numbers]

    tables = [
        markdown(
            ["rows", "objective", *heads, "kernels of a problem"],
            [[*row(one, "rows", "objective"), f"{one['kernels']:.1f}"] for one in figures],
        ),
        "Against the best CUTLASS kernel:",
        markdown(["rows", *heads], [row(one, "rows") for one in library]),
    ]
    found = {"figures": figures, "against_cublaslt": library, "nvmatmulheuristics": rank is not None}
    write("choosing", found, "\n\n".join(tables), repetitions=1)


if __name__ == "__main__":
    main()
