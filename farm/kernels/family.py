"""The protocol of kernel families: `KernelFamily`, its parameters and rules."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from farm.devices import DeviceKind, DeviceTraits
from farm.errors import UnknownKernelParameter
from farm.fusion import Fusion
from farm.gemm import Problem
from farm.kernels.binary import Binary, Template
from farm.scale import Scale
from farm.sparsity import Sparsity


def limits(name: str, values: Sequence[int]) -> str:
    """The values of an axis as text: `tile goes from 1 to 32`, `swizzle is 1, 2, 4 or 8`."""
    if isinstance(values, range):
        return f"{name} goes from {values[0]} to {values[-1]}"
    return f"{name} is {', '.join(map(str, values[:-1]))} or {values[-1]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One integer parameter of a family."""

    name: str
    # A range without gaps, or a few values in rising order.
    values: range | tuple[int, ...]
    default: int
    meaning: str

    def why_bad(self, value: object) -> str | None:
        if type(value) is not int:
            return f"{self.name} is a whole number"
        return None if value in self.values else limits(self.name, self.values)


_SLOW_FLOPS = {DeviceKind.CPU: 5e9, DeviceKind.CUDA: 5e12}
"""FLOP/s of one thread of a CPU, and of a library on a GPU."""

OPEN_NAME = re.compile(r"[A-Z][A-Z0-9_]{0,31}")
"""Names of open parameters."""

Reason = str | None
Rule = Callable[[Problem, Mapping[str, int], DeviceTraits], Reason]


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelFamily:
    """A way to compute a GEMM: its parameter space, and rules that say why a device cannot run a configuration."""

    name: str
    kind: DeviceKind
    meaning: str
    # The worker's part, as "module:class", which only workers import. See `workers.kernels.base`. None: nothing here runs
    # the family, and all its rows are imported.
    worker: str | None
    parameters: tuple[Parameter, ...] = ()
    rules: tuple[Rule, ...] = ()
    # For a family whose kernels are built ahead of time: which binary a problem needs with parameters on an architecture. None for a
    # kernel of the family that is not.
    binary: Callable[[Problem, Mapping[str, int], str], Binary | None] | None = None
    # What such kernels are compiled from. Nothing else reaches a compiler.
    templates: tuple[Template, ...] = ()
    # FLOP/s with these parameters that nearly every device surpasses, for upper estimates of time; by default by kind.
    slow_flops: Callable[[Mapping[str, int]], float] | None = None
    # For a family whose one parameter is `tile`, the edge of a square tile of C: bytes of shared memory of a block. `farm
    # analyze tiles` studies it, and `farm predict --shape` takes it if no family is named; one family at most.
    tile_shared_bytes: Callable[[Problem, int], int] | None = None
    # Whether the kernel with default parameters is what others on devices of its kind are compared with; one for each kind.
    baseline: bool = False
    # Whether it is a library that chooses among kernels of its own, and its rows say which it chose; one family at most.
    chooses: bool = False
    # Whether it computes a batch of products in one launch.
    batched: bool = False
    # Whether it computes all groups of rows, each with a matrix B of its own, in one measurement.
    grouped: bool = False
    # The scale factors and the fused operations that it computes.
    scales: Collection[Scale] = (Scale.NONE,)
    fusions: Collection[Fusion] = (Fusion.NONE,)
    # The sparsities of B whose zeros it leaves out.
    sparsities: Collection[Sparsity] = (Sparsity.NONE,)
    # Whether kernels may have other parameters besides, with upper-case names, and the values of these.
    open_values: range | None = None
    # For a family whose blocks in a campaign file have other keys than its parameters: their model, as "module:class", a
    # `farm.campaign.kernel_blocks.KernelBlock`.
    block: str | None = None
    # Whether its kernels are not the farm's, so that a referee checks that they compute what they are timed for. No model
    # learns from their rows.
    untrusted: bool = False

    def estimated_flops(self, parameters: Mapping[str, int]) -> float:
        """FLOP/s that nearly every device surpasses."""
        return _SLOW_FLOPS[self.kind] if self.slow_flops is None else self.slow_flops(parameters)

    def parameter(self, name: str) -> Parameter:
        for parameter in self.parameters:
            if parameter.name == name:
                return parameter
        if self.open_values is not None and OPEN_NAME.fullmatch(name):
            return Parameter(name=name, values=self.open_values, default=0, meaning="a parameter of its source")
        known = ", ".join(p.name for p in self.parameters) or "none"
        raise UnknownKernelParameter(family=self.name, name=name, known=known)
