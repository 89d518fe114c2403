"""What leaving out the repeats of a throttled card does to a model, on GPPerf's repeats.

    python -m benchmarks.throttled [--data FOLDER]

GPPerf's 12,096 rows are 28 repeats each of 432 configurations, some of them measured while something else used the card. A repeat
is left out where it took longer by a share than a low quantile of its configuration's repeats (`trainer.table.throttled`); the
others collapse to their median. Each rule is judged by what models of shapes held out say, with ten seeds:

  own      mean error of the times that the rule itself gives
  at rest  mean error of the medians of the repeats that the file says were measured on a card at rest, which 392 of the
           configurations have: the same times for every rule
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd

import trainer.table
from benchmarks.common import markdown, write
from benchmarks.gpperf import SHAPE, STATE, TYPE, dealt, rested
from benchmarks.learning import add_data, imported, needed
from farm.importers import gpperf
from trainer.evaluate import out_of_fold
from trainer.forest import ForestSettings
from trainer.table import SLOWED, configurations

SEEDS = range(10)
RULES = {"all repeats": (0.0, np.inf)} | {
    f"{share:.0%} above the {'least' if quantile == 0 else f'{quantile:.0%} quantile'}": (quantile, share)
    for quantile in (0.0, 0.1, 0.25)
    for share in (0.05, SLOWED, 0.3)
}


def rule(quantile: float, share: float) -> Callable[[pd.DataFrame, Any], Any]:
    """As `trainer.table.throttled`, with other numbers."""

    def slow(wide: pd.DataFrame, configuration: Any) -> Any:
        low = wide.groupby(list(configuration), dropna=False, sort=False)["runtime_ms"].transform("quantile", quantile)
        return (wide["runtime_ms"] > (1 + share) * low).to_numpy()

    return slow


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_data(parser)
    path = needed(parser.parse_args().data / "gpperf" / "rtx4070_sgemm.csv.gz", "GPPerf's table", "Name its folder.")
    rows = imported(gpperf.look(path))
    rest = rested(pd.read_csv(path, usecols=list(STATE)).iloc[rows["row"].to_numpy() - 1])
    key = [*SHAPE, "layout", "alpha", "beta", *(name for name in trainer.table.parameter_names())]
    with mock.patch("trainer.table.throttled", rule(*RULES["all repeats"])):
        resting = configurations(rows[rest])
    found = []
    for name, (quantile, share) in RULES.items():
        with mock.patch("trainer.table.throttled", rule(quantile, share)):
            frame = configurations(rows)
        truth = frame[key].merge(resting[[*key, "runtime_ms"]], on=key, how="left")["runtime_ms"].to_numpy()
        own, at_rest = [], []
        for seed in SEEDS:
            splits = dealt(frame, seed)
            said = out_of_fold(TYPE, frame, splits, ForestSettings(seed=seed)).predicted["runtime_ms"].to_numpy()
            own.append(100 * float(np.mean(np.abs(said / frame["runtime_ms"].to_numpy() - 1))))
            at_rest.append(100 * float(np.nanmean(np.abs(said / truth - 1))))
        found.append({
            "left_out": name, "repeats_left_out": len(rows) - int(frame["repeats"].sum()),
            "own_mean_error_pct": float(np.mean(own)), "at_rest_mean_error_pct": float(np.mean(at_rest)),
            "at_rest_standard_error": float(np.std(at_rest, ddof=1) / len(at_rest) ** 0.5),
        })  # fmt: skip
    heads = ["left out: longer by", "repeats", "own mean error, %", "at rest mean error, %", "standard error"]
    write("throttled", {"rules": found}, markdown(heads, [list(one.values()) for one in found]), repetitions=len(SEEDS))


if __name__ == "__main__":
    main()
