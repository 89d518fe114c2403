"""Groups of rows of cuBLASLt without a card: which exist, and what the library reads of them in memory."""

from __future__ import annotations

from typing import Any

import pytest

from farm.devices import DeviceKind, DeviceTraits
from farm.errors import ElementNotWritten, InvalidOnDevice, WrongResult
from farm.groups import Groups
from farm.kernels import Configuration
from farm.measurement import MeasuringRules, TimingRules
from support.fake_cublaslt import ComputingLt, install
from support.fake_cuda import FakeCupy, at_address
from support.quick import assert_wide_product
from workers.devices.cuda import CudaDevice
from workers.kernels.cublaslt_groups import GroupsOnCard

QUICK = MeasuringRules(timing=TimingRules(min_samples=3, max_samples=20, max_seconds=0.05, warmup_seconds=0.0))

SIZES = (8, 0, 4, 40, 12, 12, 0, 4)
ODD = (5, 0, 1, 40, 7, 7, 0, 3)


def line(types: str, sizes: tuple[int, ...] = SIZES, n: int = 48, k: int = 160, more: str = "") -> str:
    return f"cublaslt(algorithm=0) {sum(sizes)}x{n}x{k} {types} {more} groups={Groups.of(sizes)}"


# --- what exists --------------------------------------------------------------------------------------


def why(text: str, capability: tuple[int, int] = (9, 0)) -> str | None:
    device = DeviceTraits(kind=DeviceKind.CUDA, memory_bytes=2**34, compute_capability=capability)
    return Configuration.parse(text).why_invalid(device)


@pytest.mark.parametrize(
    "types", ["f16 nn", "bf16 nt", "bf16:f32:f32 nn", "f8e4m3 nt", "f8e4m3:f32:f32 nt", "f8e5m2e4m3 nt"]
)
def test_cublaslt_has_groups_of_any_sizes(types: str) -> None:
    for capability in ((9, 0), (10, 0), (10, 3), (11, 0)):
        assert why(line(types, ODD), capability) is None
    if "f8" in types:
        assert why(line(types, more="scale=1x128:128x128")) is None


@pytest.mark.parametrize(
    ("text", "capability", "reason"),
    [
        (line("f32"), (9, 0), "computes groups of f16, bf16 and 8-bit floats with an accumulator of f32 only, not of f32"),
        (line("f16:f16:f16"), (9, 0), "with an accumulator of f32 only, not of f16:f16:f16"),
        (line("bf16"), (8, 0), "computes groups on compute capability 9.0, 10.x and 11.0 only, the device has 8.0"),
        (line("bf16"), (12, 0), "computes groups on compute capability 9.0, 10.x and 11.0 only, the device has 12.0"),
        (line("bf16", more="fused=bias"), (9, 0), "fuses no operations into groups: fused must be none, not bias"),
        (line("f8e4m3 nt", more="scale=row"), (9, 0), "has scale=1x128 and scale=1x128:128x128 with groups, not scale=row"),
        (line("f8e4m3 nt", more="scale=tensor"), (9, 0), "with groups, not scale=tensor"),
        (line("f8e4m3 nt", (8, 3, 1), more="scale=1x128"), (9, 0), "groups of multiples of 4 rows for scale=1x128, not of 3"),
        (line("bf16 nt", k=164), (9, 0), "needs rows of A, B and D of multiples of 16 bytes with groups"),
        (line("bf16 nt", n=44), (9, 0), "needs rows of A, B and D of multiples of 16 bytes with groups"),
        (line("bf16:f32:f32 nn", n=44), (9, 0), "needs rows of A, B and D of multiples of 16 bytes with groups"),
    ],
)  # fmt: skip
def test_what_it_lacks_is_invalid_with_the_reason(text: str, capability: tuple[int, int], reason: str) -> None:
    found = why(text, capability)
    assert found is not None
    assert reason in found


# --- on a card ----------------------------------------------------------------------------------------


@pytest.fixture
def lt(cupy: FakeCupy, monkeypatch: pytest.MonkeyPatch) -> ComputingLt:
    fake = ComputingLt(cupy)
    fake.version = 130601
    install(fake, monkeypatch)
    return fake


@pytest.mark.parametrize("types", ["f16 nn", "bf16 nt", "bf16:f32:f32 nt", "f8e4m3 nt", "f8e4m3e5m2 nt"])
@pytest.mark.parametrize("sizes", [SIZES, ODD, (1, 0, 2, 1) * 32, (9,), (0, 0, 9)])
@pytest.mark.sampled(4)
def test_groups_of_any_sizes_are_right(lt: ComputingLt, device: CudaDevice, sizes: tuple[int, ...], types: str) -> None:
    for scalars in ("", "alpha=-1.5 beta=0.5"):
        assert_wide_product(device, Configuration.parse(line(types, sizes, more=scalars)), at_address)


@pytest.mark.parametrize("scale", ["1x128", "1x128:128x128"])
@pytest.mark.parametrize("types", ["f8e4m3 nt", "f8e5m2e4m3:f32:f32 nt"])
def test_each_group_has_factors_of_its_own(lt: ComputingLt, device: CudaDevice, types: str, scale: str) -> None:
    assert_wide_product(device, Configuration.parse(line(types, n=144, k=272, more=f"scale={scale}")), at_address)


def test_empty_groups_are_left_out_and_the_heuristic_is_told_averages(lt: ComputingLt, device: CudaDevice) -> None:
    device.measure(Configuration.parse(line("bf16 nt")), QUICK)
    preference = next(one.attributes for one in lt.described if "GROUPED_AVERAGE_REDUCTION_DIM" in one.attributes)
    assert preference["GROUPED_DESC_D_AVERAGE_ROWS"] == 48
    assert preference["GROUPED_DESC_D_AVERAGE_COLS"] == round(sum(SIZES) / 6)
    assert preference["GROUPED_AVERAGE_REDUCTION_DIM"] == 160
    assert [one.count for one in lt.described if one.grouped] == [6, 6, 6]


@pytest.mark.parametrize(
    ("products", "error"),
    [
        (lambda count: [(n, (n + 1) % count) for n in range(count)], WrongResult),
        (lambda count: [(n, n) for n in range(count - 1)], ElementNotWritten),
        (lambda count: [(0, n) for n in range(count)], WrongResult),
    ],
)
def test_a_wrong_order_of_groups_gives_no_row(
    lt: ComputingLt, device: CudaDevice, products: Any, error: type[Exception]
) -> None:
    lt.products = products
    with pytest.raises(error, match="of group"):
        device.measure(Configuration.parse(line("bf16 nt", (4, 0, 4, 4))), QUICK)


@pytest.mark.parametrize("place", range(4))
def test_a_wrong_address_of_a_group_gives_no_row(
    lt: ComputingLt, device: CudaDevice, monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    original = GroupsOnCard.__init__

    def wrong(self: GroupsOnCard, *arguments: Any) -> None:
        original(self, *arguments)
        self._pointers[:, place, 2] = self._pointers[:, place, 3]

    monkeypatch.setattr(GroupsOnCard, "__init__", wrong)
    with pytest.raises(WrongResult, match="of group"):
        device.measure(Configuration.parse(line("bf16 nt", (4, 0, 4, 4, 4, 4), more="alpha=1 beta=1")), QUICK)


def test_a_library_that_lacks_groups_is_invalid_with_the_version(lt: ComputingLt, device: CudaDevice) -> None:
    configuration = Configuration.parse(line("bf16 nt"))
    for version in (130100, 130400, 130600):
        lt.version = version
        loaded = f"13.{version // 100 % 100}.0"
        with pytest.raises(InvalidOnDevice, match=rf"cuBLAS {loaded} is loaded, and groups need 13\.6\.1 or newer"):
            device.measure(configuration, QUICK)
    lt.version = 130700
    row = device.measure(configuration, QUICK)
    assert row.details["cublaslt"] == "13.7.0"
    plain = device.measure(Configuration.parse(f"cublaslt(algorithm=0) {sum(SIZES)}x48x160 bf16 nt"), QUICK)
    assert row.kernel_hash != plain.kernel_hash


def test_bindings_without_groups_are_invalid(
    lt: ComputingLt, device: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("support.fake_cublaslt.FakeLt.grouped_matrix_layout_create")
    with pytest.raises(InvalidOnDevice, match="the installed nvmath-python has no grouped products"):
        device.measure(Configuration.parse(line("bf16 nt")), QUICK)


def test_nothing_is_left_of_what_binding_took(lt: ComputingLt, device: CudaDevice) -> None:
    device.measure(Configuration.parse(line("bf16 nt")), QUICK)
    assert lt.alive == 1  # the handle
    lt.offers = 0
    with pytest.raises(
        InvalidOnDevice, match=r"supports no bf16:bf16:f32 with layout nt and the shape .* in groups here"
    ):
        device.measure(Configuration.parse(line("bf16 nt")), QUICK)
    assert lt.alive == 1
