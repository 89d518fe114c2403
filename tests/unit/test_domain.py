"""What a GEMM is, what a kernel can be asked for, and what a device can run."""

from __future__ import annotations

import contextlib
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.devices import Backend, DeviceKind, DeviceTraits
from farm.errors import (
    BadConfiguration,
    BadElementType,
    BadInput,
    BadKernelParameter,
    BadLayout,
    BadScalar,
    BadShape,
    UnknownFamily,
)
from farm.gemm import INPUT_TYPES, MAX_EXTENT, OUTPUT_TYPES, ElementTypes, Layout, Problem, Shape
from farm.kernels import FAMILIES, MEMORY_SHARE, Configuration, Kernel
from farm.vendors import device_type_of
from support.possible import possible

F32 = ElementTypes.parse("f32")

extents = st.integers(1, MAX_EXTENT)
scalars = st.floats(allow_nan=False, allow_infinity=False)
problems = st.builds(
    possible,
    shape=st.builds(Shape, extents, extents, extents),
    types=st.builds(
        ElementTypes, st.sampled_from(INPUT_TYPES), st.sampled_from(OUTPUT_TYPES), st.sampled_from(OUTPUT_TYPES)
    ),
    layout=st.sampled_from(Layout),
    alpha=scalars,
    beta=scalars,
)


@st.composite
def kernels(draw: st.DrawFn) -> Kernel:
    family = draw(st.sampled_from(list(FAMILIES.values())))
    values = {p.name: draw(st.sampled_from(p.values)) for p in family.parameters}
    given = draw(st.sets(st.sampled_from(sorted(values)))) if values else set()
    return Kernel.of(family.name, **{name: values[name] for name in given})


configurations = st.builds(Configuration, problems, kernels())


# --- canonical form and hash -----------------------------------------------------------------------


@given(configurations)
def test_the_canonical_form_reads_back_as_the_same_configuration(configuration):
    again = Configuration.parse(configuration.canonical)
    assert again == configuration
    assert again.canonical == configuration.canonical
    assert again.id == configuration.id


@given(configurations)
def test_columns_read_back_as_the_same_configuration(configuration):
    p = configuration.problem
    row = {
        "m": p.shape.m, "n": p.shape.n, "k": p.shape.k, "ab": str(p.types.ab), "cd": str(p.types.cd),
        "acc": str(p.types.acc), "layout": str(p.layout), "alpha": p.alpha, "beta": p.beta,
        "family": configuration.kernel.family, "parameters": dict(configuration.kernel.parameters),
    }  # fmt: skip
    assert Configuration.from_columns(row).id == configuration.id


@given(configurations, configurations)
def test_different_configurations_have_different_names(a, b):
    assert (a == b) == (a.id == b.id)


def test_the_hash_is_what_it_has_always_been():
    """A change of these literals orphans every stored measurement."""
    configuration = Configuration.parse("tiled(tile=16) 512x512x1024 f32:f32:f32 nt alpha=1 beta=0.5")
    assert configuration.canonical == "tiled(tile=16) 512x512x1024 f32:f32:f32 nt alpha=1 beta=0.5"
    assert str(configuration.id) == "295db9be-49fb-53b6-356a-17ef00ddd3a2"


def test_defaults_and_negative_zero_leave_no_trace_in_the_name():
    short = Configuration.parse("tiled() 512 f32")
    long = Configuration.parse("tiled(tile=16) 512x512x512 f32:f32:f32 nn alpha=1.0 beta=-0.0")
    assert short == long
    assert short.id == long.id


@pytest.mark.parametrize(
    "text",
    [
        "",
        "tiled",
        "tiled(tile=16)",
        "tiled(tile) 512 f32",
        "tiled(tile=16) 512 f32 nn alpha=one",
    ],
)
def test_what_is_no_configuration_says_how_one_looks(text):
    with pytest.raises(BadConfiguration, match="Write it as in: tiled"):
        Configuration.parse(text)


# --- shapes, types, layouts, scalars ---------------------------------------------------------------


@pytest.mark.parametrize("extent", [0, -1, MAX_EXTENT + 1, 1.0, True, "3"])
def test_an_extent_is_a_whole_number_in_range(extent):
    with pytest.raises(BadShape):
        Shape(512, extent, 512)


@pytest.mark.parametrize(
    ("text", "shape"), [("512", Shape(512, 512, 512)), (" 1x2x3 ", Shape(1, 2, 3)), ("1 × 2 × 3", Shape(1, 2, 3))]
)
def test_a_shape_is_read_from_text(text, shape):
    assert Shape.parse(text) == shape


@pytest.mark.parametrize("text", ["", "1x2", "1x2x3x4", "axbxc", "1x-2x3", "0"])
def test_what_is_no_shape_is_refused(text):
    with pytest.raises(BadShape):
        Shape.parse(text)


@pytest.mark.parametrize(
    ("text", "types"),
    [("f16", "f16:f16:f32"), ("F16", "f16:f16:f32"), ("tf32", "tf32:f32:f32"), ("i8", "i8:i32:i32"),
     ("f8e4m3", "f8e4m3:bf16:f32"), ("f16:f32:f16", "f16:f32:f16")],
)  # fmt: skip
def test_one_type_stands_for_the_usual_three(text, types):
    assert str(ElementTypes.parse(text)) == types


@pytest.mark.parametrize("text", ["f33", "", "f16:f16", "i32", "i32:i32:i32", "f16:f16:f32:f32", None, 32])
def test_what_is_no_element_type_is_refused(text):
    with pytest.raises(BadElementType):
        ElementTypes.parse(text)


@pytest.mark.parametrize("text", ["nx", "", "n", "nnn", None])
def test_a_layout_that_does_not_exist_is_refused(text):
    with pytest.raises(BadLayout):
        Layout.parse(text)


def test_a_layout_says_what_is_transposed():
    assert [(x.a_transposed, x.b_transposed) for x in Layout] == [
        (False, False), (False, True), (True, False), (True, True),
    ]  # fmt: skip


@pytest.mark.parametrize("value", [math.inf, math.nan, "1", True, None])
def test_alpha_and_beta_are_finite_numbers(value):
    with pytest.raises(BadScalar):
        Problem(Shape(1, 1, 1), F32, alpha=value)
    with pytest.raises(BadScalar):
        Problem(Shape(1, 1, 1), F32, beta=value)


def test_work_and_traffic_of_a_problem():
    plain = Problem(Shape(10, 20, 30), ElementTypes.parse("f16:f32:f32"))
    assert plain.flops == 12_000
    assert plain.bytes == (10 * 30 + 30 * 20) * 2 + 10 * 20 * 4
    assert plain.arithmetic_intensity == plain.flops / plain.bytes
    accumulating = Problem(plain.shape, plain.types, beta=0.5)
    assert accumulating.bytes == plain.bytes + 10 * 20 * 4
    assert accumulating.operand_bytes == plain.operand_bytes == plain.bytes


# --- kernels ---------------------------------------------------------------------------------------


def test_a_kernel_completes_its_parameters_in_a_fixed_order():
    kernel = Kernel.of("cutlass", stages=4, tile_m=64)
    assert kernel == Kernel.of("cutlass", tile_m=64, stages=4)
    assert [name for name, _ in kernel.parameters] == sorted(p.name for p in FAMILIES["cutlass"].parameters)


@pytest.mark.parametrize("tile", [0, 33, -1, 1.5, True, "8"])
def test_a_tile_is_from_1_to_32(tile):
    with pytest.raises(BadKernelParameter, match="tile"):
        Kernel.of("tiled", tile=tile)


@pytest.mark.parametrize("tile", ["1.5", "big", ""])
def test_a_parameter_that_is_written_as_no_whole_number_is_named(tile):
    with pytest.raises(BadKernelParameter, match=f"tiled does not accept tile='{tile}': tile is a whole number"):
        Configuration.parse(f"tiled(tile={tile}) 512x512x512 f32")


def test_unknown_families_and_parameters_name_the_known_ones():
    with pytest.raises(UnknownFamily, match="blas, tiled, cublaslt, cusparselt, cutlass"):
        Kernel.of("tile")
    with pytest.raises(BadKernelParameter, match="Its parameters are: tile"):
        Kernel.of("tiled", stages=3)


@given(st.text(max_size=40))
def test_no_text_makes_reading_fail_with_anything_but_a_message(text):
    for read in (Configuration.parse, Shape.parse, ElementTypes.parse, Layout.parse):
        with contextlib.suppress(BadInput):
            assert str(read(text))


# --- what a device can run -------------------------------------------------------------------------

CPU = DeviceTraits(kind=DeviceKind.CPU, memory_bytes=2**33, threads=4)
GPU = DeviceTraits(
    kind=DeviceKind.CUDA, memory_bytes=2**33, max_threads_per_block=1024, shared_memory_per_block_bytes=16 * 1024
)
TURING, HOPPER, BLACKWELL = (replace(GPU, compute_capability=c) for c in ((7, 5), (9, 0), (10, 0)))


@pytest.mark.parametrize(
    ("text", "traits", "reason"),
    [
        ("blas(threads=4) 512 f32", CPU, None),
        ("blas(threads=4) 512 f64 tt", CPU, None),
        ("blas(threads=5) 512 f32", CPU, "blas needs 5 threads, the device has 4"),
        ("blas() 512 f16", CPU, "blas computes only f32 and f64, the same for inputs, output and accumulator, "
         "not f16:f16:f32"),
        ("blas() 512 f32:f32:f64", CPU, "blas computes only f32 and f64, the same for inputs, output and accumulator, "
         "not f32:f32:f64"),
        ("blas() 512 f32 nn alpha=2", CPU, "blas computes A·B alone (it is NumPy's matmul): alpha must be 1 and beta 0"),
        ("blas() 512 f32 nn beta=1", CPU, "blas computes A·B alone (it is NumPy's matmul): alpha must be 1 and beta 0"),
        ("blas() 512 f32", GPU, "blas runs on cpu devices, this is a cuda device"),
        ("tiled() 512 f32", CPU, "tiled runs on cuda devices, this is a cpu device"),
        ("tiled(tile=32) 512 f32", GPU, None),
        ("tiled(tile=32) 512 f64 nn alpha=2 beta=1", GPU, None),
        ("tiled(tile=32) 512 f64 tn", GPU, "tiled needs 16640 bytes of shared memory, the device has 16384"),
        ("tiled(tile=32) 512 f32", DeviceTraits(kind=DeviceKind.CUDA, memory_bytes=2**33, max_threads_per_block=512),
         "tiled needs 1024 threads in a block, the device allows 512"),
        ("tiled(tile=32) 512 f64",
         DeviceTraits(kind=DeviceKind.CUDA, memory_bytes=2**33, shared_memory_per_block_bytes=8192),
         "tiled needs 16384 bytes of shared memory, the device has 8192"),
        ("cublaslt() 512 f16", GPU, None),
        ("cublaslt() 512 f16:f32:f32 tt beta=1", GPU, None),
        ("cublaslt() 512 f16:f16:f16", GPU, None),
        ("cublaslt() 512 i8 alpha=-2", GPU, None),
        ("cublaslt() 512 i8 alpha=0.5", GPU,
         "cublaslt scales i32 by whole numbers only, not by alpha=0.5 and beta=0"),
        ("cublaslt() 512 f64:f32:f64", GPU, "cublaslt computes f64:f64:f64, not f64:f32:f64"),
        ("cublaslt() 512 bf16:f16:f32", GPU,
         "cublaslt computes bf16:bf16:f32 or bf16:f32:f32, not bf16:f16:f32"),
        ("cublaslt() 512 f8e5m2", GPU,
         "cublaslt multiplies f8e5m2 by f8e4m3 only (f8e5m2e4m3 and f8e4m3e5m2), not by f8e5m2"),
        ("cublaslt() 512 f8e5m2e4m3 nt", HOPPER, None),
        ("cublaslt() 512 f8e4m3e5m2", HOPPER,
         "cublaslt multiplies f8e4m3e5m2 in layout nt only on compute capability 9.0, not nn"),
        ("cublaslt() 512 tf32", TURING, "cublaslt needs compute capability 8.0 for tf32, the device has 7.5"),
        ("cublaslt() 512 f16", TURING, None),
        ("cublaslt() 512 f8e4m3 nt", HOPPER, None),
        ("cublaslt() 512 f8e4m3", HOPPER,
         "cublaslt multiplies f8e4m3 in layout nt only on compute capability 9.0, not nn"),
        ("cublaslt() 512 f8e4m3", BLACKWELL, None),
        ("cublaslt() 512x512x24 f8e4m3 nt", HOPPER,
         "cublaslt needs n and k to be multiples of 16 for f8e4m3, not 512x512x24"),
        ("cutlass() 512 f16", GPU, "cutlass needs 49152 bytes of shared memory, the device has 16384"),
        ("cutlass(stages=2,tile_m=64,tile_n=64,warp_m=32,warp_n=32) 512 f16", GPU, None),
        ("tiled() 30000x32000x1000 f64", GPU, "its operands take 8,176,000,000 bytes, the device has "
         f"{int(2**33 * MEMORY_SHARE):,} for them"),
    ],
)  # fmt: skip
def test_a_device_says_why_it_cannot(text, traits, reason):
    assert Configuration.parse(text).why_invalid(traits) == reason


# --- devices ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("product", "backend", "expected"),
    [
        ("NVIDIA GeForce RTX 4070", Backend.CUDA, "nvidia-geforce-rtx-4070"),
        ("NVIDIA H200 MIG 1g.18gb", Backend.CUDA, "nvidia-h200-mig-1g-18gb"),
        ("Intel(R) Xeon(R) Platinum 8488C CPU @ 2.40GHz", Backend.CPU, "cpu-intel-xeon-platinum-8488c"),
        ("AMD EPYC 9575F 64-Core Processor", Backend.CPU, "cpu-amd-epyc-9575f"),
        ("NVIDIA H200", Backend.RECORDED, "recorded-nvidia-h200"),
        ("recorded-nvidia-h200", Backend.RECORDED, "recorded-nvidia-h200"),
        ("", Backend.CPU, "cpu-unknown"),
    ],
)
def test_product_names_become_types(product, backend, expected):
    assert device_type_of(product, backend) == expected


@given(st.text(max_size=60), st.sampled_from(Backend))
def test_a_type_is_a_word_and_naming_it_again_changes_nothing(product, backend):
    name = device_type_of(product, backend)
    assert name
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
    assert device_type_of(name, backend) == name or backend is Backend.CPU


@given(
    st.builds(
        DeviceTraits,
        kind=st.sampled_from(DeviceKind),
        memory_bytes=st.integers(1, 2**48),
        threads=st.none() | st.integers(1, 512),
        compute_capability=st.none() | st.tuples(st.integers(5, 12), st.integers(0, 9)),
        multiprocessors=st.none() | st.integers(1, 200),
    )
)
def test_traits_survive_json(traits):
    assert DeviceTraits.from_json(traits.to_json()) == traits
