"""The family `source`: kernels that users wrote (`farm.kernels.definition`)."""

from __future__ import annotations

from collections.abc import Mapping

from farm.devices import DeviceKind, DeviceTraits
from farm.fusion import Fusion
from farm.gemm import Problem
from farm.kernels import own_triton
from farm.kernels.binary import Binary
from farm.kernels.definition import ID_BITS, PARAMETER_VALUES, known
from farm.kernels.family import KernelFamily, Parameter, Reason
from farm.scale import Scale

DEFINITION = "definition"
"""The parameter with the number of a definition."""


def _as_defined(problem: Problem, parameters: Mapping[str, int], device: DeviceTraits) -> Reason:
    """What the definition says. Where this process does not know the definition, the worker decides."""
    if not parameters[DEFINITION]:
        return "needs a definition, which a block of kernels in a campaign file gives (docs/own_kernels.md)"
    definition = known(parameters[DEFINITION])
    return None if definition is None else definition.why_invalid(problem, parameters, device)


def _binary_of(problem: Problem, parameters: Mapping[str, int], arch: str) -> Binary | None:
    """What a builder must have compiled. Where this process does not know the definition, the worker requests it."""
    definition = known(parameters[DEFINITION])
    return None if definition is None else definition.binary_for(problem, parameters, arch)


SOURCE = KernelFamily(
    name="source",
    kind=DeviceKind.CUDA,
    worker="workers.kernels.source:SourceFamily",
    meaning="your own kernel: CUDA C++, PTX, a cubin or Triton, checked by a referee",
    parameters=(
        Parameter(
            name=DEFINITION,
            values=range(2**ID_BITS),
            default=0,
            meaning="the number of its definition, from the SHA-256 of its source and its launch",
        ),
    ),
    binary=_binary_of,
    templates=(own_triton.TEMPLATE,),
    block="farm.campaign.source_blocks:SourceBlock",
    open_values=PARAMETER_VALUES,
    untrusted=True,
    # A first kernel that somebody wrote may be far from a library's.
    slow_flops=lambda _: 5e10,
    rules=(_as_defined,),
    batched=True,
    grouped=True,
    scales=tuple(Scale),
    fusions=tuple(Fusion),
)
