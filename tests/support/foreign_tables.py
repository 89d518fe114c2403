"""Small tables as GPPerf and AIConfigurator publish them, to import in tests; and samples of the published ones."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from support.training_tables import GPPERF

AICONFIGURATOR = GPPERF.parent / "aiconfigurator"

RAN = "cutlass_simt_sgemm_128x128_8x2_tn_align1"
SGEMM = {
    **{"timestamp": "1731372844", "m": "512", "n": "1024", "k": "2048", "kernel": RAN, "layout": "nn"},
    **{"block_m": "64", "block_n": "64", "block_k": "32", "stages": "2", "alpha": "0.5", "beta": "1.0"},
    **{"runtime_ms": "0.04352", "power_w": "70.17", "sm_clock_mhz": "2760", "temp_c": "47"},
    **{"gpu": "NVIDIA GeForce RTX 4070", "power_limit_w": "200.0"},
}
TILED = {"M": "512", "N": "1024", "K": "2048", "Tile Size": "8", "Execution Time": "6.5"}
LAYER = {
    **{"framework": "VLLM", "version": "0.24.0", "device": "NVIDIA L40S", "op_name": "gemm"},
    **{"kernel_source": "torch.nn.functional.linear", "gemm_dtype": "bfloat16"},
    **{"m": 16, "n": 4096, "k": 1024, "latency": 0.25},
}


def sheet(path: Path, rows: Sequence[Mapping[str, str]]) -> Path:
    """A CSV of these rows, compressed where the name says so."""
    with gzip.open(path, "wt") if path.suffix == ".gz" else path.open("w") as stream:
        table = csv.DictWriter(stream, list(rows[0]))
        table.writeheader()
        table.writerows(rows)
    return path


def layers(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    names = dict.fromkeys(name for row in rows for name in row)
    pq.write_table(pa.table({name: [row.get(name) for row in rows] for name in names}), path)
    return path
