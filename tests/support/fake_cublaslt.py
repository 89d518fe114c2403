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

from support.fake_cuda import FakeCupy, at_address


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


CHOSEN = {"ID": 66, "SPLITK_NUM": 1, "REDUCTION_SCHEME": 0, "CTA_SWIZZLING": 0, "CUSTOM_OPTION": 7}
CHOSEN |= {"TILE_ID": 24, "STAGES_ID": 35, "CLUSTER_SHAPE_ID": 999}


def _read(address: int, dtype: Any) -> int:
    return int(np.ctypeslib.as_array((np.ctypeslib.as_ctypes_type(dtype) * 1).from_address(address))[0])


@dataclass
class Described:
    """A matrix layout or an operation: what it was made of, and the attributes that were set."""

    made_of: tuple[int, ...]
    attributes: dict[str, int] = field(default_factory=dict)


class FakeLt:
    """The low-level bindings, which count what they make and remember what they were asked for."""

    cuBLASLtError = LtError
    MatmulTile, MatmulStages, ClusterShape = Tile, Stages, Cluster
    MatmulDescAttribute = MatmulPreferenceAttribute = MatmulAlgoConfigAttribute = MatrixLayoutAttribute = Attributes()

    def __init__(self) -> None:
        self.alive = 0
        self.offers = 8
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
    destroy = matmul_desc_destroy = matrix_layout_destroy = matmul_preference_destroy = destroy_one

    def get_version(self) -> int:
        return 130100

    def attribute_type(self, name: str) -> Any:
        return np.int64 if name == "STRIDED_BATCH_OFFSET" else np.int32

    get_matmul_desc_attribute_dtype = get_matmul_preference_attribute_dtype = attribute_type
    get_matmul_algo_config_attribute_dtype = get_matrix_layout_attribute_dtype = attribute_type

    def set_attribute(self, described: int, name: str, address: int, size: int) -> None:
        kind = self.attribute_type(name)
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


class ComputingLt(FakeLt):
    """Computes f32 and f64 with NumPy, at the addresses and in the layouts that it is given."""

    def __init__(self, cupy: FakeCupy) -> None:
        super().__init__()
        self._cupy = cupy
        # Pairs of a product in the batch and the place that its result is written to.
        self.products: Callable[[int], Iterable[tuple[int, int]]] = lambda batch: ((n, n) for n in range(batch))
        self.gemm: Callable[[Any, Any], Any] = lambda a, b: a @ b

    def _columns(self, layout: int, address: int, number: int) -> Any:
        """A matrix of a batch, by columns."""
        described = self.described[layout]
        kind, rows, columns, leading = described.made_of
        dtype = {0: np.float32, 1: np.float64}[kind]
        stride = described.attributes.get("STRIDED_BATCH_OFFSET", 0)
        first = address + number * stride * np.dtype(dtype).itemsize
        return at_address(first, leading * columns, dtype).reshape(columns, leading).T[:rows]

    def matmul(self, *arguments: Any) -> None:
        _, description, alpha, x, first, y, second, beta, c, of_c, d, of_d, *_ = arguments
        operation = self.described[description].attributes
        batches = {self.described[layout].attributes.get("BATCH_COUNT", 1) for layout in (first, second, of_c, of_d)}
        (batch,) = batches

        def run() -> None:
            for number, place in self.products(batch):
                left, right = self._columns(first, x, number), self._columns(second, y, number)
                left = left.T if operation["TRANSA"] else left
                right = right.T if operation["TRANSB"] else right
                scalar = left.dtype.type
                # The row-major product, as `FakeCupy` computes it.
                result = at_address(alpha, 1, scalar)[0] * self.gemm(right.T, left.T).T
                if at_address(beta, 1, scalar)[0]:
                    result = result + at_address(beta, 1, scalar)[0] * self._columns(of_c, c, number)
                self._columns(of_d, d, place)[...] = result

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
