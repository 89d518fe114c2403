"""Which kernels of the family `triton` exist, why others do not, and which binary a configuration needs."""

from __future__ import annotations

import ast
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.devices import DeviceTraits, traits_of_capability
from farm.fusion import Fusion
from farm.gemm import INPUT_TYPES, ElementTypes, Layout, Shape
from farm.kernels import FAMILIES, Configuration, Kernel
from farm.kernels.binary import Binary, text_of
from farm.kernels.families import binary_from_json
from farm.kernels.toolchains import BUILT_WITH, TRITON
from farm.kernels.triton import shared_bytes
from farm.kernels.triton.binaries import TEMPLATE
from farm.scale import SCALES_OF_BOTH, Scale
from support.possible import possible

FAMILY = FAMILIES["triton"]
T4, A100, L4, H200 = (
    replace(traits_of_capability(c), memory_bytes=150 * 10**9) for c in ((7, 5), (8, 0), (8, 9), (9, 0))
)


def why(text: str, device: DeviceTraits = H200) -> str | None:
    return Configuration.parse(text).why_invalid(device)


def binary(text: str, device: DeviceTraits = H200) -> Binary:
    found = Configuration.parse(text).binary(device)
    assert found is not None
    return found


def defined(text: str) -> dict[str, str]:
    return dict(binary(text).definitions)


# --- rules -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "types", ["f16", "f16:f16:f16", "f16:f32:f32", "bf16", "tf32", "f32", "i8", "f8e4m3", "f8e5m2e4m3"]
)
@pytest.mark.parametrize("layout", Layout)
def test_the_default_kernel_computes_every_type_and_layout_on_hopper(types: str, layout: str) -> None:
    assert why(f"triton() 4096 {types} {layout}") is None
    assert why(f"triton() 1000x77x3 {types} {layout} beta=1 batch=65535") is None


@pytest.mark.parametrize(
    ("text", "device", "reason"),
    [
        ("triton() 512 f64", H200, "has no kernels for f64"),
        ("triton() 512 f16:bf16:f32", H200, "computes f16:f16:f32 or f16:f32:f32 or f16:f16:f16, not f16:bf16:f32"),
        ("triton() 512 f16", T4, "needs compute capability 8.0, the device has 7.5"),
        ("triton() 512 f8e4m3", A100, "needs compute capability 8.9 for f8e4m3, the device has 8.0"),
        ("triton() 512 f8e4m3", L4, None),
        ("triton() 512 i8 alpha=0.5", H200, "scales i32 by whole numbers only, not by alpha=0.5 and beta=0"),
        ("triton() 512 i8 scale=row", H200, "has scale factors and fused operations for floats only, not for i32"),
        ("triton() 512 i8 fused=relu", H200, "has scale factors and fused operations for floats only, not for i32"),
        ("triton(tile_k=16) 512 f16", H200, None),
        ("triton(tile_k=16) 512 i8", H200, "needs tile_k=32 or more for i8, not 16"),
        ("triton(tile_k=16) 512 f8e5m2", H200, "needs tile_k=32 or more for f8e5m2, not 16"),
        ("triton(tile_k=256,tile_m=64,stages=2) 512 f8e4m3 nt scale=1x128", H200,
         "multiplies the sum of a tile by one factor: tile_k must be 128 or less, not 256"),
        ("triton(tile_k=256,tile_m=64,stages=2) 512 f8e4m3 nt scale=row", H200, None),
        ("triton(tile_m=256,tile_n=256,warps=4) 512 f16", H200,
         "needs 512 registers of a thread for accumulators alone, a thread has 255"),
        ("triton(tile_m=256,tile_n=256,warps=8) 512 f16:f16:f16", H200, None),
        ("triton(warps=4) 512 f32", H200, "writes out the 8192 multiply-adds of a thread and step for f32, 4096 at most"),
        ("triton(stages=7) 512 f16", H200, None),
        ("triton(stages=8) 512 f16", H200, "needs 262144 bytes of shared memory or more, the device has 232448"),
        ("triton(stages=6,tile_k=32) 2147483391x1x1 f16 tn", H200, None),
        ("triton() 2147483392x1x1 f16 nn", H200, "has 32-bit indices: m, n and k must be 2147483391 or less"),
        ("triton(tile_m=16,tile_k=32) 2147483391x1x1 f16 nn groups=1,2147483390", H200, None),
        ("triton(tile_m=16,tile_n=16) 2147483391x16384x1 i8 nn groups=0,1,2147483390", H200,
         "needs a grid of 137438938112 blocks, 2147483647 is the most"),
        ("triton() 64 i8 scale=row groups=64", H200, "has scale factors and fused operations for floats only, not for i32"),
        ("triton(tma=1) 512 f16", A100, "needs compute capability 9.0 for tma=1, the device has 8.0"),
        ("triton(tma=1,warps=16,tile_k=32) 512 f32", H200, "has tma=1 for what tensor cores multiply as it lies in memory, not for f32"),
        ("triton(tma=1) 512 bf16i4 nt", H200, "as it lies in memory, not for bf16i4"),
        ("triton(tma=1) 500x512x512 f16 nt", H200, None),
        ("triton(tma=1) 500x512x512 f16 tn", H200, "needs multiples of 16 of m and n for tma=1, not m=500"),
        ("triton(tma=1) 512x500x512 f16 nn", H200, "needs multiples of 16 of k and n for tma=1, not n=500"),
        ("triton(tma=1) 512x500x520 f16 nt", H200, "needs multiples of 16 of k for tma=1, not k=520"),
        ("triton(tma=1,tile_m=16,tile_n=16) 65536x65536x16 f16 nt batch=2", H200,
         "needs 8,589,934,592 bytes for the descriptors of its blocks with tma=1, 1,073,741,824 is the most"),
        ("triton(tile_n=16) 512 f16 fused=swiglu", H200, "tile_n must be 32 or more for fused=swiglu, not 16"),
        ("triton() 64x66x64 f16i4 nn fused=swiglu", H200, "half of n must be a multiple of 2 for fused=swiglu, not 33"),
        ("triton() 64x66x64 f16i4 nt fused=swiglu", H200, None),
        ("triton() 64x64x64 f16 batch=65536", H200, "computes a batch of 65535 or less, not 65536"),
    ],
)  # fmt: skip
def test_a_point_that_does_not_exist_says_why(text: str, device: DeviceTraits, reason: str | None) -> None:
    found = why(text, device)
    if reason is None:
        assert found is None
    else:
        assert reason in (found or "")


@pytest.mark.parametrize("types", ["f16", "f16:f16:f16", "bf16", "tf32", "f32", "i8", "f8e4m3", "f8e4m3e5m2"])
def test_groups_of_every_type_are_computed_whatever_their_rows(types: str) -> None:
    for layout in ("nn", "nt"):
        for scale in ("none",) if types == "i8" else ("none", "tensor", "row", "1x128", "1x128:128x128"):
            for fused in ("none",) if types == "i8" else ("none", "bias+silu"):
                assert why(f"triton() 67x77x99 {types} {layout} scale={scale} fused={fused} groups=0,3,64") is None


def test_scales_and_fusions_are_computed_for_every_float() -> None:
    for types in ("f16", "bf16", "tf32", "f32", "f8e4m3", "f16:f16:f16"):
        for scale in SCALES_OF_BOTH:
            for fused in Fusion:
                text = f"triton() 512 {types} nt scale={scale} fused={fused}"
                assert why(text) is None, text


COMPILED = [
    # capability, configuration, bytes of shared memory that Triton 3.9.0 counted
    ((8, 0), "triton(tile_m=64,tile_n=64,tile_k=32,warps=4,stages=4) 512x512x512 f16 nn", 24576),
    ((8, 0), "triton(tile_m=64,tile_n=64,tile_k=32,warps=4,stages=4) 512x512x512 f16 nt", 24576),
    ((8, 0), "triton(tile_m=64,tile_n=64,tile_k=32,warps=4,stages=4) 512x512x512 f16 tn", 24576),
    ((8, 0), "triton(tile_m=64,tile_n=64,tile_k=32,warps=4,stages=4) 512x512x512 tf32 nn", 49152),
    ((8, 0), "triton(tile_m=64,tile_n=64,tile_k=32,warps=4,stages=4) 511x509x507 tf32 nt", 49152),
    ((8, 0), "triton(tile_m=64,tile_n=64,tile_k=32,warps=4,stages=4) 512x512x512 i8 nn", 12288),
    ((8, 0), "triton(tile_m=64,tile_n=64,tile_k=32,warps=4,stages=4) 512x512x512 i8 nt", 12288),
    ((8, 0), "triton(tile_m=128,tile_n=256,tile_k=64,warps=8,stages=3) 512x512x512 i8 tn", 49152),
    ((8, 0), "triton(tile_m=64,tile_n=32,tile_k=128,warps=2,stages=2) 512x512x512 f32 nt", 49152),
    ((8, 9), "triton(tile_m=64,tile_n=64,tile_k=32,warps=4,stages=4) 511x509x507 f16 nn", 8192),
    ((8, 9), "triton(tile_m=16,tile_n=64,tile_k=64,warps=4,stages=5) 512x512x512 f16 nt", 40960),
    ((8, 9), "triton(tile_m=64,tile_n=32,tile_k=128,warps=2,stages=2) 512x512x512 f16 tn", 24576),
    ((8, 9), "triton(tile_m=128,tile_n=64,tile_k=32,warps=4,stages=1) 512x512x512 tf32 nn", 24576),
    ((8, 9), "triton(tile_m=64,tile_n=64,tile_k=32,warps=4,stages=4) 511x509x507 tf32 tn", 49152),
    ((8, 9), "triton(tile_m=64,tile_n=64,tile_k=32,warps=4,stages=4) 512x512x512 i8 nn", 12288),
    ((8, 9), "triton(tile_m=64,tile_n=64,tile_k=32,warps=4,stages=4) 512x512x512 i8 nt", 12288),
    ((8, 9), "triton(tile_m=128,tile_n=256,tile_k=64,warps=8,stages=3) 512x512x512 i8 tn", 49152),
    ((8, 9), "triton(tile_m=128,tile_n=256,tile_k=64,warps=8,stages=3) 512x512x512 f8e4m3 nn", 49152),
    ((8, 9), "triton(tile_m=128,tile_n=256,tile_k=64,warps=8,stages=3) 512x512x512 f8e4m3 nt", 49152),
    ((8, 9), "triton(tile_m=16,tile_n=64,tile_k=64,warps=4,stages=5) 511x509x507 f8e4m3 tn", 5120),
    ((8, 9), "triton(tile_m=64,tile_n=64,tile_k=32,warps=4,stages=4) 512x512x512 f32 nt", 49152),
    ((8, 9), "triton(tile_m=64,tile_n=64,tile_k=32,warps=4,stages=4) 511x509x507 f32 tn", 49152),
    ((9, 0), "triton(tile_m=64,tile_n=64,tile_k=32,warps=4,stages=4) 512x512x512 f16 nn", 32768),
    ((9, 0), "triton(tile_m=128,tile_n=256,tile_k=64,warps=8,stages=3) 512x512x512 f16 nn", 147456),
    ((9, 0), "triton(tile_m=128,tile_n=64,tile_k=32,warps=4,stages=1) 512x512x512 f16 nn", 12288),
    ((9, 0), "triton(tile_m=64,tile_n=64,tile_k=32,warps=4,stages=4) 512x512x512 f16 nt", 32768),
    ((9, 0), "triton(tile_m=128,tile_n=256,tile_k=64,warps=8,stages=3) 512x512x512 f16 nt", 147456),
    ((9, 0), "triton(tile_m=16,tile_n=64,tile_k=64,warps=4,stages=5) 512x512x512 f16 nt", 40960),
    ((9, 0), "triton(tile_m=64,tile_n=64,tile_k=32,warps=4,stages=4) 512x512x512 f16 tn", 32768),
    ((9, 0), "triton(tile_m=128,tile_n=256,tile_k=64,warps=8,stages=3) 512x512x512 f16 tn", 147456),
    ((9, 0), "triton(tile_m=64,tile_n=64,tile_k=32,warps=4,stages=4) 512x512x512 tf32 nt", 65536),
    ((9, 0), "triton(tile_m=16,tile_n=64,tile_k=64,warps=4,stages=5) 511x509x507 tf32 tn", 81920),
    ((9, 0), "triton(tile_m=128,tile_n=64,tile_k=32,warps=4,stages=1) 512x512x512 i8 nn", 16384),
    ((9, 0), "triton(tile_m=16,tile_n=64,tile_k=64,warps=4,stages=5) 511x509x507 i8 nt", 5120),
    ((9, 0), "triton(tile_m=16,tile_n=64,tile_k=64,warps=4,stages=5) 511x509x507 i8 tn", 5120),
    ((9, 0), "triton(tile_m=16,tile_n=64,tile_k=64,warps=4,stages=5) 511x509x507 f8e4m3 nn", 4096),
    ((9, 0), "triton(tile_m=64,tile_n=64,tile_k=32,warps=4,stages=4) 511x509x507 f8e4m3 tn", 8192),
    ((9, 0), "triton(tile_m=64,tile_n=64,tile_k=32,warps=4,stages=4) 511x509x507 f32 nn", 49152),
    ((9, 0), "triton(tile_m=64,tile_n=64,tile_k=32,warps=4,stages=4) 512x512x512 f32 tn", 49152),
    ((9, 0), "triton(tma=1) 512x512x512 f16 nt", 98328),
    ((9, 0), "triton(tma=1,tile_m=16,tile_n=64,tile_k=128,warps=4,stages=4) 512x512x512 f16 nt", 61464),
    ((9, 0), "triton(tma=1,tile_k=128) 512x512x512 f8e4m3 nn", 98352),
    ((9, 0), "triton(tma=1) 512x512x512 i8 nt", 65536),
]


@pytest.mark.parametrize(("capability", "text", "counted"), COMPILED)
def test_no_kernel_is_refused_for_shared_memory_that_it_does_not_need(
    capability: tuple[int, int], text: str, counted: int
) -> None:
    configuration = Configuration.parse(text)
    need = shared_bytes(configuration.problem, dict(configuration.kernel.parameters), capability)
    assert need <= counted
    if " 512x512x512 f16" in text and "stages=1" not in text:
        assert need >= 0.9 * counted


def test_one_that_was_stored_without_tma_has_plain_loads() -> None:
    whole = Configuration.parse("triton(tile_m=64) 512 f16 nt")
    stored = whole.columns()
    del stored["parameters"]["tma"]
    assert Configuration.from_columns(stored) == whole
    assert dict(whole.kernel.parameters)["tma"] == 0


# --- binaries --------------------------------------------------------------------------------------


def test_a_kernel_without_a_rule_that_refuses_it_has_a_binary_of_triton() -> None:
    found = binary("triton() 512 f16 nt")
    assert found.template.toolchain is TRITON
    assert found.toolchain(BUILT_WITH) == "triton 3.9.0"
    assert found.arch == "sm_90a"
    assert str(found) == "f16:f16:f32 nt tile 128x128x64 group 8 warps 8 stages 3 multiples nk sm_90a"
    assert binary_from_json(found.to_json()) == found


@pytest.mark.parametrize(
    "other",
    [
        *(f"triton({name}=32) 512 f16 nt" for name in ("tile_m", "tile_n", "tile_k", "group_m")),
        *("triton(tma=1) 512 f16 nt", "triton(warps=4) 512 f16 nt", "triton(stages=4) 512 f16 nt", "triton() 512 f16 nn", "triton() 512 f16 tt"),
        *("triton() 512 bf16 nt", "triton() 512 f16:f32:f32 nt", "triton() 512 f16:f16:f16 nt", "triton() 512 f16 nt beta=1"),
        *("triton() 512x500x512 f16 nt", "triton() 512x512x500 f16 nt", "triton() 512x512x528 f16 nt"),
        *("triton() 512 f16 nt scale=row", "triton() 512 f16 nt scale=1x128", "triton() 512 f16 nt scale=1x128:128x128"),
        *("triton() 512 f16 nt fused=bias", "triton() 512 f16 nt fused=gelu", "triton() 512 f16 nt fused=bias+gelu"),
        *("triton() 65536x512x65536 f16 nt", "triton() 512 f16 nt groups=512"),
    ],
)  # fmt: skip
def test_whatever_is_compiled_in_makes_another(other: str) -> None:
    assert binary(other).hash(BUILT_WITH) != binary("triton() 512 f16 nt").hash(BUILT_WITH)


@pytest.mark.parametrize(
    "same",
    ["triton() 1024x2048x4096 f16 nt", "triton() 1000x512x512 f16 nt", "triton() 512 f16 nt alpha=2 batch=7"],
)
def test_what_is_given_at_the_launch_makes_no_other(same: str) -> None:
    assert binary(same) == binary("triton() 512 f16 nt")


def test_one_kernel_serves_every_routing() -> None:
    one = binary("triton() 512 f16 nt groups=512")
    assert str(one) == "f16:f16:f32 nt tile 128x128x64 group 8 warps 8 stages 3 multiples nk grouped sm_90a"
    for text in (
        "512x512x512 f16 nt groups=3,0,509",
        "77x512x512 f16 nt groups=0*4095,77",
        "8x1024x64 f16 nt groups=1*8",
    ):
        assert binary(f"triton() {text}") == one


def test_another_version_of_triton_makes_another_and_one_of_cutlass_does_not() -> None:
    one = binary("triton() 512 f16 nt")
    assert one.hash({**BUILT_WITH, "cutlass": "9"}) == one.hash(BUILT_WITH)
    assert one.hash({**BUILT_WITH, "triton": "3.8.0"}) != one.hash(BUILT_WITH)
    assert one.hash(BUILT_WITH) != replace(one, arch="sm_80").hash(BUILT_WITH)


def test_m_matters_where_it_is_contiguous() -> None:
    assert defined("triton() 512 f16 nn")["M_16"] == defined("triton() 500x512x512 f16 nn")["M_16"] == "0"
    assert defined("triton() 512 f16 tn")["M_16"] == "1"
    assert defined("triton() 500x512x512 f16 tn")["M_16"] == "0"


def test_eight_bit_floats_reach_the_accumulator_in_time() -> None:
    assert defined("triton(tile_k=64) 512 f8e4m3")["IMPRECISE"] == "64"
    assert defined("triton(tile_k=256) 512 f8e4m3e5m2")["IMPRECISE"] == "128"
    assert defined("triton() 512 f16")["IMPRECISE"] == defined("triton() 512 i8")["IMPRECISE"] == "0"


@pytest.mark.parametrize(("problem", "summed"), [("512 f16 nn", "0"), ("1000x512x700 f16 tt", "1"), ("512x1000x512 f16 nn", "1"),
                                                 ("1000x1000x512 f16 nt", "0")])  # fmt: skip
def test_offsets_are_summed_first_where_lines_are_no_multiples(problem: str, summed: str) -> None:
    assert defined(f"triton() {problem}")["SUM_OFFSETS"] == summed


def test_each_matrix_has_its_own_scale_and_type() -> None:
    found = defined("triton() 512 f8e4m3e5m2 nt scale=1x128:128x128")
    assert (found["SCALE_A"], found["SCALE_B"]) == ("1x128", "128x128")
    assert (found["TYPE_A"], found["TYPE_B"]) == ("f8e4m3", "f8e5m2")


def test_the_template_takes_every_definition_and_has_no_other_constants() -> None:
    """Those that are no argument are read by `specialisation`."""
    module = ast.parse(text_of(TEMPLATE))
    gemm = next(node for node in module.body if isinstance(node, ast.FunctionDef) and node.name == "gemm")
    constants = {argument.arg for argument in gemm.args.args if argument.annotation is not None}
    found = set(defined("triton() 512 f16"))
    assert constants - found == {"PRECISION"}
    assert found - constants == {"TYPE_A", "CD", "WARPS", "STAGES", "M_16", "N_16", "K_16"}


@given(
    shape=st.builds(Shape, *[st.integers(1, 5000)] * 3),
    types=st.sampled_from([ElementTypes.parse(kind) for kind in INPUT_TYPES]),
    layout=st.sampled_from(Layout),
    values=st.fixed_dictionaries({p.name: st.sampled_from(p.values) for p in FAMILY.parameters}),
    scale=st.sampled_from(Scale),
    fused=st.sampled_from(Fusion),
)
def test_every_point_has_a_reason_or_a_binary_that_travels(
    shape: Shape, types: ElementTypes, layout: Layout, values: dict[str, int], scale: Scale, fused: Fusion
) -> None:
    if fused.gated:
        shape = replace(shape, n=2 * shape.n)
    configuration = Configuration(
        possible(shape, types, layout, scale=scale, fused=fused), Kernel.of("triton", **values)
    )
    reason = configuration.why_invalid(H200)
    assert reason is None or reason.startswith(("triton ", "its operands"))
    if reason is None:
        found = configuration.binary(H200)
        assert found is not None
        assert binary_from_json(found.to_json()) == found
