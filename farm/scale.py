"""Scale factors of A and B: one float32 for all elements, for each row, or for each block, as FP8 models use them.

A product with scales is D = alpha · (sA ∘ A) · (sB ∘ B) + beta · C, where ∘ multiplies each element by the factor of its block.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from farm.errors import BadScale

SCALE_BYTES = 4
"""A factor is a float32."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """The extents of the blocks that have one factor each. None: the matrix in that direction.

    `lines` counts rows of A or columns of B, and `inner` elements along k.
    """

    lines: int | None
    inner: int | None

    def counts(self, lines: int, k: int) -> tuple[int, int]:
        """How many blocks a matrix of that many lines has: across its lines, and along k. The last one may be smaller."""
        return _blocks(lines, self.lines), _blocks(k, self.inner)


def _blocks(extent: int, size: int | None) -> int:
    return 1 if size is None else -(-extent // size)


_BLOCKS = {
    "tensor": Blocks(None, None),
    "row": Blocks(1, None),
    "1x128": Blocks(1, 128),
    "128x128": Blocks(128, 128),
}


class Scale(StrEnum):
    """The blocks of A and of B that have a factor each; one word where both have the same.

    `tensor`: all elements. `row`: each row of A, and each column of B. `1x128`: 128 elements along k of one row of A or
    column of B. `128x128`: 128 elements along k of 128 rows or columns. `1x128:128x128` is what DeepSeek-V3 multiplies
    activations and weights with.
    """

    NONE = "none"
    TENSOR = "tensor"
    ROW = "row"
    GROUP = "1x128"
    GROUP_BLOCK = "1x128:128x128"
    BLOCK_GROUP = "128x128:1x128"

    @property
    def of_a(self) -> Blocks | None:
        return _BLOCKS.get(self.value.split(":")[0])

    @property
    def of_b(self) -> Blocks | None:
        return _BLOCKS.get(self.value.split(":")[-1])

    def factors(self, m: int, n: int, k: int) -> tuple[int, int]:
        """How many factors A and B of one product have."""
        if self.of_a is None or self.of_b is None:
            return 0, 0
        (a_lines, a_inner), (b_lines, b_inner) = self.of_a.counts(m, k), self.of_b.counts(n, k)
        return a_lines * a_inner, b_lines * b_inner

    @classmethod
    def parse(cls, text: object) -> Scale:
        """Raises `BadScale`."""
        try:
            return cls(str(text).lower())
        except ValueError:
            raise BadScale(value=text, known=", ".join(cls)) from None
