"""Whether a kernel on a card gives the same bits again, and with fewer rows: the columns of `workers.measure.exactness`."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from typing import Any

from farm.devices import DeviceTraits
from farm.errors import InvalidOnDevice, KernelMissing, KernelUnreachable
from farm.gemm import ElementType, Shape
from farm.kernels import Configuration
from farm.measurement import MeasuringRules
from workers.devices.cuda_arena import ALIGNMENT
from workers.devices.cuda_digest import CudaDigests
from workers.devices.cuda_tiers import Work
from workers.kernels.base import CudaFamily, Placement
from workers.measure.elements import STORAGE, poison
from workers.measure.exactness import Exactness, compare
from workers.measure.nvml import Card, Telemetry
from workers.measure.operands import Buffers, OperandSet, SetLayout

POLL_SECONDS = 0.01
"""Between two looks whether a card needs more work."""


class CardLoad:
    """A configuration that keeps a card busy: see `workers.measure.soak.Load`."""

    def __init__(self, work: Work, card: Card) -> None:
        self._work = work
        self._card = card
        self.result = work.result

    def work(self) -> None:
        """Queues more work, so that the card always has some."""
        self._work.keep_busy()
        time.sleep(POLL_SECONDS)

    def copy(self) -> Any:
        return self.result.d.copy()

    def telemetry(self) -> Telemetry:
        return self._card.telemetry()


def exactness(
    cp: Any,
    digests: CudaDigests,
    family: CudaFamily,
    configuration: Configuration,
    work: Work,
    rules: MeasuringRules,
    traits: DeviceTraits,
) -> Exactness:
    """Compares the result's bits after the last launch with those after the first, and where the rules ask for it, further.

    Raises `ResultCorrupted`.
    """

    def digest_with(rows: int) -> int | None:
        return _digest_with(rows, cp, digests, family, configuration, work.operands, traits)

    return compare(work.result, configuration.problem.shape.m, digest_with, determinism=rules.determinism)


def _digest_with(
    rows: int,
    cp: Any,
    digests: CudaDigests,
    family: CudaFamily,
    configuration: Configuration,
    operands: OperandSet,
    traits: DeviceTraits,
) -> int | None:
    """The digest of the same kernel's result on the first rows of each A and C. None where it cannot run with so few, or has groups."""
    problem, s = configuration.problem, configuration.problem.shape
    if problem.groups is not None:
        return None
    fewer = replace(configuration, problem=replace(problem, shape=Shape(rows, s.n, s.k)))
    if fewer.why_invalid(traits) is not None:
        return None
    with suppress(InvalidOnDevice, KernelMissing, KernelUnreachable, MemoryError):  # CuPy's error is a MemoryError
        buffers = _first_rows(cp, SetLayout.of(fewer.problem, ALIGNMENT), operands, rows)
        kernel = family.bind(fewer, Placement.of(buffers, 1))
        try:
            kernel.launch(0)
            return digests.begin(buffers.views(0).d)()
        finally:
            kernel.close()
    return None


def _first_rows(cp: Any, layout: SetLayout, operands: OperandSet, rows: int) -> Buffers:
    """An operand set of its own, in the layout of the smaller problem."""
    types = layout.problem.types

    def blank(kind: ElementType, count: int) -> Any:
        return cp.empty(count, STORAGE[kind])

    inputs = blank(types.ab.of_a, layout.inputs)
    of_b = inputs if types.ab.of_a is types.ab.of_b else blank(types.ab.of_b, layout.inputs_of_b)
    addends = blank(types.cd, layout.addends) if layout.addends else None
    outputs, bias = blank(types.cd, layout.outputs), blank(types.cd, layout.bias) if layout.bias else None
    a_factors, b_factors = (
        blank(layout.problem.factor_type, count) if count else None for count in (layout.a_factors, layout.b_factors)
    )
    buffers = Buffers(layout, inputs, of_b, addends, outputs, a_factors, b_factors, bias)
    views = buffers.views(0)
    pairs = [(views.a, operands.a[..., :rows, :]), (views.b, operands.b), (views.b_factors, operands.b_factors)]
    pairs += [(views.bias, operands.bias)]
    if operands.c is not None:
        pairs += [(views.c, operands.c[..., :rows, :])]
    if operands.a_factors is not None and views.a_factors is not None:
        pairs += [(views.a_factors, operands.a_factors[..., : views.a_factors.shape[-2], :])]
    for target, source in pairs:
        if target is not None:
            target[...] = source
    views.d.fill(poison(types.cd))
    return buffers
