"""The `cublaslt` family: NVIDIA's library through nvmath-python's low-level bindings, which a graph can capture.

cuBLASLt uses column-major order. The row-major D = A·B is its column-major Dᵀ = Bᵀ·Aᵀ, so B goes in as its first operand, and
no element is moved. The same holds for scale factors, and a bias along our rows is one along its columns. A batch is one launch
with strides, and groups of rows are one launch with arrays of addresses (`workers.kernels.cublaslt_groups`). The heuristic is asked with batch, scale factors and fused operations, and may choose otherwise than without them.
The configuration's `algorithm` is a rank in the list that the heuristic gives for a problem.

The bindings are imported when the first configuration is bound, and not before.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from farm.errors import InvalidOnDevice, MeasurementFailed
from farm.fusion import Fusion
from farm.gemm import ElementType, Problem
from farm.installing import INSTALL
from farm.kernels import Configuration
from farm.scale import Blocks, Scale
from workers.kernels.base import BoundKernel, CardContext, Placement
from workers.kernels.cublaslt_groups import GroupsOnCard, why_no_groups
from workers.kernels.once import Opened
from workers.measure.elements import STORAGE

E = ElementType

WORKSPACE_BYTES = 32 * 2**20
"""What NVIDIA recommends for Hopper; an algorithm that needs more is not offered."""

DATA_TYPES = {E.F64: 1, E.F32: 0, E.TF32: 0, E.F16: 2, E.BF16: 14, E.F8E4M3: 28, E.F8E5M2: 29, E.I8: 3, E.I32: 10}
"""cudaDataType_t of library_types.h."""

_OP_N, _OP_T = 0, 1  # cublasOperation_t

_SCALE_MODES = {
    Blocks(None, None): "SCALAR_32F",
    Blocks(1, None): "OUTER_VEC_32F",
    Blocks(1, 128): "VEC128_32F",
    Blocks(128, 128): "BLK128x128_32F",
}
"""The names in cublasLtMatmulMatrixScale_t."""

_EPILOGUES = {
    Fusion.BIAS: "BIAS",
    Fusion.RELU: "RELU",
    Fusion.GELU: "GELU",
    Fusion.BIAS_RELU: "RELU_BIAS",
    Fusion.BIAS_GELU: "GELU_BIAS",
}
"""The names in cublasLtEpilogue_t."""

_CONFIGURATION = {
    "algorithm_id": "ID",
    "split_k": "SPLITK_NUM",
    "reduction_scheme": "REDUCTION_SCHEME",
    "swizzle": "CTA_SWIZZLING",
    "custom_option": "CUSTOM_OPTION",
}
"""The numbers of cublasLtMatmulAlgoConfigAttributes_t that a row keeps."""

_NAMED = {
    "tile": ("TILE_ID", "MatmulTile"),
    "stages": ("STAGES_ID", "MatmulStages"),
    "cluster": ("CLUSTER_SHAPE_ID", "ClusterShape"),
}
"""Attributes that also have a name, and the enumeration with the names."""


_IN_PLACE, _OUTPUT_TYPE = 1, 4  # cublasLtReductionScheme_t


def roundings(configuration: Mapping[str, Any]) -> int:
    """How often an element is rounded to the type of D, for an algorithm that slices k.

    In place, each slice is added to D (cuBLAS documents "reduction is performed in-place using the output buffer"). Partial
    sums in the type of D are fractions of the result, so that all their errors together are those of one more rounding.
    Otherwise partial sums are kept in the compute type. Fused operations follow the sum of all slices.
    """
    slices = max(1, int(configuration["split_k"]))
    return {_IN_PLACE: slices, _OUTPUT_TYPE: min(slices, 2)}.get(configuration["reduction_scheme"], 1)


_WIDE_LOAD_BYTES = 16


def rounds_before_fused(problem: Problem) -> bool:
    """Whether a sum is rounded to the type of D before the bias and the activation.

    Seen on an H100 of rows that are no multiples of 16 bytes: of 16-bit results that a bias makes small, the error is that of the
    sum. Kernels for other rows keep the sum in float32.
    """
    s, types = problem.shape, problem.types
    rows = (s.n * types.cd.bytes, s.k * types.ab.bytes)
    apart = problem.fused.bias and problem.fused.activation is not None
    return apart and any(row % _WIDE_LOAD_BYTES for row in rows)


def compute_type(problem: Problem) -> str:
    """The name of the cublasComputeType_t for a problem."""
    types = problem.types
    if types.acc is E.F32:
        return "COMPUTE_32F_FAST_TF32" if types.ab is E.TF32 else "COMPUTE_32F"
    return {E.F64: "COMPUTE_64F", E.F16: "COMPUTE_16F", E.I32: "COMPUTE_32I"}[types.acc]


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix as cuBLASLt sees it: column-major, with a leading dimension, perhaps to be transposed."""

    rows: int
    columns: int
    leading: int
    operation: int = _OP_N

    @property
    def stride(self) -> int:
        """Elements from a matrix of a batch to the next."""
        return self.leading * self.columns


def as_columns(problem: Problem) -> tuple[Matrix, Matrix, Matrix]:
    """The library's first operand (our B), second operand (our A) and result (our D). No element is moved in memory."""
    s, layout = problem.shape, problem.layout
    first = Matrix(s.k, s.n, s.k, _OP_T) if layout.b_transposed else Matrix(s.n, s.k, s.n)
    second = Matrix(s.m, s.k, s.m, _OP_T) if layout.a_transposed else Matrix(s.k, s.m, s.k)
    return first, second, Matrix(s.n, s.m, s.n)


class CublasLtFamily:
    """The family on one card: one handle and one workspace for all configurations."""

    def __init__(self, card: CardContext) -> None:
        self._card = card
        self._library = Opened(lambda: _Library(card))

    def prepare(self, configuration: Configuration) -> None:
        """Imports the bindings. Choosing an algorithm takes less than a millisecond."""
        self._library.get()

    def bind(self, configuration: Configuration, placement: Placement) -> BoundKernel:
        library = self._library.get()
        rank = dict(configuration.kernel.parameters)["algorithm"]
        if configuration.problem.groups is not None:
            why = why_no_groups(library.lt, self._card.traits.compute_capability)
            if why is not None:
                raise InvalidOnDevice(why=why)
        return _BoundCublasLt(library, configuration.problem, placement, rank)

    def close(self) -> None:
        self._library.close()


class _Library:
    """cuBLASLt with a handle and a workspace, and its errors as the farm's."""

    def __init__(self, card: CardContext) -> None:
        try:
            self.lt: Any = importlib.import_module("nvmath.bindings.cublasLt")
            self.compute_types: Any = importlib.import_module("nvmath.bindings.cublas").ComputeType
        except (ImportError, RuntimeError) as error:
            raise MeasurementFailed(
                why=f"cublaslt needs nvmath-python and cuBLAS, which cannot be loaded here ({error}). "
                f"{INSTALL['cuda13']}, or cuda12 for drivers before 580"
            ) from None
        self.cp = card.cp
        self.handle = self.lt.create()
        self._workspace = card.cp.empty(WORKSPACE_BYTES, np.uint8)
        self.workspace = int(self._workspace.data.ptr)  # its address
        # The names of what is read of an algorithm, as the library's numbers, each with the type of its value.
        kinds = self.lt.MatmulAlgoConfigAttribute
        names = (*_CONFIGURATION.values(), *(theirs for theirs, _ in _NAMED.values()))
        self._attributes = {
            name: (kinds[name], np.dtype(self.lt.get_matmul_algo_config_attribute_dtype(kinds[name]))) for name in names
        }

    @property
    def version(self) -> str:
        """As in 13.1.0. The library returns 130100."""
        number = int(self.lt.get_version())
        return f"{number // 10000}.{number // 100 % 100}.{number % 100}"

    def close(self) -> None:
        self.lt.destroy(self.handle)

    def layout(self, kind: ElementType, matrix: Matrix) -> int:
        return int(self.lt.matrix_layout_create(DATA_TYPES[kind], matrix.rows, matrix.columns, matrix.leading))

    def grouped_layout(self, kind: ElementType, matrix: Matrix, groups: GroupsOnCard, *, by_group: bool) -> int:
        """A matrix for each group, which may have other columns."""
        extents = groups.extents(matrix.rows, None if by_group else matrix.columns, matrix.leading)
        layout = int(self.lt.grouped_matrix_layout_create(DATA_TYPES[kind], len(groups.sizes), *extents))
        wide = np.array([self.lt.IntegerWidth.WIDTH_64], np.int32)
        for name in ("GROUPED_ROWS_COLS_ARRAY_INTEGER_WIDTH", "GROUPED_LD_ARRAY_INTEGER_WIDTH"):
            attribute = self.lt.MatrixLayoutAttribute[name]
            self.lt.matrix_layout_set_attribute(layout, attribute, wide.ctypes.data, wide.nbytes)
        return layout

    def set_batch(self, layout: int, matrix: Matrix, batch: int) -> None:
        """Says that so many matrices follow each other. The library counts them in 32 bits, and strides in 64."""
        for name, value in (("BATCH_COUNT", batch), ("STRIDED_BATCH_OFFSET", matrix.stride)):
            attribute = self.lt.MatrixLayoutAttribute[name]
            held = np.array([value], self.lt.get_matrix_layout_attribute_dtype(attribute))
            self.lt.matrix_layout_set_attribute(layout, attribute, held.ctypes.data, held.nbytes)

    def set_description(self, description: int, name: str, value: int) -> None:
        attribute = self.lt.MatmulDescAttribute[name]
        held = np.array([value], self.lt.get_matmul_desc_attribute_dtype(attribute))
        self.lt.matmul_desc_set_attribute(description, attribute, held.ctypes.data, held.nbytes)

    def set_scale_and_fused(self, description: int, problem: Problem) -> None:
        """Says how A and B are scaled, and what is fused."""
        # The library's first operand is our B.
        for name, blocks in (("A", problem.scale.of_b), ("B", problem.scale.of_a)):
            if blocks is not None:
                self.set_description(description, f"{name}_SCALE_MODE", self.lt.MatmulMatrixScale[_SCALE_MODES[blocks]])
        if problem.fused is not Fusion.NONE:
            self.set_description(description, "EPILOGUE", self.lt.Epilogue[_EPILOGUES[problem.fused]])
        if problem.fused.bias and problem.batch != 1:
            self.set_description(description, "BIAS_BATCH_STRIDE", problem.shape.n)

    def offered(self, description: int, layouts: Sequence[int], wanted: int, averages: Mapping[str, int]) -> Any:
        """Up to that many algorithms of its heuristic, the most promising first. Empty where it supports none.

        `averages` are preferences that describe groups.
        """
        lt = self.lt
        preference = lt.matmul_preference_create()
        try:
            attribute = lt.MatmulPreferenceAttribute.MAX_WORKSPACE_BYTES
            most = np.array([WORKSPACE_BYTES], lt.get_matmul_preference_attribute_dtype(attribute))
            lt.matmul_preference_set_attribute(preference, attribute, most.ctypes.data, most.nbytes)
            for name, value in averages.items():
                # NVIDIA's samples give 64 bits; the bindings' types of these attributes are narrower.
                held = np.array([value], np.int64)
                attribute = lt.MatmulPreferenceAttribute[name]
                lt.matmul_preference_set_attribute(preference, attribute, held.ctypes.data, held.nbytes)
            found, count = lt.MatmulHeuristicResult(wanted), np.zeros(1, np.int32)
            first, second, result = layouts
            try:
                lt.matmul_algo_get_heuristic(
                    self.handle, description, first, second, result, result, preference, wanted, found.ptr,
                    count.ctypes.data,
                )  # fmt: skip
            except lt.cuBLASLtError as error:
                if "NOT_SUPPORTED" in str(error) or "INVALID_VALUE" in str(error):
                    return []
                raise
            return [found[n] for n in range(int(count[0]))]
        finally:
            lt.matmul_preference_destroy(preference)

    def configuration_of(self, algorithm: Any) -> dict[str, Any]:
        """What the library would run: numbers, and the names of tile, stages and cluster."""

        written = np.zeros(1, np.uint64)
        algorithm_at, written_at = algorithm.ctypes.data, written.ctypes.data

        def read(name: str) -> int:
            attribute, kind = self._attributes[name]
            held = np.zeros(1, kind)
            self.lt.matmul_algo_config_get_attribute(
                algorithm_at, attribute, held.ctypes.data, kind.itemsize, written_at
            )
            return int(held[0])

        found: dict[str, Any] = {ours: read(theirs) for ours, theirs in _CONFIGURATION.items()}
        for ours, (theirs, kinds) in _NAMED.items():
            number = read(theirs)
            found[f"{ours}_id"] = number
            found[ours] = _name_in(getattr(self.lt, kinds), number)
        return found


def _name_in(kinds: Any, number: int) -> str | None:
    """`128x256` of MatmulTile.TILE_128x256; None for what this version of the bindings does not know."""
    try:
        return str(kinds(number).name).split("_", 1)[1].lower()
    except (ValueError, IndexError):
        return None


def _addresses_of(problem: Problem) -> dict[int, str]:
    """The attributes that are addresses of factors and bias, each with its place in `Placement.added`."""
    scaled = {} if problem.scale is Scale.NONE else {0: "B_SCALE_POINTER", 1: "A_SCALE_POINTER"}
    return {**scaled, 2: "BIAS_POINTER"} if problem.fused.bias else scaled


class _AddedAddresses:
    """Addresses that a description holds, and that differ between operand sets. The library reads them when it launches."""

    def __init__(self, library: _Library, description: int, names: Mapping[int, str]) -> None:
        self._set, self._description = library.lt.matmul_desc_set_attribute, description
        self._held = np.zeros(3, np.uint64)
        first, size = int(self._held.ctypes.data), self._held.itemsize
        self._attributes = [
            (library.lt.MatmulDescAttribute[name], first + place * size, size) for place, name in names.items()
        ]

    def set(self, added: tuple[int, int, int]) -> None:
        self._held[:] = added
        for attribute in self._attributes:
            self._set(self._description, *attribute)


class _BoundCublasLt:
    capturable = True
    # The library gives the same bits in every run of one version on one type of card. Slices of k are added up in a
    # workspace or, in place, in the order of a counter. (cuBLAS, "Results reproducibility"; cublasLtReductionScheme_t)
    deterministic = True

    def __init__(self, library: _Library, problem: Problem, placement: Placement, rank: int) -> None:
        self._library = library
        lt, types = library.lt, problem.types
        first, second, result = as_columns(problem)
        groups = None
        if problem.groups is not None:
            groups = GroupsOnCard(library.cp, problem, problem.groups, placement)
        self._placement = groups or placement
        scale = STORAGE[types.acc]
        self._alpha, self._beta = np.array([problem.alpha], scale), np.array([problem.beta], scale)
        self._description = lt.matmul_desc_create(
            int(library.compute_types[compute_type(problem)]), DATA_TYPES[types.acc]
        )
        names = _addresses_of(problem)
        self._added = _AddedAddresses(library, self._description, names) if names else None
        kinds = (types.ab.of_b, types.ab.of_a, types.cd)
        self._layouts: list[int] = []
        try:
            for kind, matrix in zip(kinds, (first, second, result), strict=True):
                self._layouts += [
                    library.layout(kind, matrix)
                    if groups is None
                    else library.grouped_layout(kind, matrix, groups, by_group=matrix is not first)
                ]
            library.set_description(self._description, "TRANSA", first.operation)
            library.set_description(self._description, "TRANSB", second.operation)
            if problem.batch != 1:
                for layout, matrix in zip(self._layouts, (first, second, result), strict=True):
                    library.set_batch(layout, matrix, problem.batch)
            library.set_scale_and_fused(self._description, problem)
            if self._added is not None:
                self._added.set(
                    self._placement.added(0)
                )  # the heuristic looks at which are set, and at their alignment
            averages: dict[str, int] = {}
            if groups is not None:
                library.set_description(self._description, "POINTER_MODE", lt.PointerMode.DEVICE)
                averages = groups.averages(problem)
            offered = library.offered(self._description, self._layouts, rank + 1, averages)
            if len(offered) <= rank:
                raise InvalidOnDevice(why=_why_none(problem, len(offered), rank))
        except BaseException:
            self.close()
            raise
        self._chosen = offered[rank]
        self._algorithm = self._chosen.algo
        # Stored, because reading an address from NumPy takes as long as the launch.
        held = (self._alpha, self._beta, self._algorithm)
        self._addresses = tuple(int(array.ctypes.data) for array in held)
        if groups is not None:
            self._addresses = (*groups.scalars, self._addresses[2])
        self._configuration = library.configuration_of(self._algorithm)
        self.roundings = roundings(self._configuration) + rounds_before_fused(problem)
        added = [str(name) for name in (problem.scale, problem.fused) if name != "none"]
        added += [] if groups is None else ["groups"]
        given = (str(types), str(problem.layout), compute_type(problem), *added)
        named = repr((library.version, given, self._configuration))
        self.hash = hashlib.sha256(f"cublaslt {named}".encode()).hexdigest()

    def launch(self, index: int) -> None:
        a, b, c, d = self._placement.addresses(index)
        library = self._library
        first, second, result = self._layouts
        alpha, beta, algorithm = self._addresses
        if self._added is not None:
            self._added.set(self._placement.added(index))
        # If beta is 0 there is no C, but the library needs a valid address.
        library.lt.matmul(
            library.handle, self._description, alpha, b, first, a, second, beta, c or d, result, d, result, algorithm,
            library.workspace, WORKSPACE_BYTES, library.cp.cuda.get_current_stream().ptr,
        )  # fmt: skip

    def details(self) -> dict[str, Any]:
        """The choice of the library. `waves` is how often the card is filled with blocks."""
        return {
            **self._configuration,
            "waves": float(self._chosen.waves_count),
            "workspace_bytes": int(self._chosen.workspace_size),
            "cublaslt": self._library.version,
        }

    def close(self) -> None:
        for layout in self._layouts:
            self._library.lt.matrix_layout_destroy(layout)
        self._library.lt.matmul_desc_destroy(self._description)


def _why_none(problem: Problem, offered: int, rank: int) -> str:
    if offered:
        return f"cublaslt: its heuristic offers {offered} algorithms here, so no algorithm has rank {rank}"
    more = "" if problem.batch == 1 else f" in batches of {problem.batch}"
    more += "" if problem.groups is None else " in groups"
    more += "" if problem.scale is Scale.NONE else f" with scale={problem.scale}"
    more += "" if problem.fused is Fusion.NONE else f" with fused={problem.fused}"
    return f"cublaslt supports no {problem.types} with layout {problem.layout} and the shape {problem.shape}{more} here"
