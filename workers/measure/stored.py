"""How the matrices of a problem, their scale factors and its bias lie in memory.

The matrices of a batch follow each other, and so do the matrices B of groups. The rows of groups follow each other in one A, C and D.

Factors of blocks lie as cuBLASLt reads them: those of `1x128` by blocks along k, with the lines of a block contiguous, and those
of `128x128` by blocks of lines, each with room for a multiple of `PADDED` blocks along k. Where A has groups of rows, its factors of
`1x128` are those of the first group, then those of the second, and so on: a library reads each group as a product of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from farm.gemm import Problem
from farm.scale import PADDED, Blocks


def stored_shapes(problem: Problem) -> dict[str, tuple[int, int, int]]:
    """Matrices, rows and columns of A, B and C as they lie in memory; D lies as C. Two elements of 4 bits count as one column."""
    s, layout, batch, of_b = problem.shape, problem.layout, problem.batch, problem.matrices_of_b
    in_one = problem.types.ab.of_b.per_item
    return {
        "a": (batch, s.k, s.m) if layout.a_transposed else (batch, s.m, s.k),
        "b": (of_b, s.n, s.k // in_one) if layout.b_transposed else (of_b, s.k, s.n // in_one),
        "c": (batch, s.m, problem.columns_of_d),
    }


@dataclass(frozen=True, slots=True)
class Factors:
    """The scale factors of A or B, for each of their matrices. Lines are rows of A, or columns of B."""

    blocks: Blocks
    matrices: int
    lines: int  # blocks across the lines
    inner: int  # blocks along k

    @classmethod
    def of_a(cls, problem: Problem) -> Factors | None:
        """Those of A; None where it has none."""
        return cls._of(problem.scale.of_a, problem, problem.batch, problem.shape.m)

    @classmethod
    def of_b(cls, problem: Problem) -> Factors | None:
        """As `of_a`."""
        return cls._of(problem.scale.of_b, problem, problem.matrices_of_b, problem.shape.n)

    @classmethod
    def _of(cls, blocks: Blocks | None, problem: Problem, matrices: int, lines: int) -> Factors | None:
        return None if blocks is None else cls(blocks, matrices, *blocks.counts(lines, problem.shape.k))

    @property
    def stored(self) -> tuple[int, int, int]:
        """Matrices, rows and columns in memory."""
        if self.blocks.lines == 1:
            return self.matrices, self.inner, self.lines
        padded = self.inner if self.blocks.inner is None else -(-self.inner // PADDED) * PADDED
        return self.matrices, self.lines, padded

    def by_line(self, lying: Any) -> Any:
        """[matrices, lines, inner]: a view of an array of the shape `stored`."""
        return lying.swapaxes(1, 2) if self.blocks.lines == 1 else lying[..., : self.inner]


def factors_of_group(factors: Any, rows: slice) -> Any:
    """[rows, inner]: the factors of A of one group, from those of A, [m, inner]. One factor of all elements is that of each group."""
    if factors.shape[0] == 1 and rows.stop > 1:
        return factors
    inner = factors.shape[1]
    lying = factors.swapaxes(0, 1).reshape(-1)
    return lying[rows.start * inner : rows.stop * inner].reshape(inner, -1).swapaxes(0, 1)
