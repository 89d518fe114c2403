"""Batches that are measured: each matrix has its own numbers, and every one is verified, on a processor and on a card."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farm.errors import ElementNotWritten, InvalidOnDevice, ResultCorrupted, WrongResult
from farm.gemm import ElementType, ElementTypes, Layout, Problem, Shape
from farm.kernels import Configuration
from farm.measurement import MeasuringRules, TimingRules
from farm.operands import MatrixRules, OperandRules, operand_rules
from farm.weights import describe
from support.fake_cublaslt import ComputingLt, install
from support.fake_cuda import FakeCupy
from workers.devices import cpu, cuda_verify
from workers.devices.cuda import CudaDevice
from workers.kernels.base import CpuKernel
from workers.measure import verify as verifying
from workers.measure.digest import BITS, difference, digest
from workers.measure.elements import decode, encode, poison
from workers.measure.operands import HostArena, OperandSet, SetLayout
from workers.measure.verify import verify

QUICK = MeasuringRules(timing=TimingRules(min_samples=3, max_samples=20, max_seconds=0.05, warmup_seconds=0.0))
ASKED = QUICK.model_copy(update={"determinism": True})

BATCH = 7
SMALL, LARGE = Shape(13, 21, 17), Shape(150, 139, 145)  # every element is compared, or sums of groups
MANY = Shape(16, 16, 16)
MANY_BATCH = 5000  # of a size that is compared by groups

Pairs = list[tuple[int, int]]

MUTATIONS: dict[str, Callable[[int], Pairs]] = {
    "in the reverse order": lambda batch: [(n, batch - 1 - n) for n in range(batch)],
    "two neighbours are swapped": lambda batch: [(n, {3: 4, 4: 3}.get(n, n)) for n in range(batch)],
    "the first again and again": lambda batch: [(0, n) for n in range(batch)],
    "each in the place of the next": lambda batch: [(n, (n + 1) % batch) for n in range(batch)],
}
"""What a wrong kernel computes: pairs of a product and the place that its result is written to."""

LEFT_OUT: dict[str, Callable[[int], Pairs]] = {
    "the last is left out": lambda batch: [(n, n) for n in range(batch - 1)],
    "one in the middle is left out": lambda batch: [(n, n) for n in range(batch) if n != batch // 2],
    "only the first": lambda _: [(0, 0)],
}


def problem(
    shape: Shape, types: str = "f32", layout: str = "nn", alpha: float = 1.0, beta: float = 0.0, batch: int = BATCH
) -> Problem:
    return Problem(shape, ElementTypes.parse(types), Layout(layout), alpha, beta, batch)


def operands_of(given: Problem, rules: OperandRules) -> OperandSet:
    return HostArena(2**10).sets(SetLayout.of(given, 64), 2, rules)[1]


def computed(given: Problem, pairs: Pairs | None = None, rules: OperandRules = OperandRules()) -> OperandSet:  # noqa: B008 - it is frozen
    """An operand set with what a kernel leaves that computes these products."""
    operands, types = operands_of(given, rules), given.types
    operands.d.fill(poison(types.cd))
    for number, place in [(n, n) for n in range(given.batch)] if pairs is None else pairs:
        exact = decode(types.ab.of_a, operands.a[number]) @ decode(types.ab.of_b, operands.b[number])
        exact *= given.alpha
        if operands.c is not None:
            exact += given.beta * decode(types.cd, operands.c[number])
        wide = types.cd in (ElementType.I32, ElementType.F64)
        operands.d[place] = exact if wide else encode(types.cd, exact.astype(np.float32))
    return operands


# --- operands -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("rules", ["uniform", "a=normal b=uniform*3 c=sparse"])
def test_matrices_of_a_batch_follow_each_other_and_have_numbers_of_their_own(layout: Layout, rules: str) -> None:
    given = problem(Shape(5, 7, 3), "f64", layout, beta=1.0, batch=4)
    lies = SetLayout.of(given, 64)
    assert (lies.b_offset, lies.inputs, lies.outputs) == (64, 64 + 88, 144)  # 60, 84 and 140 elements, aligned
    for one in HostArena(2**10).sets(lies, 3, operand_rules(rules)):
        assert one.c is not None
        assert (one.a.shape, one.b.shape, one.c.shape, one.d.shape) == ((4, 5, 3), (4, 3, 7), (4, 5, 7), (4, 5, 7))
        stored_a = one.a.swapaxes(1, 2) if layout.a_transposed else one.a
        stored_b = one.b.swapaxes(1, 2) if layout.b_transposed else one.b
        assert all(x.flags.c_contiguous for x in (stored_a, stored_b, one.c, one.d))
        for matrices in (one.a, one.b, one.c):
            assert len({matrix.tobytes() for matrix in matrices}) == 4


def test_a_batch_of_one_has_the_numbers_of_the_product_alone() -> None:
    (alone,) = HostArena(2**10).sets(SetLayout.of(problem(SMALL, batch=1), 64), 1)
    (first, *_) = HostArena(2**10).sets(SetLayout.of(problem(SMALL), 64), 1)
    assert alone.a.shape == (13, 17)
    assert np.array_equal(alone.a, first.a[0])


def test_a_file_has_one_matrix_and_fills_no_batch(tmp_path: Path) -> None:
    np.save(tmp_path / "w.npy", np.ones((21, 17), np.float32))
    rules = OperandRules(b=MatrixRules.model_validate_json(describe(tmp_path / "w.npy", None)))
    operands_of(problem(SMALL, layout="nt", batch=1), rules)
    with pytest.raises(
        InvalidOnDevice,
        match=r"w\.npy is one matrix, and the problem has 7 of them in a batch or in groups; remove these, or",
    ):
        operands_of(problem(SMALL, layout="nt"), rules)


# --- verification -------------------------------------------------------------------------------------

TYPES = ["f32", "f64", "tf32", "f16", "bf16:f32:f32", "f8e4m3e5m2", "i8"]


@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize(("layout", "alpha", "beta"), [("nn", 1.0, 0.0), ("tt", -1.0, 2.0)])
@pytest.mark.parametrize(("shape", "batch"), [(SMALL, 2), (SMALL, BATCH), (LARGE, BATCH), (MANY, MANY_BATCH)])
@pytest.mark.sampled(4)
def test_a_right_batch_of_any_types_passes(
    shape: Shape, batch: int, layout: str, alpha: float, beta: float, types: str
) -> None:
    given = problem(shape, types, layout, alpha, beta, batch)
    checked = verify(given, computed(given))
    assert 0 <= checked.error <= checked.bound / 2
    assert checked.method == ("elements" if shape == SMALL else "groups")


@pytest.mark.parametrize("types", ["f32", "f64", "f16", "i8"])
@pytest.mark.parametrize("mutation", MUTATIONS)
@pytest.mark.parametrize(("shape", "batch"), [(SMALL, BATCH), (LARGE, BATCH), (MANY, MANY_BATCH)])
@pytest.mark.sampled(4)
def test_right_matrices_in_wrong_places_are_wrong(shape: Shape, batch: int, mutation: str, types: str) -> None:
    given = problem(shape, types, "nt", batch=batch)
    with pytest.raises(WrongResult, match=r"\) of matrix \d+ is off"):
        verify(given, computed(given, MUTATIONS[mutation](batch)))


@pytest.mark.parametrize("types", ["f32", "f64", "f16", "i8"])
@pytest.mark.parametrize(("mutation", "matrix"), [*zip(LEFT_OUT, (BATCH - 1, BATCH // 2, 1), strict=True)])
@pytest.mark.parametrize("shape", [SMALL, LARGE])
def test_a_matrix_that_is_left_out_is_named(shape: Shape, mutation: str, matrix: int, types: str) -> None:
    given = problem(shape, types)
    with pytest.raises(ElementNotWritten, match=rf"\(0, 0\) of matrix {matrix} unwritten"):
        verify(given, computed(given, LEFT_OUT[mutation](BATCH)))


@pytest.mark.parametrize(("shape", "batch", "matrix"), [(SMALL, BATCH, 3), (LARGE, BATCH, 5), (MANY, MANY_BATCH, 3210)])
@pytest.mark.parametrize("wrong", [0.3, math.inf])
def test_a_single_wrong_element_of_one_matrix_is_named(shape: Shape, batch: int, matrix: int, wrong: float) -> None:
    given = problem(shape, batch=batch)
    operands = computed(given)
    operands.d[matrix, 11, 5] += wrong
    with pytest.raises(WrongResult, match=rf"\(11, 5\) of matrix {matrix} is off") as caught:
        verify(given, operands)
    assert [caught.value.fields[name] for name in ("matrix", "row", "column")] == [matrix, 11, 5]


@pytest.mark.parametrize("block", [2**13, 2**16])  # less than a matrix, and three of them
def test_a_batch_that_is_checked_in_parts_is_checked_whole(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    given = problem(LARGE, "f32", "tn", beta=1.0)
    operands = computed(given)
    whole = verify(given, operands)
    monkeypatch.setattr(verifying, "_BLOCK", block)
    assert verify(given, operands).error == pytest.approx(whole.error)
    for matrix in range(BATCH):
        right = operands.d[matrix, 149, 138].copy()
        operands.d[matrix, 149, 138] += 0.5
        with pytest.raises(WrongResult, match=rf"\(149, 138\) of matrix {matrix} is off"):
            verify(given, operands)
        operands.d[matrix, 149, 138] = math.nan
        with pytest.raises(ElementNotWritten, match=rf"\(149, 138\) of matrix {matrix} unwritten"):
            verify(given, operands)
        operands.d[matrix, 149, 138] = right


@pytest.mark.parametrize("shape", [SMALL, LARGE])
def test_the_c_of_another_matrix_is_wrong(shape: Shape) -> None:
    given = problem(shape, beta=1.0)
    operands = computed(given)
    assert operands.c is not None
    operands.d[2] += operands.c[3] - operands.c[2]
    with pytest.raises(WrongResult, match="of matrix 2 is off"):
        verify(given, operands)


# --- bits ---------------------------------------------------------------------------------------------


def test_the_digest_of_a_batch_is_that_of_its_rows_one_after_the_other() -> None:
    d = np.random.default_rng(0).standard_normal((4, 5, 6)).astype(np.float32)
    assert digest(d) == digest(d.reshape(20, 6))
    assert digest(d[:, :2]) == digest(d[:, :2].copy())
    assert digest(d[[1, 0, 2, 3]]) != digest(d)


def test_a_difference_of_batches_names_the_matrix() -> None:
    before = np.arange(120, dtype=np.float32).reshape(4, 5, 6)
    after = before.copy()
    assert difference(before, after) is None
    after.view(np.uint32)[2, 3, 4] ^= 1
    assert "1 of 120 elements differ, the first at (3, 4) of matrix 2, where" in str(difference(before, after))


# --- on a processor -----------------------------------------------------------------------------------


@pytest.mark.parametrize("types", ["f32", "f64"])
@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("batch", [2, BATCH])
def test_a_processor_measures_batches(processor: cpu.CpuDevice, types: str, layout: Layout, batch: int) -> None:
    configuration = Configuration.parse(f"blas(threads=1) 40x33x64 {types} {layout} batch={batch}")
    row = processor.measure(configuration, ASKED)
    assert row.runtime_ms > 0
    assert row.verify_error is not None
    assert row.details["footprint_bytes"] >= row.details["operand_sets"] * configuration.problem.bytes
    assert (row.result_digest is not None, row.deterministic) == (True, True)
    assert row.batch_invariant is not None


@pytest.mark.parametrize("mutation", {**MUTATIONS, **LEFT_OUT})
@pytest.mark.parametrize("shape", [SMALL, LARGE])
def test_a_processor_with_a_wrong_kernel_gives_no_row(
    processor: cpu.CpuDevice, monkeypatch: pytest.MonkeyPatch, shape: Shape, mutation: str
) -> None:
    pairs = {**MUTATIONS, **LEFT_OUT}[mutation](BATCH)

    def wrong(a: Any, b: Any, d: Any) -> None:
        for number, place in pairs:
            d[place] = a[number] @ b[number]

    family = processor._families["blas"]
    monkeypatch.setattr(type(family), "bind", lambda *_: nullcontext(CpuKernel(multiply=wrong, details={})))
    with pytest.raises(ElementNotWritten if mutation in LEFT_OUT else WrongResult):
        processor.measure(Configuration.parse(f"blas(threads=1) {shape} f32 batch={BATCH}"), QUICK)


# --- on a card ----------------------------------------------------------------------------------------


@pytest.fixture
def lt(cupy: FakeCupy, monkeypatch: pytest.MonkeyPatch) -> ComputingLt:
    fake = ComputingLt(cupy)
    install(fake, monkeypatch)
    return fake


def batch_of(
    shape: Shape, types: str = "f32", layout: str = "nn", scalars: str = "", batch: int = BATCH
) -> Configuration:
    return Configuration.parse(f"cublaslt(algorithm=0) {shape} {types} {layout} {scalars} batch={batch}")


@pytest.mark.parametrize("types", ["f32", "f64"])
@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("scalars", ["", "alpha=-1.5 beta=0.5"])
@pytest.mark.parametrize(("shape", "batch"), [(SMALL, 1), (SMALL, 2), (SMALL, 64), (LARGE, BATCH)])
@pytest.mark.sampled(4)
def test_a_card_measures_batches(
    lt: ComputingLt,
    device: CudaDevice,
    monkeypatch: pytest.MonkeyPatch,
    shape: Shape,
    batch: int,
    scalars: str,
    layout: Layout,
    types: str,
) -> None:
    monkeypatch.setattr(cuda_verify, "verify", None)  # what looks closer is not needed where all is right
    row = device.measure(batch_of(shape, types, layout, scalars, batch), QUICK)
    assert row.details["verified_by"] == ("elements" if shape == SMALL else "groups")
    assert row.verify_error is not None
    assert row.verify_error < 1e-5


ROOMS = {"all at once": cuda_verify.MAX_WIDENED, "three at a time": 3 * 24_000, "none": 0}
"""Numbers in double that may be held while a batch of `LARGE` is verified."""


@pytest.mark.parametrize("room", ROOMS)
@pytest.mark.parametrize("mutation", {**MUTATIONS, **LEFT_OUT})
@pytest.mark.parametrize("shape", [SMALL, LARGE])
@pytest.mark.sampled(4)
def test_a_card_with_a_wrong_kernel_gives_no_row(
    lt: ComputingLt, device: CudaDevice, monkeypatch: pytest.MonkeyPatch, shape: Shape, mutation: str, room: str
) -> None:
    monkeypatch.setattr(cuda_verify, "MAX_WIDENED", ROOMS[room])
    right = lt.products
    lt.products = {**MUTATIONS, **LEFT_OUT}[mutation]
    with pytest.raises(ElementNotWritten if mutation in LEFT_OUT else WrongResult, match=r"of matrix \d"):
        device.measure(batch_of(shape, layout="tt"), QUICK)
    lt.products = right
    assert device.measure(batch_of(shape, layout="tt"), QUICK).verify_error is not None


@pytest.mark.parametrize("room", ROOMS)
def test_an_element_of_any_matrix_is_found_on_a_card(
    lt: ComputingLt, device: CudaDevice, monkeypatch: pytest.MonkeyPatch, room: str
) -> None:
    monkeypatch.setattr(cuda_verify, "MAX_WIDENED", ROOMS[room])
    calls = 0

    def off_by_one(a: Any, b: Any) -> Any:
        nonlocal calls
        calls += 1
        d = a @ b
        if calls == 6:
            d[17, 44] += 1
        return d

    lt.gemm = off_by_one
    with pytest.raises(WrongResult, match=r"\(17, 44\) of matrix 5 is off"):
        device.measure(batch_of(LARGE), QUICK)


def rowwise(a: Any, b: Any) -> Any:
    """A product in which rows do not depend on each other."""
    return np.array([np.einsum("k,kj->j", row, b) for row in np.ascontiguousarray(a)])


@pytest.mark.parametrize("layout", Layout)
def test_fewer_rows_of_each_matrix_have_the_same_bits_where_rows_are_independent(
    lt: ComputingLt, device: CudaDevice, layout: Layout
) -> None:
    lt.gemm = rowwise
    row = device.measure(batch_of(Shape(6, 9, 8), layout=layout, scalars="alpha=2 beta=1", batch=3), ASKED)
    assert (row.deterministic, row.batch_invariant) == (True, True)

    def otherwise(a: Any, b: Any) -> Any:
        d = rowwise(a, b)
        if len(a) < 6:
            d.view(BITS[d.itemsize])[0, 3] ^= 1
        return d

    lt.gemm = otherwise
    row = device.measure(batch_of(Shape(6, 9, 8), layout=layout, batch=3), ASKED)
    assert (row.deterministic, row.batch_invariant) == (True, False)


def test_a_bit_that_changes_in_one_matrix_is_found_and_the_matrix_named(
    lt: ComputingLt, device: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    configuration = batch_of(SMALL)
    with device.replaying(configuration, OperandRules()) as work:
        d = work.operands.d
        assert work.result.check().digest == digest(np.asarray(d))
        d.view(BITS[4])[4, 2, 3] ^= 1
        with pytest.raises(ResultCorrupted, match=r"1 of 1,911 elements differ, the first at \(2, 3\) of matrix 4"):
            work.result.check()
