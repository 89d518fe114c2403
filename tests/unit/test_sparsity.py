"""A sparse B: what a problem with it is called, what it reads, its operands, and that a wrong index is found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from farm.devices import DeviceKind, DeviceTraits
from farm.errors import BadSparsity, InvalidOnDevice, WrongResult
from farm.gemm import ADDED_COLUMNS, ElementTypes, Layout, Problem, Shape
from farm.gpus import find_gpu
from farm.kernels import Configuration
from farm.operands import MatrixRules, OperandRules, operand_rules
from farm.sparsity import Sparsity
from workers.measure.elements import decode, encode, poison
from workers.measure.magnitudes import result_scale
from workers.measure.operands import HostArena, OperandSet, SetLayout, plan_rotation
from workers.measure.verify import verify

CARD = DeviceTraits(kind=DeviceKind.CUDA, memory_bytes=2**33, compute_capability=(9, 0))
SMALL, LARGE = Shape(40, 24, 64), Shape(264, 272, 256)  # every element is compared, or sums of groups


def problem(shape: Shape, types: str = "f16", layout: str = "nt", **more: Any) -> Problem:
    return Problem(shape, ElementTypes.parse(types), Layout(layout), sparsity=Sparsity.TWO_OF_FOUR, **more)


def operands_of(given: Problem, rules: OperandRules = OperandRules()) -> OperandSet:  # noqa: B008 - it is frozen
    return HostArena(2**10).sets(SetLayout.of(given, 64), 2, rules)[1]


def test_the_line_has_it_and_without_it_nothing_changed() -> None:
    line = "cublaslt(algorithm=0) 128x256x64 f16:f16:f32 nt alpha=1 beta=0 batch=2 fused=relu sparsity=2:4"
    one = Configuration.parse(line)
    assert (one.problem.sparsity, one.canonical) == (Sparsity.TWO_OF_FOUR, line)
    assert Configuration.from_columns(one.columns()) == one
    plain = Configuration.parse("cublaslt() 128x256x64 f16 nt sparsity=none")
    assert plain.canonical == "cublaslt(algorithm=0) 128x256x64 f16:f16:f32 nt alpha=1 beta=0"
    old = {name: value for name, value in plain.columns().items() if name not in ADDED_COLUMNS}
    assert Configuration.from_columns(old) == plain
    with pytest.raises(BadSparsity, match=r"'1:2' names no sparsity of B\. Use one of none, 2:4"):
        Configuration.parse("cublaslt() 64 f16 sparsity=1:2")
    assert one.why_invalid(CARD) == "cublaslt has no sparsity=2:4, only none"


def test_operations_count_zeros_and_traffic_does_not() -> None:
    dense, sparse = Problem(Shape(128, 256, 512), ElementTypes.parse("f16")), problem(Shape(128, 256, 512))
    assert sparse.flops == dense.flops
    assert dense.bytes - sparse.bytes == 256 * 512 * 2 // 2 - 256 * 256 * 2 // 8
    assert sparse.operand_bytes - dense.operand_bytes == 256 * 256 * 2 + 256 * 256 * 2 // 8
    assert [Sparsity.TWO_OF_FOUR.kept(k) for k in range(1, 10)] == [1, 2, 2, 2, 3, 4, 4, 4, 5]


def test_a_card_s_peak_is_twice_the_dense_one() -> None:
    h100, t4 = find_gpu("nvidia-h100"), find_gpu("tesla-t4")
    assert h100 is not None
    assert t4 is not None
    f16, f64 = ElementTypes.parse("f16").ab, ElementTypes.parse("f64").ab
    assert h100.peak_tflops(f16, Sparsity.TWO_OF_FOUR) == 2 * (h100.peak_tflops(f16) or 0)
    assert h100.peak_tflops(f64, Sparsity.TWO_OF_FOUR) is None
    assert t4.peak_tflops(f16, Sparsity.TWO_OF_FOUR) is None


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize(
    ("types", "rules"), [("bf16", "uniform"), ("i8", "a=normal b=ones"), ("f8e4m3e5m2", "normal"), ("f64", "normal")]
)
def test_two_of_each_four_are_kept_along_k(layout: Layout, types: str, rules: str) -> None:
    given = problem(Shape(5, 97, 66), types, layout, batch=3)
    one = operands_of(given, operand_rules(rules))
    kept = decode(given.types.ab.of_b, one.b)[:, :64] != 0
    assert (decode(given.types.ab.of_a, one.a) == 0).mean() < 0.05
    counts = kept.reshape(3, 16, 4, 97).sum(axis=2)
    assert counts.max() == 2
    assert counts.mean() > 1.9  # but for numbers that are 0 themselves
    assert np.abs(kept.mean(axis=(0, 2)).reshape(16, 4).mean(axis=0) - 0.5).max() < 0.05  # any two of them
    lies = one.b.swapaxes(1, 2) if layout.b_transposed else one.b
    bits = lies.view(f"u{lies.dtype.itemsize}")
    assert not bits[lies == 0].any()  # no -0


def test_all_sets_have_a_pruned_b_and_dense_problems_after_it_have_not() -> None:
    arena, given = HostArena(2**10), problem(SMALL)
    first, second = arena.sets(SetLayout.of(given, 64), 2)
    assert np.array_equal(first.b, second.b)
    assert (decode(given.types.ab, second.b) == 0).mean() >= 0.5
    plain = SetLayout.of(Problem(given.shape, given.types, given.layout), 64)
    assert (arena.sets(plain, 1)[0].b == 0).mean() < 0.1


def test_the_size_of_a_result_is_that_of_the_terms_that_are_kept() -> None:
    for rules in ("uniform", "ones"):
        given = problem(Shape(256, 256, 512), "f32", "nt")
        one = operands_of(given, operand_rules(rules))
        found = float(np.sqrt(((one.a @ one.b) ** 2).mean()))
        assert found == pytest.approx(result_scale(given, operand_rules(rules)), rel=0.03)


def test_a_file_is_not_pruned() -> None:
    rules = OperandRules(b=MatrixRules(file="/w.npy", sha256="0" * 64))
    with pytest.raises(InvalidOnDevice, match=r"w\.npy is not pruned, and the problem has sparsity=2:4"):
        operands_of(problem(SMALL), rules)


def test_caches_stay_cold_where_b_is_compressed() -> None:
    layout = SetLayout.of(problem(Shape(64, 4096, 4096)), 256)
    dense, compressed = 4096 * 4096 * 2, 4096 * 2048 * 2 + 4096 * 2048 // 4
    rest = (64 * 4096 + 64 * 4096) * 2
    assert layout.bytes_at_work == rest + compressed
    assert layout.bytes == rest + dense + compressed
    cache = 2**26
    found = plan_rotation(
        layout.bytes_at_work, cache_bytes=cache, memory_bytes=2**40, max_sets=64, stored_bytes=layout.bytes
    )
    assert found.cold
    assert found.sets * layout.bytes_at_work >= 2 * cache
    few = plan_rotation(
        layout.bytes_at_work, cache_bytes=cache, memory_bytes=3 * layout.bytes, max_sets=64, stored_bytes=layout.bytes
    )
    assert few.sets == 3


# --- verification -------------------------------------------------------------------------------------


def compressed(b: Any) -> tuple[Any, Any]:
    """Values and indexes of [k, n]: [blocks, 2, n] each, as a sparse kernel is given them."""
    blocks = b.reshape(-1, 4, b.shape[1])
    indexes = np.sort(np.argsort(blocks == 0, axis=1, kind="stable")[:, :2], axis=1)
    return np.take_along_axis(blocks, indexes, 1), indexes


def spread(values: Any, indexes: Any) -> Any:
    """[k, n] again."""
    blocks = np.zeros((len(values), 4, values.shape[2]))
    np.put_along_axis(blocks, indexes, values, 1)
    return blocks.reshape(-1, values.shape[2])


def _one_pair_swapped(values: Any, indexes: Any) -> None:
    indexes[5, :, 7] = indexes[5, ::-1, 7].copy()


def _one_index_wrong(values: Any, indexes: Any) -> None:
    free = [place for place in range(4) if place not in indexes[5, :, 7]]
    indexes[5, 0, 7] = free[0]


def _all_the_first_two(values: Any, indexes: Any) -> None:
    indexes[:] = np.array([0, 1])[None, :, None]


def _indexes_of_the_next_column(values: Any, indexes: Any) -> None:
    indexes[:] = np.roll(indexes, 1, axis=2)


MUTATIONS: list[Callable[[Any, Any], None]] = [
    _one_pair_swapped,
    _one_index_wrong,
    _all_the_first_two,
    _indexes_of_the_next_column,
]


@pytest.mark.parametrize("shape", [SMALL, LARGE], ids=["elements", "groups"])
@pytest.mark.parametrize("types", ["f16", "i8"])
def test_a_wrong_index_is_found(shape: Shape, types: str) -> None:
    given = problem(shape, types)
    operands = operands_of(given)
    a, b = decode(given.types.ab, operands.a), decode(given.types.ab, operands.b)

    def computed(change: Callable[[Any, Any], None] | None) -> None:
        values, indexes = compressed(b)
        if change is not None:
            change(values, indexes)
        operands.d.fill(poison(given.types.cd))
        exact = a @ spread(values, indexes)
        operands.d[:] = exact if types == "i8" else encode(given.types.cd, exact.astype(np.float32))

    computed(None)
    assert verify(given, operands).method == ("elements" if shape == SMALL else "groups")
    for change in MUTATIONS:
        computed(change)
        with pytest.raises(WrongResult):
            verify(given, operands)
