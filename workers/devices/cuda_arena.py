"""The memory of a card that operands live in, filled there.

CuPy's module is given, never imported. Plain allocations only: managed memory would move under a measurement.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from farm.gemm import ElementType
from farm.operands import DISTRIBUTIONS, MatrixRules, OperandRules
from workers.kernels.tiled import CUDA_TYPES, source
from workers.measure.elements import STORAGE, encoded, packed
from workers.measure.operands import Arena, Buffers, SetLayout

ALIGNMENT = 256  # bytes: what cudaMalloc gives

FILL_ENTRY = "fill"

CHUNK = 2**26
"""Numbers that are made at once on their way to a type that is not float or double: 256 MiB."""

STREAMS_APART = 2**40
"""Numbers between two streams of one seed: more than a card holds."""

_CODES = {distribution: code for code, distribution in enumerate(DISTRIBUTIONS)}
"""The codes of operands.cu, in the order of `Distribution`."""


class DeviceArena:
    """The operands of a card: grown where a larger problem comes, dropped before the larger ones are taken."""

    def __init__(self, cp: Any, smallest_bytes: int, multiprocessors: int) -> None:
        self._cp = cp
        self._blocks = 32 * multiprocessors
        self._fills: dict[tuple[str, str], Any] = {}
        self._arena = Arena(self._write, self._blank, smallest_bytes, cp)

    @property
    def bytes(self) -> int:
        return self._arena.bytes

    def clear(self) -> None:
        """Gives all memory back to the driver, CuPy's pool included."""
        self._arena.clear()
        self._cp.get_default_memory_pool().free_all_blocks()

    def buffers(self, layout: SetLayout, count: int, rules: OperandRules) -> Buffers:
        """Room for that many sets, filled under the rules. What other types hold gives way where it must."""
        try:
            return self._arena.buffers(layout, count, rules)
        except MemoryError:  # CuPy's is one
            self.clear()
            return self._arena.buffers(layout, count, rules)

    def _blank(self, kind: ElementType, count: int) -> Any:
        self._cp.get_default_memory_pool().free_all_blocks()  # what was dropped before may be in its way
        return self._cp.empty(count, STORAGE[kind])

    def _write(self, target: Any, kind: ElementType, rules: MatrixRules, seed: int, stream: int) -> None:
        first = stream * STREAMS_APART
        made_as = ElementType.F64 if kind is ElementType.F64 else ElementType.F32
        if kind is made_as:
            self._fill(target, made_as, first, rules, seed)
            return
        in_one = kind.per_item
        count = target.size * in_one
        numbers = self._cp.empty(min(count, CHUNK), STORAGE[made_as])
        for start in range(0, count, CHUNK):
            part = numbers[: min(CHUNK, count - start)]
            self._fill(part, made_as, first + start, rules, seed)
            elements = encoded(kind, part, rules, self._cp)
            target[start // in_one : (start + len(part)) // in_one] = packed(kind, elements)

    def _fill(self, numbers: Any, kind: ElementType, first: int, rules: MatrixRules, seed: int) -> None:
        assert rules.distribution is not None
        key = CUDA_TYPES[kind], rules.distribution
        if key not in self._fills:
            options = ("-std=c++17", f"-DELEMENT={key[0]}", f"-DDISTRIBUTION={_CODES[rules.distribution]}")
            module = self._cp.RawModule(code=source("operands.cu"), options=options)
            self._fills[key] = module.get_function(FILL_ENTRY)
        blocks = min(-(-numbers.size // 256), self._blocks)
        arguments = (numbers, np.uint64(first), np.uint64(numbers.size), np.uint64(seed), np.float64(rules.factor))
        self._fills[key]((blocks,), (256,), arguments)
