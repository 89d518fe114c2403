"""The memory of a card that operands live in: allocated once, grown where a larger problem comes.

CuPy's module is given, never imported. Plain allocations only: managed memory would move under a measurement.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from farm.gemm import ElementType
from workers.measure.operands import NUMPY_TYPES, SetLayout


class DeviceArena:
    """The operands of a card: a buffer of uniform numbers and one for results, for each element type."""

    def __init__(self, cp: Any, fill: Callable[[Any, ElementType, int], None], smallest_bytes: int) -> None:
        self._cp = cp
        self._fill = fill
        self._smallest_bytes = smallest_bytes
        self._inputs: dict[ElementType, tuple[int, Any]] = {}  # with the seed
        self._outputs: dict[ElementType, Any] = {}

    @property
    def bytes(self) -> int:
        return sum(int(x.nbytes) for x in (*(held for _, held in self._inputs.values()), *self._outputs.values()))

    def clear(self) -> None:
        """Gives all memory back to the driver, CuPy's pool included."""
        self._inputs.clear()
        self._outputs.clear()
        self._cp.get_default_memory_pool().free_all_blocks()

    def buffers(self, layout: SetLayout, count: int, seed: int) -> tuple[Any, Any]:
        """Inputs and outputs with room for that many sets: flat arrays."""
        ab, cd = layout.problem.types.ab, layout.problem.types.cd
        inputs, outputs = self._inputs.get(ab), self._outputs.get(cd)
        if inputs is None or inputs[0] != seed or inputs[1].size < layout.inputs * count:
            inputs = None
            self._inputs.pop(ab, None)
        if outputs is None or outputs.size < layout.outputs * count:
            outputs = None
            self._outputs.pop(cd, None)
        if inputs is None or outputs is None:  # what was dropped goes back first: the larger one may need its place
            self._cp.get_default_memory_pool().free_all_blocks()
        if inputs is None:
            numbers = self._empty(ab, layout.inputs * count, self._smallest_bytes)
            self._fill(numbers, ab, seed)
            inputs = self._inputs[ab] = (seed, numbers)
        if outputs is None:
            outputs = self._outputs[cd] = self._empty(cd, layout.outputs * count, self._smallest_bytes // 4)
        return inputs[1], outputs

    def _empty(self, kind: ElementType, count: int, smallest_bytes: int) -> Any:
        return self._cp.empty(max(count, smallest_bytes // kind.bytes), NUMPY_TYPES[kind])
