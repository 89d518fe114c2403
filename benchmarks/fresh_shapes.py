"""How far models are off on shapes that people bring: learned from a grid, from random rows of a domain, and from rows that
learning campaigns chose.

    python -m benchmarks.fresh_shapes

Every model is tested on the same independent test set: 500 random problems of the domain serving-and-general, and 60 more with
all kernels for choosing. Nothing was learned from them, and no setting was chosen by them.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from benchmarks.common import markdown, write
from farm.forest.predictor import Predictor
from trainer.evaluate import evaluate
from trainer.folds import FOLD_KINDS, HEADLINE, KERNELS
from trainer.forest import ForestSettings, fit
from trainer.table import PROBLEM, configurations, with_added_columns
from trainer.test_set import check_apart, evaluate_on

DATASETS = Path(__file__).parents[1] / "examples" / "datasets"
TYPE = "nvidia-h200"
TRAINED_ON = {
    "grid": ("paper-cutlass", "paper-tiled", "paper-all-tiles", "cutlass-tuned", "hopper-f16", "compare-cards"),
    "domain": ("domain",),
    "learn, 24 device minutes": ("learn-quickstart", "learn-domain"),
    "learn": ("learn-quickstart", "learn-domain"),
    "domain and learn": ("domain", "learn-quickstart", "learn-domain"),
}
BUDGETS = {"learn, 24 device minutes": 1440.0}
"""Device seconds after which the rows of a model end, in the order in which they were measured."""

FIGURES = ("mean_error_pct", "median_error_pct", "p90_error_pct", "coverage_50_pct", "coverage_80_pct", "coverage_pct")


def rows(*names: str) -> pd.DataFrame:
    """The datasets of these names, one below the other. Without the test sets of learning campaigns."""
    tables = []
    for name in names:
        table: pd.DataFrame = pq.read_table(DATASETS / f"{TYPE}-{name}.parquet").to_pandas()
        tables.append(table[table["round"] > 0] if name.startswith("learn-") else table)
    return with_added_columns(pd.concat(tables))


def within(table: pd.DataFrame, device_seconds: float) -> pd.DataFrame:
    """The rows that were measured first, as many as take that long."""
    in_order = table.sort_values("measured_at", kind="stable")
    return in_order[in_order["cost_s"].cumsum() <= device_seconds]


def apart(table: pd.DataFrame, test: pd.DataFrame) -> pd.DataFrame:
    """The table without the problems of the test set: layers of models come up in every draw of the domain."""
    found = table[~pd.MultiIndex.from_frame(table[PROBLEM]).isin(pd.MultiIndex.from_frame(test[PROBLEM]))]
    check_apart(found, test)
    return found


def groups(table: pd.DataFrame) -> dict[str, Any]:
    """The parts of a test set that are looked at by themselves: families, with the types of each; sizes; alignment."""
    flops = 2.0 * table["m"] * table["n"] * table["k"]
    aligned = (table["n"] % 8 == 0) & (table["k"] % 8 == 0)
    narrow = table["ab"].where(table["ab"] == "f32", "16 bits")
    found: dict[str, Any] = {"all": np.full(len(table), True)}
    for family in sorted(set(table["family"])):
        found[family] = table["family"] == family
    found |= {f"cutlass {kind}": (table["family"] == "cutlass") & (narrow == kind) for kind in ("f32", "16 bits")}
    found |= {
        f"cublaslt {ab}": (table["family"] == "cublaslt") & (table["ab"] == ab) for ab in sorted(set(table["ab"]))
    }
    found |= {"up to 10^8 flops": flops <= 1e8, "above 10^11 flops": flops > 1e11}
    return found | {"n and k multiples of 8": aligned, "odd n or k": ~aligned}


def model_of(table: pd.DataFrame) -> tuple[Predictor, float]:
    """A model with the intervals that its held-out shapes and kernels calibrate, and the processor seconds that it took."""
    began = time.process_time()
    configured = configurations(table)
    kinds = {kind: FOLD_KINDS[kind] for kind in (HEADLINE, KERNELS)}
    *_, last = evaluate(TYPE, configured, ForestSettings(), kinds=kinds)
    return fit(TYPE, configured, ForestSettings(), last.intervals), time.process_time() - began


def tested(model: Predictor, table: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """The figures of each group that the model knows."""
    found = {}
    for name, which in groups(table).items():
        by_target, _ = evaluate_on(model, table[which])
        runtime, power = by_target.get("runtime_ms"), by_target.get("power_w", {})
        if runtime is not None:
            found[name] = {
                "test_rows": int(runtime["rows"]),
                **{figure: round(runtime[figure], 2) for figure in FIGURES if figure in runtime},
                "mean_error_95": [round(runtime[f"mean_error_{end}_pct"], 2) for end in ("low", "high")],
                **({"power_median_error_pct": round(power["median_error_pct"], 2)} if power else {}),
            }
    return found


CHOOSING = ("choose_share_pct", "choose_share_p10_pct", "first_three_share_pct")


def chosen(model: Predictor, table: pd.DataFrame) -> dict[str, float]:
    """What the kernel that a model finds fastest reaches of the fastest that was measured, in percent, by problem.

    Empty where no problem has enough kernels that the model knows.
    """
    runtime = evaluate_on(model, table)[0].get("runtime_ms", {})
    if "choose_problems" not in runtime:
        return {}
    return {
        "problems": int(runtime["choose_problems"]),
        **{figure: round(runtime[figure], 2) for figure in CHOOSING},
    }


def by_family(model: Predictor, learned: pd.DataFrame, kernels: pd.DataFrame) -> dict[str, dict[str, float]]:
    """By family: the device seconds that the model learned from, and its choice among the kernels of the family alone."""
    seconds = learned.groupby("family")["cost_s"].sum()
    choices = {family: chosen(model, kernels[kernels["family"] == family]) for family in seconds.index}
    return {
        family: {
            "device_seconds": round(float(seconds[family]), 1),
            **{name: value for name, value in choices[family].items() if name in CHOOSING},
        }
        for family in seconds.index
    }


def main() -> None:
    test, kernels = rows("domain-test"), rows("domain-kernels")
    figures: dict[str, Any] = {}
    lines = []
    for name, datasets in TRAINED_ON.items():
        table = rows(*datasets)
        if name in BUDGETS:
            table = within(table, BUDGETS[name])
        table = apart(table, pd.concat([test, kernels]))
        model, seconds = model_of(table)
        configured = configurations(test)
        figures[name] = {
            "datasets": list(datasets),
            "rows": len(table),
            "device_seconds": round(float(table["cost_s"].sum()), 1),
            "training_cpu_s": round(seconds, 1),
            "groups": tested(model, configured),
            "choosing": chosen(model, configurations(kernels)),
        }
        for family, more in by_family(model, table, configurations(kernels)).items():
            figures[name]["groups"].get(family, {}).update(more)
        for group, found in figures[name]["groups"].items():
            low, high = found["mean_error_95"]
            lines.append(
                [name, group, found["test_rows"], f"{found['mean_error_pct']} ({low} to {high})", found["median_error_pct"],
                 found["p90_error_pct"], *(found.get(claim, "–") for claim in FIGURES[3:]), found.get("power_median_error_pct", "–")]
            )  # fmt: skip
    columns = [
        "learned from",
        "test rows of",
        "rows",
        "mean error, % (95% interval)",
        "median, %",
        "90th percentile, %",
    ]
    columns += ["in 50% interval, %", "in 80%", "in 90%", "power, median %"]
    choices = [[name, *figures[name]["choosing"].values()] for name in TRAINED_ON]
    ways = [
        "learned from",
        "problems",
        "speed of the chosen kernel, % of the best",
        "10th percentile",
        "best of the first three",
    ]
    write("fresh_shapes", figures, f"{markdown(columns, lines)}\n\n{markdown(ways, choices)}", repetitions=1)


if __name__ == "__main__":
    main()
