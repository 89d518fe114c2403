"""cuSPARSELt's low-level bindings without a card: what is asked of them is kept, and computed on this machine's memory.

A compressed matrix is what the library would read: the elements that are kept, and behind them their indexes. A product reads
these alone, so that a launch with a B that was not compressed, or another set's, is wrong.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from enum import IntEnum
from typing import Any

import numpy as np
import pytest

from farm.gemm import ElementType
from support.fake_cublaslt import Described
from support.fake_cuda import FakeCupy, at_address, gelu
from workers.measure.elements import STORAGE, decode, encode

E = ElementType
ELEMENTS = {0: E.F32, 2: E.F16, 14: E.BF16, 28: E.F8E4M3, 3: E.I8, 10: E.I32}


class LtError(Exception):
    """As that of the bindings, whose text has the number of the status alone."""

    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__(f"cuSPARSELtError ({status})")


NOT_INITIALIZED, ARCH_MISMATCH, EXECUTION_FAILED, NOT_SUPPORTED = 1, 4, 6, 10


class Sparsity(IntEnum):
    SPARSITY_50_PERCENT = 0


class ComputeType(IntEnum):
    COMPUTE_32I = 0
    COMPUTE_16F = 1
    COMPUTE_32F = 2


class MatmulAlg(IntEnum):
    DEFAULT = 0


class Names(dict[str, str]):
    """An enumeration of attributes, by name."""

    def __missing__(self, name: str) -> str:
        return name


WIDE = ("BATCH_STRIDE", "BIAS_STRIDE", "BIAS_POINTER")


class FakeSparseLt:
    """The low-level bindings."""

    cuSPARSELtError = LtError
    Sparsity, ComputeType, MatmulAlg = Sparsity, ComputeType, MatmulAlg
    MatDescAttribute = MatmulDescAttribute = MatmulAlgAttribute = Names()

    def __init__(self, cupy: FakeCupy) -> None:
        self._cupy = cupy
        self.alive = 0
        self.missing: Exception | None = None
        self.error: LtError | None = None
        self.lacking: set[str] = set()  # attributes of a choice
        self.described: list[Described] = []  # an address is a place in it
        self.multiplied: list[tuple[Any, ...]] = []
        self.compressions = 0
        self.change: Callable[[Any, Any], None] = lambda values, indexes: None  # of a compressed matrix

    def make(self, *given: Any, **attributes: int) -> int:
        self.alive += 1
        self.described.append(Described(given, dict(attributes)))
        return len(self.described) - 1

    def destroy(self, _: int) -> None:
        self.alive -= 1

    matmul_plan_destroy = matmul_alg_selection_destroy = matmul_descriptor_destroy = mat_descriptor_destroy = destroy

    def init(self) -> int:
        if self.missing is not None:
            raise self.missing
        return self.make()

    def get_version(self, _: int) -> int:
        return 801

    def dense_descriptor_init(self, _: int, *given: int) -> int:
        return self.make(*given)

    structured_descriptor_init = dense_descriptor_init

    def matmul_descriptor_init(self, _: int, *given: int) -> int:
        if self.error is not None:
            raise self.error
        return self.make(*given)

    def matmul_alg_selection_init(self, _: int, description: int, alg: int) -> int:
        defaults = {"CONFIG_ID": 3, "CONFIG_MAX_ID": 5, "SPLIT_K": 1, "SPLIT_K_MODE": 1, "SPLIT_K_BUFFERS": 0}
        return self.make(description, alg, **defaults)

    def matmul_plan_init(self, _: int, description: int, selection: int) -> int:
        return self.make(description, selection)

    def attribute_type(self, name: str) -> Any:
        return np.int64 if name in WIDE else np.int32

    get_mat_desc_attribute_dtype = get_matmul_desc_attribute_dtype = get_matmul_alg_attribute_dtype = attribute_type

    def set_attribute(self, _: int, described: int, name: str, address: int, size: int) -> None:
        dtype = self.attribute_type(name)
        assert size == np.dtype(dtype).itemsize
        self.described[described].attributes[name] = int(at_address(address, 1, dtype)[0])

    mat_desc_set_attribute = matmul_desc_set_attribute = matmul_alg_set_attribute = set_attribute

    def matmul_alg_get_attribute(self, _: int, selection: int, name: str, address: int, size: int) -> None:
        if name in self.lacking:
            raise LtError(NOT_SUPPORTED)
        at_address(address, 1, np.int32)[0] = self.described[selection].attributes[name]
        assert size == 4

    def matmul_get_workspace(self, *_: int) -> int:
        return 640

    # --- matrices in memory ---

    def _batch(self, matrix: int) -> int:
        return self.described[matrix].attributes.get("NUM_BATCHES", 1)

    def _kind(self, matrix: int) -> ElementType:
        return ELEMENTS[self.described[matrix].made_of[4]]

    def _columns(self, matrix: int, address: int, number: int) -> Any:
        """The elements of a matrix of a batch, by columns."""
        rows, columns, leading, alignment, _, order, *_ = self.described[matrix].made_of
        assert (alignment, order) == (16, 1)
        dtype = STORAGE[self._kind(matrix)]
        first = address + number * self.described[matrix].attributes.get("BATCH_STRIDE", 0) * np.dtype(dtype).itemsize
        assert first % alignment == 0
        return at_address(first, leading * columns, dtype).reshape(columns, leading).T[:rows]

    def _of_plan(self, plan: int) -> Described:
        return self.described[self.described[plan].made_of[0]]

    def _shape(self, plan: int) -> tuple[int, int, Any]:
        """Rows and columns of the sparse operand as it is multiplied, [n, k], and its type."""
        transposed, _, sparse, *_ = self._of_plan(plan).made_of
        rows, columns = self.described[sparse].made_of[:2]
        return *((columns, rows) if transposed else (rows, columns)), STORAGE[self._kind(sparse)]

    def sp_mma_compressed_size(self, _: int, plan: int) -> tuple[int, int]:
        n, k, dtype = self._shape(plan)
        sparse = self._of_plan(plan).made_of[2]
        return self._batch(sparse) * n * (k // 2) * (np.dtype(dtype).itemsize + 1), 64

    def _compressed(self, plan: int, address: int) -> tuple[Any, Any]:
        """Views of the elements that are kept, and of their indexes: [batch, n, k / 4, 2]."""
        n, k, dtype = self._shape(plan)
        shape = (self._batch(self._of_plan(plan).made_of[2]), n, k // 4, 2)
        count = int(np.prod(shape))
        values = at_address(address, count, dtype).reshape(shape)
        return values, at_address(address + values.nbytes, count, np.uint8).reshape(shape)

    def sp_mma_compress(self, _: int, plan: int, dense: int, target: int, buffer: int, stream: int) -> None:
        assert buffer
        self.compressions += 1
        transposed, _, sparse, *_ = self._of_plan(plan).made_of
        values, indexes = self._compressed(plan, target)
        for number in range(self._batch(sparse)):
            elements = self._columns(sparse, dense, number)
            lines = elements.T if transposed else elements
            blocks = np.ascontiguousarray(lines).reshape(len(lines), -1, 4)
            zero = blocks.view(f"u{blocks.itemsize}") == 0
            assert zero.sum(axis=2).min() >= 2  # a dense matrix would lose elements
            indexes[number] = np.sort(np.argsort(zero, axis=2, kind="stable")[..., :2], axis=2)
            values[number] = np.take_along_axis(blocks, indexes[number].astype(int), 2)
        self.change(values, indexes)

    def matmul(self, *arguments: Any) -> None:
        _, plan, alpha, x, y, beta, c, d, workspace, streams, count = arguments
        self.multiplied.append(arguments)
        assert workspace
        assert count == 1
        assert int(at_address(streams, 1, np.uint64)[0]) == self._cupy.cuda.get_current_stream().ptr
        operation = dict(self._of_plan(plan).attributes)

        def run() -> None:
            _, transposed, sparse, second, of_c, of_d, _ = self._of_plan(plan).made_of
            values, indexes = self._compressed(plan, x)
            kind = self._kind(of_d)
            for number in range(self._batch(sparse)):
                kept = decode(self._kind(sparse), values[number])
                blocks = np.zeros((*kept.shape[:2], 4))
                np.put_along_axis(blocks, indexes[number].astype(int), kept, 2)
                right = decode(self._kind(second), self._columns(second, y, number))
                result = at_address(alpha, 1, np.float32)[0] * (
                    blocks.reshape(len(kept), -1) @ (right.T if transposed else right)
                )
                if at_address(beta, 1, np.float32)[0]:
                    result += at_address(beta, 1, np.float32)[0] * decode(kind, self._columns(of_c, c, number))
                bias = operation.get("BIAS_POINTER")
                if bias is not None:
                    dtype = STORAGE[kind]
                    first = bias + number * operation.get("BIAS_STRIDE", 0) * np.dtype(dtype).itemsize
                    result += decode(kind, at_address(first, len(result), dtype))[:, None]
                if operation.get("ACTIVATION_RELU"):
                    result = np.maximum(result, 0)
                if operation.get("ACTIVATION_GELU"):
                    result = gelu(result)
                target = self._columns(of_d, d, number)
                target[...] = result if kind is E.I32 else encode(kind, result.astype(np.float32))

        if self._cupy.capturing is not None:
            self._cupy.capturing.append(run)
        else:
            run()


def install(fake: FakeSparseLt, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets imports of the bindings give the fake ones."""
    modules = {"nvmath.bindings.cusparseLt": fake}
    real = importlib.import_module
    monkeypatch.setattr(importlib, "import_module", lambda name: modules.get(name) or real(name))
