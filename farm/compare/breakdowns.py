"""Breakdowns of configurations by element type, size and bound, and the times of the roofline (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from farm.compare.statistics import Floats, Ints
from farm.fusion import Fusion
from farm.gemm import ElementType
from farm.gpus import Gpu
from farm.groups import Groups
from farm.scale import Scale
from farm.sparsity import Sparsity

_DECADES = (0.1, 1.0, 10.0, 100.0, 1000.0, 10_000.0)
SIZES = (
    f"< {_DECADES[0]:g} GFLOP",
    *(f"{low:,g} – {high:,g} GFLOP" for low, high in pairwise(_DECADES)),
    f"≥ {_DECADES[-1]:,.0f} GFLOP",
)
BOUNDS = ("memory-bound", "compute-bound")


@dataclass(frozen=True, slots=True, kw_only=True)
class Problems:
    """The problems of configurations: [configurations] each. `types` are of inputs, output and accumulator.

    Texts are positions in the list of those that occur.
    """

    m: Ints
    n: Ints
    k: Ints
    types: Ints  # position in `types_known`, as f16:f16:f32
    types_known: list[str]
    beta: Floats
    batch: Ints
    scale: Ints  # position in `scales`
    scales: list[str]
    fused: Ints  # position in `fusions`
    fusions: list[str]
    groups: Ints  # position in `groupings`
    groupings: list[str]
    sparsity: Ints  # position in `sparsities`
    sparsities: list[str]
    family: Ints  # position in `families`
    families: list[str]

    def at(self, which: Ints) -> Problems:
        """The problems of the chosen configurations."""
        names = ("m", "n", "k", "types", "beta", "batch", "scale", "fused", "groups", "sparsity", "family")
        return replace(self, **{name: getattr(self, name)[which] for name in names})


@dataclass(frozen=True, slots=True)
class Breakdown:
    """The position in `labels` of each configuration: [configurations], -1 for none."""

    labels: Sequence[str]
    which: Ints


def flops_of(problems: Problems) -> Floats:
    """2·m·n·k of each product of the batch, as `Problem.flops`."""
    return np.asarray(2.0 * problems.m * problems.n * problems.k * problems.batch, dtype=np.float64)


def bytes_of(problems: Problems) -> Floats:
    """Compulsory traffic, as `Problem.bytes`."""
    of_type = [types.split(":") for types in problems.types_known]
    of_inputs = np.array([(ElementType(ab).of_a.bits / 8, ElementType(ab).of_b.bits / 8) for ab, _, _ in of_type])
    each_a, each_b = of_inputs[problems.types].T
    of_output = np.array([float(ElementType(cd).bytes) for _, cd, _ in of_type])[problems.types]
    m, n, k = problems.m, problems.n, problems.k
    outputs = np.where(problems.beta != 0, 2, 1) * of_output
    of_b = _matrices_of_b(problems)
    # Numbers of elements of one matrix are below 2^63.
    kept, indexes = _of_sparse_b(problems)
    read, written = each_a * (m * k) + each_b * of_b * (kept * n), outputs * (m * _columns_of_d(problems))
    added = _scale_and_bias_bytes(problems, of_b, of_output) + of_b * indexes
    return np.asarray((read + written + added) * problems.batch, dtype=np.float64)


def _columns_of_d(problems: Problems) -> Ints:
    """Columns of D: half of n where there is a gate: [configurations]."""
    gated = np.array([Fusion(name).gated for name in problems.fusions], bool)[problems.fused]
    return np.where(gated, problems.n // 2, problems.n)


def _matrices_of_b(problems: Problems) -> Floats:
    """How many matrices B one product reads: one, or those of groups with rows: [configurations]."""
    known = [Groups.parse(text) for text in problems.groupings]
    return np.array([1.0 if groups is None else groups.active for groups in known])[problems.groups]


def _of_sparse_b(problems: Problems) -> tuple[Ints, Ints]:
    """Elements of a column of B that are read, and bytes of the indexes of a matrix B: [configurations] each."""
    kept, indexes = problems.k.copy(), np.zeros(len(problems.k), np.int64)
    for number, name in enumerate(problems.sparsities):
        which, sparsity = problems.sparsity == number, Sparsity(name)
        n, k = problems.n[which], problems.k[which]
        kept[which], indexes[which] = sparsity.kept(k), sparsity.index_bytes(n, k)
    return kept, indexes


def _scale_and_bias_bytes(problems: Problems, of_b: Floats, of_output: Floats) -> Floats:
    """The scale factors and the bias of one product: [configurations].

    Args:
        of_b: Matrices B of each.
        of_output: Bytes of an element of D of each.
    """
    found = np.zeros(len(problems.m))
    for number, name in enumerate(problems.scales):
        which = problems.scale == number
        m, n, k = problems.m[which], problems.n[which], problems.k[which]
        scale = Scale(name)
        of_a, each_b = scale.factors(m, n, k)
        found[which] = (of_a + of_b[which] * each_b) * scale.factor_bytes
    biased = np.array([Fusion(name).bias for name in problems.fusions], bool)[problems.fused]
    return found + np.where(biased, of_b * problems.n * of_output, 0)


def shapes_of(problems: Problems) -> Ints:
    """A number from 0 for each shape (m, n, k) with a batch, scale factors, fused operations, groups and sparsity: [configurations]."""
    keys, size = np.zeros(len(problems.m), np.int64), 1
    names = ("m", "n", "k", "batch", "scale", "fused", "groups", "sparsity")
    for axis in (getattr(problems, name) for name in names):
        span = int(axis.max(initial=0)) + 1
        if size * span >= 2**63:
            keys, size = _numbered(keys), len(keys)  # below 2^31 configurations times 2^31
        keys, size = keys * span + axis, size * span
    return _numbered(keys)


def _numbered(keys: Ints) -> Ints:
    found: Ints = np.unique(keys, return_inverse=True)[1]
    return found


def by_type(problems: Problems) -> Breakdown:
    """By element types: `f32` where all three are equal, otherwise as f16:f16:f32."""
    labels = []
    for types in problems.types_known:
        words = types.split(":")
        labels.append(words[0] if len(set(words)) == 1 else types)
    return _sorted(Breakdown(labels, problems.types))


def _sorted(breakdown: Breakdown) -> Breakdown:
    order = sorted(range(len(breakdown.labels)), key=lambda number: breakdown.labels[number])
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return Breakdown([breakdown.labels[number] for number in order], place[breakdown.which])


def by_size(flops: Floats) -> Breakdown:
    """By decade of floating-point operations."""
    return Breakdown(SIZES, np.digitize(flops / 1e9, _DECADES).astype(np.int64))


def by_bound(problems: Problems, flops: Floats, traffic: Floats, card: Gpu | None) -> Breakdown:
    """By arithmetic intensity below or above the card's ridge point; -1 where its peak is unknown."""
    if card is None:
        return Breakdown(BOUNDS, np.full(len(flops), -1))
    computing, moving = _limits_ms(problems, flops, traffic, card)
    return Breakdown(BOUNDS, np.where(np.isnan(computing), -1, np.where(moving > computing, 0, 1)))


def attainable_ms(problems: Problems, flops: Floats, traffic: Floats, card: Gpu | None) -> Floats:
    """The roofline's time, ms (Williams, Waterman and Patterson, CACM 52, 2009): [configurations], NaN where unknown."""
    if card is None:
        return np.full(len(flops), np.nan)
    return np.maximum(*_limits_ms(problems, flops, traffic, card))


def _limits_ms(problems: Problems, flops: Floats, traffic: Floats, card: Gpu) -> tuple[Floats, Floats]:
    """Times of computing and of moving data at the card's peaks, ms; computing is NaN for types without a peak."""
    peaks = [
        [card.peak_tflops(ElementType(types.split(":")[0]), Sparsity(name)) for types in problems.types_known]
        for name in problems.sparsities
    ]
    known = np.array([[np.nan if p is None else p for p in each] for each in peaks])
    peak = known[problems.sparsity, problems.types]
    return flops / (peak * 1e9), traffic / (card.memory_gb_per_s * 1e6)
