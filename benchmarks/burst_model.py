"""How accurate predicted burst times are, on rows that have both times.

    python -m benchmarks.burst_model FILE.parquet [FILE.parquet …]

Each file is a Parquet of `farm results`, of one device type. Only rows of the protocol `farm` are used. Every configuration is predicted by a
model that has not seen its shape, or its pair (n, k). By groups of rows (held by the power limiter or not, and each family):

  settled, burst     errors of the predicted times
  ratio              error of the predicted ratio of burst and settled time
  ratio 1            error of the ratio where the settled time stands for the burst time
  mean ratio         error of the ratio where it is the mean one of the limited, or of the other rows of the family, which no model
                     can know of a new shape
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.common import markdown, write
from farm.forest.burst import BURST_ROWS
from trainer.evaluate import measured_outputs, out_of_fold
from trainer.folds import FOLD_KINDS
from trainer.forest import ForestSettings
from trainer.table import configurations, of_one_protocol

KINDS = ("unseen_shapes", "unseen_nk")
LIMITED = 0.98
"""The ratio of both times below which a row counts as held by the limiter: noise is smaller."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE.parquet")
    table = pd.concat([pd.read_parquet(path) for path in parser.parse_args().files], ignore_index=True)
    table, left_out = of_one_protocol(table, "farm")
    (device_type,) = table["device_type"].unique()
    configured = configurations(table)
    if configured["runtime_burst_ms"].notna().sum() < BURST_ROWS:
        parser.error(
            f"fewer than {BURST_ROWS} configurations of these files have a burst time (the column runtime_burst_ms)"
        )
    found = [row for kind in KINDS for row in judged(str(device_type), configured, kind)]
    table_text = markdown(list(found[0]), [list(row.values()) for row in found])
    facts = {"device_type": device_type, "configurations": len(configured), "left_out": left_out}
    write("burst_model", {**facts, "figures": found}, table_text, repetitions=1)


def judged(device_type: str, configured: pd.DataFrame, kind: str) -> Iterator[dict[str, Any]]:
    """A line of figures for each group of rows that were held out by that kind of folds."""
    measured = measured_outputs(configured)
    held = out_of_fold(device_type, configured, FOLD_KINDS[kind](configured), ForestSettings())
    ratio, said = (each["runtime_burst_ms"] / each["runtime_ms"] for each in (measured, held.predicted))
    limited = ratio < LIMITED
    mean = ratio.groupby([limited, configured["family"]]).transform("mean")
    groups = {"all": ratio.notna(), "limited": limited, "not limited": ratio.notna() & ~limited}
    groups |= {str(name): configured["family"] == name for name in sorted(configured["family"].unique())}
    for name, rows in groups.items():
        both = (rows & ratio.notna() & said.notna()).to_numpy()
        if both.sum() < 2:
            continue
        errors = {
            "settled": held.predicted["runtime_ms"] / measured["runtime_ms"],
            "burst": held.predicted["runtime_burst_ms"] / measured["runtime_burst_ms"],
            "ratio": said / ratio,
            "ratio 1": 1 / ratio,
            "mean ratio": mean / ratio,
        }
        off = {what: 100 * np.abs(each[both].to_numpy("float64") - 1) for what, each in errors.items()}
        medians = {f"{what}: median %": round(float(np.median(each)), 2) for what, each in off.items()}
        tails = {f"{what}: p90 %": round(float(np.percentile(off[what], 90)), 2) for what in ("burst", "ratio")}
        yield {"folds": kind, "rows of": name, "rows": int(both.sum()), **medians, **tails}


if __name__ == "__main__":
    main()
