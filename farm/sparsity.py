"""Sparsity of B: weights with a fixed number of zeros, which sparse tensor cores leave out.

A kernel is given B compressed: the elements that are kept, and the index of each in its block of four.
"""

from __future__ import annotations

from enum import StrEnum

from farm.errors import BadSparsity

BLOCK, KEPT = 4, 2
"""Of so many consecutive elements along k, so many are kept. The others are zero."""

INDEX_BITS = 2
"""Bits of the index of an element that is kept."""


class Sparsity(StrEnum):
    """`2:4`: of each four consecutive elements along k of a column of B, at most two are not zero."""

    NONE = "none"
    TWO_OF_FOUR = "2:4"

    def kept(self, k: int) -> int:
        """How many of `k` elements of a column are kept. The last block may be shorter than four."""
        if self is Sparsity.NONE:
            return k
        return sum((k + BLOCK - 1 - place) // BLOCK for place in range(KEPT))

    def index_bytes(self, n: int, k: int) -> int:
        """Bytes of the indexes of a matrix [k,n]."""
        return 0 if self is Sparsity.NONE else -(-self.kept(k) * n * INDEX_BITS // 8)

    @classmethod
    def parse(cls, text: object) -> Sparsity:
        """Raises `BadSparsity`."""
        try:
            return cls(str(text).lower())
        except ValueError:
            raise BadSparsity(value=text, known=", ".join(cls)) from None
