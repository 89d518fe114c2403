"""The constants of a device type: its maker's figures, or what the table itself shows."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from farm.forest.card import Card
from farm.forest.columns import IS_SPARSE
from farm.forest.completed_rows import Configurations
from farm.forest.physics import SPARSE_SPEED_UP, compulsory_bytes, flops_of
from farm.gemm import INPUT_TYPES, ElementType
from farm.gpus import Gpu, find_gpu
from trainer.table import vocabulary_of

_LAUNCH_MS = 0.002
"""From one kernel to the next in a graph, on GPUs of the last years."""


def card_of(device_type: str, configured: pd.DataFrame, completed: Configurations | None = None) -> Card:
    """The constants of a device type. Where `farm/gpus.yaml` lacks it, as it does every CPU, peaks and bandwidth are the best
    rates of the table, and the floor half of its shortest time: both are learned from it as the forests are. `completed` are the same rows, where the caller has them."""
    rows = vocabulary_of(configured).complete(configured) if completed is None else completed
    runtime_ms = configured["runtime_ms"].to_numpy("float64")
    best = _best_rates(rows, runtime_ms)
    gpu = find_gpu(device_type)
    if gpu is None:
        return Card(
            device_type=device_type,
            source="the best rates of the training table",
            flops_per_ms=_filled(best),
            bytes_per_ms=float(np.max(compulsory_bytes(rows) / runtime_ms)),
            floor_ms=float(runtime_ms.min() / 2),
        )
    return card_of_gpu(device_type, gpu, best)


def card_of_gpu(device_type: str, gpu: Gpu, measured: Mapping[str, float] | None = None) -> Card:
    """A card of the table of GPUs; `measured` has flops per ms of types for which it has no peak."""
    peaks = {str(ab): peak * 1e9 for ab in INPUT_TYPES if (peak := gpu.peak_tflops(ab)) is not None}
    return Card(
        device_type=device_type,
        source=gpu.source,
        flops_per_ms=_filled({**(measured or {}), **peaks}),
        bytes_per_ms=gpu.memory_gb_per_s * 1e6,
        floor_ms=_LAUNCH_MS,
        multiprocessors=gpu.multiprocessors,
        l2_bytes=gpu.l2_mib * 2**20,
        power_w=gpu.power_w,
        threads=gpu.limits.threads,
        blocks=gpu.limits.blocks,
        shared_bytes=gpu.limits.shared_bytes,
        registers=gpu.limits.registers,
    )


def _best_rates(rows: Configurations, runtime_ms: np.ndarray) -> dict[str, float]:
    """The largest flops per ms of each type of A and B, with a dense B."""
    dense = np.where(rows[IS_SPARSE] > 0, 1 / SPARSE_SPEED_UP, 1.0)
    rates, types = flops_of(rows) * dense / runtime_ms, rows.texts["ab"]
    return {ab: float(rates[types.codes == code].max()) for code, ab in enumerate(types.values)}


def _filled(peaks: Mapping[str, float]) -> dict[str, float]:
    """A peak for every type: one that nothing is known of counts as f32, or as the slowest that is known."""
    usual = peaks.get(str(ElementType.F32), min(peaks.values()))
    return {str(ab): peaks.get(str(ab), usual) for ab in INPUT_TYPES}
