"""The family `cusparselt` without a card: which problems it has, what the library is asked for, and that it is computed."""

from __future__ import annotations

import re
from itertools import product
from typing import Any

import pytest

from farm.devices import DeviceKind, DeviceTraits
from farm.errors import InvalidOnDevice, WrongResult
from farm.gemm import Layout
from farm.kernels import FAMILIES, Configuration
from farm.services.doctor import machine
from farm.services.doctor.check import CheckState
from farm.settings import settings
from support.fake_cuda import FakeCupy, OutOfMemoryError, at_address
from support.fake_cusparselt import (
    ARCH_MISMATCH,
    EXECUTION_FAILED,
    NOT_INITIALIZED,
    NOT_SUPPORTED,
    FakeSparseLt,
    LtError,
    install,
)
from support.quick import QUICK, assert_wide_product
from workers.devices.cuda import CudaDevice
from workers.kernels.base import CardContext, Placement
from workers.kernels.cusparselt import CusparseLtFamily
from workers.measure.operands import SetLayout

SPARSE = "sparsity=2:4"


def why(text: str, capability: tuple[int, int] = (9, 0)) -> str | None:
    device = DeviceTraits(kind=DeviceKind.CUDA, memory_bytes=2**34, compute_capability=capability)
    return Configuration.parse(f"cusparselt{text}").why_invalid(device)


@pytest.mark.parametrize(
    ("text", "capability", "reason"),
    [
        ("() 64 f16 nt", (9, 0), "cusparselt has no sparsity=none, only 2:4"),
        ("() 64 f32 nt sparsity=2:4", (9, 0), "cusparselt multiplies f16, bf16, i8, f8e4m3, not f32"),
        ("() 64 f16:f32:f32 nt sparsity=2:4", (9, 0), "cusparselt computes f16:f16:f32, not f16:f32:f32"),
        (
            "() 64 f16 nt sparsity=2:4",
            (7, 5),
            "cusparselt needs sparse tensor cores, of compute capability 8.0, the device has 7.5",
        ),
        (
            "() 64 f8e4m3 nt sparsity=2:4",
            (8, 0),
            "cusparselt needs compute capability 8.9 for f8e4m3, the device has 8.0",
        ),
        ("() 64 i8 nn sparsity=2:4", (9, 0), "cusparselt multiplies i8 in layout nt only, not nn"),
        (
            "() 60x64x64 f16 nt sparsity=2:4",
            (9, 0),
            "cusparselt needs m to be a multiple of 8, and n and k of 16, for f16, not 60x64x64",
        ),
        (
            "() 64x80x64 i8 nt sparsity=2:4",
            (9, 0),
            "cusparselt needs m to be a multiple of 16, and n and k of 32, for i8, not 64x80x64",
        ),
        (
            "() 64 i8 nt fused=relu sparsity=2:4",
            (9, 0),
            "cusparselt fuses no operations into products of i8: fused must be none, not relu",
        ),
        (
            "() 64 f16 nt fused=gelu sparsity=2:4",
            (9, 0),
            "cusparselt fuses gelu into products of f8e4m3 with a D of bf16 only, not of f16:f16:f32",
        ),
        ("(split_mode=1) 64 f16 sparsity=2:4", (8, 0), "cusparselt needs split_k above 1 for a split_mode"),
        (
            "(split_k=2) 64 f16 sparsity=2:4",
            (9, 0),
            "cusparselt has split_k below compute capability 9.0 only, the device has 9.0",
        ),
        (
            "(segment_k=1) 64 f16 sparsity=2:4",
            (8, 0),
            "cusparselt has segment_k on compute capability 9.0 only, the device has 8.0",
        ),
    ],
)
def test_what_it_lacks_is_invalid_with_the_reason(text: str, capability: tuple[int, int], reason: str) -> None:
    assert why(text, capability) == reason


# --- what the library is asked for --------------------------------------------------------------------


@pytest.fixture
def lt(cupy: FakeCupy, monkeypatch: pytest.MonkeyPatch) -> FakeSparseLt:
    fake = FakeSparseLt(cupy)
    install(fake, monkeypatch)
    return fake


def measured(device: CudaDevice, text: str) -> None:
    """As `assert_wide_product`, on this machine's memory."""
    assert_wide_product(device, Configuration.parse(text), at_address)


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("types", ["f16", "bf16"])
def test_products_are_right_in_every_layout(lt: FakeSparseLt, device: CudaDevice, types: str, layout: Layout) -> None:
    for batch, scalars in product((1, 3), ("", "alpha=-1.5 beta=0.5")):
        measured(device, f"cusparselt() 24x48x64 {types} {layout} {scalars} batch={batch} {SPARSE}")
    assert lt.compressions > 4  # of each operand set
    assert lt.alive == 1  # the handle


@pytest.mark.parametrize("types", ["i8", "f8e4m3", "f8e4m3:f16:f32", "f8e4m3:f32:f32"])
def test_8_bit_products_are_right(lt: FakeSparseLt, device: CudaDevice, types: str) -> None:
    measured(device, f"cusparselt() 32x64x96 {types} nt batch=2 {SPARSE}")


@pytest.mark.parametrize("fused", [str(fused) for fused in FAMILIES["cusparselt"].fusions])
def test_fused_products_are_right_and_each_operand_set_has_its_bias(
    lt: FakeSparseLt, device: CudaDevice, fused: str
) -> None:
    types = "f8e4m3" if "gelu" in fused else "f16"
    for batch in (1, 3):
        measured(device, f"cusparselt() 32x64x96 {types} nt alpha=-1.5 beta=0.5 batch={batch} fused={fused} {SPARSE}")


def test_a_wrong_index_of_the_library_is_found(lt: FakeSparseLt, device: CudaDevice) -> None:
    def swapped(_: Any, indexes: Any) -> None:
        indexes[0, 5, 7] = indexes[0, 5, 7, ::-1].copy()

    lt.change = swapped
    with pytest.raises(WrongResult):
        device.measure(Configuration.parse(f"cusparselt() 64x64x64 f16 nt {SPARSE}"), QUICK)


def test_a_row_says_what_the_library_chose(lt: FakeSparseLt, device: CudaDevice) -> None:
    row = device.measure(Configuration.parse(f"cusparselt() 64x64x64 f16 nt {SPARSE}"), QUICK)
    chosen = {"config_id": 3, "config_max_id": 5, "split_k": 1, "split_k_mode": 1, "split_k_buffers": 0}
    assert chosen.items() <= row.details.items()
    assert row.details["compressed_bytes"] == 64 * 32 * 3
    assert (row.details["workspace_bytes"], row.details["cusparselt"]) == (640, "0.8.1")
    lt.lacking = {"SPLIT_K", "SPLIT_K_MODE"}
    row = device.measure(Configuration.parse(f"cusparselt() 64x64x64 f16 nt {SPARSE}"), QUICK)
    assert (row.details["config_id"], row.details["split_k"], row.details["split_k_mode"]) == (3, None, None)


def bound(cupy: FakeCupy, text: str) -> Any:
    configuration = Configuration.parse(text)
    traits = DeviceTraits(kind=DeviceKind.CUDA, memory_bytes=2**34)
    family = CusparseLtFamily(CardContext(cp=cupy, traits=traits, threads_per_multiprocessor=2048, kernels=None))
    layout = SetLayout.of(configuration.problem, 256)
    inputs = cupy.empty(layout.inputs, "u2")
    inputs.fill(0)
    kernel = family.bind(
        configuration,
        Placement(layout=layout, sets=1, inputs=inputs.data.ptr, inputs_of_b=inputs.data.ptr, addends=0, outputs=2**22),
    )
    kernel.kept = inputs
    return kernel


def test_parameters_choose_the_algorithm(lt: FakeSparseLt, cupy: FakeCupy) -> None:
    details = bound(cupy, f"cusparselt(algorithm=5,split_k=4,split_mode=2) 64x64x64 f16 nt {SPARSE}").details()
    assert (details["config_id"], details["split_k"], details["split_k_mode"]) == (4, 4, 2)
    assert bound(cupy, f"cusparselt(segment_k=1) 64x64x64 f16 nt {SPARSE}").details()["split_k"] == -1
    with pytest.raises(InvalidOnDevice, match="cusparselt has 5 algorithms for f16:f16:f32 here, so none is number 6"):
        bound(cupy, f"cusparselt(algorithm=6) 64x64x64 f16 nt {SPARSE}")
    texts = [
        f"cusparselt({one}) 64x64x64 {types} nt {SPARSE}" for one in ("", "algorithm=1") for types in ("f16", "bf16")
    ]
    assert len({bound(cupy, text).hash for text in texts}) == 4


def test_what_the_library_refuses_is_invalid_and_what_fails_is_not(lt: FakeSparseLt, cupy: FakeCupy) -> None:
    lt.error = LtError(NOT_SUPPORTED)
    wanted = (
        "cusparselt supports no f16:f16:f32 with layout nt and the shape 64x64x64 in batches of 3 with fused=relu by"
    )
    with pytest.raises(InvalidOnDevice, match=rf"{re.escape(wanted)} .* here \(CUSPARSE_STATUS_NOT_SUPPORTED\)"):
        bound(cupy, f"cusparselt() 64x64x64 f16 nt batch=3 fused=relu {SPARSE}")
    assert lt.alive == 1  # the handle
    lt.error = LtError(EXECUTION_FAILED)
    with pytest.raises(LtError):
        bound(cupy, f"cusparselt() 64x64x64 f16 nt {SPARSE}")


def test_a_card_that_the_library_refuses_is_invalid(lt: FakeSparseLt, cupy: FakeCupy) -> None:
    lt.missing = LtError(ARCH_MISMATCH)
    with pytest.raises(InvalidOnDevice, match=r"no GPU of this kind \(CUSPARSE_STATUS_ARCH_MISMATCH\)"):
        bound(cupy, f"cusparselt() 64x64x64 f16 nt {SPARSE}")
    lt.missing = LtError(NOT_INITIALIZED)
    with pytest.raises(LtError):
        bound(cupy, f"cusparselt() 64x64x64 f16 nt {SPARSE}")


def test_nothing_of_the_library_is_left_where_there_is_no_memory_for_its_workspace(
    lt: FakeSparseLt, cupy: FakeCupy, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = cupy.empty

    def without_room_for_the_workspace(count: int, dtype: Any) -> Any:
        if count == lt.matmul_get_workspace():
            raise OutOfMemoryError
        return empty(count, dtype)

    monkeypatch.setattr(cupy, "empty", without_room_for_the_workspace)
    with pytest.raises(OutOfMemoryError):
        bound(cupy, f"cusparselt() 64x64x64 f16 nt {SPARSE}")
    assert lt.alive == 1  # the handle


def test_a_host_without_the_library_says_so(lt: FakeSparseLt, cupy: FakeCupy) -> None:
    lt.missing = RuntimeError("Failure finding libcusparseLt.so\nmore lines")
    wanted = r"needs nvmath-python and cuSPARSELt, which cannot be loaded here \(Failure finding libcusparseLt.so\)\. .*cuda13"
    with pytest.raises(InvalidOnDevice, match=wanted):
        bound(cupy, f"cusparselt() 64x64x64 f16 nt {SPARSE}")


def test_the_doctor_names_a_gpu_host_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_nvidia_driver", lambda: "580.65.06")
    there = {"pynvml", "cupy"}
    monkeypatch.setattr(machine.importlib.util, "find_spec", lambda name: object() if name in there else None)
    check = machine.check_gpu(settings())
    assert check.state is CheckState.OK
    assert "no cuSPARSELt, so that the family cusparselt is invalid here" in check.what
    there.add("nvidia.cusparselt")
    assert machine.check_gpu(settings()).what == "NVIDIA driver 580.65.06, CuPy and NVML"
