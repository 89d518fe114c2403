"""How near are predictions on the farm's own H200 rows, and would another way to learn them be nearer?

    python -m benchmarks.h200 [--without-alternatives]

The rows are all of `examples/datasets`: the tiled kernel, CUTLASS SGEMM, CUTLASS 2.x in six types and 3.x in f16 beside cuBLASLt,
and what four cards measured alike. As in production one model learns from all of them, on every kind of folds of
`trainer.folds`; `part` says whose rows a figure is of.

The alternatives learn time and power on the same features, targets and folds. Settings were chosen before this on GPPerf's, these
and AIConfigurator's rows, so no figure here is of rows that no choice ever saw.

  this farm                              extra trees, 24 of them, stored as plain arrays
  extra trees, 100                       the same with more trees
  random forest, 100                     half of the features at each split
  histogram gradient boosting            300 rounds of 31 leaves, learning rate 0.06
  extra trees and boosting, averaged     24 trees and those 300 rounds, in logarithms
  one model per family                   the farm's, fitted on the rows of one family at a time
  extra trees on sizes and tiles, ln ms  without what physics adds: plain columns, no reference time
  ridge on the features                  linear, penalty by leave-one-out
  linear roofline                        ln of flops, bytes and roofline time, least squares
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.common import write
from benchmarks.learning import (
    H200,
    H200_ROWS,
    Figure,
    Target,
    alternatives,
    compare,
    coverage_table,
    datasets,
    figure_table,
    figures_of,
    judge,
    pick,
    target_table,
)
from trainer.evaluate import measured_outputs, out_of_fold
from trainer.folds import FOLD_KINDS, HEADLINE
from trainer.forest import ForestSettings
from trainer.table import configurations

COMPARED = (HEADLINE, "unseen_kernels", "largest_tenth", "another_card")

_Array = np.ndarray[Any, np.dtype[Any]]


def parts_of(configured: pd.DataFrame) -> dict[str, _Array]:
    """Whose rows a figure may be of."""
    family, f32 = configured["family"], (configured["ab"] == "f32").to_numpy()
    cutlass = (family == "cutlass").to_numpy()
    return {
        "tiled": (family == "tiled").to_numpy(),
        "CUTLASS, f32": cutlass & f32,
        "CUTLASS, other types": cutlass & ~f32,
        "CUTLASS 3.x": (family == "cutlass3x").to_numpy(),
        "cuBLASLt": (family == "cublaslt").to_numpy(),
    }


def by_family(configured: pd.DataFrame, kind: str, settings: ForestSettings) -> pd.DataFrame:
    """The farm's model of each family alone, on the folds that all rows together have."""
    found = pd.DataFrame(np.nan, index=configured.index, columns=["runtime_ms", "power_w"])
    whole = list(FOLD_KINDS[kind](configured))
    for family in configured["family"].unique():
        own = np.flatnonzero((configured["family"] == family).to_numpy())
        position = np.full(len(configured), -1)
        position[own] = np.arange(len(own))
        splits = [(side[position[side] >= 0] for side in split) for split in whole]
        inside = ((position[training], position[held]) for training, held in splits)
        usable = ((training, held) for training, held in inside if len(training) and len(held))
        said = out_of_fold(H200, configured.iloc[own], usable, settings).predicted
        found.iloc[own] = said[["runtime_ms", "power_w"]].to_numpy()
    return found


def compared(configured: pd.DataFrame, settings: ForestSettings, kinds: tuple[str, ...]) -> list[Figure]:
    """The alternatives by kind of folds."""
    measured, figures, parts = measured_outputs(configured), list[Figure](), parts_of(configured)
    for kind in kinds:
        answers = compare(H200, configured, FOLD_KINDS[kind](configured), alternatives(settings.jobs))
        answers["one model per family"] = by_family(configured, kind, settings)
        for model, predicted in answers.items():
            for part, rows in {"all": np.full(len(configured), True), **parts}.items():
                figures += figures_of({"part": part, "folds": kind, "model": model}, measured, predicted, rows)
        print(f"compared on {kind}", flush=True)
    return figures


def targets_of(figures: list[Figure], coverage: list[dict[str, Any]]) -> list[Target]:
    def ours(target: str) -> Figure:
        return pick(figures, part="all", folds=HEADLINE, model="this farm", target=target)

    time, power, energy = ours("runtime_ms"), ours("power_w"), ours("energy_mj")
    off = {
        f"{one['target']} at {one['claimed_pct']:g}": abs(one["coverage_pct"] - one["claimed_pct"]) for one in coverage
    }
    worst = max(off, key=off.__getitem__)
    return [
        Target("time: R2", time["r2"], 0.99, at_least=True),
        Target("time: mean error %", time["mean_error_pct"], 6.0),
        Target("power: median error %", power["median_error_pct"], 2.0),
        Target("power: R2", power["r2"], 0.95, at_least=True),
        Target("energy: mean error %", energy["mean_error_pct"], 7.0),
        Target(f"coverage: most points from a claim ({worst} %)", off[worst], 3.0),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--without-alternatives", action="store_true", help="only the farm's model: a minute")
    asked = parser.parse_args()
    settings = ForestSettings()
    rows = datasets(*H200_ROWS)
    configured = configurations(rows)
    ours = judge(H200, configured, FOLD_KINDS, settings=settings, parts=parts_of(configured))
    print("judged", flush=True)
    others = [] if asked.without_alternatives else compared(configured, settings, COMPARED)
    targets = targets_of(ours.figures, ours.coverage)

    def of(part: str, target: str, kinds: tuple[str, ...], *, all_models: bool) -> list[Figure]:
        figures = [*ours.figures, *others] if all_models else ours.figures
        return [
            one for kind in kinds for one in figures
            if one["part"] == part and one["target"] == target and one["folds"] == kind
        ]  # fmt: skip

    every = tuple(FOLD_KINDS)
    outputs = ("runtime_ms", "power_w", "energy_mj", "tflops")
    named = list(parts_of(configured))
    tables = [
        "The farm's model on every kind of folds:",
        figure_table([one for target in outputs for one in of("all", target, every, all_models=False)], ["target", "folds"]),
        target_table(targets),
        "By rows, unseen shapes:",
        figure_table(
            [one for part in named for target in outputs[:3] for one in of(part, target, (HEADLINE,), all_models=False)],
            ["part", "target"],
        ),
        "Held inside intervals, unseen shapes:",
        coverage_table(ours.coverage),
    ]  # fmt: skip
    for target, word in (("runtime_ms", "time"), ("power_w", "power")) if others else ():
        for kind in COMPARED:
            tables.append(f"Which way to learn, {word}, {kind.replace('_', ' ')}, all rows:")
            tables.append(figure_table(of("all", target, (kind,), all_models=True), ["model"]))
    for part in ("tiled", "CUTLASS, f32") if others else ():
        tables.append(f"Which way to learn, time, unseen shapes, {part}:")
        tables.append(figure_table(of(part, "runtime_ms", (HEADLINE,), all_models=True), ["model"]))
    found = {
        "rows": len(rows), "configurations": len(configured), "with_power": int(configured["power_w"].notna().sum()),
        "figures": [*ours.figures, *others], "coverage": ours.coverage, "targets": [one.to_json() for one in targets],
    }  # fmt: skip
    write("h200", found, "\n\n".join(tables), repetitions=1)


if __name__ == "__main__":
    main()
