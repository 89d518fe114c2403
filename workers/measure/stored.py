"""How the matrices of a problem, their scale factors and its bias lie in memory.

Factors of blocks lie as cuBLASLt reads them: those of `1x128` by blocks along k, with the lines of a block contiguous, and those
of `128x128` by blocks of lines, each with room for a multiple of 4 blocks along k.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from farm.gemm import Problem
from farm.scale import Blocks

PADDED = 4
"""Blocks of `128x128` along k start at multiples of this."""


def stored_shapes(problem: Problem) -> dict[str, tuple[int, int, int]]:
    """Matrices, rows and columns of A, B and C as they lie in memory."""
    s, layout, batch = problem.shape, problem.layout, problem.batch
    return {
        "a": (batch, s.k, s.m) if layout.a_transposed else (batch, s.m, s.k),
        "b": (batch, s.n, s.k) if layout.b_transposed else (batch, s.k, s.n),
        "c": (batch, s.m, s.n),
    }


@dataclass(frozen=True, slots=True)
class Factors:
    """The scale factors of A or B, for each product of a batch. Lines are rows of A, or columns of B."""

    blocks: Blocks
    batch: int
    lines: int  # blocks across the lines
    inner: int  # blocks along k

    @classmethod
    def of_a(cls, problem: Problem) -> Factors | None:
        """Those of A; None where it has none."""
        return cls._of(problem.scale.of_a, problem, problem.shape.m)

    @classmethod
    def of_b(cls, problem: Problem) -> Factors | None:
        """As `of_a`."""
        return cls._of(problem.scale.of_b, problem, problem.shape.n)

    @classmethod
    def _of(cls, blocks: Blocks | None, problem: Problem, lines: int) -> Factors | None:
        return None if blocks is None else cls(blocks, problem.batch, *blocks.counts(lines, problem.shape.k))

    @property
    def stored(self) -> tuple[int, int, int]:
        """Products, rows and columns in memory."""
        if self.blocks.lines == 1:
            return self.batch, self.inner, self.lines
        padded = self.inner if self.blocks.inner is None else -(-self.inner // PADDED) * PADDED
        return self.batch, self.lines, padded

    def by_line(self, lying: Any) -> Any:
        """[batch, lines, inner]: a view of an array of the shape `stored`."""
        return lying.swapaxes(1, 2) if self.blocks.lines == 1 else lying[..., : self.inner]
