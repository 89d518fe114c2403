"""Scale factors and fused operations of cuBLASLt without a card: which exist, how they are asked for, and that they are computed."""

from __future__ import annotations

import re
from itertools import product
from typing import Any

import pytest

from farm.devices import DeviceKind, DeviceTraits
from farm.errors import InvalidOnDevice
from farm.fusion import Fusion
from farm.kernels import FAMILIES, Configuration
from farm.scale import SCALES_OF_BOTH, Scale
from support.fake_cublaslt import ComputingLt, Epilogue, FakeLt, LtError, MatrixScale, install
from support.fake_cuda import FakeCupy, at_address
from support.quick import assert_wide_product
from workers.devices.cuda import CudaDevice
from workers.kernels.base import CardContext, Placement
from workers.kernels.cublaslt import CublasLtFamily, rounds_before_fused
from workers.measure.operands import SetLayout

SCALES = [scale for scale in SCALES_OF_BOTH if scale is not Scale.NONE]
FUSED_BY_LT = [fused for fused in FAMILIES["cublaslt"].fusions if fused is not Fusion.NONE]


# --- what exists --------------------------------------------------------------------------------------


def why(text: str, capability: tuple[int, int] = (9, 0)) -> str | None:
    device = DeviceTraits(kind=DeviceKind.CUDA, memory_bytes=2**34, compute_capability=capability)
    return Configuration.parse(text).why_invalid(device)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("types", ["f8e4m3", "f8e4m3:f16:f32", "f8e4m3e5m2:f32:f32", "f8e5m2e4m3"])
def test_cublaslt_has_every_scale_on_hopper(scale: Scale, types: str) -> None:
    assert why(f"cublaslt() 132x272x144 {types} nt scale={scale}") is None


@pytest.mark.parametrize(
    ("text", "capability", "reason"),
    [
        ("64 f16 nt scale=tensor", (9, 0), "cublaslt has scale=tensor for 8-bit floats only, not for f16"),
        ("64 i8 nt scale=row", (9, 0), "cublaslt has scale=row for 8-bit floats only, not for i8"),
        (
            "64 f8e4m3 nt scale=tensor batch=2",
            (9, 0),
            "cublaslt has scale=tensor for one product only: batch must be 1, not 2",
        ),
        (
            "64 f8e4m3 nt scale=row",
            (8, 9),
            "cublaslt has scale=row on compute capability 9.0 only, the device has 8.9",
        ),
        (
            "64 f8e4m3 nt scale=1x128:128x128",
            (10, 0),
            "cublaslt has scale=1x128:128x128 on compute capability 9.0 only, the device has 10.0",
        ),
        (
            "66x64x64 f8e4m3 nt scale=1x128",
            (9, 0),
            "cublaslt needs m and n to be multiples of 4 for scale=1x128, not 66x64x64",
        ),
        (
            "64 f8e4m3 nn scale=row",
            (9, 0),
            "cublaslt multiplies f8e4m3 in layout nt only on compute capability 9.0, not nn",
        ),
        (
            "64 i8 nt fused=relu",
            (9, 0),
            "cublaslt fuses no operations into products of i8: fused must be none, not relu",
        ),
        (
            "64 f8e4m3:f32:f32 nt fused=bias+gelu",
            (9, 0),
            "cublaslt adds a bias of bf16 to f8e4m3:f32:f32, and fused=bias+gelu means one of f32: use f16 or bf16 for D",
        ),
        ("64 f16 fused=silu", (9, 0), "cublaslt has no fused=silu, only none, bias, relu, gelu, bias+relu, bias+gelu"),
    ],
)
def test_what_cublaslt_lacks_is_invalid_with_the_reason(text: str, capability: tuple[int, int], reason: str) -> None:
    assert why(f"cublaslt() {text}", capability) == reason


def test_a_factor_of_a_whole_matrix_exists_wherever_8_bit_floats_do_and_in_any_number_of_rows() -> None:
    for capability in ((8, 9), (9, 0), (10, 0), (12, 0)):
        assert why("cublaslt() 3x64x64 f8e4m3 nt scale=tensor", capability) is None
    assert why("cublaslt() 3x64x64 f8e4m3 nt scale=row") is None
    assert why("cublaslt() 3x64x64 f8e4m3:f32:f32 nt fused=relu") is None


# --- what the library is asked for --------------------------------------------------------------------

PLACES = {"inputs": 2**20, "inputs_of_b": 2**20, "addends": 0, "outputs": 2**22}
ADDED = {"a_factors": 2**24, "b_factors": 2**25, "bias": 2**26}


@pytest.fixture
def lt(monkeypatch: pytest.MonkeyPatch) -> FakeLt:
    fake = FakeLt()
    install(fake, monkeypatch)
    return fake


def bound(cupy: FakeCupy, text: str) -> Any:
    configuration = Configuration.parse(text)
    problem = configuration.problem
    traits = DeviceTraits(kind=DeviceKind.CUDA, memory_bytes=2**34)
    family = CublasLtFamily(CardContext(cp=cupy, traits=traits, threads_per_multiprocessor=2048, kernels=None))
    added = {
        name: place
        for name, place in ADDED.items()
        if (problem.fused.bias if name == "bias" else problem.scale is not Scale.NONE)
    }
    placement = Placement(layout=SetLayout.of(problem, 256), sets=4, **PLACES, **added)
    return family.bind(configuration, placement)


def set_of(lt: FakeLt) -> dict[str, int]:
    """The attributes of the operation that was launched last."""
    return lt.described[lt.multiplied[-1][1]].attributes


@pytest.mark.parametrize(
    "text", ["cublaslt() 64x32x16 f16", "cublaslt() 64x32x16 f8e4m3 nt", "cublaslt() 64x32x16 f32 batch=3"]
)
def test_without_them_nothing_of_them_is_said(lt: FakeLt, cupy: FakeCupy, text: str) -> None:
    bound(cupy, text).launch(1)
    assert set(set_of(lt)) == {"TRANSA", "TRANSB"}


@pytest.mark.parametrize(
    ("scale", "of_b", "of_a"),
    [
        ("tensor", MatrixScale.SCALAR_32F, MatrixScale.SCALAR_32F),
        ("row", MatrixScale.OUTER_VEC_32F, MatrixScale.OUTER_VEC_32F),
        ("1x128", MatrixScale.VEC128_32F, MatrixScale.VEC128_32F),
        ("1x128:128x128", MatrixScale.BLK128x128_32F, MatrixScale.VEC128_32F),
        ("128x128:1x128", MatrixScale.VEC128_32F, MatrixScale.BLK128x128_32F),
    ],
)
def test_our_b_is_the_first_operand_whose_factors_are_told(
    lt: FakeLt, cupy: FakeCupy, scale: str, of_b: int, of_a: int
) -> None:
    kernel = bound(cupy, f"cublaslt() 64x32x256 f8e4m3 nt scale={scale}")
    for index in (2, 0, 3):
        kernel.launch(index)
        given = set_of(lt)
        assert (given["A_SCALE_MODE"], given["B_SCALE_MODE"]) == (of_b, of_a)
        addresses = kernel._placement.added(index)
        assert (given["B_SCALE_POINTER"], given["A_SCALE_POINTER"], 0) == addresses
        assert "EPILOGUE" not in given
    assert len({kernel._placement.added(index) for index in range(4)}) == 4


@pytest.mark.parametrize(
    ("fused", "epilogue"),
    [
        ("bias", Epilogue.BIAS),
        ("relu", Epilogue.RELU),
        ("gelu", Epilogue.GELU),
        ("bias+relu", Epilogue.RELU_BIAS),
        ("bias+gelu", Epilogue.GELU_BIAS),
    ],
)
@pytest.mark.parametrize("batch", [1, 5])
def test_the_epilogue_and_the_bias_of_each_product_are_told(
    lt: FakeLt, cupy: FakeCupy, batch: int, fused: str, epilogue: int
) -> None:
    kernel = bound(cupy, f"cublaslt() 64x32x16 f16 batch={batch} fused={fused}")
    kernel.launch(3)
    given = set_of(lt)
    assert given["EPILOGUE"] == epilogue
    assert ("BIAS_POINTER" in given) == fused.startswith("bias")
    if fused.startswith("bias"):
        assert given["BIAS_POINTER"] == kernel._placement.added(3)[2] > ADDED["bias"]
    assert given.get("BIAS_BATCH_STRIDE") == (32 if batch != 1 and fused.startswith("bias") else None)
    assert not any(name.endswith("MODE") for name in given)


def test_the_heuristic_is_asked_with_everything(lt: FakeLt, cupy: FakeCupy, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    ask = lt.matmul_algo_get_heuristic
    monkeypatch.setattr(
        lt,
        "matmul_algo_get_heuristic",
        lambda *arguments: (seen.append(dict(lt.described[arguments[1]].attributes)), ask(*arguments)),
    )
    bound(cupy, "cublaslt() 64x32x256 f8e4m3 nt scale=row fused=bias+relu")
    (given,) = seen
    assert {"A_SCALE_MODE", "B_SCALE_MODE", "A_SCALE_POINTER", "B_SCALE_POINTER", "EPILOGUE", "BIAS_POINTER"} <= set(
        given
    )
    assert (given["B_SCALE_POINTER"], given["BIAS_POINTER"]) == (ADDED["a_factors"], ADDED["bias"])


def test_each_scale_and_epilogue_is_a_kernel_of_its_own_and_plain_ones_keep_their_hash(
    lt: FakeLt, cupy: FakeCupy
) -> None:
    texts = [
        *(f"cublaslt() 64x32x256 f8e4m3 nt scale={scale}" for scale in SCALES_OF_BOTH),
        *(f"cublaslt() 64x32x256 f8e4m3 nt fused={fused}" for fused in FUSED_BY_LT),
        "cublaslt() 64x32x256 f8e4m3 nt scale=row fused=relu",
    ]
    hashes = [bound(cupy, text).hash for text in texts]
    assert len(set(hashes)) == len(texts)
    # Of a release before there were scale factors.
    assert bound(cupy, "cublaslt() 64x32x16 f32").hash == PLAIN_HASH


PLAIN_HASH = "2178e5758a5bd67cae0443bd07a841962f232ccb10ff1038a0fa47b134dc1f8b"


def test_what_the_heuristic_does_not_offer_is_named(lt: FakeLt, cupy: FakeCupy) -> None:
    lt.error = LtError("CUBLAS_STATUS_NOT_SUPPORTED")
    wanted = "the shape 64x32x256 with scale=1x128 with fused=bias here"
    with pytest.raises(InvalidOnDevice, match=re.escape(wanted)):
        bound(cupy, "cublaslt() 64x32x256 f8e4m3 nt scale=1x128 fused=bias")
    with pytest.raises(InvalidOnDevice, match=r"the shape 64x32x16 in batches of 3 with fused=relu here"):
        bound(cupy, "cublaslt() 64x32x16 f64 batch=3 fused=relu")
    assert lt.alive == 2  # the handles


# --- what is computed ---------------------------------------------------------------------------------


@pytest.fixture
def computing(cupy: FakeCupy, monkeypatch: pytest.MonkeyPatch) -> ComputingLt:
    fake = ComputingLt(cupy)
    install(fake, monkeypatch)
    return fake


def measured(device: CudaDevice, text: str) -> None:
    """As `assert_wide_product`, on this machine's memory."""
    assert_wide_product(device, Configuration.parse(text), at_address)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("types", ["f8e4m3", "f8e4m3e5m2:f32:f32", "f8e5m2e4m3:f16:f32"])
@pytest.mark.parametrize("shape", ["4x16x16", "132x272x144", "12x144x656"])
@pytest.mark.sampled(4)
def test_scaled_products_are_right(
    computing: ComputingLt, device: CudaDevice, shape: str, types: str, scale: Scale
) -> None:
    for scalars in ("", "alpha=-1.5 beta=0.5"):
        measured(device, f"cublaslt() {shape} {types} nt {scalars} scale={scale}")


@pytest.mark.parametrize("fused", FUSED_BY_LT)
@pytest.mark.parametrize("types", ["f32", "f64", "f16", "bf16:f32:f32"])
@pytest.mark.sampled(4)
def test_fused_products_of_cublaslt_are_right(
    computing: ComputingLt, device: CudaDevice, types: str, fused: Fusion
) -> None:
    for batch, scalars in product((1, 3), ("", "alpha=-1.5 beta=0.5")):
        measured(device, f"cublaslt() 13x21x17 {types} tt {scalars} batch={batch} fused={fused}")


@pytest.mark.parametrize("fused", [fused for fused in FUSED_BY_LT if fused.bias])
def test_factors_and_bias_together_are_right(computing: ComputingLt, device: CudaDevice, fused: Fusion) -> None:
    for scale in SCALES:
        measured(device, f"cublaslt() 132x272x144 f8e4m3 nt scale={scale} fused={fused}")


@pytest.mark.parametrize(
    ("problem", "expected"),
    [
        ("17x131x67 bf16 nt fused=bias+relu", True),
        ("17x128x67 f16 nt fused=bias+gelu", True),
        ("17x131x67 bf16 nt fused=bias", False),
        ("17x131x67 bf16 nt fused=gelu", False),
        ("17x136x72 bf16 nt fused=bias+relu", False),
    ],
)
def test_a_sum_is_rounded_before_what_is_fused_where_rows_are_not_aligned(problem: str, expected: bool) -> None:
    assert rounds_before_fused(Configuration.parse(f"cublaslt() {problem}").problem) is expected
