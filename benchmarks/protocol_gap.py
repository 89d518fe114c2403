"""How near are times under the protocol `aiconfigurator` to those that NVIDIA AIConfigurator published for the same type of card?

    python -m benchmarks.protocol_gap TABLE.parquet [--rows 100] [--seed 1]           on a card of the table's type

The rows are linear layers in bf16 that a serving framework left to cuBLAS (as `farm import aiconfigurator` reads them), drawn at random
in equal numbers from bands of the published time, 4 us to 4 ms. Each is measured as cuBLASLt's own choice, under `aiconfigurator` and
under `farm`. The published card was another one, with other versions of its driver and cuBLAS.

Figures: for `aiconfigurator`, and for burst and settled time of `farm`, the median distance from the published time in percent, with
its 95% interval (bootstrap over rows), and the median with its sign; all of them again over the rows that the power limiter holds.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.common import first_card, markdown, write
from farm.errors import FarmError
from farm.kernels import Configuration
from farm.measurement import MeasuringRules
from farm.protocols import ProtocolName

BANDS_MS = np.geomspace(0.004, 4.0, 7)
TIMES = ("aiconfigurator", "farm, burst", "farm, settled")


def drawn(table: Path, rows: int, seed: int) -> pd.DataFrame:
    """Rows of the table in equal numbers from each band."""
    whole = pd.read_parquet(table)
    known = whole[
        (whole["gemm_dtype"] == "bfloat16")
        & whole["kernel_source"].isin(["torch.nn.functional.linear", "vllm_default"])
    ]
    bands = np.digitize(known["latency"], BANDS_MS)
    each = -(-rows // (len(BANDS_MS) - 1))
    parts = [known[bands == band].sample(each, random_state=seed) for band in range(1, len(BANDS_MS))]
    found: pd.DataFrame = pd.concat(parts).sample(frac=1, random_state=seed)
    return found


def gap(off: np.ndarray[Any, Any]) -> dict[str, Any]:
    """The median distance in percent with its 95% interval, and the median with its sign."""
    if not len(off):
        return {"rows": 0}
    chance = np.random.default_rng(1)
    medians = [np.median(np.abs(chance.choice(off, len(off)))) for _ in range(1000)]
    return {
        "rows": len(off),
        "median_pct": round(float(np.median(np.abs(off))), 2),
        "interval_pct": [round(float(value), 2) for value in np.percentile(medians, (2.5, 97.5))],
        "signed_median_pct": round(float(np.median(off)), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("--rows", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    chosen = drawn(asked.table, asked.rows, asked.seed)
    found: list[dict[str, Any]] = []
    with first_card() as device:
        for m, n, k, published_ms in chosen[["m", "n", "k", "latency"]].itertuples(index=False):
            configuration = Configuration.parse(f"cublaslt(algorithm=0) {m}x{n}x{k} bf16:bf16:f32 nt")
            try:
                own = device.measure(configuration, MeasuringRules())
                theirs = device.measure(configuration, MeasuringRules(protocol=ProtocolName.AICONFIGURATOR))
            except FarmError as error:
                print(f"{configuration}: {error}", file=sys.stderr)
                continue
            times = (theirs.runtime_ms, own.runtime_burst_ms, own.runtime_settled_ms)
            found.append(
                {"m": m, "n": n, "k": k, "published_ms": published_ms, "power_limited": own.power_limited}
                | dict(zip(TIMES, times, strict=True))
            )
    rows = pd.DataFrame(found)
    figures: dict[str, Any] = {"table": asked.table.name, "card": sorted(chosen["device"].unique())}
    lines = []
    for name, part in (("all", rows), ("held", rows[rows["power_limited"] == True])):  # noqa: E712 - None is neither
        for time in TIMES:
            one = gap((100 * (part[time] / part["published_ms"] - 1)).to_numpy(dtype=float))
            figures[f"{time}, {name}"] = one
            lines.append([time, name, *(str(value) for value in one.values())])
    figures["median_gap_pct"] = figures["aiconfigurator, all"]["median_pct"]
    table = markdown(["time", "kernels", "rows", "median %", "95% interval", "with its sign"], lines)
    write("protocol_gap", {**figures, "rows": found}, table, repetitions=1)


if __name__ == "__main__":
    main()
