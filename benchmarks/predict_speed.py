"""How fast is a prediction, and how large a model, beside other ways to walk the same forest?

    pip install skl2onnx onnxruntime treelite tl2cgen       into an environment of its own; what is not there is left out
    python -m benchmarks.predict_speed [--repetitions 7] [--compiled FILE.so]

One forest of the size that the farm keeps (24 extra trees on the runtimes of the H200's rows), walked by the farm's plain arrays
in numpy, by scikit-learn, by ONNX Runtime, by treelite's own walker, and compiled to C by tl2cgen. Compiling takes minutes, so that
`--compiled` is a library to use again; where there is no such file it is made. Without it, nothing is compiled. All see the same features in
float32, so making features is timed apart. One core: the process is bound to one, and each tool is told to use one thread.

  one_row_ms        median of a call with one row
  rows_per_second   from a call with 100,000 rows: those of the table, repeated
  model_mb          the file: .npz, a pickle by joblib without compression, .onnx, treelite's checkpoint, the compiled library
  largest_difference of ln(time) on the table's rows from scikit-learn's in float64
  whole model       what a user of a registered model waits for: features, both forests (time, and power with slowdown), intervals,
                    checks of the input; `features alone` is that part of it

Each repetition calls every tool once for 100,000 rows and 200 times for one row, in an order that is shuffled each time; medians over
repetitions, with the least and the most beside them. Rates are of a shared virtual machine: compare tools, not machines.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.ensemble import ExtraTreesRegressor

from benchmarks.common import markdown, write
from benchmarks.learning import H200, H200_ROWS, datasets
from farm.forest.predictor import ROWS_AT_ONCE, Predictor
from farm.forest.trees import Grove
from trainer.calibration import calibrate
from trainer.evaluate import measured_outputs, out_of_fold
from trainer.folds import by_shape
from trainer.forest import ForestSettings, as_arrays, fit
from trainer.table import configurations

MANY = 100_000
CALLS = 200

_Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Walker:
    """A tool with the forest in it."""

    name: str
    predict: Callable[[_Array], _Array]
    model_mb: float


def repeated(table: pd.DataFrame, rows: int) -> pd.DataFrame:
    """The table's rows over and over, that many."""
    return table.iloc[np.resize(np.arange(len(table)), rows)].reset_index(drop=True)


def size_mb(path: Path) -> float:
    return path.stat().st_size / 1e6


def plain(forest: ExtraTreesRegressor, folder: Path) -> Walker:
    trees = as_arrays(forest, np.zeros(1), np.ones(1))
    trees.save(folder / "trees.npz")
    grove = Grove.of([trees])  # once, as a loaded model has it
    return Walker("this farm's arrays, numpy", lambda x: grove.predict(x)[0][0], size_mb(folder / "trees.npz"))


def by_sklearn(forest: ExtraTreesRegressor, folder: Path) -> Walker:
    import joblib

    joblib.dump(forest, folder / "forest.joblib")
    return Walker("scikit-learn", forest.predict, size_mb(folder / "forest.joblib"))


def by_onnx(forest: ExtraTreesRegressor, folder: Path) -> Walker:
    import onnxruntime
    from skl2onnx import to_onnx

    made = to_onnx(forest, np.zeros((1, forest.n_features_in_), "float32"))
    path = folder / "forest.onnx"
    path.write_bytes(made.SerializeToString())
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return Walker("ONNX Runtime", lambda x: session.run(None, {name: x})[0][:, 0], size_mb(path))


def by_treelite(forest: ExtraTreesRegressor, folder: Path) -> Walker:
    import treelite

    model = treelite.sklearn.import_model(forest)
    path = folder / "forest.treelite"
    model.serialize(path)
    return Walker("treelite", lambda x: treelite.gtil.predict(model, x, nthread=1).reshape(-1), size_mb(path))


def by_tl2cgen(forest: ExtraTreesRegressor, path: Path) -> Walker:
    import tl2cgen
    import treelite

    if not path.exists():
        model = treelite.sklearn.import_model(forest)
        tl2cgen.export_lib(
            model, toolchain="gcc", libpath=path, params={"parallel_comp": forest.n_estimators}, nthread=2
        )
    compiled = tl2cgen.Predictor(path, nthread=1)
    return Walker("treelite, compiled", lambda x: compiled.predict(tl2cgen.DMatrix(x)).reshape(-1), size_mb(path))


TOOLS: dict[str, Callable[[ExtraTreesRegressor, Path], Walker]] = {
    "plain": plain,
    "sklearn": by_sklearn,
    "onnx": by_onnx,
    "treelite": by_treelite,
}


def walkers(forest: ExtraTreesRegressor, folder: Path, compiled: Path | None) -> tuple[list[Walker], list[str]]:
    """The tools that are installed, and what is said of the others."""
    found, missing = list[Walker](), list[str]()
    tools = dict(TOOLS)
    if compiled is not None:
        tools["tl2cgen"] = lambda forest, _: by_tl2cgen(forest, compiled)
    for name, make in tools.items():
        try:
            found.append(make(forest, folder))
        except ImportError as error:
            missing.append(f"{name}: {error.name} is not installed")
    return found, missing


def seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def timed(calls: dict[str, tuple[Callable[[], object], Callable[[], object]]], repetitions: int) -> dict[str, Any]:
    """By name, what one row and many rows take: medians, and the least and the most."""
    order, one, many = list(calls), {name: list[float]() for name in calls}, {name: list[float]() for name in calls}
    shuffled = random.Random(0)
    for single, all_rows in calls.values():  # a warm-up
        single(), all_rows()
    for _ in range(repetitions):
        shuffled.shuffle(order)
        for name in order:
            single, all_rows = calls[name]
            many[name].append(seconds(all_rows))
            one[name].append(statistics.median(seconds(single) for _ in range(CALLS)))
    return {
        name: {
            "one_row_ms": 1e3 * statistics.median(one[name]),
            "one_row_ms_range": [1e3 * min(one[name]), 1e3 * max(one[name])],
            "rows_per_second": MANY / statistics.median(many[name]),
            "rows_per_second_range": [MANY / max(many[name]), MANY / min(many[name])],
        }
        for name in calls
    }


def whole_model(configured: pd.DataFrame, settings: ForestSettings) -> Predictor:
    """The model as it is registered, with its intervals."""
    held = out_of_fold(H200, configured, by_shape(configured), settings)
    return fit(
        H200, configured, settings, calibrate(measured_outputs(configured), held.predicted, held.spreads, held.where)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--compiled", type=Path, metavar="FILE.so", help="the forest as tl2cgen compiles it")
    asked = parser.parse_args()
    configured, settings = configurations(datasets(*H200_ROWS)), ForestSettings()
    model = whole_model(configured, settings)
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})

    raw = configured[list(model.vocabulary.raw_columns)]
    many = repeated(raw, MANY)
    single = {str(name): [value] for name, value in raw.iloc[0].dropna().to_dict().items()}
    complete = model.vocabulary.complete

    def features(frame: Any) -> _Array:
        parts = complete(frame).parts(ROWS_AT_ONCE)
        return np.concatenate([model.see(part).matrix(model.features) for part in parts])

    x, x_one, x_table = features(many), features(single), features(raw)
    seen = model.see(complete(raw))
    y = np.log(configured["runtime_ms"].to_numpy() / seen.reference_ms)
    forest = ExtraTreesRegressor(
        settings.trees, max_features=settings.max_features, min_samples_leaf=settings.min_samples_leaf,
        random_state=settings.seed, n_jobs=1,
    ).fit(x_table, y)  # fmt: skip
    expected = forest.predict(x_table)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found, missing = walkers(forest, folder, asked.compiled)
        model.save(folder / "model")
        whole_mb = sum(size_mb(path) for path in (folder / "model").iterdir())
        calls: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
            one.name: (partial(one.predict, x_one), partial(one.predict, x)) for one in found
        }
        calls["features alone"] = (lambda: features(single), lambda: features(many))
        calls["the farm's whole model"] = (lambda: model.predicted(single), lambda: model.predicted(many))
        load_before = os.getloadavg()[0]
        times = timed(calls, asked.repetitions)
        apart = {one.name: float(np.max(np.abs(one.predict(x_table) - expected))) for one in found}

    sizes = {one.name: one.model_mb for one in found} | {"the farm's whole model": whole_mb}
    nodes = int(sum(tree.tree_.node_count for tree in forest.estimators_))
    figures = {
        "trees": settings.trees, "nodes": nodes, "features": len(model.features), "table_rows": len(raw),
        "load_before": load_before, "not_installed": missing,
        "tools": [
            {"tool": tool, **one, "model_mb": sizes.get(tool), "largest_difference": apart.get(tool)} for tool, one in times.items()
        ],
    }  # fmt: skip
    rows = [
        [tool, f"{one['one_row_ms']:.3f}", "{:.3f} to {:.3f}".format(*one["one_row_ms_range"]), one["rows_per_second"],
         "{:,.0f} to {:,.0f}".format(*one["rows_per_second_range"]), f"{sizes[tool]:.2f}" if tool in sizes else "-",
         f"{apart[tool]:.1e}" if tool in apart else "-"]
        for tool, one in times.items()
    ]  # fmt: skip
    heads = [
        "",
        "one row, ms",
        "least to most",
        "rows per second",
        "least to most",
        "model, MB",
        "largest difference of ln(time)",
    ]
    table = (
        markdown(heads, rows)
        + f"\n\n{settings.trees} trees of {nodes:,} nodes on {len(model.features)} features; load before: {load_before:.1f}"
    )
    write("predict_speed", figures, "\n\n".join([table, *missing]), repetitions=asked.repetitions)


if __name__ == "__main__":
    main()
