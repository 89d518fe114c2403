"""Results of a campaign from rows, for tests of reports and charts."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np

from farm.kernels import Configuration
from farm.report.result_points import Results, reduced

Row = dict[str, Any]


def row(configuration: str, runtime_ms: float, energy_mj: float = math.nan, **more: Any) -> Row:
    columns = Configuration.parse(configuration).columns()
    return {
        **columns,
        "parameters": json.dumps(columns["parameters"]),
        "device_type": "nvidia-h200",
        "runtime_ms": runtime_ms,
        "power_w": energy_mj / runtime_ms,
        "energy_mj": energy_mj,
        "occupancy": math.nan,
        "runtime_burst_ms": math.nan,
        "power_limited": math.nan,
        **more,
    }


def results_of(*rows: Row) -> Results:
    columns: dict[str, Any] = {}
    for name in row("tiled(tile=1) 1x1x1 f32", 1.0):
        values = [one[name] for one in rows]
        if any(isinstance(value, str) for value in values):
            known = list(dict.fromkeys(values))
            columns[name] = np.array([known.index(value) for value in values]), known
        elif name in (
            "device_type",
            "ab",
            "cd",
            "acc",
            "layout",
            "scale",
            "fused",
            "groups",
            "sparsity",
            "family",
            "parameters",
        ):
            columns[name] = np.zeros(0, np.int64), []
        else:
            columns[name] = np.array(values, np.int64 if name in "mnk" else np.float64)
    return reduced(columns, len(rows))


def tiled(tile: int, runtime_ms: float, energy_mj: float = math.nan, shape: str = "512x512x512", **more: Any) -> Row:
    return row(f"tiled(tile={tile}) {shape} f32", runtime_ms, energy_mj, **more)
