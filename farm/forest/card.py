"""The constants of a card that features and reference times are made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Card:
    """One device type. Rates are per ms, sizes in bytes; what a multiprocessor holds is for one of them."""

    device_type: str
    # Where the figures are from.
    source: str
    # Peak by the type of A and B: dense, at the boost clock.
    flops_per_ms: Mapping[str, float]
    bytes_per_ms: float
    # The least time of a GEMM, however small.
    floor_ms: float
    multiprocessors: int = 1
    l2_bytes: float = 2.0**25
    # NaN: not known.
    power_w: float = float("nan")
    threads: int = 2048
    blocks: int = 32
    shared_bytes: int = 100 * 1024
    registers: int = 65536

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Card:
        return cls(**data)
