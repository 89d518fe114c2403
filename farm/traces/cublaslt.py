"""cuBLASLt's log, as programs write it with CUBLASLT_LOG_LEVEL=2 or more, or with CUBLASLT_LOG_MASK=2.

Each call is a line of the level `Trace`. cuBLAS computes many of its products through cuBLASLt, which logs them under names as
`cublasLtTSTMatmul`. A matrix lies column by column unless its `order` says otherwise, so the product of the farm is the transposed
one. Source: NVIDIA's documentation of cuBLASLt's logging, and the formats in libcublasLt 13.10.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from farm.fusion import Fusion
from farm.gemm import ElementType
from farm.scale import Scale
from farm.traces.torch_types import parsed_scale
from farm.traces.trace import SHARED, Gemms, Lines, layout_of

_E = ElementType
_NESTED = re.compile(r" ?emulationDesc=\[[^\]]*\]")
_CALL = re.compile(r"\[cublasLt\]\[\d+\]\[Trace\]\[cublasLt[A-Z]{0,3}Matmul\] (.*)")
_GROUP = re.compile(r"(\w+)=\[([^\[\]]*)\]")
_PAIR = re.compile(r"(\w+)=([^\s\[\]]+)")
_NUMBER = re.compile(r"\d{1,15}", re.ASCII)

_TYPES = {
    "R_64F": _E.F64, "R_32F": _E.F32, "R_16F": _E.F16, "R_16BF": _E.BF16, "R_8F_E4M3": _E.F8E4M3, "R_8F_E5M2": _E.F8E5M2,
    "R_8I": _E.I8, "R_32I": _E.I32,
}  # fmt: skip
_COMPUTE = {
    "COMPUTE_64F": _E.F64, "COMPUTE_32F": _E.F32, "COMPUTE_16F": _E.F16, "COMPUTE_32I": _E.I32, "COMPUTE_32F_FAST_TF32": _E.TF32
}  # fmt: skip
_FUSED = {
    "DEFAULT": Fusion.NONE, "BIAS": Fusion.BIAS, "RELU": Fusion.RELU, "GELU": Fusion.GELU,
    "RELU_BIAS": Fusion.BIAS_RELU, "GELU_BIAS": Fusion.BIAS_GELU,
}  # fmt: skip
_SCALES = {
    "": "tensor",
    "SCALAR_32F": "tensor",
    "OUTER_VEC_32F": "row",
    "VEC128_32F": "1x128",
    "BLK128x128_32F": "128x128",
}

Fields = Mapping[str, str]


class CublasLt:
    """See the module."""

    name = "cuBLASLt log"
    looks_for = "cuBLASLt's calls, as [cublasLt][1][Trace][cublasLtMatmul] (record with CUBLASLT_LOG_LEVEL=2)"

    def begins(self, line: str) -> bool:
        return "[cublasLt][" in line

    def read(self, lines: Lines, found: Gemms) -> None:
        for line in lines:
            call = _CALL.search(line) if "Matmul] " in line else None
            if call is not None:
                fields = _NESTED.sub("", call[1])
                groups = {name: dict(_PAIR.findall(inside)) for name, inside in _GROUP.findall(fields)}
                rest = dict(_PAIR.findall(_GROUP.sub("", fields)))
                try:
                    _add(groups, rest, found)
                except KeyError as error:
                    raise lines.wrong(
                        f"the call of cublasLtMatmul has no {error.args[0]}; the line is cut off"
                    ) from None
                except ValueError as error:
                    raise lines.wrong(str(error)) from None


def _number(fields: Fields, name: str, default: str | None = None) -> int:
    text = fields[name] if default is None else fields.get(name, default)
    if not _NUMBER.fullmatch(text):
        raise ValueError(f"{name} is {text[:20]!r}, not a whole number")
    return int(text)


def _sizes(matrix: Fields, operation: str | None) -> tuple[int, int]:
    """Rows and columns of the operand."""
    rows, columns = _number(matrix, "rows"), _number(matrix, "cols")
    return (rows, columns) if operation in (None, "OP_N") else (columns, rows)


def _add(groups: Mapping[str, Fields], rest: Fields, found: Gemms) -> None:
    a, b, d, compute = (groups[name] for name in ("Adesc", "Bdesc", "Ddesc", "computeDesc"))
    m, n = _number(d, "rows"), _number(d, "cols")
    sizes_of_a, sizes_of_b = _sizes(a, compute.get("transa")), _sizes(b, compute.get("transb"))
    k = sizes_of_a[1]
    if (sizes_of_a, sizes_of_b) != ((m, k), (k, n)):
        raise ValueError(f"A {sizes_of_a}, B {sizes_of_b} and D {(m, n)} do not fit together")
    why = _why_left_out(groups)
    fused = _FUSED.get(compute.get("epilogue", "EPILOGUE_DEFAULT").removeprefix("EPILOGUE_"))
    by_columns = d.get("order", "ORDER_COL") == "ORDER_COL"
    scale = _scale(compute, "ba" if by_columns else "ab")
    arithmetic = _COMPUTE.get(compute["computeType"].removesuffix("_PEDANTIC"))
    if why is None and fused is None:
        why = f"the epilogue {compute['epilogue']}"
    if why is None and scale is None:
        why = f"the scale factors {compute.get('aScaleMode', 'SCALAR_32F')} of A and {compute.get('bScaleMode', 'SCALAR_32F')} of B"
    if why is None and arithmetic is None:
        why = f"arithmetic in {compute['computeType']}"
    unknown = next((matrix["type"] for matrix in (a, b, d) if matrix["type"] not in _TYPES), None)
    if why is None and unknown is not None:
        why = f"the type {unknown}"
    if why is not None:
        found.leave_out(why)
        return
    # With rows one after the other, A and B are those of cuBLASLt. Otherwise the farm's are the transposed B and A.
    first, second = ((b, "transb"), (a, "transa")) if by_columns else ((a, "transa"), (b, "transb"))
    lies = [
        (compute.get(op, "OP_N") != "OP_N") != (matrix.get("order", "ORDER_COL") != d.get("order", "ORDER_COL"))
        for matrix, op in (first, second)
    ]
    of_a, of_b = (_as_computed(_TYPES[matrix["type"]], arithmetic) for matrix, _ in (first, second))
    batch = _number(d, "batchCount", "1")
    if batch > 1 and "0" in (a.get("stridedBatchOffset"), b.get("stridedBatchOffset")):
        found.remark(SHARED)
    beta = rest.get("beta", "0")
    if beta == "?":
        found.remark("cuBLASLt does not log a beta that is in the memory of the GPU: it is taken as 0.")
        beta = "0"
    found.add(
        "cublasLtMatmul",
        (n, m, k) if by_columns else (m, n, k),
        (of_a, of_b, _TYPES[d["type"]]),
        layout_of(*lies),
        accumulator=_E.F32 if arithmetic is _E.TF32 else arithmetic,
        batch=batch,
        beta=float(beta),
        fused=fused,
        scale=scale,
    )


def _as_computed(kind: ElementType, arithmetic: ElementType | None) -> ElementType:
    return _E.TF32 if kind is _E.F32 and arithmetic is _E.TF32 else kind


def _why_left_out(groups: Mapping[str, Fields]) -> str | None:
    d, compute = groups["Ddesc"], groups["computeDesc"]
    for name in ("Adesc", "Bdesc", "Ddesc"):
        order = groups[name].get("order", "ORDER_COL")
        if order not in ("ORDER_COL", "ORDER_ROW"):
            return f"a matrix in the order {order}"
        if "batchMode" in groups[name]:
            return f"a batch in the mode {groups[name]['batchMode']}"
    if "OP_C" in (compute.get("transa"), compute.get("transb")):
        return "a conjugated matrix"
    if d.get("order") == "ORDER_ROW" and "BIAS" in compute.get("epilogue", ""):
        return "a bias for each row of the product"
    return None


def _scale(compute: Fields, order: str) -> Scale | None:
    """The scale factors of the farm's A and B, in the order of cuBLASLt's; None where the farm has no such."""
    if "aScalePointer" not in compute and "bScalePointer" not in compute:
        return Scale.NONE
    of_a, of_b = (_SCALES.get(compute.get(f"{matrix}ScaleMode", "")) for matrix in order)
    return None if of_a is None or of_b is None else parsed_scale(of_a, of_b)
