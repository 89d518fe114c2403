"""The family `source` on the card without a GPU: how a user's kernel is compiled, loaded and launched."""

from __future__ import annotations

import base64
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from farm.errors import DevicePoisoned, InvalidOnDevice, KernelRefused, MeasurementFailed
from farm.kernels import Configuration
from farm.kernels.definition import Definition
from support.fake_cuda import CUDARuntimeError, FakeCupy, at_address
from support.own_kernels import ENTRY, OwnKernel, defined, plain
from support.quick import QUICK
from support.virtual_time import VirtualTime
from workers.devices.cuda import CudaDevice
from workers.kernels import source
from workers.kernels.source import first_error

PARAMETERS = "BM=32,BN=16"


class CompileException(Exception):
    pass


class CUDADriverError(RuntimeError):
    pass


@pytest.fixture
def own(cupy: FakeCupy, virtual_time: VirtualTime) -> OwnKernel:
    kernel = cupy.own[ENTRY] = OwnKernel(plain, virtual_time)
    return kernel


def configuration(definition: Definition, problem: str = "64x48x32 f32", parameters: str = PARAMETERS) -> Configuration:
    return Configuration.parse(f"source(definition={definition.id},{parameters}) {problem}")


def test_parameters_become_macros_and_bounds_those_of_the_problem(
    device: CudaDevice, cupy: FakeCupy, own: OwnKernel
) -> None:
    definition = defined()
    row = device.measure(configuration(definition), QUICK)
    # Where this host has nvcc, there are folders of headers as well.
    options = {tuple(option for option in of if not option.startswith("-I")) for of in cupy.compiled}
    assert options == {("-std=c++17", "-DBM=32", "-DBN=16")}
    assert set(own.launches) == {((3, 2, 1), (128, 1, 1), 4 * 48 * 8)}
    assert row.details["source_file"] == "my_gemm.cu"
    assert (row.details["registers"], row.details["dynamic_shared_bytes"], row.details["blocks"]) == (40, 1536, 6)
    other = device.measure(configuration(definition, parameters="BM=16,BN=16"), QUICK)
    assert other.kernel_hash != row.kernel_hash


def test_arguments_come_in_their_order_and_width(device: CudaDevice, cupy: FakeCupy, virtual_time: VirtualTime) -> None:
    given: list[Any] = []

    def kernel(grid: Any, block: Any, shared: int, *arguments: Any) -> None:
        given.append(arguments)
        beta, d, k, m, a, n, b, bm, alpha = arguments
        own(grid, block, shared, a, b, 0, d, np.int32(m), np.int32(n), np.int32(k), np.int32(1), alpha, beta)
        assert (type(m), type(k), bm, type(bm)) == (np.int64, np.int32, 32, np.int32)

    own, cupy.own[ENTRY] = OwnKernel(plain, virtual_time), kernel
    written = ("beta", "d", "k", "m:i64", "a", "n", "b", "BM", "alpha")
    assert device.measure(configuration(defined(arguments=written)), QUICK).runtime_ms > 0
    assert given


ADDED = ("a", "b", "d", "scale_a", "scale_b", "bias", "m", "n", "k")
"""Arguments of a kernel with scale factors and a bias."""


def test_scale_factors_and_a_bias_reach_the_kernel(
    device: CudaDevice, cupy: FakeCupy, virtual_time: VirtualTime
) -> None:
    def kernel(grid: Any, block: Any, shared: int, a: int, b: int, d: int, *rest: Any) -> None:
        scale_a, scale_b, bias, m, n, k = rest
        left = at_address(a, m * k, np.float32).reshape(m, k) * at_address(scale_a, m, np.float32)[:, None]
        right = at_address(b, k * n, np.float32).reshape(k, n) * at_address(scale_b, n, np.float32)
        result = np.maximum(left @ right + at_address(bias, n, np.float32), 0)
        at_address(d, m * n, np.float32).reshape(m, n)[:] = result
        virtual_time.sleep(1e-3)

    cupy.own[ENTRY] = kernel
    definition = defined(arguments=ADDED, requires=("scale == 'row'", "fused == 'bias+relu'"))
    row = device.measure(configuration(definition, "64x48x32 f32 nn scale=row fused=bias+relu"), QUICK)
    assert row.verify_error is not None
    assert row.details["referee_verified"] > 9


@pytest.mark.parametrize("spoilt", ["scale_a", "bias"])
def test_a_kernel_that_changes_factors_or_the_bias_is_refused(
    device: CudaDevice, cupy: FakeCupy, virtual_time: VirtualTime, spoilt: str
) -> None:
    def kernel(grid: Any, block: Any, shared: int, a: int, b: int, d: int, *rest: Any) -> None:
        scale_a, scale_b, bias, m, n, k = rest
        at_address({"scale_a": scale_a, "bias": bias}[spoilt], 1, np.float32)[:] = 1.0
        left = at_address(a, m * k, np.float32).reshape(m, k) * at_address(scale_a, 1, np.float32)
        right = at_address(b, k * n, np.float32).reshape(k, n) * at_address(scale_b, 1, np.float32)
        at_address(d, m * n, np.float32).reshape(m, n)[:] = left @ right + at_address(bias, n, np.float32)
        virtual_time.sleep(1e-3)

    cupy.own[ENTRY] = kernel
    definition = defined(arguments=ADDED, requires=("scale == 'tensor'", "fused == 'bias'"))
    names = {"scale_a": "scale factors of A", "bias": "the bias"}
    with pytest.raises(KernelRefused, match=rf"\(inputs\): it changes {names[spoilt]}"):
        device.measure(configuration(definition, "64x48x32 f32 nn scale=tensor fused=bias"), QUICK)


def test_groups_reach_the_kernel_as_the_rows_at_which_they_begin(
    device: CudaDevice, cupy: FakeCupy, virtual_time: VirtualTime
) -> None:
    grids = set()

    def kernel(
        grid: Any, block: Any, shared: int, a: int, b: int, d: int, offsets: int, count: Any, *rest: Any
    ) -> None:
        m, n, k = rest
        grids.add(grid)
        assert (type(count), int(count)) == (np.int32, 4)
        begins = at_address(offsets, count + 1, np.int32)
        assert list(begins) == [0, 16, 16, 19, 48]
        left, right = (
            at_address(a, m * k, np.float32).reshape(m, k),
            at_address(b, count * k * n, np.float32).reshape(-1, k, n),
        )
        for group, (first, end) in enumerate(pairwise(begins)):
            at_address(d, m * n, np.float32).reshape(m, n)[first:end] = left[first:end] @ right[group]
        virtual_time.sleep(1e-3)

    cupy.own[ENTRY] = kernel
    arguments = ("a", "b", "d", "group_offsets", "groups", "m", "n", "k")
    definition = defined(arguments=arguments, grid=("ceil(n / BN)", "ceil(m / BM) + groups"))
    row = device.measure(configuration(definition, "48x32x64 f32 nn groups=16,0,3,29"), QUICK)
    assert row.details["referee_verified"] > 9
    assert grids == {(2, 6, 1)}
    with pytest.raises(InvalidOnDevice, match=r"my_gemm.cu takes no group_offsets, so it computes no groups"):
        device.measure(configuration(without := defined(), "48x32x64 f32 nn groups=16,0,3,29"), QUICK)
    assert without


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(("file", "binary"), [("my.ptx", False), ("my.cubin", True)])
def test_ptx_and_cubins_are_loaded_as_they_are(device: CudaDevice, cupy: FakeCupy, file: str, binary: bool) -> None:
    code = base64.b64encode(b"\x7fELF of it").decode() if binary else f".version 8.0\n.entry {ENTRY}()"
    definition = defined(file=file, code=code)
    assert device.measure(configuration(definition), QUICK).runtime_ms > 0
    assert cupy.loaded == [b"\x7fELF of it" if binary else f"{code}\0".encode()]
    assert cupy.compiled == []


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("error", "why"),
    [
        (
            CompileException('/tmp/x.cubin.cu(3): error: identifier "x" is undefined\n  x = 1;\n1 error detected'),
            'my_gemm.cu does not compile: line 3: identifier "x" is undefined',
        ),
        (CompileException("nvrtc: error: invalid value"), "my_gemm.cu does not compile: nvrtc: error: invalid value"),
        (
            CUDADriverError("CUDA_ERROR_NOT_FOUND: named symbol not found"),
            'my_gemm.cu has no kernel my_gemm; declare it extern "C" __global__',
        ),
        (
            CUDADriverError("CUDA_ERROR_NO_BINARY_FOR_GPU: no kernel image is available for execution on the device"),
            "my_gemm.cu cannot be loaded on compute capability 9.0: CUDA_ERROR_NO_BINARY_FOR_GPU: no kernel image",
        ),
    ],
)
def test_code_that_does_not_fit_is_invalid_with_the_reason(
    device: CudaDevice, cupy: FakeCupy, error: Exception, why: str
) -> None:
    cupy.compile_error = error
    with pytest.raises(InvalidOnDevice) as invalid:
        device.measure(configuration(definition := defined()), QUICK)
    assert why in str(invalid.value)
    assert definition


def test_the_first_error_of_the_compiler_is_named() -> None:
    text = "a.cu(1): warning: unused\na.cu(7): error #20-D: no x\na.cu(9): catastrophic error: no y\n"
    assert first_error(text) == "line 7: no x"
    assert first_error("") == "no reason given"


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("taken", "says"),
    [
        (
            [8, 8, 8, 8],
            "my_gemm takes 4 parameters of 8, 8, 8, 8 bytes, and arguments give 10 parameters of 8, 8, 8, 8, 4, 4",
        ),
        ([8, 8, 8, 8, 8, 4, 4, 4, 4, 4], "my_gemm takes 10 parameters"),
        ([], "my_gemm takes no parameters"),
    ],
)
def test_arguments_that_the_kernel_does_not_take_are_invalid(
    device: CudaDevice, monkeypatch: pytest.MonkeyPatch, taken: list[int], says: str
) -> None:
    monkeypatch.setattr(source, "parameter_sizes", lambda _: taken)
    definition = defined()
    with pytest.raises(InvalidOnDevice, match=says):
        device.measure(configuration(definition), QUICK)
    monkeypatch.setattr(source, "parameter_sizes", lambda _: [8, 8, 8, 8, 4, 4, 4, 4, 4, 4])
    assert device.measure(configuration(definition), QUICK).runtime_ms > 0


@pytest.mark.usefixtures("own")
def test_a_kernel_that_needs_more_than_the_card_has_is_invalid(device: CudaDevice, cupy: FakeCupy) -> None:
    cupy.function_attributes[0] = 64
    definition = defined()
    with pytest.raises(InvalidOnDevice, match="launched with 128 threads in a block, and its registers allow 64"):
        device.measure(configuration(definition), QUICK)
    cupy.function_attributes |= {0: 1024, 1: 230_000}
    with pytest.raises(InvalidOnDevice, match="needs 238,000 bytes of shared memory, the device has 232,448"):
        device.measure(configuration(large := defined(shared_bytes="8000")), QUICK)
    assert large


@pytest.mark.usefixtures("own")
def test_much_dynamic_shared_memory_is_allowed_to_the_kernel(device: CudaDevice, cupy: FakeCupy) -> None:
    definition = defined(shared_bytes="100000")
    device.measure(configuration(definition), QUICK)
    assert (8, 100_000) in cupy.attributes


@pytest.mark.usefixtures("own")
def test_a_definition_that_nobody_holds_fails_the_job(device: CudaDevice) -> None:
    with pytest.raises(MeasurementFailed, match="the farm has no definition 7"):
        device.measure(Configuration.parse(f"source(definition=7,{PARAMETERS}) 64x48x32 f32"), QUICK)


@pytest.mark.usefixtures("own")
def test_a_kernel_that_faults_poisons_the_device(device: CudaDevice, cupy: FakeCupy) -> None:
    cupy.fault = CUDARuntimeError("cudaErrorIllegalAddress: an illegal memory access was encountered")
    definition = defined()
    with pytest.raises(DevicePoisoned):
        device.measure(configuration(definition), QUICK)


@pytest.mark.usefixtures("own")
def test_kernels_are_prepared_ahead_and_errors_wait_for_the_job(
    device: CudaDevice, cupy: FakeCupy, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare: Callable[[Configuration], None] = device.prepare
    definition = defined()
    prepare(configuration(definition))
    assert len(cupy.compiled) == 1
    device.measure(configuration(definition), QUICK)
    assert len(cupy.compiled) == 1
    cupy.compile_error = CompileException("a.cu(1): error: no")
    prepare(configuration(definition, parameters="BM=16,BN=16"))


@pytest.mark.usefixtures("own")
def test_a_card_with_room_for_one_operand_set_alone_fails_the_job(device: CudaDevice, cupy: FakeCupy) -> None:
    definition = defined()
    device._arena.clear()
    cupy.free = 60_000
    with pytest.raises(MeasurementFailed, match="two operand sets take 98,304 bytes, and 60,000 are free"):
        device.measure(configuration(definition, "64x64x64 f32"), QUICK)
