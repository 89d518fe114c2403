"""What a GEMM draws, from what it computes and moves: a sum of energies, whose coefficients are fitted.

A card draws a constant power, some for each multiprocessor at work, and energy for each operation, each byte of
memory and each byte that tiles read of the L2. A forest learns by what factor a row's power misses their sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from .card import Card
from .completed_rows import Configurations
from .numeric import Floats
from .physics import Tiling, Work
from .text_columns import Text
from .vocabulary import Vocabulary

_EDGE = 128
"""Of the tiles that a kernel is taken to have where they are not known."""

W_PER_PJ_PER_MS = 1e-9


@dataclass(frozen=True)
class Efforts:
    """What rows ask of a card, each [rows]."""

    flops: Floats
    # Of memory, and what tiles read of the L2.
    bytes: Floats
    l2_bytes: Floats
    # The share of the multiprocessors that have a block.
    busy: Floats
    family: Text
    # "family, bytes of an element of A": f16 and bf16 draw about the same.
    kind: Text

    @classmethod
    def of(
        cls, rows: Configurations, vocabulary: Vocabulary, work: Work, tiling: Tiling, strips: Floats, card: Card
    ) -> Efforts:
        """`strips` [rows] are the bytes that tiles read of the L2, NaN where a kernel's tiles are not known."""
        squares = rows.row_tiles(_EDGE) * np.ceil(rows["n"] / _EDGE) * rows["batch"]
        blocks = np.where(np.isnan(tiling.blocks), squares, tiling.blocks)
        read = np.where(np.isnan(strips), work.bytes, strips)
        busy = np.minimum(1.0, blocks / card.multiprocessors)
        kinds = (text.split(":") for text in rows.kinds.values)
        kind = Text(rows.kinds.codes, tuple(f"{family}, {vocabulary.element_bytes[ab]}" for family, ab, *_ in kinds))
        return cls(work.flops, work.bytes, read, busy, rows.texts["family"], kind)


@dataclass(frozen=True)
class Energies:
    """Fitted coefficients: W, pJ per byte, and pJ per byte of the L2 by family and per operation by `Efforts.kind`."""

    card_w: float
    busy_w: float
    memory_pj: float
    l2_pj: Mapping[str, float]
    operation_pj: Mapping[str, float]

    def power_w(self, efforts: Efforts, runtime_ms: Floats, card: Card) -> Floats:
        """The power of rows [rows] that take so long, at most the card's limit."""
        return np.fmin(self.unlimited_w(efforts, runtime_ms), card.power_w)

    def unlimited_w(self, efforts: Efforts, runtime_ms: Floats) -> Floats:
        """What such rows would draw if no limiter held the card."""
        energy_pj = (
            efforts.kind.map(lambda name: self.operation_pj.get(name, 0.0)) * efforts.flops
            + self.memory_pj * efforts.bytes
            + efforts.family.map(lambda name: self.l2_pj.get(name, 0.0)) * efforts.l2_bytes
        )
        found: Floats = self.card_w + self.busy_w * efforts.busy + energy_pj * (W_PER_PJ_PER_MS / runtime_ms)
        return found

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Energies:
        return cls(**data)
