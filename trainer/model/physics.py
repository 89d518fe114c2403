"""Work and traffic of a GEMM, and the roofline that runtimes are measured against.

A forest cannot go beyond the targets it was trained on, so it never learns milliseconds: it learns by what factor a
configuration misses the time that the best measured rates of its device would give (the roofline of Williams,
Waterman and Patterson, CACM 52(4), 2009). That factor moves little with size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd


def flops(frame: pd.DataFrame) -> pd.Series:
    """2·m·n·k operations of each row."""
    return 2.0 * frame["m"] * frame["n"] * frame["k"]


def compulsory_bytes(frame: pd.DataFrame, element_bytes: Mapping[str, int]) -> pd.Series:
    """Bytes of each row with A and B read once, D written once, and C read once where beta is not 0."""
    inputs = (frame["m"] * frame["k"] + frame["k"] * frame["n"]) * frame["ab"].map(element_bytes).astype("float64")
    outputs = frame["m"] * frame["n"] * frame["cd"].map(element_bytes).astype("float64")
    return inputs + outputs * np.where(frame["beta"] == 0, 1.0, 2.0)


@dataclass(frozen=True)
class Roofline:
    """The best rates in a training table: per family and input type in flops/ms, and per family in bytes/ms."""

    flops_per_ms: Mapping[str, Mapping[str, float]]
    bytes_per_ms: Mapping[str, float]

    @classmethod
    def of(cls, frame: pd.DataFrame, runtime_ms: pd.Series, element_bytes: Mapping[str, int]) -> Roofline:
        """The largest rates that rows of a completed frame reached. No row is faster than its own roofline time."""
        rates = pd.DataFrame(
            {
                "family": frame["family"],
                "ab": frame["ab"],
                "flops": flops(frame) / runtime_ms,
                "bytes": compulsory_bytes(frame, element_bytes) / runtime_ms,
            }
        )
        peaks: dict[str, dict[str, float]] = {}
        best = rates.groupby(["family", "ab"], as_index=False)["flops"].max()
        for family, ab, rate in zip(best["family"], best["ab"], best["flops"], strict=True):
            peaks.setdefault(str(family), {})[str(ab)] = float(rate)
        bandwidth = {str(family): float(rate) for family, rate in rates.groupby("family")["bytes"].max().items()}
        return cls(peaks, bandwidth)

    def time_ms(self, frame: pd.DataFrame, element_bytes: Mapping[str, int]) -> np.ndarray[Any, np.dtype[np.float64]]:
        """max(flops / best flop rate, bytes / best byte rate) of each row, in ms."""
        kinds = zip(frame["family"], frame["ab"], strict=True)
        peak = np.array([self.flops_per_ms[family][ab] for family, ab in kinds])
        bandwidth = frame["family"].map(self.bytes_per_ms).to_numpy("float64")
        traffic = compulsory_bytes(frame, element_bytes).to_numpy("float64")
        limit: np.ndarray[Any, np.dtype[np.float64]] = np.maximum(flops(frame).to_numpy() / peak, traffic / bandwidth)
        return limit

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Roofline:
        return cls(data["flops_per_ms"], data["bytes_per_ms"])
