"""Figures of GPU types from their makers, from `gpus.yaml` (pure)."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from importlib.resources import files

import yaml
from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt

from farm.devices import (
    LIMITS,
    UNKNOWN_MEMORY_BYTES,
    DeviceKind,
    DeviceTraits,
    MultiprocessorLimits,
    traits_of_capability,
)
from farm.gemm import ElementType
from farm.sparsity import Sparsity
from farm.vendors import RECORDED

SPARSE_SPEED_UP = 2
"""The peak of 2:4 sparsity over the dense one, in NVIDIA's data sheets of every card that has sparse tensor cores."""

_FIRST_SPARSE = (8, 0)
_NO_SPARSE_CORES = (ElementType.F64, ElementType.F32)


class Gpu(BaseModel):
    """The figures of one GPU type. Peaks are dense, in TFLOP/s (TOP/s for integers), at the boost clock."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    names: tuple[str, ...] = Field(min_length=1)
    source: str
    compute_capability: tuple[int, int]
    multiprocessors: PositiveInt
    boost_mhz: PositiveFloat
    tflops: dict[str, PositiveFloat]
    memory_gb: PositiveFloat
    memory_gb_per_s: PositiveFloat
    l2_mib: PositiveFloat
    power_w: PositiveFloat

    @property
    def limits(self) -> MultiprocessorLimits:
        return LIMITS[self.compute_capability]

    def peak_tflops(self, inputs: ElementType, sparsity: Sparsity = Sparsity.NONE) -> float | None:
        """The peak for inputs of that type; None where the card has no units for it. All 8-bit floats have one.

        With sparsity it counts zeros as well: sparse tensor cores leave half of the operations out, from compute capability 8.0.
        """
        multiplied = inputs.of_a  # weights of fewer bits are converted to A's type
        dense = self.tflops.get("f8" if multiplied.startswith("f8") else str(multiplied))
        if dense is None or sparsity is Sparsity.NONE:
            return dense
        has = inputs not in _NO_SPARSE_CORES and self.compute_capability >= _FIRST_SPARSE
        return SPARSE_SPEED_UP * dense if has else None


@cache
def all_gpus() -> tuple[Gpu, ...]:
    """Every GPU type of the table."""
    return tuple(Gpu.model_validate(one) for one in yaml.safe_load(files("farm").joinpath("gpus.yaml").read_text()))


def find_gpu(device_type: str) -> Gpu | None:
    """The figures of a normalised device type. None if the table has none, as for CPUs and slices of a card.

    A recording of a card counts as the card: `recorded-nvidia-h200` is an H200. Cards whose names fit with a memory come in the
    order of the table.
    """
    wanted = RECORDED.recorded_type(device_type)
    for gpu in all_gpus():
        if any(re.fullmatch(rf"{re.escape(name)}{_MEMORY}", wanted) for name in gpu.names):
            return gpu
    return None


def traits_of_type(device_type: str) -> DeviceTraits:
    """The limits of a GPU type without an opened device. For a type that is not in the table, only its kind is known."""
    gpu = find_gpu(device_type)
    if gpu is None:
        return DeviceTraits(kind=DeviceKind.CUDA, memory_bytes=UNKNOWN_MEMORY_BYTES)
    return replace(traits_of_capability(gpu.compute_capability), memory_bytes=round(gpu.memory_gb * 1e9))


_MEMORY = r"(-\d+gb)?(-hbm\d\w?)?"
"""What may follow the card in a product name. A `4070 Ti` or a laptop's `4070` is another card."""
