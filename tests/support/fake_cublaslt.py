"""cuBLASLt's low-level bindings without a card: what is asked of them is kept, and they may compute it on this machine's memory."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from farm.gemm import ElementType
from support.fake_cuda import FakeCupy, at_address, gelu
from workers.measure.elements import STORAGE, decode, encode

E = ElementType


class LtError(Exception):
    pass


class Attributes(dict[str, str]):
    """An enumeration of attributes, by name."""

    def __missing__(self, name: str) -> str:
        return name

    def __getattr__(self, name: str) -> str:
        return name


class Tile(IntEnum):
    TILE_UNDEFINED = 0
    TILE_128x256 = 24


class Stages(IntEnum):
    STAGES_64xAUTO = 35


class Cluster(IntEnum):
    SHAPE_2x1x1 = 3


class MatrixScale(IntEnum):
    SCALAR_32F = 0
    OUTER_VEC_32F = 3
    VEC128_32F = 4
    BLK128x128_32F = 5


class PointerMode(IntEnum):
    HOST = 0
    DEVICE = 1


class IntegerWidth(IntEnum):
    WIDTH_32 = 0
    WIDTH_64 = 1


class Epilogue(IntEnum):
    DEFAULT = 1
    RELU = 2
    BIAS = 4
    RELU_BIAS = 6
    GELU = 32
    GELU_BIAS = 36


CHOSEN = {"ID": 66, "SPLITK_NUM": 1, "REDUCTION_SCHEME": 0, "CTA_SWIZZLING": 0, "CUSTOM_OPTION": 7}
CHOSEN |= {"TILE_ID": 24, "STAGES_ID": 35, "CLUSTER_SHAPE_ID": 999}


def _read(address: int, dtype: Any) -> int:
    return int(np.ctypeslib.as_array((np.ctypeslib.as_ctypes_type(dtype) * 1).from_address(address))[0])


@dataclass
class Described:
    """A matrix layout or an operation: what it was made of, and the attributes that were set."""

    made_of: tuple[int, ...]
    attributes: dict[str, int] = field(default_factory=dict)

    @property
    def grouped(self) -> bool:
        """Whether it is a layout of groups."""
        return len(self.made_of) == 5

    @property
    def count(self) -> int:
        """How many matrices a layout has."""
        return self.made_of[1] if self.grouped else self.attributes.get("BATCH_COUNT", 1)

    def array(self, name: str, place: int) -> Any:
        """An array of a layout of groups, in the width that was said of it."""
        wide = self.attributes.get(f"GROUPED_{name}_ARRAY_INTEGER_WIDTH", IntegerWidth.WIDTH_32)
        return at_address(self.made_of[place], self.count, np.int64 if wide else np.int32)


class FakeLt:
    """The low-level bindings, which count what they make and remember what they were asked for."""

    cuBLASLtError = LtError
    MatmulTile, MatmulStages, ClusterShape = Tile, Stages, Cluster
    MatmulMatrixScale, Epilogue, PointerMode, IntegerWidth = MatrixScale, Epilogue, PointerMode, IntegerWidth
    MatmulDescAttribute = MatmulPreferenceAttribute = MatmulAlgoConfigAttribute = MatrixLayoutAttribute = Attributes()

    def __init__(self) -> None:
        self.alive = 0
        self.offers = 8
        self.version = 130100
        self.error: LtError | None = None
        self.multiplied: list[tuple[Any, ...]] = []
        self.described: list[Described] = []  # all that were made; an address is a place in it

    def make(self, *given: Any) -> int:
        self.alive += 1
        self.described.append(Described(given))
        return len(self.described) - 1

    def destroy_one(self, _: int) -> None:
        self.alive -= 1

    create = matmul_desc_create = matrix_layout_create = matmul_preference_create = make
    grouped_matrix_layout_create = make  # of a type, how many, and arrays of rows, columns and leading dimensions
    destroy = matmul_desc_destroy = matrix_layout_destroy = matmul_preference_destroy = destroy_one

    def get_version(self) -> int:
        return self.version

    def attribute_type(self, name: str) -> Any:
        if name.endswith("_POINTER"):
            return np.uint64
        if name.startswith("GROUPED_") and "AVERAGE" in name:
            return np.uint32  # as the bindings have it
        return np.int64 if name in ("STRIDED_BATCH_OFFSET", "BIAS_BATCH_STRIDE") else np.int32

    get_matmul_desc_attribute_dtype = get_matmul_preference_attribute_dtype = attribute_type
    get_matmul_algo_config_attribute_dtype = get_matrix_layout_attribute_dtype = attribute_type

    def set_attribute(self, described: int, name: str, address: int, size: int) -> None:
        kind = np.int64 if "AVERAGE" in name else self.attribute_type(name)  # as the library has it
        assert size == np.dtype(kind).itemsize
        self.described[described].attributes[name] = _read(address, kind)

    matmul_desc_set_attribute = matmul_preference_set_attribute = matrix_layout_set_attribute = set_attribute

    def MatmulHeuristicResult(self, wanted: int) -> Any:
        class Found(list[Any]):
            ptr = 0

        return Found(
            SimpleNamespace(algo=np.zeros(8, np.uint64), waves_count=1.5, workspace_size=64) for _ in range(wanted)
        )

    def matmul_algo_get_heuristic(self, *arguments: Any) -> None:
        if self.error is not None:
            raise self.error
        wanted, count = arguments[7], arguments[9]
        np.ctypeslib.as_array((np.ctypeslib.ctypes.c_int32 * 1).from_address(count))[0] = min(wanted, self.offers)

    def matmul_algo_config_get_attribute(self, _: int, name: str, buffer: int, __: int, ___: int) -> None:
        np.ctypeslib.as_array((np.ctypeslib.ctypes.c_int32 * 1).from_address(buffer))[0] = CHOSEN[name]

    def matmul(self, *arguments: Any) -> None:
        self.multiplied.append(arguments)


ELEMENTS = {0: E.F32, 1: E.F64, 2: E.F16, 14: E.BF16, 28: E.F8E4M3, 29: E.F8E5M2}
"""The types of cudaDataType_t that `ComputingLt` computes."""


def each_factor(mode: MatrixScale, address: int, lines: int, k: int) -> Any:
    """The factor of each element, [lines, k], from where cuBLASLt documents the factors of blocks to lie."""
    groups, blocks = -(-k // 128), -(-lines // 128)
    match mode:
        case MatrixScale.SCALAR_32F:
            return at_address(address, 1, np.float32)
        case MatrixScale.OUTER_VEC_32F:
            return at_address(address, lines, np.float32)[:, None]
        case MatrixScale.VEC128_32F:
            return at_address(address, groups * lines, np.float32).reshape(groups, lines).T.repeat(128, 1)[:, :k]
        case MatrixScale.BLK128x128_32F:
            padded = -(-groups // 4) * 4
            lies = at_address(address, blocks * padded, np.float32).reshape(blocks, padded)
            return lies.repeat(128, 0).repeat(128, 1)[:lines, :k]


class ComputingLt(FakeLt):
    """Computes with NumPy, at the addresses and in the layouts that it is given."""

    def __init__(self, cupy: FakeCupy) -> None:
        super().__init__()
        self._cupy = cupy
        # Pairs of a product in the batch and the place that its result is written to.
        self.products: Callable[[int], Iterable[tuple[int, int]]] = lambda batch: ((n, n) for n in range(batch))
        self.gemm: Callable[[Any, Any], Any] = lambda a, b: a @ b

    def _columns(self, layout: int, address: int, number: int) -> Any:
        """The elements of a matrix of a batch, by columns."""
        described = self.described[layout]
        dtype = STORAGE[self._type_of(described)]
        if described.grouped:
            extents = (described.array(name, place) for name, place in (("ROWS_COLS", 2), ("ROWS_COLS", 3), ("LD", 4)))
            rows, columns, leading = (int(array[number]) for array in extents)
            first = self._of_group(described, address, number)
            assert first % 16 == leading * np.dtype(dtype).itemsize % 16 == 0
        else:
            _, rows, columns, leading = described.made_of
            stride = described.attributes.get("STRIDED_BATCH_OFFSET", 0)
            first = address + number * stride * np.dtype(dtype).itemsize
        return at_address(first, leading * columns, dtype).reshape(columns, leading).T[:rows]

    def _of_group(self, described: Described, address: int, number: int) -> int:
        """The address of a group, from an array of addresses."""
        return int(at_address(address, described.made_of[1], np.uint64)[number])

    def _type_of(self, described: Described) -> ElementType:
        return ELEMENTS[described.made_of[0]]

    def _type(self, layout: int) -> ElementType:
        return self._type_of(self.described[layout])

    def _operand(self, layout: int, address: int, number: int, transposed: int) -> Any:
        """An operand of the product, as numbers."""
        elements = self._columns(layout, address, number)
        kind = self._type(layout)
        numbers = elements if kind in (E.F32, E.F64) else decode(kind, elements)
        return numbers.T if transposed else numbers

    def _scaled(self, numbers: Any, operation: dict[str, int], name: str, layout: int, number: int) -> Any:
        """An operand with its lines along the first axis, times its factors."""
        address, mode = operation.get(f"{name}_SCALE_POINTER", 0), operation.get(f"{name}_SCALE_MODE", 0)
        if address and self.described[layout].grouped:
            address = self._of_group(self.described[layout], address, number)
            assert address % 16 == 0
        return numbers * each_factor(MatrixScale(mode), address, *numbers.shape) if address else numbers

    def _fused(self, result: Any, operation: dict[str, int], kind: ElementType, number: int) -> Any:
        epilogue = Epilogue(operation.get("EPILOGUE", Epilogue.DEFAULT))
        if epilogue & Epilogue.BIAS:
            dtype = STORAGE[kind]
            first = (
                operation["BIAS_POINTER"] + number * operation.get("BIAS_BATCH_STRIDE", 0) * np.dtype(dtype).itemsize
            )
            result = result + decode(kind, at_address(first, len(result), dtype)).astype(result.dtype)[:, None]
        if epilogue & Epilogue.RELU:
            result = np.maximum(result, 0)
        return gelu(result) if epilogue & Epilogue.GELU else result

    def matmul(self, *arguments: Any) -> None:
        _, description, alpha, x, first, y, second, beta, c, of_c, d, of_d, *_ = arguments
        # What is set later is for later launches.
        operation = dict(self.described[description].attributes)
        (batch,) = {self.described[layout].count for layout in (first, second, of_c, of_d)}
        if self.described[of_d].grouped:
            assert operation["POINTER_MODE"] == PointerMode.DEVICE
        kind = self._type(of_d)

        def run() -> None:
            for number, place in self.products(batch):
                left = self._scaled(self._operand(first, x, number, operation["TRANSA"]), operation, "A", first, number)
                right = self._scaled(
                    self._operand(second, y, number, operation["TRANSB"]).T, operation, "B", second, number
                ).T
                scalar = np.float64 if kind is E.F64 else np.float32
                # The row-major product, as `FakeCupy` computes it.
                result = at_address(alpha, 1, scalar)[0] * self.gemm(right.T, left.T).T
                if at_address(beta, 1, scalar)[0]:
                    addend = self._operand(of_c, c, number, 0)
                    result = result + at_address(beta, 1, scalar)[0] * addend
                result = self._fused(result, operation, kind, number)
                self._columns(of_d, d, place)[...] = encode(kind, result)

        if self._cupy.capturing is not None:
            self._cupy.capturing.append(run)
        else:
            run()


def install(fake: FakeLt, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets imports of the bindings give the fake ones."""
    modules = {
        "nvmath.bindings.cublasLt": fake,
        "nvmath.bindings.cublas": SimpleNamespace(
            ComputeType={name: n for n, name in enumerate(("COMPUTE_32F", "COMPUTE_64F", "COMPUTE_32I"))}
        ),
    }
    real = importlib.import_module
    monkeypatch.setattr(importlib, "import_module", lambda name: modules.get(name) or real(name))
