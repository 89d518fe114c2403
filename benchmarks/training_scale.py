"""How do the time and the memory of a training grow with its rows?

    python -m benchmarks.training_scale [--rows 1000 ... 1000000] [--subsampling 200000]

A training is what the trainer does with a table that was read: the full evaluation on every kind of folds, the final fit, plots and
the files of the model (`trainer.learn.learn`). MLflow and the database are left out. Each size runs in a process of its own,
with two threads, so that the peak of its memory is its own; the peak includes the interpreter and the table.

Up to 9,942 rows, tables are random problems of the dataset `nvidia-h200-domain`. Larger tables add synthetic rows:

  problems   a Sobol sequence of the domain serving-and-general, as campaigns draw it
  kernels    four rows of the dataset for each problem, drawn at random from rows whose m, n and k have the same alignments (up to
             16); the problem takes their kernel, element types and layout
  times      what a model of the dataset predicts, times exp(0.03 z) with z from a normal distribution; power likewise, for the share
             of rows that have it in the dataset

Errors on synthetic rows are of that model and its noise, not of a card. They show that a larger table is not learned worse. The mean
of |exp(0.03 z) - 1| is 2.4%, its median 2.0%: no model can do better.

  seconds, cpu_seconds   wall and processor time
  peak_mb                largest resident memory of the process
  mean_error_pct, median_error_pct   of the runtime, on shapes held out (unseen_shapes)

Figures are written after each size. Sizes that are not measured again keep those of the last call.

With `--subsampling ROWS`, the first of the folds of unseen_shapes is also fitted on a table of that size with every tree grown on all
rows, beside the trees of the farm's settings.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.common import RESULTS, end_like_interrupted, markdown, write
from farm.campaign.domain import COORDINATES, mixture, named_domains, sobol_points
from farm.gemm import PROBLEM_COLUMNS
from trainer.evaluate import measured_outputs, metrics, out_of_fold
from trainer.folds import by_shape
from trainer.forest import ForestSettings, fit
from trainer.learn import TableFacts, learn
from trainer.table import LEARNED_FROM, PROBLEM, configurations, with_added_columns, with_parameter_columns

DATASET = Path(__file__).parents[1] / "examples" / "datasets" / "nvidia-h200-domain.parquet"
TYPE = "nvidia-h200"
SIZES = (1_000, 3_000, 9_942, 30_000, 100_000, 1_000_000)
SUBSAMPLING = 200_000
DOMAIN = "serving-and-general"
KERNELS = 4
NOISE = 0.03
LARGEST_ALIGNMENT = 16
SEED = 20261123

COLUMNS = [*LEARNED_FROM, "device_uuid"]
SHAPE = ["m", "n", "k"]
KERNEL = [*(name for name in PROBLEM_COLUMNS if name not in SHAPE), "family", "parameters"]


def table_of(rows: int) -> pd.DataFrame:
    """The training table of that size."""
    measured = with_added_columns(pd.read_parquet(DATASET, columns=COLUMNS))
    if rows > len(measured):
        synthetic = synthetic_rows(measured, rows - len(measured))
        return pd.concat([measured, synthetic], ignore_index=True)
    problem = measured.groupby(PROBLEM).ngroup().to_numpy()
    place = np.random.default_rng(SEED).permutation(problem.max() + 1)
    return measured.iloc[np.argsort(place[problem], kind="stable")[:rows]].reset_index(drop=True)


def synthetic_rows(measured: pd.DataFrame, rows: int) -> pd.DataFrame:
    """Different configurations that are not among the measured ones, with times by a model of these."""
    draw = np.random.default_rng(SEED)
    alignments = _alignments(measured)
    alike = {key: np.flatnonzero(alignments == key) for key in np.unique(alignments)}
    sources, points = mixture(named_domains()[DOMAIN]), sobol_points(1 + COORDINATES, SEED)
    found = measured.iloc[:0]
    while len(found) < rows:
        wanted = int(1.1 * (rows - len(found)) / KERNELS) + 100
        shapes = [sources.choose(point[0]).shape(point[1:]) for point in islice(points, wanted)]
        extents = pd.DataFrame([(shape.m, shape.n, shape.k) for shape in shapes], columns=SHAPE)
        keys = _alignments(extents)
        known = np.isin(keys, list(alike))
        kernels = np.concatenate([draw.choice(alike[key], KERNELS) for key in keys[known].tolist()])
        drawn = measured.iloc[kernels].reset_index(drop=True)
        drawn[SHAPE] = extents[known].to_numpy().repeat(KERNELS, axis=0)
        found = pd.concat([found, drawn], ignore_index=True).drop_duplicates([*SHAPE, *KERNEL])
        before = measured.set_index([*SHAPE, *KERNEL]).index
        found = found[~found.set_index([*SHAPE, *KERNEL]).index.isin(before)]
    found = found.head(rows).reset_index(drop=True)
    model = fit(TYPE, configurations(measured), ForestSettings())
    predicted = model.predicted(with_parameter_columns(found))

    def noisy(name: str) -> Any:
        return predicted[name] * np.exp(NOISE * draw.normal(size=len(found)))

    powered = draw.random(len(found)) < measured["power_w"].notna().mean()
    power_w, energy_mj = (np.where(powered, noisy(name), np.nan) for name in ("power_w", "energy_mj"))
    return found.assign(runtime_ms=noisy("runtime_ms"), power_w=power_w, energy_mj=energy_mj)


def _alignments(extents: pd.DataFrame) -> np.ndarray[Any, np.dtype[np.int64]]:
    """One number for the alignments of m, n and k of each row."""
    whole = extents[SHAPE].to_numpy("int64") | LARGEST_ALIGNMENT
    found: np.ndarray[Any, np.dtype[np.int64]] = (whole & -whole) @ np.array([1, 100, 10_000])
    return found


def trained(path: Path) -> dict[str, Any]:
    """Trains on the table of that file, in this process."""
    table = pd.read_parquet(path)
    began, cpu = time.perf_counter(), time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        learned = learn(table, TableFacts.of(table, TYPE), ForestSettings(), Path(folder))
    runtime = learned.metrics["unseen_shapes"]["runtime_ms"]
    return {
        "rows": len(table),
        "seconds": round(time.perf_counter() - began, 1),
        "cpu_seconds": round(time.process_time() - cpu, 1),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "mean_error_pct": round(runtime["mean_error_pct"], 3),
        "median_error_pct": round(runtime["median_error_pct"], 3),
    }


def subsampled(path: Path) -> list[dict[str, Any]]:
    """One fold of the table of that file, with trees that are grown on a part of the rows and on all of them."""
    configured = configurations(pd.read_parquet(path))
    measured, splits = measured_outputs(configured), list(by_shape(configured))[:1]
    found = []
    for most in (ForestSettings().max_rows_per_tree, len(configured)):
        began = time.perf_counter()
        settings = replace(ForestSettings(), max_rows_per_tree=most)
        predicted = out_of_fold(TYPE, configured, splits, settings).predicted
        of = metrics(measured["runtime_ms"], predicted["runtime_ms"])
        found.append({
            "rows": len(configured),
            "max_rows_per_tree": most,
            "seconds": round(time.perf_counter() - began, 1),
            **{name: round(of[name], 3) for name in ("mean_error_pct", "median_error_pct")},
        })  # fmt: skip
    return found


def in_its_own_process(what: str, path: Path) -> Any:
    """The figures of `trained` or `subsampled`."""
    command = [sys.executable, "-m", "benchmarks.training_scale", f"--{what}", str(path)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=SIZES)
    parser.add_argument("--subsampling", type=int, default=SUBSAMPLING, metavar="ROWS", help="0: leave it out")
    # What a process of one size does with the file of its table.
    parser.add_argument("--trained", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--subsampled", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.trained or given.subsampled:
        print(json.dumps(trained(given.trained) if given.trained else subsampled(given.subsampled)))
        return
    end_like_interrupted()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.parquet"
        for rows in given.rows:
            table_of(rows).to_parquet(path)
            save(size=in_its_own_process("trained", path))
        if given.subsampling:
            table_of(given.subsampling).to_parquet(path)
            save(subsampling=in_its_own_process("subsampled", path))


def save(size: dict[str, Any] | None = None, subsampling: list[dict[str, Any]] | None = None) -> None:
    """Writes the figures beside those that are stored, of which it replaces the same size."""
    results = RESULTS / "training_scale.json"
    stored: dict[str, Any] = json.loads(results.read_text()) if results.exists() else {}
    sizes = {of["rows"]: of for of in [*stored.get("sizes", []), *([size] if size else [])]}
    ordered = [sizes[rows] for rows in sorted(sizes)]
    subsampling = subsampling or stored.get("subsampling", [])
    tables = [
        markdown(["rows", "wall, s", "CPU, s", "peak memory, MB", "mean error, %", "median error, %"], _cells(ordered)),
        markdown(["rows", "max rows of a tree", "wall of one fold, s", "mean error, %", "median error, %"], _cells(subsampling)),
    ]  # fmt: skip
    write(
        "training_scale",
        {**ordered[-1], "sizes": ordered, "subsampling": subsampling},
        "\n\n".join(tables),
        repetitions=1,
    )


def _cells(figures: Sequence[Mapping[str, Any]]) -> list[list[Any]]:
    return [list(of.values()) for of in figures]


if __name__ == "__main__":
    main()
