"""Groups of rows that are measured: each has a matrix of its own and is verified as a product, on a processor and on a card."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farm.errors import ElementNotWritten, InvalidOnDevice, WrongResult
from farm.fusion import Fusion
from farm.gemm import ElementType, ElementTypes, Layout, Problem, Shape
from farm.groups import Groups
from farm.kernels import Configuration
from farm.measurement import MeasuringRules, TimingRules
from farm.operands import MatrixRules, OperandRules, operand_rules
from farm.scale import Scale
from farm.weights import describe
from support.fake_cuda import FakeCupy, at_address
from support.quick import assert_wide_product
from workers.devices import cpu, cuda_verify
from workers.devices.cuda import CudaDevice
from workers.devices.cuda_arena import ALIGNMENT, DeviceArena
from workers.kernels import tiled
from workers.kernels.base import CpuKernel, Placement
from workers.kernels.group_offsets import group_offsets
from workers.kernels.group_tiles import group_tiles
from workers.kernels.tiled import TiledKernel
from workers.measure import verify as verifying
from workers.measure.digest import digest
from workers.measure.elements import decode, encode, poison
from workers.measure.magnitudes import result_scale
from workers.measure.operands import HostArena, OperandSet, SetLayout
from workers.measure.verify import verify

QUICK = MeasuringRules(timing=TimingRules(min_samples=3, max_samples=20, max_seconds=0.05, warmup_seconds=0.0))
ASKED = QUICK.model_copy(update={"determinism": True})

SIZES = (5, 0, 1, 40, 7, 7, 0, 60, 3)  # small and large ones, and the last is not the largest
MANY = (1, 0, 2, 1) * 32
N, K = 139, 145
SMALL, LARGE = 5 * N * K, 30 * N * K  # multiplications up to which every element of a group is compared


@pytest.fixture(autouse=True)
def soon_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups of 31 rows are large, so that these tests take little time."""
    monkeypatch.setattr(verifying, "_EVERY_ELEMENT", LARGE)
    monkeypatch.setattr(verifying, "_EVERY_ELEMENT_F64", LARGE)


def problem(
    types: str = "f32",
    layout: str = "nn",
    sizes: tuple[int, ...] = SIZES,
    *,
    n: int = N,
    k: int = K,
    alpha: float = 1.0,
    beta: float = 0.0,
    scale: str = "none",
    fused: str = "none",
) -> Problem:
    groups, shape = Groups.of(sizes), Shape(sum(sizes), n, k)
    return Problem(
        shape, ElementTypes.parse(types), Layout(layout), alpha, beta, 1, Scale(scale), Fusion(fused), groups
    )


def operands_of(given: Problem, rules: OperandRules = OperandRules()) -> OperandSet:  # noqa: B008 - it is frozen
    return HostArena(2**10).sets(SetLayout.of(given, 64), 2, rules)[1]


# --- operands -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["nn", "nt"])
@pytest.mark.parametrize("sizes", [SIZES, (7,), (0, 7)])
@pytest.mark.parametrize("rules", ["uniform", "a=normal b=uniform*3 c=sparse"])
def test_each_group_has_a_matrix_of_its_own_also_the_only_one(sizes: tuple[int, ...], layout: str, rules: str) -> None:
    given, count = problem("f64", layout, sizes, n=6, k=4, beta=1.0, fused="bias"), len(sizes)
    lies = SetLayout.of(given, 64)
    m = sum(sizes)
    assert (lies.b_offset, lies.inputs) == (-(-m * 4 // 8) * 8, -(-m * 4 // 8) * 8 + count * 24)
    sets = HostArena(2**10).sets(lies, 3, operand_rules(rules))
    for one in sets:
        assert one.c is not None
        assert one.bias is not None
        assert (one.a.shape, one.b.shape, one.c.shape, one.d.shape) == ((m, 4), (count, 4, 6), (m, 6), (m, 6))
        assert one.bias.shape == (count, 6)
        assert (one.b.swapaxes(1, 2) if layout == "nt" else one.b).flags.c_contiguous
        assert len({part.tobytes() for part in (*one.b, *one.bias)}) == 2 * count
    arrays = [x for one in sets for x in (one.a, one.b, one.c, one.d, one.bias) if x is not None]
    assert not any(np.shares_memory(x, y) for i, x in enumerate(arrays) for y in arrays[:i])


SCALES = ["tensor", "row", "1x128", "1x128:128x128"]


@pytest.mark.parametrize("scale", SCALES)
def test_the_operands_of_a_group_are_those_of_a_product(cupy: FakeCupy, scale: str) -> None:
    given = problem("f32", "nt", n=140, k=300, beta=1.0, scale=scale, fused="bias")
    buffers = DeviceArena(cupy, 2**10, 132).buffers(SetLayout.of(given, ALIGNMENT), 3, OperandRules())
    whole, placement = buffers.views(2), Placement.of(buffers, 3)
    factors, b_factors, _ = placement.added(2)
    assert given.groups is not None
    written = 0
    for number, rows in given.groups.with_rows():
        one, count = whole.group(number, rows), rows.stop - rows.start
        assert (one.a.shape, one.b.shape, one.d.shape) == ((count, 300), (300, 140), (count, 140))
        assert one.c is not None
        assert np.array_equal(one.c, whole.c[rows])  # type: ignore[index]
        assert np.array_equal(one.bias, whole.bias[number])  # type: ignore[index,arg-type]
        assert np.shares_memory(one.d, whole.d)
        # What a library is given for this product alone.
        first, inner = {"tensor": (0, 1), "row": (rows.start, 1)}.get(scale, (3 * rows.start, 3))
        lines = 1 if scale == "tensor" else count
        lying = at_address(factors + 4 * first, inner * lines, np.float32).reshape(inner, lines)
        assert np.array_equal(one.a_factors, lying.T)  # type: ignore[arg-type]
        of_b = {"tensor": (1, 1), "row": (1, 140), "1x128": (3, 140), "1x128:128x128": (2, 4)}[scale]
        size = of_b[0] * of_b[1]
        lying = at_address(b_factors + 4 * number * size, size, np.float32).reshape(of_b)
        expected = lying[:, :3].T if "128x128" in scale else lying
        assert np.array_equal(one.b_factors, expected)  # type: ignore[arg-type]
        one.d[...] = number
        written += count
    assert written == len(whole.d) == sum(SIZES)
    assert np.array_equal(np.asarray(whole.d[:, 0]), np.repeat(range(len(SIZES)), SIZES))


@pytest.mark.parametrize(
    ("types", "layout", "scale", "fused"),
    [("f16i4", "nn", "none:1x32", "swiglu"), ("f8e4m3", "nt", "1x128:128x128", "none"), ("f32", "nt", "row", "relu")],
)
def test_offsets_of_groups_lead_to_their_operands(types: str, layout: str, scale: str, fused: str) -> None:
    given = problem(types, layout, n=140, k=300, scale=scale, fused=fused)
    whole, parts = operands_of(given), [*given.groups.with_rows()]  # type: ignore[union-attr]
    firsts = np.array([rows.start for _, rows in parts], np.uint64)
    numbers = np.array([number for number, _ in parts], np.uint64)
    a, b, _, d, a_factors, b_factors = group_offsets(given, firsts, numbers)
    ones = [whole.group(*part) for part in parts]
    for name, offsets in {"a": a, "b": b, "d": d, "a_factors": a_factors, "b_factors": b_factors}.items():
        start = getattr(whole, name)
        if start is not None:
            found = [getattr(one, name).ctypes.data - start.ctypes.data for one in ones]
            assert offsets.tolist() == found, name


def test_a_file_fills_no_matrices_of_groups(tmp_path: Path) -> None:
    np.save(tmp_path / "w.npy", np.ones((200, 200), np.float32))
    file = MatrixRules.model_validate_json(describe(tmp_path / "w.npy", None))
    with pytest.raises(InvalidOnDevice, match=r"w\.npy is one matrix, and the problem has 9 of them"):
        operands_of(problem(layout="nt"), OperandRules(b=file))
    given, rules = problem(layout="nt"), OperandRules(a=file)
    assert verify(given, computed(given, rules=rules), rules).error < 1e-5


# --- verification -------------------------------------------------------------------------------------

Parts = list[tuple[slice, int, slice]]
"""What a kernel computes: rows of A, the matrix that they are multiplied with, and the rows of D that the result is written to."""


def right(groups: Groups) -> Parts:
    return [(rows, number, rows) for number, rows in groups.with_rows()]


def with_matrices(change: Callable[[int, int], int]) -> Callable[[Groups], Parts]:
    """Other matrices, from the number of the group and the count of groups."""
    return lambda groups: [(a, change(b, len(groups.sizes)), d) for a, b, d in right(groups)]


def shifted(by: int) -> Callable[[Groups], Parts]:
    """Groups begin that many rows later, or end earlier."""

    def parts(groups: Groups) -> Parts:
        borders = np.cumsum([0, *groups.sizes])
        borders[1:-1] += by
        borders = np.clip(np.maximum.accumulate(borders), 0, groups.rows)
        found = [slice(int(x), int(y)) for x, y in pairwise(borders)]
        return [(rows, number, rows) for number, rows in enumerate(found) if rows.stop > rows.start]

    return parts


def without_empty(groups: Groups) -> Parts:
    """Empty groups are not counted."""
    return [(a, number, d) for number, (a, _, d) in enumerate(right(groups))]


def swapped(groups: Groups) -> Parts:
    """Two groups of equal size have each other's place in D."""
    parts = right(groups)
    first, second = next((i, i + 1) for i, size in enumerate(groups.sizes[:-1]) if 0 < size == groups.sizes[i + 1])
    places = {p[1]: p[2] for p in parts}
    places[first], places[second] = places[second], places[first]
    return [(a, b, places[b]) for a, b, _ in parts]


MUTATIONS: dict[str, Callable[[Groups], Parts]] = {
    "each has the matrix of the next": with_matrices(lambda number, count: (number + 1) % count),
    "one has the matrix of its neighbour": with_matrices(lambda number, _: 4 if number == 5 else number),
    "the last has another": with_matrices(lambda number, count: number if number < count - 1 else 0),
    "all have the first": with_matrices(lambda *_: 0),
    "each begins a row later": shifted(1),
    "each ends a row earlier": shifted(-1),
    "empty ones are not counted": without_empty,
    "two are swapped": swapped,
    "rows of A are those of the next row": lambda groups: [
        (slice(a.start + 1, a.stop + 1) if a.stop < groups.rows else a, b, d) for a, b, d in right(groups)
    ],
}

LEFT_OUT: dict[str, tuple[Callable[[Groups], Parts], int]] = {
    "the last": (lambda groups: right(groups)[:-1], 8),
    "one of a row": (lambda groups: [part for part in right(groups) if part[1] != 2], 2),
    "a large one": (lambda groups: [part for part in right(groups) if part[1] != 7], 7),
}
"""With the group that is not written."""


def computed(
    given: Problem,
    parts: Callable[[Groups], Parts] = right,
    rules: OperandRules = OperandRules(),  # noqa: B008 - it is frozen
) -> OperandSet:
    """An operand set with what a kernel leaves that computes these parts."""
    operands, types = operands_of(given, rules), given.types
    assert given.groups is not None
    operands.d.fill(poison(types.cd))
    for rows, matrix, place in parts(given.groups):
        exact = given.alpha * (decode(types.ab.of_a, operands.a[rows]) @ decode(types.ab.of_b, operands.b[matrix]))
        if operands.c is not None:
            exact += given.beta * decode(types.cd, operands.c[place])
        wide = types.cd in (ElementType.I32, ElementType.F64)
        operands.d[place] = exact if wide else encode(types.cd, exact.astype(np.float32))
    return operands


TYPES = ["f32", "f64", "tf32", "f16", "bf16:f32:f32", "f8e4m3e5m2", "i8"]


@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize(("layout", "alpha", "beta"), [("nn", 1.0, 0.0), ("nt", -1.0, 2.0)])
@pytest.mark.parametrize("sizes", [SIZES, MANY, (3,), (0, 0, 100)])
def test_right_groups_of_any_types_pass(
    sizes: tuple[int, ...], layout: str, alpha: float, beta: float, types: str
) -> None:
    given = problem(types, layout, sizes, alpha=alpha, beta=beta)
    checked = verify(given, computed(given))
    assert 0 <= checked.error <= checked.bound / 2
    assert checked.method == ("groups" if max(sizes) > 30 else "elements")


@pytest.mark.parametrize("types", ["f32", "f64", "f16", "i8"])
@pytest.mark.parametrize("mutation", MUTATIONS)
@pytest.mark.parametrize("every", [0, SMALL, 100 * LARGE])
def test_groups_with_wrong_rows_or_matrices_are_wrong(
    monkeypatch: pytest.MonkeyPatch, every: int, mutation: str, types: str
) -> None:
    for name in ("_EVERY_ELEMENT", "_EVERY_ELEMENT_F64"):
        monkeypatch.setattr(verifying, name, every)
    given = problem(types, "nt")
    with pytest.raises(WrongResult, match=r"\) of group \d is off"):
        verify(given, computed(given, MUTATIONS[mutation]))


@pytest.mark.parametrize("types", ["f32", "f64", "f16", "i8"])
@pytest.mark.parametrize("mutation", LEFT_OUT)
def test_a_group_that_is_left_out_is_named(mutation: str, types: str) -> None:
    parts, group = LEFT_OUT[mutation]
    given = problem(types)
    with pytest.raises(ElementNotWritten, match=rf"\(0, 0\) of group {group} unwritten"):
        verify(given, computed(given, parts))


@pytest.mark.parametrize("wrong", [0.3, math.inf])
def test_a_single_wrong_element_is_named_by_its_row_in_the_group(wrong: float) -> None:
    given = problem()
    operands = computed(given)
    assert given.groups is not None
    for number, rows in given.groups.with_rows():
        right_element = float(operands.d[rows.stop - 1, 5])
        operands.d[rows.stop - 1, 5] += wrong * result_scale(given)
        last = rows.stop - rows.start - 1
        with pytest.raises(WrongResult, match=rf"\({last}, 5\) of group {number} is off") as caught:
            verify(given, operands)
        assert [caught.value.fields[name] for name in ("matrix", "group", "row")] == [None, number, last]
        operands.d[rows.stop - 1, 5] = right_element


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("fused", ["none", "bias+gelu"])
def test_the_factors_and_the_bias_of_another_group_are_wrong(scale: str, fused: str) -> None:
    given = problem("f32", "nt", n=60, k=200, scale=scale, fused=fused)
    operands = operands_of(given)

    def compute(change: int) -> None:
        assert given.groups is not None
        for number, rows in given.groups.with_rows():
            other = operands.group((number + change) % 9, rows)
            one = operands.group(number, rows)
            assert one.a_factors is not None
            a = one.a * factor_of_each(one.a_factors, *one.a.shape)
            b = one.b * factor_of_each(other.b_factors, *one.b.shape)
            x = a.astype(np.float64) @ b
            if other.bias is not None:
                x = x + other.bias
                x = x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
            one.d[...] = x

    compute(0)
    verify(given, operands)
    compute(1)
    with pytest.raises(WrongResult, match="of group"):
        verify(given, operands)


def factor_of_each(factors: Any, rows: int, columns: int) -> Any:
    """The factor of each element of a matrix, from those of its blocks."""
    lines, inner = factors.shape
    across, along = (1 if lines == rows else 128), (1 if inner == columns else 128)
    return factors.repeat(rows if lines == 1 else across, 0)[:rows].repeat(columns if inner == 1 else along, 1)[
        :, :columns
    ]


# --- on a processor -----------------------------------------------------------------------------------


def line(sizes: tuple[int, ...] = SIZES, n: int = N, k: int = K) -> str:
    return f"{sum(sizes)}x{n}x{k} {{}} groups={Groups.of(sizes)}"


@pytest.mark.parametrize("types", ["f32", "f64"])
@pytest.mark.parametrize("layout", ["nn", "nt"])
@pytest.mark.parametrize("sizes", [SIZES, MANY, (9,)])
def test_a_processor_measures_groups(processor: cpu.CpuDevice, sizes: tuple[int, ...], layout: str, types: str) -> None:
    configuration = Configuration.parse(f"blas(threads=1) {line(sizes).format(f'{types} {layout}')}")
    row = processor.measure(configuration, ASKED)
    assert row.runtime_ms > 0
    assert row.verify_error is not None
    assert row.details["footprint_bytes"] >= row.details["operand_sets"] * configuration.problem.operand_bytes
    assert (row.result_digest is not None, row.deterministic, row.batch_invariant) == (True, True, None)


@pytest.mark.parametrize("mutation", [*MUTATIONS, *LEFT_OUT])
def test_a_processor_with_a_wrong_kernel_gives_no_row(
    processor: cpu.CpuDevice, monkeypatch: pytest.MonkeyPatch, mutation: str
) -> None:
    parts = (MUTATIONS[mutation] if mutation in MUTATIONS else LEFT_OUT[mutation][0])(Groups.of(SIZES))

    def wrong(a: Any, b: Any, d: Any) -> None:
        for rows, matrix, place in parts:
            d[place] = a[rows] @ b[matrix]

    family = processor._families["blas"]
    monkeypatch.setattr(type(family), "bind", lambda *_: nullcontext(CpuKernel(multiply=wrong, details={})))
    with pytest.raises(WrongResult if mutation in MUTATIONS else ElementNotWritten, match=r"of group \d"):
        processor.measure(Configuration.parse(f"blas(threads=1) {line().format('f32')}"), QUICK)


# --- on a card ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("types", ["f32", "f64"])
@pytest.mark.parametrize("layout", ["nn", "nt"])
@pytest.mark.parametrize("scalars", ["", "alpha=-1.5 beta=0.5"])
@pytest.mark.parametrize("sizes", [SIZES, MANY, (9,)])
@pytest.mark.sampled(4)
def test_a_card_measures_groups(
    device: CudaDevice,
    monkeypatch: pytest.MonkeyPatch,
    sizes: tuple[int, ...],
    scalars: str,
    layout: str,
    types: str,
) -> None:
    monkeypatch.setattr(cuda_verify, "verify", None)  # what looks closer is not needed where all is right
    configuration = Configuration.parse(f"tiled(tile=8) {line(sizes).format(f'{types} {layout} {scalars}')}")
    row = device.measure(configuration, ASKED)
    assert row.verify_error is not None
    assert row.verify_error < 1e-5
    assert row.details["verified_by"] == ("groups" if max(sizes) > 30 else "elements")
    assert (row.deterministic, row.batch_invariant) == (True, None)
    assert row.details["useful_share"] == sum(sizes) / sum(-(-size // 8) * 8 for size in sizes)
    with device.replaying(configuration, OperandRules()) as work:
        assert work.result.first == digest(np.asarray(work.operands.d))


@pytest.mark.parametrize("tile", [1, 8, 32])
@pytest.mark.parametrize("fused", ["none", "bias+silu"])
@pytest.mark.parametrize("sizes", [SIZES, MANY, (0, 31, 0)])
def test_groups_of_tiled_are_right(device: CudaDevice, sizes: tuple[int, ...], fused: str, tile: int) -> None:
    for types in ("f32 nn", "f64 nt alpha=2 beta=-1"):
        text = f"tiled(tile={tile}) {line(sizes, 21, 17).format(types)} fused={fused}"
        assert_wide_product(device, Configuration.parse(text), at_address)


def changed(change: Callable[[Any], None]) -> Callable[[Any], Any]:
    def table(found: Any) -> Any:
        change(found)
        return found

    return table


def another_group(table: Any) -> None:
    table[table[:, 3] == 5, 3] = 4


def next_row(table: Any) -> None:
    table[1:, 1] += 1


def earlier_end(table: Any) -> None:
    table[-1, 2] -= 1


def without_the_last(table: Any) -> None:
    table[-1] = table[-2]
    table[-1, 0] += 1


TABLES: dict[str, tuple[Callable[[Any], None], type[Exception]]] = {
    "a group has the matrix of its neighbour": (another_group, WrongResult),
    "tiles begin a row later": (next_row, ElementNotWritten),
    "the last row is left out": (earlier_end, ElementNotWritten),
    "the last group is left out": (without_the_last, ElementNotWritten),
}


@pytest.mark.parametrize("mutation", TABLES)
@pytest.mark.parametrize("room", [cuda_verify.MAX_WIDENED, 0])
def test_a_card_with_wrong_tiles_gives_no_row(
    device: CudaDevice, monkeypatch: pytest.MonkeyPatch, room: int, mutation: str
) -> None:
    monkeypatch.setattr(cuda_verify, "MAX_WIDENED", room)
    change, error = TABLES[mutation]
    configuration = Configuration.parse(f"tiled(tile=8) {line().format('f32')}")
    with monkeypatch.context() as patched:
        patched.setattr(tiled, "group_tiles", lambda groups, rows: changed(change)(group_tiles(groups, rows)))
        with pytest.raises(error, match=r"of group \d"):
            device.measure(configuration, QUICK)
    assert device.measure(configuration, QUICK).verify_error is not None


def test_a_kernel_with_groups_is_another_and_their_sizes_are_none() -> None:
    texts = ("tiled() 64 f32", "tiled() 64 f32 groups=64", "tiled() 64 f32 groups=32,32", "tiled() 64 f32 groups=0,64")
    hashes = [TiledKernel.of(Configuration.parse(text)).hash for text in texts]
    assert hashes[0] != hashes[1] == hashes[2] == hashes[3]


def test_tiles_have_rows_of_one_group() -> None:
    kernel, table = (
        TiledKernel.of(Configuration.parse("tiled(tile=16) 64 f32")),
        group_tiles(Groups.of([17, 0, 16, 1]), 16),
    )
    assert table.tolist() == [[0, 0, 17, 0], [0, 0, 17, 0], [2, 17, 33, 2], [3, 33, 34, 3]]
    many = Groups.of([70_000, 1])
    assert kernel.grid(Shape(70_001, 40, 8), many) == (3, 4376)
    assert TiledKernel(1, ElementType.F32, False, False, grouped=True).grid(Shape(70_001, 40, 8), many) == (40, 65_535)
