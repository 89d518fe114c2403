"""Every column of a row of results: those of the view `v_measurements`, in the order of an export.

The columns of a measurement are declared with the fields of `farm.measurement.Measurement`. The others are here: where and when
a row was measured, its configuration, and the columns that the view derives. The table of results, its statements,
filters, exports, recordings, imports, `farm measure`, T4 files, API documents and docs/sql.md take their columns from here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from types import UnionType
from typing import Any, get_args, get_type_hints

from farm.fusion import Fusion
from farm.measurement import Measurement, Source
from farm.scale import Scale
from farm.schema.column import Column, ColumnType, Group
from farm.sparsity import Sparsity


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


_ORIGIN = (
    Column("id of the job; NULL in rows that were imported", name="job_id", type=ColumnType.BIGINT, nullable=True, exported=False, filterable=False),
    Column("id of the campaign; NULL in rows that were imported", name="campaign_id", type=ColumnType.BIGINT, nullable=True, exported=False, filterable=False),
    Column("name of the campaign; NULL in rows that were imported", name="campaign", nullable=True),
    Column("type of the device, as in `nvidia-h200`", name="device_type"),
    Column("name of the host", name="host"),
    Column("UUID of the device, as the driver gives it", name="device_uuid"),
    Column("the maker's name of the device", name="device_name", exported=False, filterable=False),
    Column("`cuda`, `cpu` or `recorded`", name="backend", exported=False, filterable=False),
)  # fmt: skip
_CONFIGURATION = (
    Column("kernel family", name="family"),
    Column('parameters of the kernel, as in `{"tile": 16}`', name="parameters", type=ColumnType.JSONB),
    Column("rows of C: C[m,n] = alpha · A[m,k] · B[k,n] + beta · C", name="m", type=ColumnType.BIGINT),
    Column("columns of B", name="n", type=ColumnType.BIGINT),
    Column("columns of A and rows of B", name="k", type=ColumnType.BIGINT),
    Column("element type of A and B", name="ab"),
    Column("element type of C", name="cd"),
    Column("element type of the accumulator", name="acc"),
    Column("`nn`, `nt`, `tn` or `tt`: A and B as written or transposed", name="layout"),
    Column("factor of A · B", name="alpha", type=ColumnType.DOUBLE),
    Column("factor of C", name="beta", type=ColumnType.DOUBLE),
    Column("products in a batch, of equal shape", name="batch", type=ColumnType.BIGINT),
    Column(f"scale factors of A and B: {_listed(Scale)}", name="scale"),
    Column(f"what follows the product: {_listed(Fusion)}", name="fused"),
    Column("rows of each group, as in `16*8,3,0`; `none` where the product is not in groups", name="groups"),
    Column(f"sparsity of B: {_listed(Sparsity)}", name="sparsity"),
)
_DERIVED = {
    "settled_samples": (
        Column("throughput, of `runtime_ms`", "TFLOP/s", Group.TIME, name="tflops", type=ColumnType.DOUBLE, label="TFLOP/s"),
        Column("floating-point operations of one GEMM, 2·batch·m·n·k", name="flops", type=ColumnType.DOUBLE, exported=False),
        Column("compulsory memory traffic of one GEMM", "B", name="bytes", type=ColumnType.DOUBLE, exported=False),
        Column("operations for each byte of compulsory memory traffic", "FLOP/B", Group.OPERANDS, name="intensity", type=ColumnType.DOUBLE, label="FLOP per byte"),
    ),
    "power_rse": (
        Column("energy of one GEMM: `power_w` times `runtime_settled_ms`, or times `runtime_ms` where that is NULL", "mJ", Group.POWER, name="energy_mj", type=ColumnType.DOUBLE, nullable=True, label="energy mJ per GEMM"),
        Column("operations for each joule", "GFLOP/s/W", Group.POWER, name="gflops_per_w", type=ColumnType.DOUBLE, nullable=True, label="GFLOP/s/W"),
    ),
}  # fmt: skip
"""What the view derives, by the column behind which an export has it."""
_ROW = (
    Column("round of a search; 0 elsewhere", name="round", type=ColumnType.SMALLINT),
    Column("when the row landed, or was measured where an import says so", name="measured_at", type=ColumnType.TIMESTAMPTZ),
    Column("id of the row", name="measurement_id", type=ColumnType.BIGINT),
    Column("id of the problem, the kernel and its parameters: equal in every farm", name="configuration_id", type=ColumnType.UUID),
)  # fmt: skip
_OBJECTS = ("environment", "details")


_TYPES = {
    bool: ColumnType.BOOLEAN,
    int: ColumnType.BIGINT,
    float: ColumnType.DOUBLE,
    str: ColumnType.TEXT,
    Source: ColumnType.TEXT,
    dict[str, Any]: ColumnType.JSONB,
}


def _fields() -> Iterator[Column]:
    """The fields of a measurement as columns, in their order."""
    for name, hint in get_type_hints(Measurement, include_extras=True).items():
        value_type, column = get_args(hint)
        nullable = isinstance(value_type, UnionType)
        python_type = get_args(value_type)[0] if nullable else value_type
        yield replace(column, name=name, type=_TYPES[python_type], nullable=nullable)


_FIELDS = tuple(_fields())


def _named(columns: Iterable[Column]) -> dict[str, Column]:
    return {column.name: column for column in columns}


RESULTS = _named(column for column in _FIELDS if column.name != "environment")
"""The columns that the table `measurements` has of a measurement, by name."""

DERIVED = tuple(column for columns in _DERIVED.values() for column in columns)
"""The columns that the view derives."""

CONFIGURATION = _named(_CONFIGURATION)
"""The columns of a configuration, as `Configuration.from_columns` reads them."""

COLUMNS = _named([
    *_ORIGIN,
    *_CONFIGURATION,
    *(one for field in _FIELDS if field.name not in _OBJECTS for one in (field, *_DERIVED.get(field.name, ()))),
    *_ROW,
    *(field for name in _OBJECTS for field in _FIELDS if field.name == name),
])  # fmt: skip
"""Every column of a row of results, by name, in the order of an export."""

EXPORTED = tuple(column.name for column in COLUMNS.values() if column.exported)
"""What `farm results` exports, in order."""


UNSTATED = {column.name: column.unstated for column in _FIELDS if column.unstated is not None}
"""What a row of an imported file counts as where the file does not say."""
