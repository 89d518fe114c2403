"""What the benchmarks of learning share: training tables without a database, models to compare, and their figures.

A foreign table is read by its importer, so that a benchmark sees what an import stores; the farm's own rows are read from
`examples/datasets`. Whatever is compared is fitted and asked on the same rows of the same folds.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from benchmarks.common import markdown
from farm.forest.columns import OUTPUTS
from farm.forest.features import Seen, see
from farm.forest.predictor import CLAIM, Predictor
from farm.gemm import ADDED_COLUMNS
from farm.importers.cards import CardTable
from farm.measurement import energy_mj
from trainer.calibration import CLAIMS, out_of_fold_bounds
from trainer.cards import card_of
from trainer.evaluate import OutOfFold, evaluate, measured_outputs, metrics, metrics_by_target
from trainer.folds import HEADLINE, Split, Splits
from trainer.forest import ForestSettings
from trainer.table import LEARNED_FROM, vocabulary_of

ROOT = Path(__file__).parents[1]
DATASETS = ROOT / "examples" / "datasets"
H200_ROWS = (
    "paper-tiled", "paper-all-tiles", "paper-cutlass", "cutlass-tuned", "hopper-f16", "compare-cards", "paper-cutlass-energy",
)  # fmt: skip
"""All datasets of the H200."""

DATA = ROOT.parent / "shared" / "data"

H200 = "nvidia-h200"
SEED = 0

Figure = dict[str, Any]
"""One model on one kind of folds and one target: names, and the numbers of `trainer.evaluate.metrics`."""

_Array = np.ndarray[Any, np.dtype[Any]]

NUMBERS = ("r2", "r2_log", "mean_error_pct", "median_error_pct", "p90_error_pct", "bias_pct", "coverage_pct")


# --- tables ------------------------------------------------------------------------------------------


def needed(path: Path, what: str, option: str) -> Path:
    """The path, where it is there; otherwise the benchmark ends and says what is missing."""
    if not path.exists():
        sys.exit(f"{what} is not here: {path} does not exist. {option}")
    return path


def add_data(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, default=DATA, metavar="FOLDER", help="where the foreign tables lie")


def imported(table: CardTable) -> pd.DataFrame:
    """The training table that an import of the file would give; `row` is where a row stands in the file, counted from 1."""
    found = []
    for row in table.reader().rows(lambda _: None):
        one = row.measurement
        energy = energy_mj(one.power_w, one.runtime_ms, one.runtime_settled_ms)
        found.append({
            **{"row": row.number, "device_type": row.device, "device_uuid": row.device, "source": str(one.source)},
            **row.configuration.columns(),
            **{"runtime_ms": one.runtime_ms, "power_w": one.power_w, "energy_mj": energy},
        })  # fmt: skip
    return pd.DataFrame(found).astype(dict.fromkeys(("runtime_ms", "power_w", "energy_mj"), "float64"))


def datasets(*names: str) -> pd.DataFrame:
    """The rows of `examples/datasets/nvidia-h200-<name>.parquet`, as the trainer reads them of the database."""
    columns = [*LEARNED_FROM, "device_uuid", "campaign"]
    paths = [
        needed(DATASETS / f"{H200}-{name}.parquet", "a dataset", "It is part of the repository.") for name in names
    ]
    return pd.concat([_read(path, columns) for path in paths], ignore_index=True)


def _read(path: Path, columns: Sequence[str]) -> pd.DataFrame:
    """These columns of a dataset, with those of newer datasets, burst times and protocols where it has them."""
    there = pq.read_schema(path).names
    more = [name for name in (*ADDED_COLUMNS, "runtime_burst_ms", "protocol") if name in there]
    return pd.read_parquet(path, columns=[*columns, *more])


# --- the farm's model --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Judged:
    """The farm's model on some kinds of folds: figures, coverage by claim on the headline's folds, and what was said."""

    figures: list[Figure]
    coverage: list[dict[str, Any]]
    held: Mapping[str, OutOfFold]


def judge(
    device_type: str,
    configured: pd.DataFrame,
    kinds: Mapping[str, Split],
    *,
    settings: ForestSettings,
    parts: Mapping[str, _Array] | None = None,
    model: str = "this farm",
) -> Judged:
    """As `trainer.evaluate.evaluate`, of `parts` of the rows besides all."""
    measured, held = measured_outputs(configured), dict[str, OutOfFold]()
    figures, coverage = list[Figure](), list[dict[str, Any]]()
    parts = {"all": np.full(len(configured), True), **(parts or {})}
    for one in evaluate(device_type, configured, settings, kinds=kinds):
        held[one.kind] = one.held
        if one.kind == HEADLINE:
            coverage = covered(measured, one.held)
        for part, rows in parts.items():
            figures += figures_of({"part": part, "folds": one.kind, "model": model}, measured, one.predicted, rows)
    return Judged(figures, coverage, held)


def covered(measured: pd.DataFrame, held: OutOfFold) -> list[dict[str, Any]]:
    """By target and claim, the share of held-out rows inside intervals that the other folds calibrate."""
    found = []
    for claim in CLAIMS:
        within = out_of_fold_bounds(measured, held.predicted, held.spreads, held.fold, claim, held.where)
        for target in OUTPUTS:
            if f"{target}_low" not in within:
                continue
            low, high = within[f"{target}_low"], within[f"{target}_high"]
            said = metrics(measured[target], held.predicted[target], (low, high))
            if "coverage_pct" in said:
                widths = (high / low)[measured[target].notna()].map(np.log) / 2
                found.append({
                    **{"target": target, "claimed_pct": 100 * claim, "coverage_pct": said["coverage_pct"]},
                    "half_width_pct": 100 * float(np.expm1(widths.median())),
                })  # fmt: skip
    return found


def figures_of(
    names: Mapping[str, Any], measured: pd.DataFrame, predicted: pd.DataFrame, rows: _Array | None = None
) -> list[Figure]:
    """A figure for each target that both tables have numbers of, over `rows`."""
    if rows is not None:
        measured, predicted = measured[rows], predicted[rows]
    return [{**names, "target": target, **one} for target, one in metrics_by_target(measured, predicted).items()]


# --- other models ------------------------------------------------------------------------------------


class Regressor(Protocol):
    """What scikit-learn calls a regressor."""

    def fit(self, x: _Array, y: _Array) -> Any: ...

    def predict(self, x: _Array) -> _Array: ...


@dataclass(frozen=True)
class Alternative:
    """Another way to learn ln(time) and ln(power). Where it has several regressors, their predictions are averaged."""

    regressors: Callable[[], Sequence[Regressor]]
    # Of the features that the farm's model sees; None: all that vary.
    features: Sequence[str] | None = None
    # Whether it learns the time as a factor over the reference time, as the farm's model does.
    normalised: bool = True


def alternatives(jobs: int = 2) -> dict[str, Alternative]:
    """What forests were chosen against."""
    from sklearn.ensemble import ExtraTreesRegressor, HistGradientBoostingRegressor, RandomForestRegressor
    from sklearn.linear_model import LinearRegression, RidgeCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    def extra(trees: int) -> Regressor:
        made: Regressor = ExtraTreesRegressor(trees, max_features=1.0, random_state=SEED, n_jobs=jobs)
        return made

    def boosted() -> Regressor:
        made: Regressor = HistGradientBoostingRegressor(
            max_iter=300, max_leaf_nodes=31, learning_rate=0.06, random_state=SEED, early_stopping=False
        )
        return made

    raw = ("log2_m", "log2_n", "log2_k", *(f"log2_tile_{axis}" for axis in "mnk"), "stages", "swizzle", "split_k")
    return {
        "extra trees, 100": Alternative(lambda: [extra(100)]),
        "random forest, 100": Alternative(
            lambda: [RandomForestRegressor(100, max_features=0.5, random_state=SEED, n_jobs=jobs)]
        ),
        "histogram gradient boosting": Alternative(lambda: [boosted()]),
        "extra trees and boosting, averaged": Alternative(lambda: [extra(24), boosted()]),
        "extra trees on sizes and tiles, ln ms": Alternative(lambda: [extra(24)], raw, normalised=False),
        "ridge on the features": Alternative(lambda: [make_pipeline(StandardScaler(), RidgeCV(np.logspace(-3, 3, 13)))]),
        "linear roofline": Alternative(
            lambda: [LinearRegression()], ("log2_flops", "log2_bytes", "log2_roofline"), normalised=False
        ),
    }  # fmt: skip


@dataclass(frozen=True)
class Sight:
    """What the farm's model sees of the rows of a fold: fitted on `training`, asked about `asked`."""

    training: Seen
    asked: Seen
    # Which of the held-out rows the training rows let a model know.
    known: _Array


def sights(device_type: str, configured: pd.DataFrame, splits: Splits) -> Iterator[tuple[_Array, _Array, Sight]]:
    """(training rows, held-out rows that can be known, what is seen of both) of each fold."""
    for training, held_out in splits:
        fitted_on = configured.iloc[training]
        vocabulary, card = vocabulary_of(fitted_on), card_of(device_type, fitted_on)
        known = Predictor(card, vocabulary, (), {}, {}, {}).known(configured.iloc[held_out])
        asked = held_out[known]
        if len(asked):
            seen = [see(vocabulary.complete(configured.iloc[rows]), vocabulary, card) for rows in (training, asked)]
            yield training, asked, Sight(seen[0], seen[1], known)


def compare(
    device_type: str, configured: pd.DataFrame, splits: Splits, models: Mapping[str, Alternative]
) -> dict[str, pd.DataFrame]:
    """Out-of-fold runtime and power by each model."""
    empty = pd.DataFrame(np.nan, index=configured.index, columns=["runtime_ms", "power_w"])
    found = {name: empty.copy() for name in models}
    runtime_ms, power_w = configured[["runtime_ms", "power_w"]].to_numpy("float64").T
    powered = np.isfinite(power_w)
    for training, asked, sight in sights(device_type, configured, splits):
        for name, model in models.items():
            names = [
                feature for feature in model.features or sight.training.varying() if feature in sight.training.plain
            ]
            x, new = sight.training.matrix(names), sight.asked.matrix(names)
            before, after = (one.reference_ms if model.normalised else 1.0 for one in (sight.training, sight.asked))
            time = _average(model, x, np.log(runtime_ms[training] / before), new)
            found[name].iloc[asked, 0] = np.exp(time) * after
            with_power = powered[training]
            if with_power.any():
                found[name].iloc[asked, 1] = np.exp(
                    _average(model, x[with_power], np.log(power_w[training][with_power]), new)
                )
    return found  # fmt: skip


def _average(model: Alternative, x: _Array, y: _Array, new: _Array) -> _Array:
    result: _Array = np.mean([regressor.fit(x, y).predict(new) for regressor in model.regressors()], axis=0)
    return result


# --- tables to read ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Target:
    """A figure that was asked for: at most, or at least, that much."""

    what: str
    found: float
    asked: float
    at_least: bool = False

    @property
    def met(self) -> bool:
        return self.found >= self.asked if self.at_least else self.found <= self.asked

    def to_json(self) -> dict[str, Any]:
        sign = ">=" if self.at_least else "<="
        return {"what": self.what, "found": self.found, "asked": f"{sign} {self.asked:g}", "met": self.met}


def pick(figures: Iterable[Figure], **wanted: Any) -> Figure:
    """The one figure with these names. Raises `LookupError` where there is none, or several."""
    found = [one for one in figures if all(one.get(name) == value for name, value in wanted.items())]
    if len(found) != 1:
        raise LookupError(f"{len(found)} figures have {wanted}")
    return found[0]


def figure_table(figures: Iterable[Figure], names: Sequence[str], numbers: Sequence[str] = NUMBERS) -> str:
    """The figures in markdown: first their names, then the rows, then the numbers. R2 has four decimals, errors two."""
    heads = {
        "r2": "R2",
        "r2_log": "R2 of logs",
        "bias_pct": "bias %",
        "coverage_pct": f"in the {CLAIM:.0%} interval, %",
    }
    heads |= {f"{name}_error_pct": f"{name} error %" for name in ("mean", "median", "p90")}
    rows = [
        [*(one[name] for name in names), int(one["rows"]), *(shown(one.get(number), number) for number in numbers)]
        for one in figures
    ]
    return markdown([*names, "rows", *(heads.get(number, number) for number in numbers)], rows)


def shown(value: float | None, name: str) -> str:
    if value is None:
        return "-"
    return f"{value:.4f}" if name.startswith("r2") else f"{value:.1f}" if name == "coverage_pct" else f"{value:.2f}"


def target_table(targets: Sequence[Target]) -> str:
    rows = []
    for one in targets:
        sign = "at least" if one.at_least else "at most"
        rows.append([one.what, f"{one.found:.4g}", f"{sign} {one.asked:g}", "met" if one.met else "**missed**"])
    return markdown(["target", "found", "asked", ""], rows)


def coverage_table(coverage: Sequence[Mapping[str, Any]], names: Sequence[str] = ()) -> str:
    rows = [
        [*(one[name] for name in names), one["target"], f"{one['claimed_pct']:g}", f"{one['coverage_pct']:.1f}", f"{one['half_width_pct']:.1f}"]
        for one in coverage
    ]  # fmt: skip
    return markdown([*names, "target", "claimed %", "held %", "median half width %"], rows)
