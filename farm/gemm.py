"""What is computed: shapes, element types, layouts, and the problem they make.

A problem is  D[m,n] = activation(alpha * A[m,k] * B[k,n] + beta * C + bias),  for each of `batch` independent sets of matrices. A and
B may have scale factors (`farm.scale`); `farm.fusion` has the operations that are fused into the product. Everything here is pure and hashable.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any

from farm.errors import (
    BadBatch,
    BadElementType,
    BadGate,
    BadGroups,
    BadLayout,
    BadScalar,
    BadShape,
    OddExtent,
    ScaleOfOtherTypes,
)
from farm.fusion import Fusion
from farm.groups import NONE, Groups, shortened
from farm.scale import Scale
from farm.sparsity import Sparsity

MAX_EXTENT = 2**31 - 1
"""The largest m, n or k: BLAS and CUDA libraries take 32-bit signed sizes."""


class ElementType(StrEnum):
    """The type of a matrix element, under the names hardware vendors use.

    `tf32` is stored as 4 bytes; the multiplier uses 19 bits of them. `i32` is an output and accumulator type only.
    `f8e4m3e5m2` and `f8e5m2e4m3` are pairs, for inputs only: A in the first format and B in the second, as the forward and
    backward passes of training multiply them. `f16i4` and its like are pairs too: the activations of a model, and weights of fewer
    bits, which the kernel converts. `i4` is a signed integer from -8 to 7, and `f4` is e2m1: 0, 0.5, 1, 1.5, 2, 3, 4 and 6 with a
    sign. Both exist in such pairs alone.
    """

    F64 = "f64"
    F32 = "f32"
    TF32 = "tf32"
    F16 = "f16"
    BF16 = "bf16"
    F8E4M3 = "f8e4m3"
    F8E5M2 = "f8e5m2"
    F8E4M3E5M2 = "f8e4m3e5m2"
    F8E5M2E4M3 = "f8e5m2e4m3"
    I8 = "i8"
    F16I8 = "f16i8"
    BF16I8 = "bf16i8"
    F16I4 = "f16i4"
    BF16I4 = "bf16i4"
    F16F4 = "f16f4"
    BF16F4 = "bf16f4"
    I32 = "i32"
    I4 = "i4"
    F4 = "f4"

    @cached_property
    def bits(self) -> int:
        """Bits that one element takes in memory; of a pair, one of A."""
        return _ELEMENT_BITS[self.of_a]

    @cached_property
    def bytes(self) -> int:
        """Bytes of the smallest part of memory that has whole elements: one, or two of 4 bits. Of a pair, those of A."""
        return -(-self.bits // 8)

    @property
    def per_item(self) -> int:
        """How many elements lie in `bytes`."""
        return 2 if self.bits == 4 else 1

    @property
    def low_bit_weights(self) -> bool:
        """Whether it is a pair whose B has fewer bits than A."""
        return self in _LOW_BIT_WEIGHTS

    @cached_property
    def of_a(self) -> ElementType:
        """The type of A's elements: of a pair its first."""
        return _PAIRS[self][0] if self in _PAIRS else self

    @cached_property
    def of_b(self) -> ElementType:
        """The type of B's elements: of a pair its second."""
        return _PAIRS[self][1] if self in _PAIRS else self


_ELEMENT_BITS = {
    ElementType.F64: 64,
    ElementType.F32: 32,
    ElementType.TF32: 32,
    ElementType.F16: 16,
    ElementType.BF16: 16,
    ElementType.F8E4M3: 8,
    ElementType.F8E5M2: 8,
    ElementType.I8: 8,
    ElementType.I32: 32,
    ElementType.I4: 4,
    ElementType.F4: 4,
}

_PAIRS = {
    ElementType.F8E4M3E5M2: (ElementType.F8E4M3, ElementType.F8E5M2),
    ElementType.F8E5M2E4M3: (ElementType.F8E5M2, ElementType.F8E4M3),
    ElementType.F16I8: (ElementType.F16, ElementType.I8),
    ElementType.BF16I8: (ElementType.BF16, ElementType.I8),
    ElementType.F16I4: (ElementType.F16, ElementType.I4),
    ElementType.BF16I4: (ElementType.BF16, ElementType.I4),
    ElementType.F16F4: (ElementType.F16, ElementType.F4),
    ElementType.BF16F4: (ElementType.BF16, ElementType.F4),
}

INPUT_TYPES = tuple(t for t in ElementType if t not in (ElementType.I32, ElementType.I4, ElementType.F4))
OUTPUT_TYPES = tuple(t for t in _ELEMENT_BITS if t not in (ElementType.I4, ElementType.F4))
"""Those of C and D, and of accumulators."""

_INPUT_BITS: Mapping[ElementType, tuple[int, int]] = {t: (t.of_a.bits, t.of_b.bits) for t in INPUT_TYPES}
"""Of A and of B."""

_LOW_BIT_WEIGHTS = frozenset(t for t, (of_a, of_b) in _INPUT_BITS.items() if of_a != of_b)


class Layout(StrEnum):
    """How A and B lie in memory, A's letter first.

    `n`: row-major as written (A is [m,k], B is [k,n]). `t`: stored transposed (A is [k,m], B is [n,k]).
    C is always row-major [m,n].
    """

    NN = "nn"
    NT = "nt"
    TN = "tn"
    TT = "tt"

    @property
    def a_transposed(self) -> bool:
        return self.value[0] == "t"

    @property
    def b_transposed(self) -> bool:
        return self.value[1] == "t"

    @classmethod
    def parse(cls, text: object) -> Layout:
        try:
            return cls(str(text).lower())
        except ValueError:
            raise BadLayout(value=text) from None


@dataclass(frozen=True, slots=True, order=True)
class Shape:
    """The extents (m, n, k) of a problem, each from 1 to 2^31 - 1."""

    m: int
    n: int
    k: int

    def __post_init__(self) -> None:
        for name, extent in (("m", self.m), ("n", self.n), ("k", self.k)):
            if type(extent) is not int or not 1 <= extent <= MAX_EXTENT:
                raise BadShape(value=f"{self.m}x{self.n}x{self.k}", why=f"{name} is {extent!r}", largest=MAX_EXTENT)

    @property
    def flops(self) -> int:
        """Floating-point (or integer) operations: 2·m·n·k, the convention of BLAS and of vendors' tables."""
        return 2 * self.m * self.n * self.k

    def __str__(self) -> str:
        return f"{self.m}x{self.n}x{self.k}"

    @classmethod
    def parse(cls, text: str) -> Shape:
        """Reads `512x512x1024`, or one number for a cube."""
        found = re.fullmatch(r"\s*(-?\d+)(?:\s*[x×]\s*(-?\d+)\s*[x×]\s*(-?\d+))?\s*", text)
        if found is None:
            raise BadShape(value=text, why="it is not m x n x k", largest=MAX_EXTENT)
        extents = [int(e) for e in found.groups() if e is not None]
        return cls(*(extents * 3 if len(extents) == 1 else extents))


@dataclass(frozen=True, slots=True)
class ElementTypes:
    """The types of A and B (`ab`), of C and D (`cd`), and of the accumulator (`acc`)."""

    ab: ElementType
    cd: ElementType
    acc: ElementType

    def __post_init__(self) -> None:
        if self.ab not in _INPUT_BITS or self.cd not in OUTPUT_TYPES or self.acc not in OUTPUT_TYPES:
            raise BadElementType(value=str(self), known=", ".join(INPUT_TYPES))

    def __str__(self) -> str:
        return f"{self.ab}:{self.cd}:{self.acc}"

    @classmethod
    def parse(cls, text: object) -> ElementTypes:
        """Reads `f16:f16:f32`, or `f16` for the types that usually go with it."""
        words = str(text).lower().split(":")
        try:
            parts = [ElementType(w) for w in words]
        except ValueError:
            parts = []
        if len(parts) not in (1, 3) or parts[0] not in INPUT_TYPES:
            raise BadElementType(value=text, known=", ".join(INPUT_TYPES))
        if len(parts) == 1:
            cd, acc = _USUAL_OUTPUT[parts[0]]
            return cls(parts[0], cd, acc)
        return cls(*parts)


_E = ElementType
_USUAL_OUTPUT = {
    _E.F64: (_E.F64, _E.F64),
    _E.F32: (_E.F32, _E.F32),
    _E.TF32: (_E.F32, _E.F32),
    _E.F16: (_E.F16, _E.F32),
    _E.BF16: (_E.BF16, _E.F32),
    _E.F8E4M3: (_E.BF16, _E.F32),
    _E.F8E5M2: (_E.BF16, _E.F32),
    _E.F8E4M3E5M2: (_E.BF16, _E.F32),
    _E.F8E5M2E4M3: (_E.BF16, _E.F32),
    _E.I8: (_E.I32, _E.I32),
    **{ab: (ab.of_a, _E.F32) for ab in INPUT_TYPES if ab.low_bit_weights},
}


def number_text(value: float) -> str:
    """The shortest text that reads back as the same float, without a trailing .0."""
    return repr(float(value)).removesuffix(".0")


ADDED_COLUMNS: Mapping[str, int | str] = {
    "batch": 1,
    "scale": Scale.NONE.value,
    "fused": Fusion.NONE.value,
    "groups": NONE,
    "sparsity": Sparsity.NONE.value,
}
"""Columns of a problem that older rows, recordings and campaigns lack, with the value that they mean."""

PROBLEM_COLUMNS = ("m", "n", "k", "ab", "cd", "acc", "layout", "alpha", "beta", *ADDED_COLUMNS)
"""The columns of a row that make its problem."""

PROBLEM_WORDS: Mapping[str, tuple[str, ...]] = {
    "layout": tuple(Layout),
    "ab": INPUT_TYPES,
    "cd": OUTPUT_TYPES,
    "acc": OUTPUT_TYPES,
    "scale": tuple(Scale),
    "fused": tuple(Fusion),
    "sparsity": tuple(Sparsity),
}
"""Those that expressions compare with words, and their words."""


def added_columns(of: object) -> dict[str, Any]:
    """The values of `ADDED_COLUMNS` of a problem, or of anything with attributes of their names."""
    values = {name: getattr(of, name) for name in ADDED_COLUMNS}
    return values | {"groups": str(values["groups"] or NONE)}


@dataclass(frozen=True, slots=True)
class Problem:
    """A matrix multiplication, a batch of equal ones or one in groups, without the kernel that computes it.

    The matrices of a batch lie one after the other in memory, each contiguous: A is [batch,m,k], B [batch,k,n] and D [batch,m,n].
    With groups, A is [m,k] and D is [m,n] with the rows of all groups, and B is [groups,k,n]. With a gate, D has n/2 columns.
    """

    shape: Shape
    types: ElementTypes
    layout: Layout = Layout.NN
    alpha: float = 1.0
    beta: float = 0.0
    batch: int = 1
    scale: Scale = Scale.NONE
    fused: Fusion = Fusion.NONE
    groups: Groups | None = None
    sparsity: Sparsity = Sparsity.NONE

    def __post_init__(self) -> None:
        if type(self.batch) is not int or not 1 <= self.batch <= MAX_EXTENT:
            raise BadBatch(value=self.batch, largest=MAX_EXTENT)
        if self.groups is not None:
            self._check_groups(self.groups)
        low_bit = self.types.ab.low_bit_weights
        if self.scale is not Scale.NONE and self.scale.of_weights != low_bit:
            known = (one for one in Scale if one is Scale.NONE or one.of_weights == low_bit)
            raise ScaleOfOtherTypes(value=self.scale, types=self.types, known=", ".join(known))
        if low_bit:
            self._check_packing()
        for name, value in (("alpha", self.alpha), ("beta", self.beta)):
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
                raise BadScalar(name=name, value=value)
            object.__setattr__(self, name, float(value) + 0.0)  # + 0.0 turns -0.0 into 0.0
        if self.fused.gated:
            self._check_gate()

    def _check_gate(self) -> None:
        why = None
        if self.shape.n % 2:
            why = f"half of B's columns is the gate, so n is even, not {self.shape.n}"
        elif self.beta:
            why = f"D has half as many columns as the product, so beta is 0, not {number_text(self.beta)}"
        if why is not None:
            raise BadGate(fused=self.fused, why=why)

    def _check_groups(self, groups: Groups) -> None:
        why = None
        if groups.rows != self.shape.m:
            why = f"they have {groups.rows:,} rows together, and m is {self.shape.m:,}"
        elif self.batch != 1:
            why = f"a batch has no groups, and batch is {self.batch}"
        elif self.layout.a_transposed:
            why = f"the rows of a group lie together, so A is not transposed: the layout is nn or nt, not {self.layout}"
        elif self.scale is Scale.BLOCK_GROUP:
            why = f"a factor of 128 rows of A would belong to several groups, and scale is {self.scale}"
        if why is not None:
            raise BadGroups(value=shortened(str(groups)), why=why)

    def _check_packing(self) -> None:
        of_b, s = self.types.ab.of_b, self.shape
        name, extent = ("k", s.k) if self.layout.b_transposed else ("n", s.n)
        if extent % of_b.per_item:
            raise OddExtent(name=name, extent=extent, kind=of_b, layout=self.layout)

    @property
    def matrices_of_b(self) -> int:
        """How many matrices B has: one for each product of a batch, and for each group."""
        return self.batch if self.groups is None else len(self.groups.sizes)

    @property
    def columns_of_d(self) -> int:
        """n, or half of it where the other half is a gate."""
        return self.shape.n if self.fused is Fusion.NONE else self.fused.columns(self.shape.n)

    @property
    def flops(self) -> int:
        """Those of its shape, for the whole batch: alpha, beta, scale factors and fused operations are not counted.

        Zeros of a sparse B are counted, as vendors' tables do for sparse tensor cores.
        """
        # Without a second call: it is asked for each configuration.
        return 2 * self.batch * self.shape.m * self.shape.n * self.shape.k

    @property
    def bytes(self) -> int:
        """Compulsory memory traffic: A, B, scale factors and bias read once, D written once, C read once where beta is not 0.

        A sparse B is read compressed, with its indexes. B, its scale factors and the bias of an empty group are not read.
        """
        s, of_b = self.shape, 1 if self.groups is None else self.groups.active
        inputs = s.m * s.k * _INPUT_BITS[self.types.ab][0] // 8 + of_b * self.bytes_of_b
        outputs = s.m * self.columns_of_d * self.types.cd.bytes
        return self.batch * (inputs + outputs * (2 if self.beta else 1) + self._scale_and_bias_bytes(of_b))

    @property
    def bytes_of_b(self) -> int:
        """One matrix B as a kernel reads it: of a sparse one, the elements that are kept and their indexes."""
        s, sparsity = self.shape, self.sparsity
        return sparsity.kept(s.k) * s.n * _INPUT_BITS[self.types.ab][1] // 8 + sparsity.index_bytes(s.n, s.k)

    @property
    def factor_type(self) -> ElementType:
        """The type of scale factors."""
        return self.types.ab.of_a if self.scale.of_weights else ElementType.F32

    @property
    def arithmetic_intensity(self) -> float:
        """flops per byte of compulsory traffic: the x axis of a roofline."""
        return self.flops / self.bytes

    @property
    def operand_bytes(self) -> int:
        """Memory that A, B, C, scale factors and bias take: what one operand set allocates. A sparse B is there with its zeros too."""
        s, of_b = self.shape, 1 if self.groups is None else len(self.groups.sizes)
        a_bits, b_bits = _INPUT_BITS[self.types.ab]
        matrices = (s.m * s.k * a_bits + of_b * s.k * s.n * b_bits) // 8 + s.m * self.columns_of_d * self.types.cd.bytes
        if self.sparsity is not Sparsity.NONE:
            matrices += of_b * self.bytes_of_b
        return self.batch * (matrices + self._scale_and_bias_bytes(of_b))

    def _scale_and_bias_bytes(self, of_b: int) -> int:
        """The scale factors and the bias of one product, with that many matrices B."""
        if self.scale is Scale.NONE and self.fused is Fusion.NONE:
            return 0
        s = self.shape
        of_a, each_b = self.scale.factors(s.m, s.n, s.k)
        bias = s.n * self.types.cd.bytes if self.fused.bias else 0
        return of_a * self.scale.factor_bytes + of_b * (each_b * self.scale.factor_bytes + bias)
