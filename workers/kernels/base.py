"""The interface between the measuring engines and kernel families.

The engines (`workers.devices.cuda` and `workers.devices.cpu`) place operands, verify, time and read power. A family turns a
configuration into launches or calls. `KernelFamily.worker` names a class that implements `CudaFamily` or `CpuFamily`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from farm.devices import DeviceTraits
from farm.errors import InvalidOnDevice
from farm.kernels import Configuration
from farm.kernels.binary import Binary
from workers.kernels.sources import Kernels
from workers.measure.operands import Buffers, SetLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class CardContext:
    """What families use on a card. CuPy's module is passed in, never imported."""

    cp: Any
    traits: DeviceTraits
    threads_per_multiprocessor: int
    kernels: Kernels  # that are built ahead of time

    def binary(self, configuration: Configuration) -> Binary:
        """The binary that a configuration of a family that is built ahead of time needs. Raises `InvalidOnDevice`."""
        binary = configuration.binary(self.traits)
        if binary is None:
            raise InvalidOnDevice(why="the card does not say its compute capability, so no kernel can be built for it")
        return binary


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The addresses of the operand sets of a configuration in the card's memory."""

    layout: SetLayout
    sets: int
    inputs: int  # the first set's A
    inputs_of_b: int  # what its B's offset counts from
    addends: int  # the first set's C; 0 without C
    outputs: int  # the first set's D
    a_factors: int = 0  # the first set's factors of A; 0 without
    b_factors: int = 0
    bias: int = 0  # the first set's; 0 without

    @classmethod
    def of(cls, buffers: Buffers, sets: int) -> Placement:
        def first(buffer: Any) -> int:
            return 0 if buffer is None else int(buffer.data.ptr)

        return cls(
            layout=buffers.layout,
            sets=sets,
            inputs=first(buffers.inputs),
            inputs_of_b=first(buffers.inputs_of_b),
            addends=first(buffers.addends),
            outputs=first(buffers.outputs),
            a_factors=first(buffers.a_factors),
            b_factors=first(buffers.b_factors),
            bias=first(buffers.bias),
        )

    def addresses(self, index: int) -> tuple[int, int, int, int]:
        """The addresses of A, B, C and D of a set. If beta is 0, there is no C and its address is 0."""
        lies, types = self.layout, self.layout.problem.types
        a = self.inputs + index * lies.inputs * types.ab.bytes
        b = self.inputs_of_b + (index * lies.inputs_of_b + lies.b_offset) * types.ab.of_b.bytes
        output = index * lies.outputs * types.cd.bytes
        c = self.addends + output if self.addends else 0
        return a, b, c, self.outputs + output

    def added(self, index: int) -> tuple[int, int, int]:
        """The addresses of A's scale factors, B's scale factors and the bias of a set; 0 where there is none.

        `workers.measure.stored` describes how factors lie. Those of a batch or of groups, and their biases, follow each other.
        """
        lies, of_factor = self.layout, self.layout.problem.factor_type.bytes
        a, b, bias = index * lies.a_factors, index * lies.b_factors, index * lies.bias
        return (
            self.a_factors and self.a_factors + a * of_factor,
            self.b_factors and self.b_factors + b * of_factor,
            self.bias and self.bias + bias * lies.problem.types.cd.bytes,
        )


class BoundKernel(Protocol):
    """A configuration ready to be launched on operands that have their place."""

    hash: str
    """Names what runs: equal hashes are the same kernel."""

    capturable: bool
    """Whether its launches can be captured into a CUDA graph. Others are timed in groups."""

    roundings: int
    """How often an element is rounded to the type of D: once, but for kernels that add up in it."""

    deterministic: bool
    """Whether every launch gives the same bits. False for a kernel that adds up with atomics, whose order is not fixed: then
    results of launches may differ, and no row has a digest."""

    def launch(self, index: int) -> None:
        """Launches it on the operand set of that number, on CuPy's current stream."""

    def details(self) -> dict[str, Any]:
        """Facts for the row: registers, shared memory, occupancy, waves, the choice of a library, and so on."""

    def close(self) -> None:
        """Releases what `bind` acquired."""


class CudaFamily(Protocol):
    """A kernel family in the process that owns a card. It is made with a `CardContext`."""

    def prepare(self, configuration: Configuration) -> None:
        """Does the work that needs no card: compiling or fetching. Called from another thread while the card measures."""

    def bind(self, configuration: Configuration, placement: Placement) -> BoundKernel:
        """Raises `InvalidOnDevice` where this card cannot run it."""

    def close(self) -> None:
        """Releases what the family holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuKernel:
    """A configuration ready to be computed on a processor."""

    multiply: Callable[[Any, Any, Any], object]
    """Called with A, B and D, NumPy arrays as of `OperandSet`; A and B may be transposed views. Writes A·B to D."""

    details: Mapping[str, Any]
    """Facts for the row."""

    roundings: int = 1
    """How often an element is rounded to the type of D."""

    deterministic: bool = True
    """Whether every call gives the same bits, as for `BoundKernel`."""


class CpuFamily(Protocol):
    """A kernel family in the process that measures a processor. It is made without arguments."""

    def bind(self, configuration: Configuration) -> AbstractContextManager[CpuKernel]:
        """Raises `InvalidOnDevice` where this processor cannot run it."""
