"""The `cusparselt` family: NVIDIA's library for 2:4 sparsity through nvmath-python's low-level bindings.

As for cuBLASLt, the row-major D = A·B is the column-major Dᵀ = Bᵀ·Aᵀ, so that our sparse B is the library's first operand, and a
bias along our rows is one along its columns. `bind` compresses the B of each operand set into memory of its own, which
launches read: neither pruning nor compressing is timed.

The addresses that a launch gets are those of A, the compressed B, C and D. That of a bias belongs to the plan, so each operand set
with a bias has a plan.

The bindings are imported when the first configuration is bound, and not before.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from farm.errors import InvalidOnDevice
from farm.fusion import Activation, Fusion
from farm.gemm import ElementType, Problem
from farm.installing import INSTALL
from farm.kernels import Configuration
from workers.kernels.base import BoundKernel, CardContext, Placement
from workers.kernels.cublaslt import DATA_TYPES, Matrix, as_columns
from workers.kernels.once import Opened

_COLUMNS = 1  # cusparseOrder_t
_ALIGNMENT_BYTES = 16
"""What the library requires of addresses."""

_APART_BYTES = 256
"""Compressed matrices start at multiples of it, as allocations do."""

_SEGMENTS = -1
"""The value of SPLIT_K that means segments of k."""

_ACTIVATIONS = {Activation.RELU: "ACTIVATION_RELU", Activation.GELU: "ACTIVATION_GELU"}
_REFUSALS = {
    3: "CUSPARSE_STATUS_INVALID_VALUE",
    4: "CUSPARSE_STATUS_ARCH_MISMATCH",
    8: "CUSPARSE_STATUS_MATRIX_TYPE_NOT_SUPPORTED",
    10: "CUSPARSE_STATUS_NOT_SUPPORTED",
}
"""Numbers of cusparseStatus_t (cusparse.h). The text of an error of the bindings has the number alone."""

_CHOICE = ("CONFIG_ID", "SPLIT_K", "SPLIT_K_MODE", "SPLIT_K_BUFFERS")
"""The attributes of cusparseLtMatmulAlgAttribute_t that a row keeps."""


class CusparseLtFamily:
    """The family on one card: one handle for all configurations."""

    def __init__(self, card: CardContext) -> None:
        self._library = Opened(lambda: _Library(card))

    def prepare(self, configuration: Configuration) -> None:
        """Does nothing: the library has its kernels, and choosing one takes little time."""

    def bind(self, configuration: Configuration, placement: Placement) -> BoundKernel:
        return _BoundCusparseLt(self._library.get(), configuration, placement)

    def close(self) -> None:
        self._library.close()


class _Library:
    """cuSPARSELt with a handle."""

    def __init__(self, card: CardContext) -> None:
        self.cp = card.cp
        try:
            self.lt: Any = importlib.import_module("nvmath.bindings.cusparseLt")
            with _supported(self.lt, "GPU of this kind"):
                self.handle = self.lt.init()
        except (ImportError, RuntimeError, OSError) as error:
            raise InvalidOnDevice(
                why=f"cusparselt needs nvmath-python and cuSPARSELt, which cannot be loaded here ({_first_line(error)}). "
                f"{INSTALL['cuda13']}, or cuda12 for drivers before 580"
            ) from None

    @property
    def version(self) -> str:
        """As in 0.8.1. The library returns 801."""
        number = int(self.lt.get_version(self.handle))
        return f"{number // 1000}.{number // 100 % 10}.{number % 100}"

    def close(self) -> None:
        self.lt.destroy(self.handle)

    def matrix(self, kind: ElementType, matrix: Matrix, batch: int, *, sparse: bool = False) -> int:
        """A description of matrices that follow each other."""
        given = (matrix.rows, matrix.columns, matrix.leading, _ALIGNMENT_BYTES, DATA_TYPES[kind], _COLUMNS)
        if sparse:
            made = self.lt.structured_descriptor_init(self.handle, *given, self.lt.Sparsity.SPARSITY_50_PERCENT)
        else:
            made = self.lt.dense_descriptor_init(self.handle, *given)
        if batch != 1:
            lt = self.lt
            for name, value in (("NUM_BATCHES", batch), ("BATCH_STRIDE", matrix.stride)):
                attribute = lt.MatDescAttribute[name]
                self._set(lt.mat_desc_set_attribute, made, attribute, lt.get_mat_desc_attribute_dtype(attribute), value)
        return int(made)

    def set_product(self, description: int, name: str, value: int) -> None:
        lt, attribute = self.lt, self.lt.MatmulDescAttribute[name]
        kind = lt.get_matmul_desc_attribute_dtype(attribute)
        self._set(lt.matmul_desc_set_attribute, description, attribute, kind, value)

    def set_choice(self, selection: int, name: str, value: int) -> None:
        lt, attribute = self.lt, self.lt.MatmulAlgAttribute[name]
        self._set(
            lt.matmul_alg_set_attribute, selection, attribute, lt.get_matmul_alg_attribute_dtype(attribute), value
        )

    def _set(self, setter: Any, made: int, attribute: Any, kind: Any, value: int) -> None:
        held = np.array([value], kind)
        setter(self.handle, made, attribute, held.ctypes.data, held.nbytes)

    def choice(self, selection: int, name: str) -> int:
        """An attribute of the library's choice. Raises its error where the card has none such."""
        attribute = self.lt.MatmulAlgAttribute[name]
        held = np.zeros(1, self.lt.get_matmul_alg_attribute_dtype(attribute))
        self.lt.matmul_alg_get_attribute(self.handle, selection, attribute, held.ctypes.data, held.nbytes)
        return int(held[0])


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


@contextmanager
def _supported(lt: Any, what: str) -> Iterator[None]:
    """Raises `InvalidOnDevice` if the library refuses it."""
    try:
        yield
    except lt.cuSPARSELtError as error:
        name = _REFUSALS.get(error.status)
        if name is None:
            raise
        raise InvalidOnDevice(why=f"cusparselt supports no {what} ({name})") from None


def _named(configuration: Configuration) -> str:
    """A configuration in messages."""
    problem = configuration.problem
    more = "" if problem.batch == 1 else f" in batches of {problem.batch}"
    more += "" if problem.fused is Fusion.NONE else f" with fused={problem.fused}"
    return f"{problem.types} with layout {problem.layout} and the shape {problem.shape}{more} by {configuration.kernel} here"


class _Plan:
    """A product with the library's choice, and the address of its bias, 0 without."""

    def __init__(
        self,
        library: _Library,
        configuration: Configuration,
        matrices: list[int],
        operations: tuple[int, int],
        bias: int,
    ) -> None:
        self._library, lt, problem = library, library.lt, configuration.problem
        self._made: list[tuple[Any, int]] = []
        parameters = dict(configuration.kernel.parameters)
        compute = lt.ComputeType["COMPUTE_32I" if problem.types.acc is ElementType.I32 else "COMPUTE_32F"]
        first, second, result = matrices
        try:
            description = lt.matmul_descriptor_init(library.handle, *operations, first, second, result, result, compute)
            self._made.append((lt.matmul_descriptor_destroy, description))
            if problem.fused.activation is not None:
                library.set_product(description, _ACTIVATIONS[problem.fused.activation], 1)
            if bias:
                library.set_product(description, "BIAS_POINTER", bias)
                if problem.batch != 1:
                    library.set_product(description, "BIAS_STRIDE", problem.shape.n)
            selection = lt.matmul_alg_selection_init(library.handle, description, lt.MatmulAlg.DEFAULT)
            self._made.append((lt.matmul_alg_selection_destroy, selection))
            number = parameters["algorithm"]
            count = library.choice(selection, "CONFIG_MAX_ID")
            if number > count:
                raise InvalidOnDevice(
                    why=f"cusparselt has {count} algorithms for {problem.types} here, so none is number {number}"
                )
            if number:
                library.set_choice(selection, "CONFIG_ID", number - 1)
            if parameters["split_k"] > 1 or parameters["segment_k"]:
                library.set_choice(
                    selection, "SPLIT_K", _SEGMENTS if parameters["segment_k"] else parameters["split_k"]
                )
            if parameters["split_mode"]:
                library.set_choice(selection, "SPLIT_K_MODE", parameters["split_mode"])
            self.address = int(lt.matmul_plan_init(library.handle, description, selection))
            self._made.append((lt.matmul_plan_destroy, self.address))
            self.choice: dict[str, int | None] = {"config_max_id": count}
            for name in _CHOICE:
                try:
                    self.choice[name.lower()] = library.choice(selection, name)
                except lt.cuSPARSELtError:  # which of them there are depends on the card
                    self.choice[name.lower()] = None
            self.workspace_bytes = int(lt.matmul_get_workspace(library.handle, self.address))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        while self._made:
            destroy, made = self._made.pop()
            destroy(made)


class _BoundCusparseLt:
    capturable = True
    # The library gives the same bits in every run (cuSPARSELt documentation, cusparseLtMatmul()).
    deterministic = True

    def __init__(self, library: _Library, configuration: Configuration, placement: Placement) -> None:
        self._library, self._placement = library, placement
        lt, problem = library.lt, configuration.problem
        self._alpha, self._beta = (np.array([value], np.float32) for value in (problem.alpha, problem.beta))
        self._stream = np.zeros(1, np.uint64)
        self._addresses = tuple(int(held.ctypes.data) for held in (self._alpha, self._beta, self._stream))
        self._matrices: list[int] = []
        self._plans: list[_Plan] = []
        try:
            with _supported(lt, _named(configuration)):
                self._describe(configuration)
                self._compress(problem)
            plan = self._plans[0]
            self._workspace = library.cp.empty(max(1, plan.workspace_bytes), np.uint8)
        except BaseException:
            self.close()
            raise
        self._workspace_at = int(self._workspace.data.ptr)
        # Parts of the sum may be added up in the type of D.
        self.roundings = max(1, plan.choice["split_k"] or 1)
        given = (str(problem.types), str(problem.layout), str(problem.fused), bool(problem.beta))
        named = repr((library.version, given, configuration.kernel.parameters, plan.choice))
        self.hash = hashlib.sha256(f"cusparselt {named}".encode()).hexdigest()

    def _describe(self, configuration: Configuration) -> None:
        library, problem = self._library, configuration.problem
        first, second, result = as_columns(problem)
        types = problem.types
        for kind, matrix, sparse in ((types.ab, first, True), (types.ab, second, False), (types.cd, result, False)):
            self._matrices.append(library.matrix(kind, matrix, problem.batch, sparse=sparse))
        sets = self._placement.sets if problem.fused.bias else 1
        for index in range(sets):
            bias = self._placement.added(index)[2]
            operations = first.operation, second.operation
            self._plans.append(_Plan(library, configuration, self._matrices, operations, bias))

    def _compress(self, problem: Problem) -> None:
        """Compresses the B of each operand set."""
        library, lt, plan = self._library, self._library.lt, self._plans[0].address
        size, buffer_bytes = (int(each) for each in lt.sp_mma_compressed_size(library.handle, plan))
        self.compressed_bytes, self._step = size, -(-size // _APART_BYTES) * _APART_BYTES
        self._compressed = library.cp.empty(self._step * self._placement.sets, np.uint8)
        self._compressed_at = int(self._compressed.data.ptr)
        # It goes back to CuPy's pool, which gives it to later work of this stream only.
        buffer, stream = library.cp.empty(max(1, buffer_bytes), np.uint8), library.cp.cuda.get_current_stream()
        for index in range(self._placement.sets):
            dense = self._placement.addresses(index)[1]
            target = self._compressed_at + index * self._step
            lt.sp_mma_compress(library.handle, plan, dense, target, int(buffer.data.ptr), stream.ptr)

    def launch(self, index: int) -> None:
        a, _, c, d = self._placement.addresses(index)
        library = self._library
        alpha, beta, stream = self._addresses
        self._stream[0] = library.cp.cuda.get_current_stream().ptr
        plan = self._plans[index if len(self._plans) > 1 else 0].address
        b = self._compressed_at + index * self._step
        # If beta is 0 there is no C, but the library needs a valid address.
        library.lt.matmul(
            library.handle, plan, alpha, b, a, beta, c or d, d, self._workspace_at, stream, 1,
        )  # fmt: skip

    def details(self) -> dict[str, Any]:
        """The choice of the library, and the size of a compressed B."""
        plan = self._plans[0]
        return {
            **plan.choice,
            "workspace_bytes": plan.workspace_bytes,
            "compressed_bytes": self.compressed_bytes,
            "cusparselt": self._library.version,
        }

    def close(self) -> None:
        for plan in self._plans:
            plan.close()
        for matrix in self._matrices:
            self._library.lt.mat_descriptor_destroy(matrix)
        self._plans, self._matrices = [], []
