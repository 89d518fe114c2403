"""TunableOp's lists of GEMMs, as PyTorch writes them with PYTORCH_TUNABLEOP_RECORD_UNTUNED=1, and its lists of results.

A line has the operation with its types, `GemmTunableOp_BFloat16_TN`, and the sizes, `tn_4096_8_4096_ld_4096_4096_4096`. They are
those of BLAS: matrices lie column by column, so the product of the farm is the transposed one. Source: GemmCommon.h and
TunableGemm.h in aten/src/ATen/cuda/tunable of PyTorch 2.13.
"""

from __future__ import annotations

import re

from farm.fusion import Fusion
from farm.scale import Scale
from farm.traces.torch_types import torch_type
from farm.traces.trace import Gemms, Lines, layout_of

_OPERATION = re.compile(r"(?P<kind>\w*TunableOp)_(?P<types>.+)_[NTC]{2}")
_SIZES = re.compile(
    r"(?P<a>[ntc])(?P<b>[ntc])_(?P<m>\d{1,12})_(?P<n>\d{1,12})_(?P<k>\d{1,12})(?:_B_(?P<batch>\d{1,12}))?"
    r"(?:_ld_\d+_\d+_\d+)?(?:_rw_(?P<row>[01]))?(?:_bias_(?P<bias>\w+))?",
    re.ASCII,
)
_PLAIN = ("GemmTunableOp", "GemmAndBiasTunableOp", "GemmStridedBatchedTunableOp")
_SCALED = "ScaledGemmTunableOp"
_EIGHT_BITS = re.compile(r"(Float8_\w+?)_(Float8_\w+?)_([A-Z]\w*|float|double)")


class TunableOp:
    """See the module."""

    name = "TunableOp"
    looks_for = "TunableOp's lines, as GemmTunableOp_BFloat16_TN,tn_4096_8_4096_ld_4096_4096_4096"

    def begins(self, line: str) -> bool:
        return "TunableOp_" in line and _OPERATION.match(line) is not None

    def read(self, lines: Lines, found: Gemms) -> None:
        for line in lines:
            cells = line.strip().split(",")
            if not line.strip() or cells[0] == "Validator":
                continue
            operation = _OPERATION.fullmatch(cells[0])
            sizes = _SIZES.fullmatch(cells[1]) if len(cells) > 1 else None
            if operation is None or sizes is None:
                raise lines.wrong(
                    f"{line.strip()[:80]!r} is no line of TunableOp, which is as GemmTunableOp_BFloat16_TN,tn_4096_8_4096"
                )
            self._add(operation, sizes, found)
        found.remark("TunableOp records each GEMM once, so the number of calls is not known: each counts as one.")

    def _add(self, operation: re.Match[str], sizes: re.Match[str], found: Gemms) -> None:
        kind, names = operation["kind"], operation["types"]
        scaled = _EIGHT_BITS.fullmatch(names)
        if kind not in (*_PLAIN, _SCALED) or (kind == _SCALED and scaled is None) or "c" in sizes["a"] + sizes["b"]:
            found.leave_out(f"{operation[0]} is not read")
            return
        # A of BLAS is B of the farm.
        try:
            b, a, d = (torch_type(name) for name in (scaled.groups() if scaled and kind == _SCALED else (names,) * 3))
        except ValueError as error:
            found.leave_out(f"{kind} of {error}")
            return
        biased = kind == "GemmAndBiasTunableOp" or (sizes["bias"] or "None") != "None"
        scale = Scale.NONE if kind != _SCALED else Scale.ROW if sizes["row"] == "1" else Scale.TENSOR
        found.add(
            kind,
            (int(sizes["n"]), int(sizes["m"]), int(sizes["k"])),
            (a, b, d),
            layout_of(sizes["b"] == "t", sizes["a"] == "t"),
            batch=int(sizes["batch"] or 1),
            scale=scale,
            fused=Fusion.BIAS if biased else Fusion.NONE,
        )
