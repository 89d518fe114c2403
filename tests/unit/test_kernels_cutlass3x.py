"""Which kernels of the family `cutlass3x` exist, and why others do not."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.campaign import Campaign, load
from farm.devices import DeviceKind, DeviceTraits, traits_of_capability
from farm.gemm import INPUT_TYPES, ElementTypes, Layout, Shape
from farm.kernels import FAMILIES, Configuration, Kernel
from farm.kernels.binary import text_of
from farm.kernels.cutlass3x.binaries import KINDS, TEMPLATE
from farm.kernels.cutlass3x.point import SHARED_BYTES, Point
from farm.kernels.families import binary_from_json
from farm.kernels.toolchains import BUILT_WITH
from support.cutlass3x_compiled import COMPILED, COMPILED_AND_REFUSED, NOT_COMPILED
from support.possible import possible
from workers.kernels.base import Placement
from workers.kernels.cutlass3x.library import Library
from workers.measure.operands import SetLayout

CAMPAIGNS = Path(__file__).parents[2] / "examples" / "campaigns"
A100, H200, B200 = (replace(traits_of_capability(c), memory_bytes=150 * 10**9) for c in ((8, 0), (9, 0), (10, 0)))


def why(text: str, device: DeviceTraits = H200) -> str | None:
    return Configuration.parse(text).why_invalid(device)


def point_of(configuration: Configuration) -> Point:
    return Point(problem=configuration.problem, device=H200, **dict(configuration.kernel.parameters))


# --- what the compiler said ------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "shared_bytes", "stages", "threads"), COMPILED)
def test_what_the_rules_let_through_compiles_with_the_shared_memory_that_they_count(
    text, shared_bytes, stages, threads
):
    assert why(text) is None
    point = point_of(Configuration.parse(text))
    assert (point.shared_bytes, point.stages_kept, point.threads) == (shared_bytes, stages, threads)


@pytest.mark.parametrize(("text", "said"), NOT_COMPILED)
def test_what_does_not_compile_is_refused(text, said):
    assert why(text) is not None, said


@pytest.mark.parametrize(("text", "reason"), COMPILED_AND_REFUSED)
def test_what_compiles_and_would_not_serve_is_refused_for_another_reason(text, reason):
    assert reason in (why(text) or "")


# --- rules -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        # the card, types, layouts
        ("cutlass3x() 512 f16:f16:f16 nt", "computes f16:f16:f32 or f16:f32:f32, not f16:f16:f16"),
        ("cutlass3x() 512 f64 nt", "does not compute f64: Hopper's instructions for groups of warps have no such type"),
        ("cutlass3x() 512 f8e4m3 nn",
         "multiplies f8e4m3 in layout nt only, where k is contiguous in A and B, not nn"),
        ("cutlass3x(tile_k=128) 512 i8 nt alpha=0.5", "scales i32 by whole numbers only, not by alpha=0.5 and beta=0"),
        ("cutlass3x() 512 f8e5m2e4m3:f16:f32 nt", None),
        # schedules
        ("cutlass3x(schedule=0,stream_k=1) 512 f16",
         "shares steps of k among blocks (stream_k=1) with schedule=2, cooperative, only, not warp-specialised"),
        ("cutlass3x(schedule=0,swizzle=2) 512 f16",
         "launches a block for each tile with schedule=0, and orders none: swizzle must be 1, not 2"),
        ("cutlass3x(schedule=0,raster=1) 512 f16",
         "launches a block for each tile with schedule=0, and orders none: raster must be 0, not 1"),
        ("cutlass3x(schedule=1,swizzle=8,raster=2) 512 f16", None),
        # instructions
        ("cutlass3x(tile_m=64) 512 f16",
         "needs tile_m to be a multiple of 128 with schedule=2 (cooperative) and swap=0, not 64"),
        ("cutlass3x(tile_m=64,swap=1) 512 f16", None),
        ("cutlass3x(tile_n=64,swap=1) 512 f16",
         "needs tile_n to be a multiple of 128 with schedule=2 (cooperative) and swap=1, not 64"),
        ("cutlass3x(tile_m=96,schedule=1) 512 f16",
         "needs tile_m to be a multiple of 64 with schedule=1 (pingpong) and swap=0, not 96"),
        ("cutlass3x(tile_k=16) 512 i8 nt", "needs tile_k to be a multiple of 32 for i8, not 16"),
        ("cutlass3x(tile_k=256) 512 f8e4m3 nt",
         "adds up sums of f8e4m3 in 32 bits after 4 instructions: tile_k=256 is 8, which do not divide them"),
        # 4-byte types that do not lie along k
        ("cutlass3x(tile_k=32) 512 tf32 nn",
         "turns B of tf32 in layout nn on its way through registers, which only the left operand takes: swap must be 1"),
        ("cutlass3x(tile_k=32,swap=1) 512 tf32 tt",
         "turns A of tf32 in layout tt on its way through registers, which only the left operand takes: swap must be 0"),
        ("cutlass3x(tile_k=64) 512 tf32 tn",
         "turns B of tf32 in shared memory in layout tn, 128 bytes of k at a time: tile_k=64 takes 256"),
        ("cutlass3x(tile_k=32,tile_n=16) 512 tf32 tn",
         "turns B of tf32 in shared memory in layout tn, in squares of tile_k=32: tile_n must be a multiple of that, not 16"),
        # weights of fewer bits
        ("cutlass3x() 512 f16i4 nt scale=none:1x128",
         "converts B of f16i4 on its way through registers, which only the left operand takes: swap must be 1"),
        ("cutlass3x(swap=1) 512 f16i4 nn scale=none:1x128",
         "multiplies f16i4 in layout nt only, where k is contiguous in A and B, not nn"),
        ("cutlass3x(swap=1) 512 bf16f4 nt scale=none:row", None),
        ("cutlass3x(swap=1) 512 f16i4:bf16:f32 nt", "computes f16i4:f16:f32 or f16i4:f32:f32, not f16i4:bf16:f32"),
        ("cutlass3x(swap=1,tile_k=32) 512 f16i4 nt",
         "converts B for at least 4 instructions: tile_k must be 64 or more for f16i4, not 32"),
        ("cutlass3x(swap=1) 512 bf16i8 nt scale=none:1x32",
         "multiplies a step along k by one factor of each column: with scale=none:1x32, tile_k must divide 32, not be 64"),
        ("cutlass3x(swap=1,tile_k=128) 512 bf16i8 nt scale=none:row", None),
        ("cutlass3x(swap=1) 512x512x528 f16i4 nt",
         "loads B by TMA, which needs k to take a multiple of 16 bytes in layout nt: 528 of i4 take 264"),
        ("cutlass3x(swap=1) 512x512x528 f16i8 nt", None),
        ("cutlass3x(swap=1,epilogue=0) 512x516x512 f16i8 nt scale=none:1x64",
         "loads the factors of B by TMA, which needs n to be a multiple of 8 for f16i8, not 516"),
        ("cutlass3x(swap=1,epilogue=0) 512x516x512 f16i8 nt", None),
        ("cutlass3x(swap=1) 512 f16i8 nt groups=512", "computes no groups of f16i8: groups must be none"),
        ("cutlass3x(swap=1,tile_m=16) 512 f16i4 nt scale=none:1x128 batch=2 fused=bias+silu", None),
        # clusters
        ("cutlass3x(cluster_m=4,cluster_n=4) 512 f16", "has at most 8 blocks in a cluster, not 4 x 4"),
        ("cutlass3x(cluster_m=4,tile_n=16) 512 f16 nt",
         "cannot share the tile of B among 4 blocks (cluster_m): tile_n=16 is no multiple of 8 rows for each"),
        ("cutlass3x(cluster_n=4,tile_k=16) 512 f16 tt",
         "cannot share the tile of A among 4 blocks (cluster_n): tile_k=16 is no multiple of 8 rows for each"),
        ("cutlass3x(cluster_n=2,tile_k=16) 512 f16 tt", None),
        # what a block may take
        ("cutlass3x(tile_m=256,tile_n=256,tile_k=32) 512 f16",
         "needs 256 registers of a thread for accumulators alone (tile_m=256, tile_n=256, cooperative), a thread has 232"),
        ("cutlass3x(tile_n=256) 512 f8e4m3 nt",
         "needs 256 registers of a thread for accumulators alone (tile_m=128, tile_n=256, cooperative), a thread has 232"),
        ("cutlass3x(tile_m=256,tile_k=256) 512 f16",
         "needs 2 stages at least, and 1 of 196608 bytes fit into shared memory next to the stored tiles"),
        ("cutlass3x(stages=7) 512 f16", "needs 263168 bytes of shared memory for 7 stages, the device has 232448"),
        ("cutlass3x(tile_n=16,tile_k=32,stages=5) 512 tf32 nt",
         "swizzles 1024 elements of B in shared memory alike, and a tile of 16 x 32 has 512: the number of stages must be a "
         "multiple of 2, not 5"),
        ("cutlass3x(tile_n=16,tile_k=32,stages=4) 512 tf32 nt", None),
        # what a problem has
        ("cutlass3x() 512x512x516 f16 nt",
         "loads A by TMA, which needs k to take a multiple of 16 bytes in layout nt: 516 of f16 take 1032"),
        ("cutlass3x(swap=1) 512x516x512 f16 nn",
         "loads B by TMA, which needs n to take a multiple of 16 bytes in layout nn: 516 of f16 take 1032"),
        ("cutlass3x() 1x520x512 f16 nt", None),
        ("cutlass3x() 1x520x512 f16 tt",
         "loads A by TMA, which needs m to take a multiple of 16 bytes in layout tt: 1 of f16 take 2"),
        ("cutlass3x() 512x516x512 f16 nt",
         "stores D by TMA, which needs n to take a multiple of 16 bytes: 516 of f16 take 1032; epilogue=0 does without"),
        ("cutlass3x(epilogue=0) 512x516x512 f16 nt", None),
        ("cutlass3x(schedule=0,tile_m=64,tile_n=16) 16x2000000x16 f16 nt",
         "needs a grid of 125000 blocks along n with schedule=0, 65535 is the most"),
        ("cutlass3x(schedule=0,tile_m=16,tile_n=64,swap=1) 16x2000000x16 f16 nt", None),
        ("cutlass3x(schedule=0,tile_m=64,tile_n=16) 16x1048560x16 f16 nt", None),
        ("cutlass3x(schedule=0,tile_m=64,tile_n=16,cluster_n=2) 16x1048560x16 f16 nt",
         "needs a grid of 65536 blocks along n with schedule=0, 65535 is the most"),
        # batches, fused operations, scale factors, groups
        ("cutlass3x() 64 f16 batch=100000", None),
        ("cutlass3x(schedule=0,tile_m=64) 64 f16 batch=100000", "computes a batch of 65535 or less with schedule=0, not 100000"),
        ("cutlass3x(tile_k=128) 512 i8 nt fused=relu", "has scale factors and fused operations for floats only, not for i32"),
        ("cutlass3x(epilogue=0) 512 f16 fused=silu",
         "computes fused=silu where it stores D by TMA, which needs epilogue=1, not 0"),
        ("cutlass3x(epilogue=0) 512 f16 scale=row",
         "computes scale=row where it stores D by TMA, which needs epilogue=1, not 0"),
        ("cutlass3x(epilogue=0,tile_k=128) 512 f8e4m3 nt scale=1x128", None),
        ("cutlass3x(tile_k=128) 512 f16 scale=1x128", "has scale factors of blocks for 8-bit floats only, not for f16"),
        ("cutlass3x(schedule=0,tile_m=64,tile_k=128) 512 f8e4m3 nt scale=1x128",
         "computes scale=1x128 with schedule=1 or 2, not 0 (warp-specialised)"),
        ("cutlass3x() 512 f8e4m3 nt scale=1x128",
         "multiplies a tile by factors of 128 elements along k: tile_k must be 128, not 64"),
        ("cutlass3x(tile_k=128,tile_n=64) 512 f8e4m3 nt scale=1x128:128x128",
         "multiplies a tile by factors of 128 lines of B: tile_n must be a multiple of 128, not 64"),
        ("cutlass3x(tile_k=128) 510x512x512 f8e4m3 nt scale=1x128:128x128",
         "loads the factors of A by TMA, which needs m to be a multiple of 4, not 510"),
        ("cutlass3x(tile_k=128) 510x512x512 f8e4m3 nt scale=1x128", None),
        ("cutlass3x(tile_k=128) 512x512x384 f8e4m3 nt scale=1x128:128x128", None),
        ("cutlass3x(tile_k=128) 512x512x384 f8e4m3 nt scale=1x128:128x128 groups=510,2",
         "reads the factors of B for groups where k has a multiple of 4 blocks of 128, not 3"),
        ("cutlass3x(tile_k=128) 512x512x1024 f8e4m3 nt scale=1x128:128x128 groups=510,2", None),
        ("cutlass3x(schedule=0,tile_m=64) 512 f16 groups=512", "computes groups with schedule=1 or 2, not 0 (warp-specialised)"),
        ("cutlass3x(stream_k=1) 512 f16 groups=512", "shares no steps of k among blocks with groups: stream_k must be 0"),
        ("cutlass3x(tile_k=32,swap=1) 512 tf32 nn groups=512",
         "computes groups of tf32 in layout nt only, not nn: the other goes through registers"),
    ],
)  # fmt: skip
def test_a_kernel_that_does_not_exist_says_why(text, reason):
    assert why(text) == (None if reason is None else f"cutlass3x {reason}")


@pytest.mark.parametrize(("device", "has"), [(A100, "8.0"), (B200, "10.0")])
def test_cards_of_other_generations_have_none(device, has):
    assert why("cutlass3x() 512 f16", device) == (
        f"cutlass3x has kernels for compute capability 9.0 alone, the device has {has}"
    )


def test_a_device_that_does_not_say_what_it_is_counts_as_hopper():
    unknown = DeviceTraits(kind=DeviceKind.CUDA, memory_bytes=2**40)
    assert why("cutlass3x() 512 f16", unknown) is None
    assert why("cutlass3x(stages=7) 512 f16", unknown) is not None


# --- what holds everywhere -------------------------------------------------------------------------

SPACE = {p.name: p.values for p in FAMILIES["cutlass3x"].parameters}
parameters = st.fixed_dictionaries({name: st.sampled_from(values) for name, values in SPACE.items()})
extents = st.sampled_from([1, 4, 7, 16, 500, 512, 1001, 4096])
alone = {
    "shape": st.builds(Shape, extents, extents, extents),
    "types": st.sampled_from([ElementTypes.parse(t) for t in (*INPUT_TYPES, "f16:f32:f32", "f8e4m3:f16:f32")]),
    "layout": st.sampled_from(Layout),
}
problems = st.builds(possible, **alone)
kinds = st.builds(
    possible,
    **alone,
    batch=st.sampled_from([1, 3]),
    scale=st.sampled_from(FAMILIES["cutlass3x"].scales),
    fused=st.sampled_from(FAMILIES["cutlass3x"].fusions),
)


@given(kinds, parameters)
def test_every_point_exists_or_says_why_in_one_line(problem, given):
    reason = Configuration(problem, Kernel.of("cutlass3x", **given)).why_invalid(H200)
    assert reason is None or re.fullmatch(r"cutlass3x [a-z]+ [^\n]{10,190}", reason)


@given(kinds, parameters)
def test_as_many_stages_as_fit_do_fit_and_one_more_does_not(problem, given):
    configuration = Configuration(problem, Kernel.of("cutlass3x", **{**given, "stages": 0}))
    point = point_of(configuration)
    if configuration.why_invalid(H200) is None:
        assert point.shared_bytes <= SHARED_BYTES
        assert replace(point, stages=point.stages_kept + 1).shared_bytes > SHARED_BYTES - 2048


@given(problems, parameters)
def test_swapping_sides_mirrors_the_space(problem, given):
    """What multiplies A by B also multiplies B' by A', where its tiles, cluster and operands change sides."""
    if problem.types.ab.of_a != problem.types.ab.of_b:
        return
    s, layout = problem.shape, problem.layout
    turned = Layout(("n" if layout.b_transposed else "t") + ("n" if layout.a_transposed else "t"))
    mirrored = replace(problem, shape=Shape(s.n, s.m, s.k), layout=turned)
    sides = {
        **given, "swap": 1 - given["swap"], "epilogue": 0,
        "tile_m": given["tile_n"], "tile_n": given["tile_m"],
        "cluster_m": given["cluster_n"], "cluster_n": given["cluster_m"],
    }  # fmt: skip
    one = Configuration(problem, Kernel.of("cutlass3x", **{**given, "epilogue": 0}))
    other = Configuration(mirrored, Kernel.of("cutlass3x", **sides))
    assert (one.why_invalid(H200) is None) == (other.why_invalid(H200) is None)


# --- binaries --------------------------------------------------------------------------------------


def test_shapes_scalars_and_the_order_of_tiles_share_a_binary():
    one, other = (
        Configuration.parse(text).binary(H200)
        for text in ("cutlass3x() 512 f16 nt", "cutlass3x(swizzle=4,raster=1) 64x1024x2048 f16 nt alpha=2 beta=1")
    )
    assert one == other


def test_one_plain_product_has_the_source_of_before_there_were_kinds():
    """Kernels that farms have are named by it: with another source they would all be built again."""
    digest = hashlib.sha256(text_of(TEMPLATE).encode()).hexdigest()
    assert digest == "292b6a26101fb228414ce9f22c5eab472b7eeb280c12256168af540a0697238e"


def test_batches_groups_factors_and_fused_operations_have_a_template_of_their_own():
    texts = (
        "", "batch=2", "batch=64 beta=1", "groups=500,12", "groups=1*512", "scale=row", "fused=bias+gelu", "fused=bias+gelu batch=3",
    )  # fmt: skip
    plain, *made = [Configuration.parse(f"cutlass3x() 512 bf16 nt {text}").binary(H200) for text in texts]
    assert plain.template == TEMPLATE
    assert {one.template for one in made} == {KINDS}
    assert [made.index(one) for one in made] == [0, 0, 2, 2, 4, 5, 5]
    assert [name for name, _ in made[0].definitions if name not in text_of(KINDS)] == []
    assert str(made[5]) == f"{str(plain).removesuffix(' sm_90a')} batches fused bias+gelu sm_90a"
    assert binary_from_json(made[5].to_json()) == made[5]


@pytest.mark.parametrize(
    ("scale", "expected"),
    [
        ("none batch=2", (0, 1, 1)), ("tensor", (1, 1, 1)), ("row", (2, 1, 1)), ("1x128", (3, 1, 1)),
        ("1x128:128x128", (3, 1, 128)), ("128x128:1x128", (3, 128, 1)),
    ],
)  # fmt: skip
def test_scale_factors_are_compiled_in(scale, expected):
    definitions = dict(
        Configuration.parse(f"cutlass3x(tile_k=128) 512 f8e4m3 nt scale={scale}").binary(H200).definitions
    )
    assert tuple(int(definitions[name]) for name in ("SCALE", "LINES_A", "LINES_B")) == expected


@pytest.mark.parametrize("name", [n for n in SPACE if n not in ("swizzle", "raster")])
def test_whatever_else_is_asked_for_makes_another(name):
    default = next(p.default for p in FAMILIES["cutlass3x"].parameters if p.name == name)
    other = next(value for value in SPACE[name] if value != default)
    hashes = set()
    for asked in ("", f"{name}={other}"):
        binary = Configuration.parse(f"cutlass3x({asked}) 512 f16 nt").binary(H200)
        assert binary is not None
        hashes.add(binary.hash(BUILT_WITH))
    assert len(hashes) == 2


def test_people_can_tell_a_binary_by_a_line():
    text = "cutlass3x(cluster_m=2,stream_k=1,swap=1,epilogue=0,stages=4) 512 f8e4m3e5m2 nt"
    assert str(Configuration.parse(text).binary(H200)) == (
        "f8e4m3e5m2:bf16:f32 nt tile 128x128x64 cluster 2x1 cooperative direct stages 4 stream-k swapped sm_90a"
    )


# --- campaigns -------------------------------------------------------------------------------------


def example(name: str) -> Campaign:
    return load(CAMPAIGNS / f"{name}.yaml", limit=100_000)


def test_hopper_f16_is_916_configurations_of_40_kernels_and_the_library_and_each_exists_on_an_h200():
    configurations = list(example("hopper-f16").expand())
    assert {c.why_invalid(H200) for c in configurations} == {None}
    assert len({c.id for c in configurations}) == len(configurations) == 916
    prefill, decode = ([c for c in configurations if (c.problem.shape.m > 128) == many] for many in (True, False))
    assert [sum(c.kernel.family == "cutlass3x" for c in phase) for phase in (prefill, decode)] == [648, 230]
    assert len({c.binary(H200) for c in configurations} - {None}) == 40


def test_hopper_few_has_every_type_and_layout_by_18_kernels():
    configurations = list(example("hopper-few").expand())
    assert {c.why_invalid(H200) for c in configurations} == {None}
    assert len(configurations) == 36
    assert len({c.binary(H200) for c in configurations}) == 18
    problems = {(str(c.problem.types.ab), str(c.problem.layout)) for c in configurations}
    assert {layout for ab, layout in problems if ab == "f16"} == {"nn", "nt", "tn", "tt"} == {
        layout for ab, layout in problems if ab == "tf32"
    }  # fmt: skip
    assert {ab for ab, _ in problems} == {"f16", "bf16", "tf32", "f8e4m3", "f8e5m2", "f8e4m3e5m2", "i8"}
    for switch in ("schedule", "epilogue", "stream_k", "swap"):
        assert {dict(c.kernel.parameters)[switch] for c in configurations} == set(SPACE[switch])


def test_a_narrow_b_is_compiled_in_and_how_many_elements_share_a_factor_is_not():
    def definitions(text: str) -> dict[str, str]:
        binary = Configuration.parse(f"cutlass3x(swap=1) 512 {text}").binary(H200)
        assert [name for name, _ in binary.definitions if name not in text_of(KINDS)] == []
        return dict(binary.definitions)

    groups = definitions("f16i4 nt scale=none:1x128")
    assert (groups["TYPE_A"], groups["TYPE_B"], groups["NARROW"]) == ("cutlass::half_t", "cutlass::int4b_t", "2")
    assert definitions("f16i4 nt scale=none:row") == groups
    one, other = (
        Configuration.parse(f"cutlass3x(swap=1) 512 f16i4 nt scale={scale}").binary(H200)
        for scale in ("none:row", "none:1x64")
    )
    assert len({one, other}) == 1  # it is compiled once
    assert str(one) == str(other)
    assert definitions("f16i4 nt") == groups | {"NARROW": "1"}
    assert definitions("f16 nt batch=2")["NARROW"] == "0"


@pytest.mark.parametrize(("scale", "factor_k"), [("none:1x64", 64), ("none:row", 0), ("none", 0)])
def test_how_many_elements_share_a_factor_is_given_to_the_library(scale, factor_k):
    problem = Configuration.parse(f"cutlass3x() 32x64x128 bf16i4 nt scale={scale}").problem
    library = Library.__new__(Library)
    library.multiprocessors = library.clusters = 1
    lies = SetLayout.of(problem, 256)
    placement = Placement(
        layout=lies, sets=2, inputs=2**20, inputs_of_b=2**21, addends=0, outputs=2**22, b_factors=2**23
    )
    given = library.problem(placement, 1, 0, swizzle=1, raster=0)
    assert (given.factor_k, given.b, given.factors_b) == (factor_k, 2**21 + 64 * 128 // 2, 2**23 + 2 * lies.b_factors)
