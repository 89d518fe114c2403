"""Where the operands of the groups of rows lie, for kernels that take an address for each group."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from farm.gemm import Problem
from workers.measure.stored import Factors


def group_offsets(problem: Problem, firsts: NDArray[np.uint64], numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """[6, groups]: bytes from A, B, C, D and the factors of A and B to those of each group."""
    s, types = problem.shape, problem.types
    of_a, of_b = Factors.of_a(problem), Factors.of_b(problem)
    factor = problem.scale.factor_bytes
    by_row = (s.k * types.ab.bytes, problem.columns_of_d * types.cd.bytes, (of_a.inner if of_a else 0) * factor)
    by_group = (s.k * s.n * types.ab.of_b.bits // 8, math.prod(of_b.stored[1:]) * factor if of_b else 0)
    a, c, a_factors = (firsts * np.uint64(step) for step in by_row)
    b, b_factors = (numbers * np.uint64(step) for step in by_group)
    return np.stack([a, b, c, c, a_factors, b_factors])
