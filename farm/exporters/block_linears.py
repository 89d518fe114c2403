"""Tuned Triton kernels of linear layers in block-scaled FP8, for vLLM and SGLang.

Both read a file for each weight [n, k] and card, which maps numbers of tokens m to a kernel, and take the nearest m. They read it
from a folder of the package. Facts are from the wheels of the named versions: `fp8_utils.py` of vLLM and `fp8_kernel.py` of SGLang.
Their kernels have the loop and the parameters of the farm's family `triton` without `tma`, but are other programs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import ClassVar

from farm.exporters.consumer import Consumer
from farm.exporters.exporter import ExportedFile
from farm.exporters.tuned import TunedChoice, TunedFormat
from farm.gemm import ElementTypes, Layout, Problem
from farm.kernels import Configuration, Kernel
from farm.scale import Scale

TRITON = "triton"
_TYPES = ElementTypes.parse("f8e4m3")
_BLOCK = 128
_KEYS = {
    "BLOCK_SIZE_M": "tile_m",
    "BLOCK_SIZE_N": "tile_n",
    "BLOCK_SIZE_K": "tile_k",
    "GROUP_SIZE_M": "group_m",
    "num_warps": "warps",
    "num_stages": "stages",
}
"""Parameters of the tools, and those of the family `triton`."""


class BlockLinears(TunedFormat):
    """Files of one of both tools.

    Attributes:
        default_stages: `num_stages` of its default.
        block_shape: How it writes the blocks of scale factors in names of files.
    """

    default_stages: ClassVar[int]
    block_shape: ClassVar[str]

    def default(self, problem: Problem) -> Configuration:
        given = {
            "tile_m": 64,
            "tile_n": _BLOCK,
            "tile_k": _BLOCK,
            "group_m": 32,
            "warps": 4,
            "stages": self.default_stages,
        }
        return Configuration(problem, Kernel.of(TRITON, **given))

    def why_not(self, configuration: Configuration) -> str | None:
        problem, kernel = configuration.problem, configuration.kernel
        if Problem(problem.shape, _TYPES, Layout.NT, scale=Scale.GROUP_BLOCK) != problem:
            return f"are no linear layers in {_TYPES.ab} with scale={Scale.GROUP_BLOCK}"
        if kernel.family != TRITON or dict(kernel.parameters)["tma"]:
            return f"are of other kernels than {TRITON} without tma"
        return None

    def file_name(self, n: int, k: int, device_name: str) -> str:
        """The name of the file of a weight [n, k]."""
        card = re.sub(r"[\s/]+", "_", device_name)
        return f"N={n},K={k},device_name={card},dtype=fp8_w8a8,block_shape={self.block_shape}.json"

    def files(self, choices: Sequence[TunedChoice], device_name: str) -> list[ExportedFile]:
        weights = dict[tuple[int, int], dict[int, dict[str, int]]]()
        for choice in choices:
            shape = choice.problem.shape
            weights.setdefault((shape.n, shape.k), {})[shape.m] = entry_of(choice.written)
        return [
            ExportedFile(
                self.file_name(n, k, device_name),
                (json.dumps({str(m): entries[m] for m in sorted(entries)}, indent=4) + "\n").encode(),
                len(entries),
                "problems",
            )
            for (n, k), entries in weights.items()
        ]


def entry_of(configuration: Configuration) -> dict[str, int]:
    """A kernel as the files have it."""
    parameters = dict(configuration.kernel.parameters)
    return {theirs: parameters[ours] for theirs, ours in _KEYS.items()}


class Vllm(BlockLinears):
    name = "vllm"
    consumer = Consumer("vllm", ("0.33.0",))
    use = "Copy the files into this folder of the installed package: vllm/model_executor/layers/quantization/utils/configs"
    default_stages = 2
    block_shape = f"[{_BLOCK},{_BLOCK}]"
    help = """Write tuned Triton kernels of block-scaled FP8 linear layers for vLLM.

    Copy the files into vllm/model_executor/layers/quantization/utils/configs of the installed package. A kernel is written if
    a paired measurement, given with --proof, shows that it is faster than vLLM's default; otherwise the default is.

    Examples:
        farm export vllm --type nvidia-h200 --proof checks.json --output configs/
    """


class Sglang(BlockLinears):
    name = "sglang"
    consumer = Consumer("sglang", ("0.5.23",))
    use = "Copy the files into this folder of the installed package: sglang/kernels/ops/gemm/configs"
    default_stages = 3
    block_shape = f"[{_BLOCK}, {_BLOCK}]"
    help = """Write tuned Triton kernels of block-scaled FP8 linear layers for SGLang.

    Copy the files into sglang/kernels/ops/gemm/configs of the installed package. A kernel is written if a paired measurement,
    given with --proof, shows that it is faster than SGLang's default; otherwise the default is.

    Examples:
        farm export sglang --type nvidia-h200 --proof checks.json --output configs/
    """
