"""Rows of two cards on the same configurations, for tests of comparisons."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from farm.devices import DeviceIdentity
from farm.kernels import Configuration
from farm.measurement import Measurement
from support.samples import card, row

SHAPES = [f"{m}x{n}x256" for m in (128, 512, 2048, 4096) for n in (128, 8192)]
CONFIGURATIONS = [
    Configuration.parse(f"tiled(tile={tile}) {shape} {types}")
    for shape in SHAPES
    for tile in (8, 16)
    for types in ("f32", "f64")
]

H200 = card(1, kind="nvidia-h200")
A100 = card(2, kind="nvidia-a100-sxm4-80gb")


class Put(Protocol):
    """Lands a row of each configuration for a device, by `taken`; returns the id of the device."""

    def __call__(
        self,
        device: DeviceIdentity,
        taken: Callable[[Configuration], Measurement],
        *,
        host: str = "here",
        configurations: Sequence[Configuration] = CONFIGURATIONS,
    ) -> int: ...


def taken(factor: float = 1.0, watts: float | None = 100.0, **changes: Any) -> Callable[[Configuration], Measurement]:
    """About a GFLOP per ms, times a factor."""
    return lambda one: row(factor * one.problem.flops / 1e9, power_w=watts, **changes)
