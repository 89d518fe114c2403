"""Scale factors of A and B: one for all elements, for each row, or for each block, as FP8 models and weights of few bits have them.

A product with scales is D = alpha · (sA ∘ A) · (sB ∘ B) + beta · C, where ∘ multiplies each element by the factor of its block.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from farm.errors import BadScale


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


def _factors(blocks: Blocks | None, lines: int, k: int) -> int:
    return 0 if blocks is None else math.prod(blocks.counts(lines, k))


PADDED = 4
"""Factors of `128x128` are stored with room for a multiple of this along k, as cuBLASLt reads them."""

_BLOCKS = {
    "tensor": Blocks(None, None),
    "row": Blocks(1, None),
    "1x128": Blocks(1, 128),
    "1x64": Blocks(1, 64),
    "1x32": Blocks(1, 32),
    "128x128": Blocks(128, 128),
}


class Scale(StrEnum):
    """The blocks of A and of B that have a factor each; one word where both have the same.

    `tensor`: all elements. `row`: each row of A, and each column of B. `1x128`: 128 elements along k of one row of A or
    column of B. `128x128`: 128 elements along k of 128 rows or columns. `1x128:128x128` is what DeepSeek-V3 multiplies
    activations and weights with. Of those that begin with `none`, B alone has factors: weights of fewer bits than the activations.
    """

    NONE = "none"
    TENSOR = "tensor"
    ROW = "row"
    GROUP = "1x128"
    GROUP_BLOCK = "1x128:128x128"
    BLOCK_GROUP = "128x128:1x128"
    ROW_OF_B = "none:row"
    GROUP_128_OF_B = "none:1x128"
    GROUP_64_OF_B = "none:1x64"
    GROUP_32_OF_B = "none:1x32"

    @property
    def of_a(self) -> Blocks | None:
        return _BLOCKS.get(self.value.split(":")[0])

    @property
    def of_b(self) -> Blocks | None:
        return _BLOCKS.get(self.value.split(":")[-1])

    def factors(self, m: int, n: int, k: int) -> tuple[int, int]:
        """How many factors A and B of one product have."""
        return _factors(self.of_a, m, k), _factors(self.of_b, n, k)

    @property
    def of_weights(self) -> bool:
        """Whether B alone has factors."""
        return self.value.startswith("none:")

    @property
    def factor_bytes(self) -> int:
        """Bytes of a factor: a float32, or of weights alone a number of A's type, f16 or bf16."""
        return 2 if self.of_weights else 4

    @classmethod
    def parse(cls, text: object) -> Scale:
        """Raises `BadScale`."""
        try:
            return cls(str(text).lower())
        except ValueError:
            raise BadScale(value=text, known=", ".join(cls)) from None


SCALES_OF_BOTH = tuple(scale for scale in Scale if not scale.of_weights)
"""None, and those of A and of B."""
