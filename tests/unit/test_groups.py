"""Groups of rows, each multiplied with a matrix of its own: what such a problem is called, how large it is, and who computes it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.devices import DeviceKind, DeviceTraits
from farm.errors import BadGroups
from farm.gemm import ElementTypes, Layout, Problem, Shape
from farm.groups import MAX_GROUPS, Groups
from farm.kernels import Configuration
from farm.scale import Scale

LINE = "cublaslt(algorithm=0) 131x256x64 bf16:bf16:f32 nt alpha=1 beta=0 groups=16*8,3,0*2"
CARD = DeviceTraits(kind=DeviceKind.CUDA, memory_bytes=2**33, compute_capability=(9, 0))


@given(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=50))
def test_the_text_of_groups_reads_back(sizes: list[int]) -> None:
    assert Groups.parse(str(Groups.of(sizes))) == Groups.of(sizes)


def test_the_line_reads_back_and_other_spellings_are_the_same() -> None:
    one = Configuration.parse(LINE)
    assert one.problem.groups == Groups((16,) * 8 + (3, 0, 0))
    assert one.canonical == LINE
    assert Configuration.from_columns(one.columns()) == one
    assert Configuration.parse(LINE.replace("16*8,3,0*2", "16*3,16,16*4,3,0,0")) == one
    assert Configuration.parse(LINE.replace(" groups=16*8,3,0*2", "")).problem.groups is None


def test_groups_say_what_they_hold() -> None:
    groups = Groups.of([16, 0, 17, 1])
    assert (groups.rows, groups.active, groups.largest, groups.tiles(16)) == (34, 3, 17, 4)
    assert groups.useful_share(16) == 34 / 64


def test_groups_read_a_matrix_each_but_empty_ones() -> None:
    shape, types = Shape(100, 256, 512), ElementTypes.parse("f16")
    alone, grouped = Problem(shape, types), Problem(shape, types, groups=Groups.of([60, 0, 40, 0]))
    of_b = 256 * 512 * 2
    assert grouped.flops == alone.flops
    assert grouped.bytes == alone.bytes + of_b
    assert grouped.operand_bytes == alone.operand_bytes + 3 * of_b
    scaled = Problem(shape, types, scale=Scale.ROW, groups=Groups.of([60, 0, 40, 0]))
    assert scaled.bytes == grouped.bytes + 4 * (100 + 2 * 256)
    assert scaled.operand_bytes == grouped.operand_bytes + 4 * (100 + 4 * 256)


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ("16,x", "'x' is not a number of rows; write for example 16[*]8,3,0"),
        ("16*8,,3", "'' is not a number of rows"),
        ("-1,132", "'-1' is not a number of rows"),
        ("130", "they have 130 rows together, and m is 131"),
        (f"0*{MAX_GROUPS},131", "there are 1 to 4,096 groups"),
        ("131*99999", "there are 1 to 4,096 groups"),
    ],
)
def test_groups_that_do_not_add_up_or_cannot_be_read_are_named(written: str, why: str) -> None:
    with pytest.raises(BadGroups, match=rf"The groups .* do not work: {why}"):
        Configuration.parse(LINE.replace("16*8,3,0*2", written))


def test_groups_have_no_batch_and_rows_that_lie_together() -> None:
    with pytest.raises(BadGroups, match="a batch has no groups, and batch is 2"):
        Configuration.parse(f"{LINE} batch=2")
    with pytest.raises(BadGroups, match="the layout is nn or nt, not tn"):
        Problem(Shape(8, 8, 8), ElementTypes.parse("f32"), Layout.TN, groups=Groups.of([8]))


def test_a_family_without_groups_refuses_them() -> None:
    why = Configuration.parse(LINE.replace("cublaslt(algorithm=0)", "cutlass()")).why_invalid(CARD)
    assert why == "cutlass computes no groups"


def test_long_groups_of_equal_number_differ_by_the_rows_of_smallest_median_and_largest() -> None:
    routings = ([0, *range(1, 14)], [0, *range(3, 15), 13], [0, 1, *[9, 8] * 5, 12, 13])
    assert [Groups.of(sizes).summary for sizes in routings] == [
        "14 (13 with rows, 1 to 13, median 7)",
        "14 (13 with rows, 3 to 14, median 9)",
        "14 (13 with rows, 1 to 13, median 9)",
    ]
