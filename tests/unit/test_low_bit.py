"""Weights of fewer bits than activations: their memory, their numbers, what is refused, and what verification finds."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farm.campaign import loads
from farm.errors import BadElementType, CampaignFileError, InvalidOnDevice, OddExtent, ScaleOfOtherTypes, WrongResult
from farm.gemm import INPUT_TYPES, ElementType, ElementTypes, Layout, Problem, Shape
from farm.kernels import Configuration
from farm.operands import OperandRules, operand_rules
from farm.scale import Scale
from farm.weights import describe
from support.fake_cuda import FakeCupy
from support.known_devices import H200
from workers.devices.cuda_arena import ALIGNMENT, DeviceArena
from workers.devices.cuda_verify import CudaVerifier
from workers.kernels.base import Placement
from workers.measure import verify as verifying
from workers.measure.elements import decode, encode, packed, unpacked
from workers.measure.magnitudes import result_scale
from workers.measure.operands import HostArena, OperandSet, SetLayout
from workers.measure.verify import verify

PAIRS = [kind for kind in INPUT_TYPES if kind.low_bit_weights]
OF_WEIGHTS = [scale for scale in Scale if scale.of_weights]
LINE = "triton(tile_m=16) 16x4096x512 {} nt scale={}"
NIBBLES = {
    ElementType.I4: [*range(8), *range(-8, 0)],
    ElementType.F4: [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6],
}
SMALL, LARGE = Shape(5, 46, 302), Shape(70, 132, 302)


def problem(shape: Shape, types: str, layout: str = "nt", scale: str = "none", **rest: Any) -> Problem:
    return Problem(shape, ElementTypes.parse(types), Layout(layout), scale=Scale(scale), **rest)


# --- what a problem is ----------------------------------------------------------------------------------


def test_a_line_reads_back_and_says_its_types() -> None:
    one = Configuration.parse(LINE.format("bf16i4", "none:1x64"))
    assert one.canonical.endswith(" 16x4096x512 bf16i4:bf16:f32 nt alpha=1 beta=0 scale=none:1x64")
    assert Configuration.from_columns(one.columns()) == one
    ab = one.problem.types.ab
    assert (ab.of_a, ab.of_b, one.problem.factor_type) == (ElementType.BF16, ElementType.I4, ElementType.BF16)


@pytest.mark.parametrize(
    ("types", "scale", "weights", "factors"),
    [
        ("f16i4", "none", 4096 * 512 // 2, 0),
        ("f16i8", "none:row", 4096 * 512, 2 * 4096),
        ("bf16f4", "none:1x128", 4096 * 512 // 2, 2 * 4096 * 4),
        ("bf16i4", "none:1x64", 4096 * 512 // 2, 2 * 4096 * 8),
        ("f16f4", "none:1x32", 4096 * 512 // 2, 2 * 4096 * 16),
    ],
)
def test_weights_and_factors_count_with_their_own_bytes(types: str, scale: str, weights: int, factors: int) -> None:
    given = Configuration.parse(LINE.format(types, scale)).problem
    assert given.bytes == given.operand_bytes == 2 * 16 * 512 + weights + factors + 2 * 16 * 4096


def test_what_does_not_go_together_is_refused() -> None:
    with pytest.raises(
        ScaleOfOtherTypes, match=r"row do not go with f16i4:f16:f32\. Use one of none, none:row, none:1x128"
    ):
        Configuration.parse("triton() 64 f16i4 scale=row")
    with pytest.raises(ScaleOfOtherTypes, match=r"none:row do not go with f16:f16:f32\. Use one of none, tensor, row"):
        Configuration.parse("triton() 64 f16 scale=none:row")
    with pytest.raises(OddExtent, match="k is 63: two elements of f4 lie in a byte along k of B in the layout nt"):
        Configuration.parse("triton() 64x64x63 bf16f4 nt")
    with pytest.raises(OddExtent, match="Use an even n"):
        Configuration.parse("triton() 64x63x64 f16i4 nn")
    assert Configuration.parse("triton() 63x64x63 f16i4 nn").problem.shape.k == 63
    assert Configuration.parse("triton() 63x63x63 f16i8 nt").problem.types.ab == "f16i8"


@pytest.mark.parametrize(
    ("column", "kind"), [("ab", "i4"), ("ab", "f4"), ("ab", "i32"), ("cd", "f4"), ("acc", "f16i4")]
)
def test_a_row_whose_types_are_no_inputs_or_outputs_is_refused(column: str, kind: str) -> None:
    columns = Configuration.parse("triton() 64 f16i4 nt").columns()
    with pytest.raises(BadElementType, match=rf"{kind}.* is not an element type\. Use one of f64, "):
        Configuration.from_columns({**columns, column: kind})


@pytest.mark.parametrize("family", ["cublaslt", "cutlass", "tiled"])
@pytest.mark.parametrize("scale", ["none", "none:row"])
def test_other_families_say_that_they_do_not_compute_them(family: str, scale: str) -> None:
    reason = Configuration.parse(f"{family}() 64 f16i4 nt scale={scale}").why_invalid(H200.traits)
    assert reason is not None
    assert re.match(rf"{family} (does not compute f16i4|computes only|has no scale|multiplies)", reason)


@pytest.mark.parametrize(
    ("block", "why"),
    [
        ("{shapes: 64x64x63, types: f16i4, layouts: nt}", "k is 63"),
        ("{m: 1, n: 64..128, k: 64, types: f16i4}", "n is 65"),
        ("{m: 1, n: 64..128 +2, k: 64, types: [f16i4, f16], scale: none:row}", "do not go with f16:f16:f32"),
        ("{experts: 4, top_k: 1, tokens: 4, routing: balanced, weights: 63x65, types: bf16f4, layouts: nt}", "k is 65"),
    ],
)
def test_a_campaign_with_such_a_block_is_refused(block: str, why: str) -> None:
    with pytest.raises(CampaignFileError, match=why):
        loads(f"name: a\nproblems: {block}\nkernels: {{family: triton}}\n", name="a.yaml", owner="ann", limit=10_000)


@pytest.mark.parametrize("layout", ["nn", "nt"])
@pytest.mark.parametrize(
    "block",
    [
        "{shapes: 8x64x64, groups: 4*2, KEYS}",
        "{experts: 4, top_k: 2, tokens: 4, routing: balanced, weights: 64x64, KEYS}",
    ],
)
def test_a_campaign_has_weights_of_4_bits_in_groups(block: str, layout: str) -> None:
    block = block.replace("KEYS", f"types: f16i4, layouts: {layout}, scale: none:1x32")
    one = loads(f"name: a\nproblems: {block}\nkernels: {{family: triton}}\n", name="a.yaml", owner="ann", limit=10_000)
    assert one.size == 1


def test_a_domain_draws_even_extents_alone() -> None:
    text = """name: a
problems: {domain: {m: 1..64, n: 16..99, k: 16..99}, types: f16i4, layouts: [nt, nn]}
kernels: {family: triton}
search: {strategy: random, problems: 40}"""
    one = loads(text, name="a.yaml", owner="ann", limit=10_000)
    drawn = [*islice(one.domain(lambda _: True).random(1), 60)]
    assert all((p.shape.k if p.layout is Layout.NT else p.shape.n) % 2 == 0 for p in drawn)
    assert any(p.shape.n % 2 for p in drawn)
    assert any(p.shape.k % 2 for p in drawn)


def test_triton_compiles_in_what_its_weights_are() -> None:
    def defined(rest: str) -> dict[str, str]:
        binary = Configuration.parse(f"triton(tile_k=128) {rest}").binary(H200.traits)
        assert binary is not None
        return dict(binary.definitions)

    found = defined("16x4096x4096 f16i4 nt scale=none:1x64")
    names = ("TYPE_A", "TYPE_B", "CD", "SCALE_A", "SCALE_B", "WEIGHTS_PER_FACTOR", "WHOLE_SECTORS")
    assert [found[name] for name in names] == ["f16", "i4", "f16", "none", "1x64", "64", "1"]
    assert (
        defined("16x4096x4112 f16i4 nt")["WHOLE_SECTORS"] == defined("16x4112x4096 bf16f4 nn")["WHOLE_SECTORS"] == "0"
    )
    assert defined("16x4096x4096 bf16i8 nt scale=none:row")["WEIGHTS_PER_FACTOR"] == "0"
    assert defined("64x4096x4096 f8e4m3 nt scale=1x128")["WEIGHTS_PER_FACTOR"] == "0"


# --- memory and numbers -------------------------------------------------------------------------------------


def operands_of(given: Problem, rules: OperandRules = OperandRules()) -> OperandSet:  # noqa: B008 - it is frozen
    return HostArena(2**10).sets(SetLayout.of(given, 64), 2, rules)[1]


def weights_in(memory: Any, given: Problem) -> Any:
    """[products, n, k]: B from its memory, byte by byte."""
    s, kind = given.shape, given.types.ab.of_b
    if kind is ElementType.I8:
        numbers = memory.astype(np.float64)
    else:
        numbers = np.array([NIBBLES[kind][nibble] for byte in memory.reshape(-1) for nibble in (byte % 16, byte // 16)])
    if given.layout.b_transposed:
        return numbers.reshape(-1, s.n, s.k)
    return numbers.reshape(-1, s.k, s.n).swapaxes(1, 2)


def lying(view: Any, given: Problem) -> Any:
    """The memory of a view of B."""
    return np.ascontiguousarray(view.swapaxes(-1, -2) if given.layout.b_transposed else view)


def factors_in(operands: OperandSet, given: Problem) -> Any:
    """[products, n, k]: a factor for each weight, from [blocks along k, n]."""
    if operands.b_factors is None:
        return 1.0
    blocks, k = given.scale.of_b, given.shape.k
    assert blocks is not None
    by_block = decode(given.types.ab.of_a, operands.stacked().b_factors).swapaxes(1, 2)
    return np.repeat(by_block, blocks.inner or k, axis=2)[:, :, :k]


def expected(given: Problem, operands: OperandSet, weights: Any = None, factors: Any = None) -> Any:
    """D of a kernel that converts weights to A's type before it multiplies."""
    o, kind = operands.stacked(), given.types.ab.of_a
    weights = weights_in(lying(o.b, given), given) if weights is None else weights
    factors = factors_in(operands, given) if factors is None else factors
    converted = decode(kind, encode(kind, (weights * factors).astype(np.float32)))
    result = given.alpha * decode(kind, o.a) @ converted.swapaxes(1, 2)
    if o.c is not None:
        result += given.beta * decode(given.types.cd, o.c)
    return encode(given.types.cd, result.astype(np.float32)).reshape(operands.d.shape)


@pytest.mark.parametrize("kind", [ElementType.I4, ElementType.F4])
def test_two_elements_lie_in_a_byte_the_first_in_the_low_bits(kind: ElementType) -> None:
    elements = np.arange(16, dtype=np.uint8)
    assert packed(kind, elements).tolist() == [0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE]
    assert unpacked(kind, packed(kind, elements)).tolist() == elements.tolist()
    assert decode(kind, elements).tolist() == NIBBLES[kind]


@pytest.mark.parametrize("types", PAIRS)
@pytest.mark.parametrize("layout", ["nt", "nn"])
def test_sets_have_matrices_and_factors_of_their_own(types: str, layout: str) -> None:
    given = problem(Shape(3, 66, 192), types, layout, "none:1x64", batch=2, beta=1.0)
    sets = HostArena(2**10).sets(SetLayout.of(given, 64), 3)
    arrays = [x for one in sets for x in (one.a, one.b, one.c, one.d, one.b_factors) if x is not None]
    assert len(arrays) == 15
    assert not any(np.shares_memory(x, y) for i, x in enumerate(arrays) for y in arrays[:i])
    assert len({x.tobytes() for x in arrays if x is not None}) == 13  # results are poison
    assert sets[0].b.nbytes == 2 * 66 * 192 * given.types.ab.of_b.bits // 8
    assert decode(given.types.ab.of_a, sets[0].b_factors).max() < 0.51


@pytest.mark.parametrize(("types", "layout"), [("f16i4", "nt"), ("bf16f4", "nn"), ("bf16i8", "nt")])
def test_a_kernel_gets_the_addresses_of_its_set(cupy: FakeCupy, types: str, layout: str) -> None:
    given = problem(Shape(3, 66, 192), types, layout, "none:1x64", batch=2, beta=1.0)
    buffers = DeviceArena(cupy, 2**10, 132).buffers(SetLayout.of(given, ALIGNMENT), 3, OperandRules())
    placement = Placement.of(buffers, 3)
    for index in range(3):
        one = buffers.views(index)
        assert placement.addresses(index) == tuple(x.ctypes.data for x in (one.a, one.b, one.c, one.d) if x is not None)
        assert one.b_factors is not None
        assert placement.added(index) == (0, one.b_factors.ctypes.data, 0)


@pytest.mark.parametrize("kind", [ElementType.I4, ElementType.F4])
def test_uniform_weights_have_each_number_equally_often(kind: ElementType) -> None:
    given = problem(Shape(2, 400, 400), f"f16{kind}")
    numbers, counts = np.unique(lying(operands_of(given).b, given) % 16, return_counts=True)
    assert numbers.tolist() == [*range(16)]
    assert 4500 < counts.min() <= counts.max() < 5500


@pytest.mark.parametrize("types", ["f16i4", "bf16f4", "f16i8"])
@pytest.mark.parametrize("rules", ["uniform", "normal", "sparse", "integers", "ones"])
def test_the_size_of_a_result_is_that_of_its_numbers(types: str, rules: str) -> None:
    given = problem(Shape(60, 400, 512), types, scale="none:1x32")
    operands = operands_of(given, operand_rules(rules))
    size = np.sqrt(np.square(decode(given.types.cd, expected(given, operands))).mean())
    assert result_scale(given, operand_rules(rules)) == pytest.approx(size, rel=0.1)


def test_a_file_has_no_elements_of_4_bits(tmp_path: Path) -> None:
    np.save(tmp_path / "b.npy", np.zeros((64, 64), np.int8))
    rules = OperandRules.model_validate({"b": json.loads(describe(tmp_path / "b.npy", None))})
    with pytest.raises(InvalidOnDevice, match="no file has elements of i4; fill that matrix with a distribution"):
        operands_of(problem(Shape(2, 64, 64), "f16i4"), rules)
    assert not operands_of(problem(Shape(2, 64, 64), "f16i8"), rules).b.any()


def test_integers_are_what_they_say_in_4_bits() -> None:
    for types in ("f16i4", "f16f4"):
        given = problem(Shape(2, 64, 64), types)
        weights = weights_in(lying(operands_of(given, operand_rules("integers")).b, given), given)
        assert set(np.unique(weights)) == {-2, -1, 0, 1, 2}


# --- verification -----------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def soon_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifying, "_EVERY_ELEMENT", 2**18)
    monkeypatch.setattr(verifying, "_BLOCK", 2**13)


@pytest.mark.parametrize("types", PAIRS)
@pytest.mark.parametrize(("layout", "scale"), [("nt", "none"), ("nn", "none:row"), ("nt", "none:1x32")])
@pytest.mark.parametrize("shape", [SMALL, LARGE])
def test_a_right_result_passes_with_room_to_spare(types: str, layout: str, shape: Shape, scale: str) -> None:
    given = problem(shape, types, layout, scale, batch=2, alpha=-0.5, beta=0.5)
    operands = operands_of(given)
    operands.d[...] = expected(given, operands)
    checked = verify(given, operands)
    assert 0 < checked.error < checked.bound / 2


def _other_order(weights: Any) -> Any:
    return weights.reshape(*weights.shape[:-1], -1, 2)[..., ::-1].reshape(weights.shape)


WRONG: dict[str, Callable[[Any, Any], tuple[Any, Any]]] = {
    "the first of two is in the high bits": lambda w, f: (_other_order(w), f),
    "without their sign": lambda w, f: (np.abs(w), f),
    "factors of the next group": lambda w, f: (w, np.roll(f, -32, axis=2)),
    "factors of the column beside it": lambda w, f: (w, np.roll(f, 1, axis=1)),
    "factors of larger groups": lambda w, f: (w, np.repeat(f[:, :, ::64], 64, axis=2)[:, :, : f.shape[2]]),
    "no factors": lambda w, f: (w, np.full_like(f, f.mean())),
    "weights of the next product": lambda w, f: (np.roll(w, 1, axis=0), f),
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("types", ["f16i4", "bf16f4"])
@pytest.mark.parametrize("shape", [SMALL, LARGE])
def test_a_wrong_kernel_is_caught(wrong: str, types: str, shape: Shape) -> None:
    given = problem(shape, types, scale="none:1x32", batch=2)
    operands = operands_of(given)
    right = weights_in(lying(operands.b, given), given), factors_in(operands, given)
    operands.d[...] = expected(given, operands, *WRONG[wrong](*right))
    with pytest.raises(WrongResult):
        verify(given, operands)


@pytest.mark.parametrize(("types", "layout"), [("f16i4", "nt"), ("bf16f4", "nn"), ("f16i8", "nt")])
@pytest.mark.parametrize("scale", ["none", "none:1x32"])
@pytest.mark.parametrize("shape", [SMALL, LARGE])
def test_the_arrays_of_a_card_are_verified(cupy: FakeCupy, types: str, layout: str, scale: str, shape: Shape) -> None:
    given, rules = problem(shape, types, layout, scale, batch=2), OperandRules()
    arena, verifier = DeviceArena(cupy, 2**10, 132), CudaVerifier(cupy, 132)
    operands = arena.buffers(SetLayout.of(given, ALIGNMENT), 2, rules).views(1)
    verifier.prepare(given)
    operands.d[...] = expected(given, operands)
    checked = verifier.begin(given, operands, rules)()
    assert checked.error <= checked.bound / 2
    operands.d[1, 4, 45] *= 2
    with pytest.raises(WrongResult, match=r"\(4, 45\) of matrix 1"):
        verifier.begin(given, operands, rules)()
