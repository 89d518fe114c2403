"""What device time teaches: the paper's grid, random rows and the strategy learn, at equal device seconds on one test set.

    python -m benchmarks.learning_curve [--seeds 10] [--budget 640]

A replay: what each strategy asks for is answered from 9,942 rows that two H200s measured of random problems of the domain
serving-and-general. The test set is 1,655 rows of other random problems of the domain. The grid is the paper's CUTLASS SGEMM
sweep, so it is compared on the test rows of that family in f32 alone.

`oracle` is learn with the true error of each row that it may ask for in place of the expected one: what no strategy can know, and
so about the most that choosing rows by their errors can gain.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from benchmarks.common import write
from farm.forest.predictor import Predictor
from trainer.acquire import Candidate, choose, expected_error, fast_model, measuring_cost, with_probes
from trainer.table import PROBLEM, configurations, with_added_columns, with_parameter_columns
from trainer.test_set import score

DATASETS = Path(__file__).parents[1] / "examples" / "datasets"
TYPE = "nvidia-h200"
KERNELS = 2
FIRST_SECONDS = 20.0
"""Of random rows with which every strategy but the grid begins."""

RANDOM_SHARE = 0.25
GRID, RANDOM, LEARN, ORACLE = "grid", "random", "learn", "oracle"


def rows(name: str) -> pd.DataFrame:
    """A dataset with its rows of the timing tier: those with power cost ten times as much, which would blur the costs."""
    table: pd.DataFrame = pq.read_table(DATASETS / f"{TYPE}-{name}.parquet").to_pandas()
    return with_added_columns(table[table["power_w"].isna()].reset_index(drop=True))


class Pool:
    """Measured rows that a strategy may ask for, by problem."""

    def __init__(self, table: pd.DataFrame) -> None:
        self.table = table
        self.wide = with_parameter_columns(table)
        groups: Mapping[Any, Any] = table.groupby(PROBLEM, sort=True).indices
        self.candidates = [
            Candidate(" ".join((ab, layout, *added)), (m, n, k, batch), list(positions))
            for (m, n, k, ab, layout, batch, *added), positions in groups.items()
        ]
        self.cost = table["cost_s"].to_numpy("float64")

    def at_random(self, rng: np.random.Generator, used: set[int], seconds: float) -> list[int]:
        """Rows of random problems that are not used, for so many device seconds."""
        found: list[int] = []
        for place in rng.permutation(len(self.candidates)):
            if seconds <= 0:
                break
            if place not in used:
                used.add(int(place))
                some = rng.permutation(self.candidates[place].rows)[:KERNELS].tolist()
                found += some
                seconds -= float(self.cost[some].sum())
        return found

    def chosen(
        self, rng: np.random.Generator, used: set[int], seconds: float, measured: list[int], *, oracle: bool
    ) -> list[int]:
        """Rows that a model of the measured ones finds most useful, for so many device seconds; by their true errors, if `oracle`."""
        known = self.table.iloc[measured]
        model = fast_model(TYPE, known)
        left = [place for place in range(len(self.candidates)) if place not in used]
        offered = [self.candidates[place] for place in left]
        every = [row for candidate in offered for row in candidate.rows]
        frame = self.wide.iloc[every]
        starts = np.cumsum([0, *(len(candidate.rows) for candidate in offered)])
        local = [
            Candidate(candidate.kind, candidate.extents, range(start, start + len(candidate.rows)))
            for candidate, start in zip(offered, starts, strict=False)
        ]
        wide = self.wide.iloc[measured]
        order = choose(
            local,
            true_error(model, frame) if oracle else with_probes(expected_error(model, frame), wide, frame),
            measuring_cost(wide, frame),
            problems=len(local),
            kernels=KERNELS,
            taken=[],
            rng=rng,
        )
        found: list[int] = []
        owner = {row: place for place, candidate in zip(left, offered, strict=True) for row in candidate.rows}
        for position in order:
            if seconds <= 0:
                break
            row = every[position]
            used.add(owner[row])
            found.append(row)
            seconds -= float(self.cost[row])
        return found


def true_error(model: Predictor, frame: pd.DataFrame) -> Any:
    """How far off the model is, in logarithms, for each measured row [rows]; the most for rows that it does not know."""
    found = np.full(len(frame), np.nan)
    known = model.known(frame)
    found[known] = np.abs(np.log(model.predicted(frame[known])["runtime_ms"] / frame["runtime_ms"][known]))
    return np.nan_to_num(found, nan=float(np.nanmax(found))) + 1e-3


def curve(strategy: str, pool: Pool, test: pd.DataFrame, stops: Sequence[float], seed: int) -> list[dict[str, Any]]:
    """The errors on the test set after so many device seconds each."""
    rng = np.random.default_rng(seed)
    used: set[int] = set()
    measured: list[int] = []
    found = []
    for stop in stops:
        left = stop - float(pool.cost[measured].sum())
        if strategy in (LEARN, ORACLE) and measured:
            measured += pool.at_random(rng, used, RANDOM_SHARE * left)
            left = stop - float(pool.cost[measured].sum())
            measured += pool.chosen(rng, used, left, measured, oracle=strategy == ORACLE)
        else:
            measured += pool.at_random(rng, used, left)
        known = pool.table.iloc[measured]
        scores = score(fast_model(TYPE, known), configurations(test))
        seconds = float(pool.cost[measured].sum())
        found.append({
            "strategy": strategy, "seed": seed, "device_seconds": round(seconds, 1), "rows": len(measured),
            **{f"{name}_{what}": round(getattr(one, what), 3) for name, one in scores.items()
               for what in ("mean_error_pct", "median_error_pct", "p90_error_pct")},
        })  # fmt: skip
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--budget", type=float, default=640.0, help="device seconds of the longest curve")
    given = parser.parse_args()
    stops = [given.budget / 2**i for i in range(6) if given.budget / 2**i >= FIRST_SECONDS][::-1]
    domain, test, grid = rows("domain"), rows("domain-test"), rows("paper-cutlass")

    def sgemm(table: pd.DataFrame) -> pd.DataFrame:
        return table[(table["family"] == "cutlass") & (table["ab"] == "f32")].reset_index(drop=True)

    tasks = {
        "domain": dict.fromkeys((RANDOM, LEARN, ORACLE), (domain, test)),
        "sgemm": {
            GRID: (grid, sgemm(test)),
            **{strategy: (sgemm(domain), sgemm(test)) for strategy in (RANDOM, LEARN, ORACLE)},
        },
    }
    points = []
    for task, of_strategy in tasks.items():
        for strategy, (table, tested) in of_strategy.items():
            pool = Pool(table)
            most = [stop for stop in stops if stop < 0.8 * pool.cost.sum() * KERNELS / 4] or stops[:1]
            for seed in range(given.seeds):
                points += [{"task": task, **point} for point in curve(strategy, pool, tested, most, seed)]
                print(points[-1], flush=True)
    write("learning_curve", {"points": points}, table_of(points), repetitions=given.seeds)


def table_of(points: list[dict[str, Any]]) -> str:
    """Median and range over seeds of the mean error, by task, strategy and device seconds."""
    frame = pd.DataFrame(points)
    frame["budget"] = (20 * 2 ** np.round(np.log2(frame["device_seconds"] / 20))).astype(int)
    lines = ["| task | device seconds | strategy | rows | mean error, % (least to most) | median, % | p90, % |",
             "| --- | --- | --- | --- | --- | --- | --- |"]  # fmt: skip
    for (task, budget, strategy), group in frame.groupby(["task", "budget", "strategy"]):
        mean = group["all_mean_error_pct"]
        lines.append(
            f"| {task} | {budget} | {strategy} | {group['rows'].median():.0f} "
            f"| {mean.median():.2f} ({mean.min():.2f} to {mean.max():.2f}) "
            f"| {group['all_median_error_pct'].median():.2f} | {group['all_p90_error_pct'].median():.2f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
