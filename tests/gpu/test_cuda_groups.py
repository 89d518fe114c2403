"""Groups of rows on a card: tiled kernels and cuBLASLt compute each with its own matrix, and what computes others is found."""

from __future__ import annotations

from typing import Any

import pytest

from farm.errors import ElementNotWritten, InvalidOnDevice, WrongResult
from farm.groups import Groups
from farm.kernels import Configuration
from farm.operands import OperandRules
from support.quick import QUICK, assert_wide_product, launched_again, supported
from workers.devices import cuda_verify
from workers.devices.cuda import CudaDevice
from workers.devices.cuda_arena import ALIGNMENT
from workers.measure import verify as verifying
from workers.measure.digest import digest
from workers.measure.elements import poison
from workers.measure.operands import SetLayout
from workers.measure.verify import error_bound, verify

ASKED = QUICK.model_copy(update={"determinism": True})

SIZES = {
    "one": (200,),
    "empty ones": (0, 64, 0, 0, 136, 4, 0),
    "single rows": (1,) * 12,
    "uneven": (300, 4, 0, 1, 76, 33, 600, 12),
    "128": (0, 1, 2, 61) * 32,
}
FOURS = {"128": (0, 4, 8, 60) * 32, "uneven": (300, 4, 0, 76, 600, 12)}


def line(kernel: str, sizes: tuple[int, ...], rest: str, n: int = 272, k: int = 400) -> str:
    return f"{kernel} {sum(sizes)}x{n}x{k} {rest} groups={Groups.of(sizes)}"


def by_library(device: CudaDevice, text: str) -> Configuration:
    """A configuration of cuBLASLt; the test is skipped where the loaded version has no groups."""
    configuration = supported(device, text)
    try:
        with device.replaying(configuration, OperandRules()):
            return configuration
    except InvalidOnDevice as error:
        if "groups need" in str(error) or "no grouped products" in str(error):
            pytest.skip(str(error))
        raise


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("types", ["f32", "f64"])
@pytest.mark.parametrize("tile", [7, 32])
def test_groups_of_tiled_are_those_of_a_wide_product(
    device: CudaDevice, tile: int, types: str, sizes: tuple[int, ...]
) -> None:
    for rest in ("nn", "nt alpha=1.5 beta=0.5", "nt fused=bias+gelu"):
        assert_wide_product(device, supported(device, line(f"tiled(tile={tile})", sizes, f"{types} {rest}", 133, 70)))


def test_more_tiles_of_rows_than_a_grid_has_are_computed(device: CudaDevice) -> None:
    text = line("tiled(tile=1)", (70_000, 0, 5), "f32", 8, 16)
    assert device.measure(supported(device, text), QUICK).details["useful_share"] == 1


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize(
    "types", ["f16 nn", "f16:f32:f32 nt", "bf16 nt", "bf16:f32:f32 nn", "f8e4m3 nt", "f8e5m2e4m3 nt"]
)
def test_groups_of_cublaslt_are_those_of_a_wide_product(device: CudaDevice, types: str, sizes: tuple[int, ...]) -> None:
    for scalars in ("", "alpha=1.5 beta=0.5"):
        assert_wide_product(device, by_library(device, line("cublaslt()", sizes, f"{types} {scalars}")))


@pytest.mark.parametrize("sizes", FOURS.values(), ids=FOURS)
@pytest.mark.parametrize("scale", ["1x128", "1x128:128x128"])
def test_groups_with_factors_are_those_of_a_wide_product(
    device: CudaDevice, scale: str, sizes: tuple[int, ...]
) -> None:
    for types in ("f8e4m3", "f8e4m3:f32:f32"):
        assert_wide_product(device, by_library(device, line("cublaslt()", sizes, f"{types} nt scale={scale}")))


@pytest.mark.parametrize("kernel", ["tiled() {} f32 nt", "cublaslt() {} bf16 nt"])
def test_layers_of_a_mixture_of_experts_are_measured(device: CudaDevice, kernel: str) -> None:
    for sizes in ((16,) * 64, (500, 12, 0, 0, 40, 200, 1, 15), (8,) * 128):
        shape = f"{sum(sizes)}x768x1024"
        text = f"{kernel.format(shape)} groups={Groups.of(sizes)}"
        configuration = by_library(device, text) if "cublaslt" in kernel else supported(device, text)
        row = device.measure(configuration, ASKED)
        assert row.verify_error is not None
        assert row.verify_error <= error_bound(configuration.problem)
        assert (row.result_digest is None, row.deterministic, row.batch_invariant) == (False, True, None)
        launched_again(device, configuration)


@pytest.mark.parametrize("types", ["f64", "f32"])
@pytest.mark.parametrize("room", [cuda_verify.MAX_WIDENED, 0])
@pytest.mark.parametrize("every", [0, 10 * 133 * 70, 2**24])
def test_wrong_and_missing_groups_are_found(
    device: CudaDevice, monkeypatch: pytest.MonkeyPatch, every: int, room: int, types: str
) -> None:
    import cupy

    monkeypatch.setattr(cuda_verify, "MAX_WIDENED", room)
    for name in ("_EVERY_ELEMENT", "_EVERY_ELEMENT_F64"):
        monkeypatch.setattr(verifying, name, every)
    rules, sizes = OperandRules(seed=3), (40, 0, 7, 7, 1, 90, 3)
    configuration = supported(device, line("tiled()", sizes, f"{types} nt alpha=1 beta=1", 133, 70))
    problem = configuration.problem
    assert problem.groups is not None
    with device.replaying(configuration, rules):  # which computes and verifies
        operands = device._arena.buffers(SetLayout.of(problem, ALIGNMENT), 1, rules).views(0)
        d, right = operands.d, operands.d.copy()

        def checked() -> Any:
            return device._verifier.begin(problem, operands, rules)()

        closely = verify(problem, operands, rules, cupy)
        found = checked()
        assert (found.method, found.bound) == (closely.method, closely.bound)
        assert found.error <= found.bound
        parts = [*problem.groups.with_rows()]
        for number, rows in parts:
            one, other = operands.group(number, rows), operands.b[(number + 1) % len(sizes)]
            d[rows] = one.a @ other + one.c
            with pytest.raises(WrongResult, match=f"of group {number} is off"):
                checked()
            d[rows] = poison(problem.types.cd)
            with pytest.raises(ElementNotWritten, match=rf"\(0, 0\) of group {number} unwritten"):
                checked()
            d[:] = right
        for by in (1, -1):
            d[:] = cupy.roll(right, by, axis=0)
            with pytest.raises(WrongResult, match="of group"):
                checked()
        d[:] = right
        (_, first), (_, second) = parts[1:3]  # of seven rows each
        d[first], d[second] = right[second], right[first]
        with pytest.raises(WrongResult, match="of group 2 is off"):
            checked()
        d[:] = right
        checked()


def test_the_digest_is_that_of_all_groups(device: CudaDevice) -> None:
    configuration = supported(device, line("tiled()", SIZES["uneven"], "f32"))
    with device.replaying(configuration, OperandRules()) as work:
        assert work.result.first == digest(work.operands.d.get())


@pytest.mark.parametrize("text", [
    line("cublaslt()", (8, 8), "f32"),
    line("cublaslt()", (8, 8), "bf16 fused=bias"),
    line("cublaslt()", (8, 7), "f8e4m3 nt scale=1x128"),
    line("cutlass()", (8, 8), "bf16"),
])  # fmt: skip
def test_what_is_not_supported_is_invalid_and_harms_nothing(device: CudaDevice, text: str) -> None:
    with pytest.raises(InvalidOnDevice):
        device.measure(Configuration.parse(text), QUICK)
    assert device.measure(supported(device, line("tiled()", (8, 8), "f32")), QUICK).runtime_ms > 0
