"""Tuned Triton kernels of matrix products, as a lookup table of PyTorch's Inductor.

`torch._inductor.config.lookup_table.table` maps the types, sizes and strides of inputs to kernels, which
`torch._inductor.lookup_table.LookupTableChoices` takes instead of those that it would try. Facts are from PyTorch 2.13.0, and 2.11.0 reads the same: the key is the
name of the card, the inputs and the operation with `+`; `aten::mm` is the vendor's library and `triton::mm` the template
whose parameters the farm's family `triton` has.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from farm.devices import DeviceKind
from farm.exporters.block_linears import TRITON
from farm.exporters.consumer import Consumer
from farm.exporters.exporter import ExportedFile
from farm.exporters.tuned import TunedChoice, TunedFormat
from farm.gemm import ElementType, ElementTypes, Problem
from farm.kernels import BASELINES, Configuration
from farm.traces.torch_types import dtype_name

TABLE = "inductor_table.json"
_USE = (
    f"Load {TABLE} into torch._inductor.config.lookup_table.table, and set LookupTableChoices() as the choices handler."
)
_TYPES = (ElementType.BF16, ElementType.F16)
_KEYS = {
    "BLOCK_M": "tile_m",
    "BLOCK_N": "tile_n",
    "BLOCK_K": "tile_k",
    "GROUP_M": "group_m",
    "num_warps": "warps",
    "num_stages": "stages",
}
"""Parameters of the template, and those of the family `triton`."""


class Inductor(TunedFormat):
    name = "inductor"
    consumer = Consumer("torch", ("2.11.0", "2.13.0"))
    use = _USE
    help = """Write tuned Triton kernels of matrix products in bf16 and f16 as a lookup table of PyTorch's Inductor.

    A kernel is written if a paired measurement, given with --proof, shows that it is faster than cuBLASLt's own choice;
    otherwise the table names the library.

    Examples:
        farm export inductor --type nvidia-h200 --proof checks.json --output tables/
    """

    def default(self, problem: Problem) -> Configuration:
        return Configuration(problem, BASELINES[DeviceKind.CUDA])

    def why_not(self, configuration: Configuration) -> str | None:
        problem, kernel = configuration.problem, configuration.kernel
        ab = problem.types.ab
        if ab not in _TYPES or Problem(problem.shape, ElementTypes.parse(ab), problem.layout) != problem:
            return "are no plain products in bf16 or f16"
        if kernel.family == TRITON and dict(kernel.parameters)["tma"]:
            return f"are of {TRITON} with tma, which is another template"
        if kernel.family != TRITON and kernel != BASELINES[DeviceKind.CUDA]:
            return f"are of other kernels than {TRITON} and {BASELINES[DeviceKind.CUDA].family}'s own choice"
        return None

    def files(self, choices: Sequence[TunedChoice], device_name: str) -> list[ExportedFile]:
        table = {key_of(choice.problem, device_name): [entry_of(choice.written)] for choice in choices}
        return [ExportedFile(TABLE, (json.dumps(table, indent=1) + "\n").encode(), len(table), "problems")]


def key_of(problem: Problem, device_name: str) -> str:
    """The key of `torch.mm(a, b)` on a card, with matrices that lie as the layout says."""
    s, layout, dtype = problem.shape, problem.layout, dtype_name(problem.types.ab)
    a = f"({dtype}, [{s.m}, {s.k}], {[1, s.m] if layout.a_transposed else [s.k, 1]})"
    b = f"({dtype}, [{s.k}, {s.n}], {[1, s.k] if layout.b_transposed else [s.n, 1]})"
    return f"{device_name}+({a}, {b})+mm"


def entry_of(configuration: Configuration) -> Mapping[str, Any]:
    """A kernel as the table has it. Inductor adds the template's other options, such as ALLOW_TF32, and refuses to get them twice."""
    if configuration.kernel.family != TRITON:
        return {"template_id": "aten::mm"}
    parameters = dict(configuration.kernel.parameters)
    return {
        "template_id": "triton::mm",
        **{theirs: parameters[ours] for theirs, ours in _KEYS.items()},
        "EVEN_K": configuration.problem.shape.k % parameters["tile_k"] == 0,
        "USE_FAST_ACCUM": False,
        "ACC_TYPE": "tl.float32",
    }
