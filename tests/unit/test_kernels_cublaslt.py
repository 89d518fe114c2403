"""The cublaslt family without a card: what is asked of the library, and what becomes of what it says."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from farm.devices import DeviceKind, DeviceTraits
from farm.errors import InvalidOnDevice, MeasurementFailed
from farm.gemm import ElementTypes, Layout, Problem, Shape
from farm.kernels import Configuration
from support.fake_cublaslt import CHOSEN, FakeLt, LtError, install
from workers.kernels.base import CardContext, Placement
from workers.kernels.cublaslt import CublasLtFamily, Matrix, as_columns, compute_type, roundings
from workers.measure.magnitudes import result_scale
from workers.measure.operands import SetLayout
from workers.measure.verify import error_bound


def seen_as(matrix: Matrix, elements: Any) -> Any:
    """What cuBLASLt multiplies: the flat elements by columns, transposed where it is told to."""
    stored = elements.reshape(matrix.columns, matrix.leading).T[: matrix.rows]
    return stored.T if matrix.operation else stored


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("shape", [Shape(3, 5, 7), Shape(1, 4, 2), Shape(6, 1, 1)])
def test_rows_seen_as_columns_give_the_same_product(shape: Shape, layout: Layout) -> None:
    problem = Problem(shape, ElementTypes.parse("f64"), layout)
    random = np.random.default_rng(0)
    a, b = random.random((shape.m, shape.k)), random.random((shape.k, shape.n))
    first, second, result = as_columns(problem)
    stored_a = np.ascontiguousarray(a.T if layout.a_transposed else a).ravel()
    stored_b = np.ascontiguousarray(b.T if layout.b_transposed else b).ravel()
    product = seen_as(first, stored_b) @ seen_as(second, stored_a)
    assert (result.rows, result.columns) == product.shape
    in_memory = np.empty(shape.m * shape.n)
    in_memory.reshape(result.columns, result.leading).T[:] = product
    assert np.allclose(in_memory.reshape(shape.m, shape.n), a @ b)


@pytest.mark.parametrize(
    ("types", "name"),
    [
        ("f64", "COMPUTE_64F"),
        ("f32", "COMPUTE_32F"),
        ("tf32", "COMPUTE_32F_FAST_TF32"),
        ("f16", "COMPUTE_32F"),
        ("f16:f16:f16", "COMPUTE_16F"),
        ("f8e4m3", "COMPUTE_32F"),
        ("i8", "COMPUTE_32I"),
    ],
)
def test_the_accumulator_chooses_the_compute_type(types: str, name: str) -> None:
    assert compute_type(Problem(Shape(8, 8, 8), ElementTypes.parse(types))) == name


@pytest.fixture
def lt(monkeypatch: pytest.MonkeyPatch) -> FakeLt:
    fake = FakeLt()
    install(fake, monkeypatch)
    return fake


@pytest.fixture
def family() -> Iterator[CublasLtFamily]:
    workspace = SimpleNamespace(data=SimpleNamespace(ptr=4096), nbytes=32 * 2**20)
    cupy = SimpleNamespace(
        empty=lambda *_: workspace, cuda=SimpleNamespace(get_current_stream=lambda: SimpleNamespace(ptr=77))
    )
    traits = DeviceTraits(kind=DeviceKind.CUDA, memory_bytes=2**34)
    opened = CublasLtFamily(CardContext(cp=cupy, traits=traits, threads_per_multiprocessor=2048, kernels=None))
    yield opened
    opened.close()


def bound(family: CublasLtFamily, text: str, inputs_of_b: int = 2**20) -> Any:
    configuration = Configuration.parse(text)
    layout = SetLayout.of(configuration.problem, 256)
    addends = 2**21 if configuration.problem.beta else 0
    return family.bind(
        configuration,
        Placement(layout=layout, sets=1, inputs=2**20, inputs_of_b=inputs_of_b, addends=addends, outputs=2**22),
    )


def test_a_row_says_what_the_library_chose(lt: FakeLt, family: CublasLtFamily) -> None:
    details = bound(family, "cublaslt() 512x256x128 f16").details()
    assert (details["tile"], details["tile_id"]) == ("128x256", 24)
    assert (details["stages"], details["stages_id"]) == ("64xauto", 35)
    assert (details["cluster"], details["cluster_id"]) == (None, 999)  # newer than the bindings
    assert (details["waves"], details["workspace_bytes"], details["cublaslt"]) == (1.5, 64, "13.1.0")
    assert details["algorithm_id"] == 66


def test_operands_of_a_set_reach_the_library_b_first(lt: FakeLt, family: CublasLtFamily) -> None:
    kernel = bound(family, "cublaslt() 64x32x16 f32 nn alpha=2 beta=3")
    kernel.launch(1)
    kernel.close()
    (call,) = lt.multiplied
    set_bytes, result_bytes = (64 * 16 + 16 * 32) * 4, 64 * 32 * 4
    a = 2**20 + set_bytes
    assert (call[3], call[5]) == (a + 64 * 16 * 4, a)
    assert (call[8], call[10]) == (2**21 + result_bytes, 2**22 + result_bytes)
    assert call[-3:] == (4096, 32 * 2**20, 77)


def test_a_pair_of_types_has_b_in_a_buffer_and_a_type_of_its_own(lt: FakeLt, family: CublasLtFamily) -> None:
    kernel = bound(family, "cublaslt() 64x32x16 f8e4m3e5m2 nt", inputs_of_b=2**24)
    kernel.launch(0)
    kernel.close()
    made = [
        lt.described[layout].made_of[0] for layout in (lt.multiplied[0][4], lt.multiplied[0][6], lt.multiplied[0][9])
    ]
    assert made == [29, 28, 14]  # CUDA_R_8F_E5M2 of B, CUDA_R_8F_E4M3 of A, CUDA_R_16BF
    assert (lt.multiplied[0][3], lt.multiplied[0][5]) == (2**24 + 64 * 16, 2**20)


@pytest.mark.parametrize("layout", Layout)
def test_a_batch_is_one_launch_with_strides_in_elements(lt: FakeLt, family: CublasLtFamily, layout: Layout) -> None:
    kernel = bound(family, f"cublaslt() 64x32x16 f16 {layout} alpha=1 beta=1 batch=7")
    kernel.launch(1)
    (call,) = lt.multiplied
    given = [lt.described[one].attributes for one in (call[4], call[6], call[9], call[11])]
    assert [one["STRIDED_BATCH_OFFSET"] for one in given] == [16 * 32, 64 * 16, 64 * 32, 64 * 32]
    assert {one["BATCH_COUNT"] for one in given} == {7}
    set_bytes, result_bytes = 7 * (64 * 16 + 16 * 32) * 2, 7 * 64 * 32 * 2
    a = 2**20 + set_bytes
    assert (call[3], call[5]) == (a + 7 * 64 * 16 * 2, a)
    assert (call[8], call[10]) == (2**21 + result_bytes, 2**22 + result_bytes)
    kernel.close()
    assert lt.alive == 1  # the handle


def test_the_largest_strides_and_batches_fit_into_the_library_s_numbers(lt: FakeLt, family: CublasLtFamily) -> None:
    kernel = bound(family, f"cublaslt() 100000x100000x1 f16 batch={2**31 - 1}")
    kernel.launch(0)
    given = lt.described[lt.multiplied[0][11]].attributes
    assert given == {"BATCH_COUNT": 2**31 - 1, "STRIDED_BATCH_OFFSET": 10**10}


def test_one_product_is_asked_for_without_a_batch(lt: FakeLt, family: CublasLtFamily) -> None:
    bound(family, "cublaslt() 64x32x16 f16 batch=1").launch(0)
    (call,) = lt.multiplied
    assert not any(lt.described[layout].attributes for layout in (call[4], call[6], call[9]))


def test_without_a_c_the_result_stands_in_for_it(lt: FakeLt, family: CublasLtFamily) -> None:
    kernel = bound(family, "cublaslt() 64x32x16 f32")
    kernel.launch(0)
    assert lt.multiplied[0][8] == lt.multiplied[0][10] == 2**22


def test_a_rank_that_is_not_offered_is_invalid_and_says_how_many_are(lt: FakeLt, family: CublasLtFamily) -> None:
    lt.offers = 3
    bound(family, "cublaslt(algorithm=2) 64x32x16 f32").close()
    with pytest.raises(InvalidOnDevice, match=r"offers 3 algorithms here, so no algorithm has rank 3"):
        bound(family, "cublaslt(algorithm=3) 64x32x16 f32")


def test_what_the_library_does_not_support_is_invalid(lt: FakeLt, family: CublasLtFamily) -> None:
    lt.error = LtError("the requested functionality is not supported (CUBLAS_STATUS_NOT_SUPPORTED).")
    with pytest.raises(InvalidOnDevice, match=r"supports no i8:i32:i32 with layout nn and the shape 257x131x67 here"):
        bound(family, "cublaslt() 257x131x67 i8")
    with pytest.raises(InvalidOnDevice, match=r"and the shape 257x131x67 in batches of 3 here"):
        bound(family, "cublaslt() 257x131x67 i8 batch=3")
    lt.error = LtError("CUBLAS_STATUS_INTERNAL_ERROR")
    with pytest.raises(LtError):
        bound(family, "cublaslt() 64x32x16 f32")


def test_nothing_is_left_of_what_binding_took(lt: FakeLt, family: CublasLtFamily) -> None:
    bound(family, "cublaslt() 64x32x16 f32").close()
    lt.offers = 0
    with pytest.raises(InvalidOnDevice):
        bound(family, "cublaslt() 64x32x16 f32")
    assert lt.alive == 1  # the handle
    family.close()
    assert lt.alive == 0


def test_equal_choices_are_the_same_kernel(lt: FakeLt, family: CublasLtFamily, monkeypatch: pytest.MonkeyPatch) -> None:
    first, again = (bound(family, f"cublaslt() {shape} f32") for shape in ("64x32x16", "128x32x16"))
    assert first.hash == again.hash
    monkeypatch.setitem(CHOSEN, "SPLITK_NUM", 4)
    assert bound(family, "cublaslt() 64x32x16 f32").hash != first.hash


def test_without_the_bindings_the_job_may_be_measured_elsewhere(
    family: CublasLtFamily, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> Any:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(MeasurementFailed, match=r"nvmath-python .* pip install .*\[cuda13\]"):
        bound(family, "cublaslt() 64x32x16 f32")


def to_bf16(values: Any) -> Any:
    """The nearest bfloat16, ties to even."""
    bits = np.asarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).view(np.float32)


IN_PLACE, COMPUTE_TYPE, OUTPUT_TYPE = 1, 2, 4


@pytest.mark.parametrize("slices", [1, 2, 16, 132])
@pytest.mark.parametrize("scheme", [IN_PLACE, COMPUTE_TYPE, OUTPUT_TYPE])
def test_a_sum_of_slices_of_k_stays_within_the_bound_of_its_roundings(slices: int, scheme: int) -> None:
    problem = Problem(Shape(64, 56, 12_672), ElementTypes.parse("bf16"), Layout.NN)
    random = np.random.default_rng(slices)
    a = to_bf16(random.uniform(-1, 1, (slices, 64, 12_672 // slices)))
    b = to_bf16(random.uniform(-1, 1, (slices, 12_672 // slices, 56)))
    parts = np.matmul(a.astype(np.float64), b.astype(np.float64))
    d = np.zeros((64, 56), np.float32)
    for part in parts:
        kept = part.astype(np.float32) if scheme != OUTPUT_TYPE else to_bf16(part)
        d = to_bf16(d + kept) if scheme == IN_PLACE else d + kept
    error = float(np.abs(to_bf16(d) - parts.sum(axis=0)).max()) / result_scale(problem)
    counted = roundings({"split_k": slices, "reduction_scheme": scheme})
    assert error < error_bound(problem, roundings=counted)
    if scheme == IN_PLACE and slices == 132:
        assert error > error_bound(problem)
        assert counted == slices
    if scheme == COMPUTE_TYPE:
        assert counted == 1
