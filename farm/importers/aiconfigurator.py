"""GEMM tables of NVIDIA AIConfigurator: how long linear layers took in a serving framework on a card.

A layer multiplies x[m,k] by the transpose of its weight[n,k], so the layout is `nt`. Layers in bf16 are products by the
vendor's library, whose choice is the baseline of GPUs.

Layers of other types get x in bf16 and quantise it in the time that is measured; then a kernel of the framework multiplies, and D is bf16. The
collectors of AIConfigurator (`collector/vllm/collect_gemm.py`) run them so:

- fp8 has one factor for x and one for the weight (`scale=tensor`), known in advance. Graphs are timed, as in bf16. These
  rows are of the family `layer`, because the quantisation is no part of a GEMM.
- fp8_block is left out. It has factors of 1x128 for x, found in the measured time, and of 128x128 for the weight (`scale=1x128:128x128`). No graph is
  used, so a time is that of the host that launches: https://github.com/ai-dynamo/aisimulate/pull/219 has 149 us without a
  graph and 12 us with one for 1x768x7168 on a B200.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from farm.db.imports import ImportedRow
from farm.devices import DeviceKind
from farm.gemm import ElementTypes, Layout, Problem, Shape
from farm.importers import files
from farm.importers.cards import CardReader, CardTable
from farm.importers.formats import Importer
from farm.importers.landing import Row, measurement_of, positive, sha256_of
from farm.kernels import BASELINES, Configuration, Kernel
from farm.protocols import ProtocolName
from farm.recording import check_columns
from farm.scale import Scale

COLUMNS = ("framework", "version", "device", "op_name", "kernel_source", "gemm_dtype", "m", "n", "k", "latency")
_KINDS = {
    **dict.fromkeys(COLUMNS, str),
    **dict.fromkeys(("m", "n", "k"), int),
    **dict.fromkeys(("latency", "power", "power_limit"), float),
}

POWER_FROM_MS = 0.1
"""Powers of shorter GEMMs are left out: the counter averages over about a second."""

_POWER_SOURCE = "aiconfigurator"
_PROVENANCE = "NVIDIA AIConfigurator: linear layers in a serving framework, mean of repeated calls"


@dataclass(frozen=True)
class LayerType:
    """What layers of a `gemm_dtype` multiply."""

    types: ElementTypes
    scale: Scale

    def problem(self, shape: Shape) -> Problem:
        """The product of a layer: x[m,k] times the transpose of weight[n,k]."""
        return Problem(shape, self.types, Layout.NT, scale=self.scale)


LAYER_TYPES = {
    "bfloat16": LayerType(ElementTypes.parse("bf16"), Scale.NONE),
    "fp8": LayerType(ElementTypes.parse("f8e4m3"), Scale.TENSOR),
    "fp8_block": LayerType(ElementTypes.parse("f8e4m3"), Scale.GROUP_BLOCK),
}
"""By the name in the column `gemm_dtype`, for imports and exports."""


@dataclass(frozen=True)
class _Imported:
    """Layers of a `gemm_dtype` that are imported.

    Attributes:
        sources: Known kernel sources.
        why: Why others are left out.
    """

    kernel: Kernel
    sources: tuple[str, ...]
    why: str


_IMPORTED = {
    "bfloat16": _Imported(
        BASELINES[DeviceKind.CUDA],
        ("torch.nn.functional.linear", "vllm_default"),  # vLLM's layer without quantisation calls the first
        "the vendor's library is torch.nn.functional.linear or vllm_default, and other kernels are not named",
    ),
    "fp8": _Imported(
        Kernel.of("layer"), ("CutlassFP8ScaledMMLinearKernel", "vllm_default"),
        "the layers that have one factor for x are CutlassFP8ScaledMMLinearKernel or vllm_default, and others are not known",
    ),
}  # fmt: skip

_WHY_NOT = {
    "fp8_block": "the layer was launched without a CUDA graph, so its time includes gaps between launches, and the quantisation of x",
    "nvfp4": "the farm has no element type of 4-bit floats",
}


def look(path: Path) -> CardTable:
    """Reads the head of a file and hashes it. Raises `BadRecording`, `MissingColumns`."""
    content = sha256_of(path)
    schema, rows = files.parquet_head(path)
    check_columns(path, schema.names, COLUMNS)
    return CardTable(path=path, content=content, rows=rows, provenance=_PROVENANCE, reads=LayerReader)


class LayerReader(CardReader):
    """Reads a table of linear layers."""

    def _batches(self) -> Iterable[Iterable[Row]]:
        return files.parquet_batches(self._table.path, _KINDS)

    def _row(self, number: int, row: Row) -> ImportedRow | None:
        missing = [name for name in COLUMNS if row[name] is None]
        if missing:
            raise ValueError(f"{', '.join(missing)} is missing")
        source, why = row["kernel_source"], _why_not(row["op_name"], row["gemm_dtype"], row["kernel_source"])
        if why is not None:
            self._leave_out(f"{row['op_name']} in {row['gemm_dtype']} by {source}", why, whole=True)
            return None
        problem = LAYER_TYPES[row["gemm_dtype"]].problem(Shape(row["m"], row["n"], row["k"]))
        latency_ms = positive("latency", row["latency"])
        measurement = measurement_of(
            latency_ms,
            runtime_burst_ms=latency_ms,
            protocol=ProtocolName.AICONFIGURATOR,
            **self._power(row),
            environment={"framework": row["framework"], "version": row["version"], "kernel_source": source},
        )
        return ImportedRow(
            number=number,
            device=self._device(row["device"]),
            measured_at=None,
            configuration=Configuration(problem, _IMPORTED[row["gemm_dtype"]].kernel),
            measurement=measurement,
        )

    def _power(self, row: Row) -> dict[str, Any]:
        """The columns of power, where the table has one and the GEMM took long enough."""
        power, limit = (
            None if row.get(name) is None else positive(name, row[name]) for name in ("power", "power_limit")
        )
        if power is not None and row["latency"] < POWER_FROM_MS:
            why = f"a GEMM of less than {POWER_FROM_MS:g} ms is short compared with the second over which the counter averages"
            self._leave_out("power", why, whole=False)
            power = None
        return {"power_w": power, "power_source": None if power is None else _POWER_SOURCE, "power_limit_w": limit}


@cache
def _why_not(op_name: str, gemm_dtype: str, kernel_source: str) -> str | None:
    """Why rows of that kind are not imported; None where they are."""
    if op_name != "gemm":
        return "it is no GEMM"
    if gemm_dtype not in _IMPORTED:
        return _WHY_NOT.get(gemm_dtype, "the farm has no element type of that name")
    known = _IMPORTED[gemm_dtype]
    return None if kernel_source in known.sources else known.why


IMPORTER = Importer(
    name="aiconfigurator",
    files="Parquet of NVIDIA AIConfigurator with GEMM latencies.",
    help="""Import GEMM tables of NVIDIA AIConfigurator: times of the vendor's library in bf16, and of layers in FP8 with one
    factor for each matrix (family layer). Other rows are left out.

    Examples:
        farm import aiconfigurator gemm_perf.parquet --dry-run
    """,
    look=look,
)
