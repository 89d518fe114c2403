"""Which kernels of the family `cutlass` exist, and why others do not."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from farm.campaign import Campaign, KnownDevice, load, plan
from farm.devices import Backend, DeviceKind, DeviceTraits
from farm.errors import BadKernelParameter, CampaignFileError
from farm.gemm import INPUT_TYPES, ElementTypes, Layout, Problem, Shape
from farm.kernels import FAMILIES, Configuration, Kernel
from farm.kernels.cutlass import building
from farm.kernels.cutlass.point import Point
from support.possible import possible

CAMPAIGNS = Path(__file__).parents[2] / "examples" / "campaigns"


def card(capability: tuple[int, int], shared_memory: int) -> DeviceTraits:
    return DeviceTraits(
        kind=DeviceKind.CUDA,
        memory_bytes=150_000_000_000,
        compute_capability=capability,
        max_threads_per_block=1024,
        shared_memory_per_block_bytes=shared_memory,
    )


T4, A100, L40S, H200, B200 = (
    card((7, 5), 65_536), card((8, 0), 166_912), card((8, 9), 101_376), card((9, 0), 232_448), card((10, 0), 232_448),
)  # fmt: skip
SIMT = "tile_m=128,tile_n=128,tile_k=8,warp_m=32,warp_n=64"
SMALL = "tile_m=64,tile_n=64,tile_k=16,warp_m=32,warp_n=32"


def why(text: str, device: DeviceTraits = H200) -> str | None:
    return Configuration.parse(text).why_invalid(device)


# --- rules -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "cutlass() 512 f16 tt beta=1",
        "cutlass(tile_n=256,warp_m=64) 512 bf16 nt",
        "cutlass() 512 f16:f32:f32",
        "cutlass() 512 f16:f16:f16 tn",
        f"cutlass({SIMT},stages=2,swizzle=8) 512 f32 nt",
        f"cutlass({SIMT},stages=5) 509x511x513 f32 tn",
        f"cutlass({SMALL},stages=10) 512 tf32",
        f"cutlass({SMALL}) 511 f64 tn",
        "cutlass(tile_k=64) 512 i8 nt alpha=2",
        "cutlass(split_k=16) 512 f16",
        "cutlass(stages=2) 511 f16",
    ],
)
def test_kernels_of_every_type_exist_on_ampere_and_later(text):
    assert {why(text, device) for device in (A100, H200, B200)} == {None}


@pytest.mark.parametrize(
    ("text", "device", "reason"),
    [
        # types, stages, layouts
        ("cutlass() 512 f8e4m3 nt", L40S,
         "does not compute f8e4m3: CUTLASS 2.x multiplies 8-bit floats on compute capability 8.9 alone"),
        ("cutlass() 512 f16:bf16:f32", H200, "computes f16:f16:f32 or f16:f32:f32 or f16:f16:f16, not f16:bf16:f32"),
        ("cutlass() 512 bf16", T4, "needs compute capability 8.0 for bf16, the device has 7.5"),
        (f"cutlass({SMALL}) 512 tf32", T4, "needs compute capability 8.0 for tf32, the device has 7.5"),
        (f"cutlass({SMALL}) 512 f64", T4, "needs compute capability 8.0 for f64, the device has 7.5"),
        ("cutlass() 512 f16", card((7, 0), 65_536), "needs compute capability 7.5 for f16, the device has 7.0"),
        ("cutlass(tile_k=64) 512 i8 nn", H200,
         "multiplies i8 in layout nt only, where k is contiguous in A and B, not nn"),
        ("cutlass(tile_k=64) 512 i8 nt beta=0.5", H200,
         "scales i32 by whole numbers only, not by alpha=1 and beta=0.5"),
        ("cutlass(stages=3) 512 f16", T4,
         "copies asynchronously where stages=3, which needs compute capability 8.0, the device has 7.5; "
         "stages=2 does without"),
        ("cutlass(stages=2) 512 f16", T4, None),
        (f"cutlass({SIMT},stages=2) 512 f32", T4, None),
        (f"cutlass({SMALL},stages=2) 512 f64", H200, "has kernels for f64 with 3 stages or more only"),
        # tiles of warps of instructions
        ("cutlass(tile_m=32) 512 f16", H200,
         "needs a tile of whole warp tiles: tile_m=32 is no multiple of warp_m=64"),
        ("cutlass(tile_n=32) 512 f16", H200,
         "needs a tile of whole warp tiles: tile_n=32 is no multiple of warp_n=64"),
        ("cutlass(tile_m=256,tile_n=256,warp_m=32,warp_n=32) 512 f16", H200,
         "needs 2048 threads in a block (8 x 8 warps), the device allows 1024"),
        ("cutlass(warp_m=8) 512 f16", H200,
         "needs warp_m to be a multiple of 16 for f16 multiplied by 16x8x16 instructions, not 8"),
        ("cutlass(tile_k=16) 512 f16", H200,
         "needs tile_k to be a multiple of 32, an even number of steps, for f16 multiplied by 16x8x16 instructions, "
         "not 16"),
        ("cutlass(tile_k=16,stages=2) 512 f16", T4, None),
        ("cutlass(tile_k=32,stages=2) 512 i8 nt", T4, None),
        ("cutlass(tile_k=32) 512 i8 nt", H200,
         "needs tile_k to be a multiple of 64, an even number of steps, for i8 multiplied by 16x8x32 instructions, "
         "not 32"),
        # shared memory as the templates arrange it
        ("cutlass(tile_k=128) 512 f16 nn", H200,
         "keeps A in lines of 128 bytes along k in layout nn: tile_k=128 of f16 takes 256"),
        ("cutlass(tile_k=128) 512 f16 tt", H200,
         "keeps B in lines of 128 bytes along k in layout tt: tile_k=128 of f16 takes 256"),
        ("cutlass(tile_k=128) 512 f16 tn", H200, None),
        ("cutlass(tile_m=16,warp_m=16) 512 tf32 tn", H200, "needs tile_m to be 32 or more for tf32 in layout tn, not 16"),
        ("cutlass(tile_m=16,warp_m=16) 512 tf32 nn", H200, None),
        (f"cutlass({SMALL},warp_n=8) 512 f64", H200, "needs warp_m and warp_n to be multiples of 16 for f64, not 32 and 8"),
        (f"cutlass({SMALL},tile_k=8) 512 f64", H200, "needs tile_k to be a multiple of 16 for f64 in layout nn, not 8"),
        (f"cutlass({SMALL},tile_k=8) 512 f64 tn", H200, None),
        ("cutlass(tile_m=32,tile_n=32,tile_k=16,warp_m=32,warp_n=32) 512 f64", H200, "needs two warps or more for f64"),
        # SIMT
        ("cutlass(tile_m=64,tile_n=16,tile_k=8,warp_m=32,warp_n=16) 512 f32", H200,
         "needs tile_n to be 32 or more, for each lane of a warp to store a column, not 16"),
        ("cutlass(tile_m=32,tile_n=256,tile_k=8,warp_m=32,warp_n=32) 512 f32", H200,
         "has at most 4 warps side by side in a tile of f32, not tile_n/warp_n=8"),
        ("cutlass(tile_k=8,warp_n=16) 512 f32", H200,
         "has at most 4 warps side by side in a tile of f32, not tile_n/warp_n=8"),
        ("cutlass(tile_k=8,warp_n=16,stages=2) 512 f32", H200, None),
        ("cutlass(tile_m=256,tile_n=64,tile_k=16,warp_m=16,warp_n=64) 512 f64 tt", H200, None),
        (f"cutlass({SIMT},tile_k=16,stages=2) 512 f32 nn", H200,
         "transposes A in layout nn, and with tile_k=16 and stages=2 pads its tile by 2 elements, where a lane reads 4 at "
         "once"),
        (f"cutlass({SIMT},tile_k=16,stages=2) 512 f32 tn", H200, None),
        (f"cutlass({SIMT},tile_k=16,stages=4) 512 f32 nn", H200, None),
        ("cutlass(tile_m=16,tile_n=32,tile_k=128,warp_m=8,warp_n=32,stages=4) 512 f32 nn", H200,
         "transposes A in layout nn, for which a block needs as many threads as tile_k=128, not 64"),
        # what threads share
        ("cutlass(tile_m=16,tile_n=256,tile_k=8,warp_m=16,warp_n=64,stages=2) 512 f32", H200, None),
        ("cutlass(tile_m=16,tile_n=128,tile_k=8,warp_m=8,warp_n=32) 512 f32", H200,
         "cannot share the loading of A among 256 threads: its tile of 16 x 8 elements is 128 pieces"),
        ("cutlass(tile_m=64,tile_n=64,tile_k=8,warp_m=32,warp_n=16) 512 f64 tn", H200,
         "cannot share the loading of A among 256 threads: its tile of 64 x 8 elements is 512 pieces"),
        ("cutlass(tile_n=32,warp_n=16) 512 f16", H200,
         "cannot share the storing of C evenly among 2 x 32 threads: 8 rows of tile_n=32 elements, 8 at once, "
         "are 32 pieces"),
        ("cutlass(tile_n=32,warp_n=16) 512x514x512 f16 nt", H200, None),
        # alignment
        ("cutlass(align=16) 512 f16", H200, "loads at most 8 elements of f16 at once, not align=16"),
        (f"cutlass({SIMT},align=2) 512 f32", H200, "loads one element of f32 at once, not align=2"),
        ("cutlass(align=8) 512x512x516 f16", H200,
         "cannot load 8 elements of A at once: in layout nn they follow each other along k=516, which is no multiple of 8"),
        ("cutlass(align=8) 512x516x512 f16", H200,
         "cannot load 8 elements of B at once: in layout nn they follow each other along n=516, which is no multiple of 8"),
        ("cutlass(align=4) 512x512x516 f16", H200, None),
        ("cutlass() 512x511x512 f16", H200,
         "copies at least 4 bytes asynchronously where stages=3, and 1 of B (n=511) is 2; stages=2 does without"),
        ("cutlass(align=1) 512 f16", H200,
         "copies at least 4 bytes asynchronously where stages=3, and 1 of A (k=512) is 2; stages=2 does without"),
        ("cutlass(tile_k=64,warp_m=128,align=1,stages=2) 512 f16", H200,
         "needs 128 loads of A in each thread for a tile, 1 at once; CUTLASS guards at most 64"),
        # what a block may take
        ("cutlass(stages=4) 512 f16", L40S, None),
        ("cutlass(stages=7) 512 f16", L40S, "needs 114688 bytes of shared memory, the device has 101376"),
        ("cutlass(tile_n=256,warp_n=128) 512 f16", H200,
         "needs 256 registers of a thread for accumulators alone (warp_m=64, warp_n=128), a thread of a block of 128 has "
         "255"),
        ("cutlass(tile_m=256,tile_n=256,tile_k=8,warp_m=32,warp_n=64) 512 f32", H200,
         "needs 64 registers of a thread for accumulators alone (warp_m=32, warp_n=64), a thread of a block of 1024 has "
         "64"),
        # batches and fused operations
        ("cutlass() 512 f16 batch=8 fused=bias+gelu", H200, None),
        ("cutlass(tile_k=64) 512 i8 nt batch=8", H200, None),
        (f"cutlass({SIMT},stages=2) 512 f32 beta=1 fused=silu", T4, None),
        ("cutlass(split_k=2) 512 f16 fused=bias+relu", H200, None),
        ("cutlass(split_k=2) 512 f16 batch=2", H200,
         "slices k of one product only: with batch=2, split_k must be 1, not 2"),
        ("cutlass() 16 f16 batch=65535", H200, None),
        ("cutlass() 16 f16 batch=65536", H200, "computes at most 65535 products in a batch, not 65536"),
        ("cutlass() 512 f16 beta=1 fused=bias", H200,
         "adds a bias in the place of C: with fused=bias, beta must be 0, not 1"),
        ("cutlass(tile_k=64) 512 i8 nt fused=relu", H200,
         "fuses no operations into products of i8: fused must be none, not relu"),
        # what a problem has
        ("cutlass(split_k=17) 512 f16", H200,
         "leaves slices of k empty: k=512 is 16 steps of tile_k=32, which split_k=17 shares out as 1 each"),
        ("cutlass(split_k=4) 512x512x160 f16", H200,
         "leaves slices of k empty: k=160 is 5 steps of tile_k=32, which split_k=4 shares out as 2 each"),
        ("cutlass(split_k=5) 512x512x160 f16", H200, None),
        ("cutlass(tile_n=64) 16x4300000x16 f16", H200, "needs a grid of 67188 blocks along n, 65535 is the most"),
        ("cutlass(tile_n=64,swizzle=2) 16x4300000x16 f16", H200, None),
    ],
)  # fmt: skip
def test_a_kernel_that_does_not_exist_says_why(text, device, reason):
    assert why(text, device) == (None if reason is None else f"cutlass {reason}")


def test_rules_are_asked_before_the_farm_says_that_it_cannot_measure_the_family_yet():
    assert why("cutlass(warp_m=8) 512 f16") is not None
    assert why("cutlass() 400000x400000x8 f16").startswith("its operands take ")


def test_a_device_that_does_not_say_what_it_is_counts_as_ampere_without_limits():
    unknown = DeviceTraits(kind=DeviceKind.CUDA, memory_bytes=2**40)
    assert why("cutlass(stages=10,tile_m=256,tile_k=64) 512 f16", unknown) is None
    assert why("cutlass(tile_m=256,tile_n=256,warp_m=32,warp_n=32) 512 f16", unknown) == (
        "cutlass needs 2048 threads in a block (8 x 8 warps), the device allows 1024"
    )


@pytest.mark.parametrize(
    ("text", "device", "threads", "shared_bytes"),
    [
        (f"cutlass({SIMT},stages=2) 512 f32 nn", H200, 256, 16640),
        (f"cutlass({SIMT},stages=2) 512 f32 nt", H200, 256, 16896),
        (f"cutlass({SIMT},stages=2) 512 f32 tn", H200, 256, 16384),
        (f"cutlass({SIMT},stages=3) 512 f32 nt", H200, 256, 24576),
        ("cutlass() 512 f16", H200, 128, 49152),
        ("cutlass(tile_k=64) 512 i8 nt", H200, 128, 49152),
        (f"cutlass({SMALL}) 512 f64", H200, 128, 49152),
        ("cutlass(tile_m=64,tile_n=64,tile_k=16,warp_m=16,stages=2) 512x516x512 f16 tt", T4, 128, 9216),
        ("cutlass(tile_m=256,tile_n=128,tile_k=64,warp_m=32,warp_n=64,stages=2) 512 f16 tn", T4, 512, 98304),
        ("cutlass(tile_m=64,tile_n=256,warp_m=16,warp_n=128,stages=2) 512 bf16", H200, 256, 40960),
        ("cutlass(tile_m=64,tile_n=256,warp_m=16,warp_n=128,stages=2) 512 f16", H200, 256, 67584),
    ],
)
def test_threads_and_shared_memory_are_those_of_the_compiled_kernel(text, device, threads, shared_bytes):
    """The figures are sizeof(SharedStorage) and kThreadCount of CUTLASS 4.2."""
    point = point_of(Configuration.parse(text), device)
    assert (point.threads, point.shared_bytes) == (threads, shared_bytes)


def point_of(configuration: Configuration, device: DeviceTraits) -> Point:
    return Point(problem=configuration.problem, device=device, **dict(configuration.kernel.parameters))


# --- what holds everywhere -------------------------------------------------------------------------

SPACE = {p.name: p.values for p in FAMILIES["cutlass"].parameters}
parameters = st.fixed_dictionaries({name: st.sampled_from(values) for name, values in SPACE.items()})
extents = st.sampled_from([1, 2, 4, 7, 8, 16, 500, 512, 1001, 1002, 4096])
problems = st.builds(
    possible,
    shape=st.builds(Shape, extents, extents, extents),
    types=st.sampled_from(
        [ElementTypes.parse(t) for t in (*INPUT_TYPES, "f16:f16:f16", "f16:f32:f32", "bf16:f32:f32")]
    ),
    layout=st.sampled_from(Layout),
)
devices = st.sampled_from([T4, A100, L40S, H200, B200])


def reason_for(problem: Problem, given: dict[str, int], device: DeviceTraits) -> str | None:
    return Configuration(problem, Kernel.of("cutlass", **given)).why_invalid(device)


@given(problems, parameters, devices)
def test_every_point_exists_or_says_why_in_one_line(problem, given, device):
    reason = reason_for(problem, given, device)
    assert reason is None or re.fullmatch(r"cutlass [a-z]+ [^\n]{10,190}", reason)


# Of points drawn from the whole space nearly none exist; of these a good part do.
likely_parameters = st.fixed_dictionaries(
    {name: st.sampled_from(values) for name, values in SPACE.items()}
    | {
        "tile_m": st.just(64), "tile_n": st.sampled_from([64, 128]), "tile_k": st.sampled_from([8, 32, 64]),
        "warp_m": st.sampled_from([32, 64]), "warp_n": st.sampled_from([32, 64]), "split_k": st.integers(1, 2),
    }
)  # fmt: skip
likely_problems = st.builds(
    possible,
    shape=st.builds(Shape, *[st.sampled_from([500, 512, 1002, 4096])] * 3),
    types=st.sampled_from([ElementTypes.parse(t) for t in ("f32", "tf32", "f16", "bf16", "i8")]),
    layout=st.sampled_from([Layout.NT, Layout.NN]),
)


@given(likely_problems, likely_parameters, devices)
def test_loading_as_much_as_possible_at_once_works_where_loading_less_does(problem, given, device):
    assume(any(reason_for(problem, given | {"align": align}, device) is None for align in SPACE["align"]))
    assert reason_for(problem, given | {"align": 0}, device) is None


@given(likely_problems, likely_parameters)
def test_whatever_runs_on_an_a100_runs_on_a_b200(problem, given):
    assume(reason_for(problem, given, A100) is None)
    assert reason_for(problem, given, B200) is None


def stored(tile_n: int, warps_n: int, at_once: int, element_bytes: int) -> list[tuple[int, int]]:
    """(row, column) of every access to 8 rows of a tile: OutputTileOptimalThreadMap, read from its C++."""
    rows_of_warp, width, target = 8 // warps_n, tile_n // at_once, 256 // (at_once * element_bytes)
    if warps_n >= 8:
        across, down, times_down = 32, 1, 1
    elif 32 // target > rows_of_warp:
        across, down, times_down = 32 // rows_of_warp, rows_of_warp, 1
    else:
        across = min(width, 32, target)
        down = min(8, 32 // across)
        times_down = rows_of_warp // down
    return [
        (warp * times_down * down + lane // across + i * down, (lane % across + j * across) * at_once)
        for warp, lane, i, j in product(range(warps_n), range(32), range(times_down), range(width // across))
    ]


@pytest.mark.parametrize(("types", "widest"), [("f16", 8), ("f16:f32:f32", 4), ("f64", 2)])
def test_c_is_stored_exactly_where_the_rule_says_so(types, widest):
    outcomes = set()
    for tile_n, warp_n, at_once in product((16, 32, 64, 128, 256), (8, 16, 32, 64, 128), (1, 2, 4, 8)):
        if at_once > widest or tile_n % warp_n:
            continue
        configuration = Configuration.parse(f"cutlass(tile_n={tile_n},warp_n={warp_n}) 512x{512 + at_once}x512 {types}")
        point = point_of(configuration, H200)
        accesses = stored(tile_n, tile_n // warp_n, at_once, point.problem.types.cd.bytes)
        every = set(product(range(8), range(0, tile_n, at_once)))
        once = set(accesses) == every and len(accesses) == len(every)
        assert (building.stores_are_shared(point) is None) == once, configuration
        outcomes.add(once)
    assert outcomes == {True, False}


# --- parameters and campaigns ----------------------------------------------------------------------


def test_a_choice_of_values_names_them():
    with pytest.raises(BadKernelParameter, match=r"cutlass does not accept swizzle=3: swizzle is 1, 2, 4 or 8\."):
        Kernel.of("cutlass", swizzle=3)
    with pytest.raises(BadKernelParameter, match="stages goes from 2 to 10"):
        Kernel.of("cutlass", stages=1)


def test_the_canonical_line_names_every_parameter():
    text = (
        "cutlass(align=8,split_k=2,stages=4,swizzle=2,tile_k=64,tile_m=256,tile_n=128,warp_m=64,warp_n=64) "
        "512x1024x2048 f16:f16:f32 nt alpha=1 beta=0"
    )
    assert Configuration.parse(text).canonical == text
    assert Configuration.parse("cutlass() 512 f16").canonical == (
        "cutlass(align=0,split_k=1,stages=3,swizzle=1,tile_k=32,tile_m=128,tile_n=128,warp_m=64,warp_n=64) "
        "512x512x512 f16:f16:f32 nn alpha=1 beta=0"
    )


@pytest.mark.parametrize(
    ("written", "wrong"),
    [
        ("3", "3 is not a value of swizzle; swizzle is 1, 2, 4 or 8"),
        ("[1, 2..4]", "the range 2..4 reaches 3, which is not a value of swizzle; swizzle is 1, 2, 4 or 8"),
        ("1..4 +3", None),
        ("1..8 x2", None),
        ("16", "16 is too large; swizzle is 1, 2, 4 or 8"),
        ("1..16 x2", "the range 1..16 x2 reaches 16, which is too large; swizzle is 1, 2, 4 or 8"),
        ("0", "0 is zero; swizzle is 1, 2, 4 or 8"),
    ],
)
def test_a_campaign_may_ask_only_for_values_of_the_choice(tmp_path, written, wrong):
    path = tmp_path / "x.yaml"
    path.write_text(
        f"name: x\nproblems: {{shapes: 512x512x512, types: f16}}\nkernels: {{family: cutlass, swizzle: {written}}}\n"
    )
    if wrong is None:
        assert load(path, limit=100).size > 1
    else:
        with pytest.raises(CampaignFileError, match=re.escape(wrong)):
            load(path, limit=100)


def example(name: str) -> Campaign:
    return load(CAMPAIGNS / f"{name}.yaml", limit=100_000)


def test_paper_cutlass_is_16128_configurations_and_each_exists_on_an_h200():
    configurations = list(example("paper-cutlass").expand())
    assert len({c.id for c in configurations}) == len(configurations) == 16_128 == 36 * 4 * 4 * 28
    assert {c.why_invalid(H200) for c in configurations} == {None}


def test_paper_cutlass_asks_for_the_paper_s_problems_and_for_28_kernels():
    configurations = list(example("paper-cutlass").expand())
    shapes = {c.problem.shape for c in configurations}
    assert {s.m for s in shapes} == {512, 1024, 2048, 128256}
    assert {s.n for s in shapes} == {s.k for s in shapes} == {512, 1024, 2048}
    assert {(c.problem.alpha, c.problem.beta) for c in configurations} == {(1, 0), (1, 1), (0.5, 0.5), (2, 0)}
    assert {c.problem.layout for c in configurations} == set(Layout)
    assert {str(c.problem.types) for c in configurations} == {"f32:f32:f32"}
    kernels = {c.kernel for c in configurations}
    assert len(kernels) == 28
    assert {(dict(k.parameters)["stages"], dict(k.parameters)["swizzle"]) for k in kernels} == {
        (2, 1), (2, 4), (4, 1), (4, 4),
    }  # fmt: skip


def test_cutlass_few_is_a_dozen_kernels_over_every_type():
    configurations = list(example("cutlass-few").expand())
    assert len(configurations) == 12
    assert {c.why_invalid(H200) for c in configurations} == {None}
    assert {str(c.problem.types.ab) for c in configurations} == {"f32", "tf32", "f64", "f16", "bf16", "i8"}


def test_the_tests_on_cards_have_a_kernel_of_every_type():
    found = load(Path(__file__).parents[1] / "gpu" / "cutlass.yaml", limit=10**5).expand()
    assert {str(c.problem.types.ab) for c in found if c.why_invalid(H200) is None} == {
        "f32", "tf32", "f64", "f16", "bf16", "i8",
    }  # fmt: skip


def test_a_dry_run_shows_the_rules_reasons():
    campaign = Campaign.from_document(
        {
            "name": "x",
            "problems": {"shapes": ["512x512x512"], "types": ["f16"]},
            "kernels": {"family": "cutlass", "warp_m": [8, 64], "stages": ["2..10"]},
        }
    )
    devices = [KnownDevice("GPU-1", "nvidia-l40s", "gpu01", L40S, Backend.CUDA)]
    invalid = plan(campaign, devices, allow_missing=False).summary().invalid
    assert [(group.count, group.reason) for group in invalid] == [
        (9, "cutlass needs warp_m to be a multiple of 16 for f16 multiplied by 16x8x16 instructions, not 8"),
        (4, "cutlass needs … bytes of shared memory, the device has …"),
    ]
