"""The farm's part of the family `blocked`: its parameter and its limits. Nothing here needs a device."""

from __future__ import annotations

from farm.devices import DeviceKind
from farm.gemm import ElementType
from farm.kernels import KernelFamily, Parameter
from farm.kernels.rules import plain_product, same_types

BLOCKED = KernelFamily(
    name="blocked",
    kind=DeviceKind.CPU,
    meaning="square blocks of A and B, multiplied one after another by NumPy",
    worker="blocked_gemm.worker:BlockedFamily",
    parameters=(Parameter(name="block", values=range(8, 1025), default=128, meaning="edge of a block"),),
    rules=(same_types(ElementType.F32, ElementType.F64), plain_product("it adds up products of blocks")),
    # Small blocks cost a call each.
    slow_flops=lambda parameters: 1e7 * parameters["block"],
)
