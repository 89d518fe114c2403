"""Verification on a card, without leaving it: the checks of `workers.measure.verify` in a handful of launches.

The launches are queued, and the card is not waited for until the answer is wanted. What is not plainly right is left to
`workers.measure.verify`, which takes longer, and names the element.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from farm.fusion import Fusion
from farm.gemm import ElementType, Problem
from farm.operands import OperandRules
from farm.scale import Scale
from workers.kernels.once import Once
from workers.kernels.tiled import source
from workers.measure.magnitudes import result_scale
from workers.measure.operands import OperandSet
from workers.measure.verify import (
    GROUP,
    SAMPLED,
    Verification,
    checks_every_element,
    error_bound,
    group_bound,
    products_of,
    verify,
)

E = ElementType

KINDS = {
    E.F64: 0,
    E.F32: 1,
    E.TF32: 1,
    E.F16: 2,
    E.BF16: 3,
    E.F8E4M3: 4,
    E.F8E5M2: 5,
    E.I8: 6,
    E.I32: 7,
    E.I4: 8,
    E.F4: 9,
}
"""The numbers of element types in verify.cu."""

KERNELS = ("widen", "sum_groups", "compare_groups", "compare_elements")
"""Of verify.cu."""

THREADS = 256

MAX_WIDENED = 2**27
"""Numbers in double that may be held at once: 1 GiB. Larger problems are checked part by part, by `verify`."""

Kinds = tuple[int, int, int]


def _has_kernels(problem: Problem) -> bool:
    """Whether verify.cu checks such problems. `verify` checks those with scale factors or fused operations."""
    return problem.scale is Scale.NONE and problem.fused is Fusion.NONE


class CudaVerifier:
    """Verifies on one card. Its kernels are compiled once for each process, and by CuPy's cache once for each host."""

    def __init__(self, cp: Any, multiprocessors: int) -> None:
        self._cp = cp
        self._blocks = 16 * multiprocessors
        self._compiled = Once[Kinds, Mapping[str, Any]]()
        self._largest = cp.empty(2, np.float64)

    def prepare(self, problem: Problem) -> None:
        """Compiles what the problem's types need. May be called from another thread while the card is at work."""
        if _has_kernels(problem):
            self._kernels(problem)

    def begin(
        self, problem: Problem, operands: OperandSet, rules: OperandRules, *, roundings: int = 1
    ) -> Callable[[], Verification]:
        """Queues the checks of `operands.d` on CuPy's current stream. The answer is as `verify`'s, and raises as it does.

        `d` was all poison before the kernel ran, which no check lets pass: NaN stays NaN in every sum, and an integer
        that is not the right one is a wrong one.
        """

        def whole() -> Verification:
            return verify(problem, operands, rules, self._cp, roundings=roundings)

        if not _has_kernels(problem):
            return whole
        kernels, scale = self._kernels(problem), result_scale(problem, rules)
        self._largest.data.memset_async(0, self._largest.nbytes)
        every = True
        for _, part, views in products_of(problem, operands):
            each = checks_every_element(part)
            if not each and not self._queue_groups(kernels, part, views.stacked(), scale, rules):
                return whole
            self._queue_elements(kernels, part, views, scale, rules, each)
            every = every and each

        def answer() -> Verification:
            groups, elements = (float(error) for error in self._largest.get())
            bound = error_bound(problem, rules, roundings)
            if not (groups <= group_bound(problem, rules, roundings) and elements <= bound):
                return whole()
            error = max(groups / math.sqrt(min(GROUP, problem.shape.n)), elements)
            return Verification(error=error, bound=bound, method="elements" if every else "groups")

        return answer

    def _queue_groups(
        self, kernels: Mapping[str, Any], problem: Problem, operands: OperandSet, scale: float, rules: OperandRules
    ) -> bool:
        """Queues the check of stacked operands, as many matrices at once as there is room for. False where one has none."""
        s = problem.shape
        each = s.m * s.k + (s.m + s.k) * -(-s.n // GROUP)
        step = MAX_WIDENED // each
        if not step:
            return False
        try:
            for first in range(0, problem.batch, step):
                self._queue_groups_of(kernels, problem, operands.matrices(slice(first, first + step)), scale, rules)
        except MemoryError:  # CuPy's is one; part by part it may fit
            return False
        return True

    def _queue_groups_of(
        self, kernels: Mapping[str, Any], problem: Problem, operands: OperandSet, scale: float, rules: OperandRules
    ) -> None:
        s, p, o = problem.shape, problem, operands
        count, groups = len(o.d), -(-s.n // GROUP)
        wide = o.a if p.types.ab.of_a is E.F64 else self._cp.empty(count * s.m * s.k, np.float64)
        right = self._cp.empty(count * s.k * groups, np.float64)
        if wide is not o.a:
            self._launch(kernels["widen"], self._grid(wide.size), o.a, wide, wide.size)
            if p.layout.a_transposed:
                wide = wide.reshape(count, s.k, s.m).swapaxes(1, 2)
            else:
                wide = wide.reshape(count, s.m, s.k)
        transposed, seed = int(p.layout.b_transposed), np.uint64(rules.seed)
        grid = self._grid(s.k, count * groups) if transposed else self._grid(32 * groups, count * s.k)
        self._launch(kernels["sum_groups"], grid, o.b, right, count, s.k, s.n, transposed, seed)
        right = right.reshape(count, s.k, groups)
        # One product goes to BLAS as two matrices: of a batch, CuPy copies those that are transposed.
        sums = wide[0] @ right[0] if count == 1 else wide @ right
        self._launch(
            kernels["compare_groups"], self._grid(32 * groups, count * s.m), sums, self._or_none(o.c), o.d, count * s.m,
            s.n, float(p.alpha), float(p.beta), scale, seed, self._largest,
        )  # fmt: skip

    def _queue_elements(
        self, kernels: Mapping[str, Any], problem: Problem, operands: OperandSet, scale: float, rules: OperandRules,
        every: bool,
    ) -> None:  # fmt: skip
        s, p, o = problem.shape, problem, operands
        grid = self._grid(32 * p.batch * s.m * s.n) if every else self._grid(32 * min(SAMPLED, p.batch) * SAMPLED**2)
        self._launch(
            kernels["compare_elements"], grid, o.a, o.b, self._or_none(o.c), o.d, p.batch, s.m, s.n, s.k,
            int(p.layout.a_transposed), int(p.layout.b_transposed), float(p.alpha), float(p.beta), scale, int(every),
            np.uint64(rules.seed), self._largest[1:],
        )  # fmt: skip

    def _or_none(self, array: Any) -> Any:
        return np.uint64(0) if array is None else array

    def _grid(self, threads: int, rows: int = 1) -> tuple[int, int]:
        """Blocks for so many threads in each of so many rows; where that is too many, threads and blocks walk on."""
        columns = min(-(-threads // THREADS), self._blocks)
        return columns, min(rows, max(1, self._blocks // columns))

    def _launch(self, kernel: Any, grid: tuple[int, int], *arguments: Any) -> None:
        kernel(grid, (THREADS,), arguments)

    def _kernels(self, problem: Problem) -> Mapping[str, Any]:
        types = problem.types
        kinds = KINDS[types.ab.of_a], KINDS[types.ab.of_b], KINDS[types.cd]

        def compiled() -> Mapping[str, Any]:
            defines = (f"-D{name}_KIND={kind}" for name, kind in zip("ABD", kinds, strict=True))
            module = self._cp.RawModule(code=source("verify.cu"), options=("-std=c++17", *defines))
            return {name: module.get_function(name) for name in KERNELS}

        return self._compiled.get(kinds, compiled)
