"""Products with a gate: their memory, what verification finds, campaigns of them, and cards that compute them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from farm.campaign import Campaign, loads
from farm.errors import CampaignFileError, ElementNotWritten, InvalidOnDevice, WrongResult
from farm.fusion import Fusion
from farm.gemm import ElementTypes, Layout, Problem, Shape
from farm.groups import Groups
from farm.kernels import Configuration
from farm.operands import OperandRules, operand_rules
from farm.scale import Scale
from support.fake_cuda import FakeCupy, at_address
from support.quick import QUICK, assert_wide_product
from support.scaled_and_fused import gelu, relu, scaled, silu
from workers.devices.cuda import CudaDevice
from workers.devices.cuda_arena import ALIGNMENT, DeviceArena
from workers.kernels.base import Placement
from workers.measure import verify as verifying
from workers.measure.elements import decode, encode, poison
from workers.measure.magnitudes import result_scale
from workers.measure.operands import HostArena, OperandSet, SetLayout
from workers.measure.verify import verify

SMALL, LARGE, LONG = Shape(13, 42, 300), Shape(140, 266, 300), Shape(30, 80, 8192)
BATCH = 2
Gate = Callable[[Any], Any]
"""D of P, which has the bias: [batch, m, n] to [batch, m, n/2]."""


@pytest.fixture(autouse=True)
def soon_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Problems of a few million products are large, so that these tests take little time."""
    monkeypatch.setattr(verifying, "_EVERY_ELEMENT", 2**19)
    monkeypatch.setattr(verifying, "_EVERY_ELEMENT_F64", 2**18)


def problem(shape: Shape, types: str = "f32", *, fused: str = "swiglu", scale: str = "none", **rest: Any) -> Problem:
    kinds = ElementTypes.parse(types)
    return Problem(shape, kinds, Layout.NT, scale=Scale(scale), fused=Fusion(fused), **{"batch": BATCH, **rest})


def halves(p: Any) -> tuple[Any, Any]:
    half = p.shape[-1] // 2
    return p[..., :half], p[..., half:]


def swiglu(p: Any) -> Any:
    gate, up = halves(p)
    return silu(gate) * up


def computed(given: Problem, gate: Gate = swiglu, rules: OperandRules = OperandRules()) -> OperandSet:  # noqa: B008 - it is frozen
    """An operand set with what a kernel leaves that adds up in float64 and has that gate."""
    operands, types = HostArena(2**10).sets(SetLayout.of(given, 64), 2, rules)[1], given.types
    o = operands.stacked()
    a, b = decode(types.ab.of_a, o.a), decode(types.ab.of_b, o.b).swapaxes(1, 2)
    if given.scale.of_a is not None and given.scale.of_b is not None:
        a = scaled(a, o.a_factors, given.scale.of_a)
        b = scaled(b, o.b_factors.swapaxes(1, 2), given.scale.of_b)
    p = given.alpha * (a @ b.swapaxes(1, 2))
    if o.bias is not None:
        p += decode(types.cd, o.bias)[:, None]
    found = gate(p)
    operands.d[...] = (found if types.cd == "f64" else encode(types.cd, found.astype(np.float32))).reshape(
        operands.d.shape
    )
    return operands


def test_d_and_its_places_in_memory_have_half_of_the_columns(cupy: FakeCupy) -> None:
    given = problem(SMALL, fused="bias+swiglu")
    layout, plain = (SetLayout.of(one, ALIGNMENT) for one in (given, problem(SMALL, fused="bias")))
    assert (layout.inputs, layout.bias, layout.addends) == (plain.inputs, plain.bias, 0)
    assert layout.outputs == -(-BATCH * 13 * 21 // 64) * 64 < plain.outputs
    buffers = DeviceArena(cupy, 2**10, 132).buffers(layout, 3, OperandRules())
    operands, placement = buffers.views(2), Placement.of(buffers, 3)
    assert (operands.d.shape, operands.bias.shape) == ((BATCH, 13, 21), (BATCH, 42))  # type: ignore[union-attr]
    assert operands.d.ctypes.data == placement.addresses(2)[3]


@pytest.mark.parametrize("types", ["f32", "f64", "f16", "f16:f16:f16", "bf16", "f8e4m3"])
def test_a_right_gate_passes_with_room_to_spare(types: str) -> None:
    for shape, scale, rules in (
        (SMALL, "none", "uniform"),
        (LARGE, "1x128:128x128", "normal*0.05"),
        (LONG, "row", "ones*0.01"),
    ):
        given, found = problem(shape, types, fused="bias+swiglu", scale=scale, alpha=-1.5), operand_rules(rules)
        checked = verify(given, computed(given, rules=found), found)
        assert 0 <= checked.error <= checked.bound / 2
        assert checked.method == "elements"


@pytest.mark.parametrize("alpha", [0.01, 3.0])
def test_errors_are_shares_of_the_size_of_d(alpha: float) -> None:
    given = problem(LARGE, "f64", alpha=alpha)
    measured = float(np.sqrt((computed(given).d ** 2).mean()))
    assert 0.45 < measured / result_scale(given) < 0.75  # silu(g) is about g / 2 near 0, and otherwise g or 0


def changed(change: Callable[[Any, Any], Any]) -> Gate:
    return lambda p: change(*halves(p))


WRONG: dict[str, Gate] = {
    "gate and up are swapped": changed(lambda gate, up: gate * silu(up)),
    "no activation": changed(lambda gate, up: gate * up),
    "gelu": changed(lambda gate, up: gelu(gate) * up),
    "relu": changed(lambda gate, up: relu(gate) * up),
    "silu of both": changed(lambda gate, up: silu(gate) * silu(up)),
    "silu of the product": changed(lambda gate, up: silu(gate * up)),
    "the sum": changed(lambda gate, up: silu(gate) + up),
    "only the gate": changed(lambda gate, _: silu(gate)),
    "up of the next column": changed(lambda gate, up: silu(gate) * np.roll(up, -1, axis=-1)),
    "columns of gate and up alternate": lambda p: silu(p[..., ::2]) * p[..., 1::2],
    "up of the next matrix": changed(lambda gate, up: silu(gate) * np.roll(up, -1, axis=0)),
}


@pytest.mark.parametrize(
    ("types", "scale", "k"), [("f16", "none", 24562), ("f16f4", "none:row", 3824), ("f16i4", "none:1x128", 1522)]
)
def test_results_that_do_not_fit_into_f16_are_refused_from_a_k_on(types: str, scale: str, k: int) -> None:
    """The values of k are those of docs/problems.md."""
    assert result_scale(problem(Shape(16, 64, k), types, scale=scale)) > 0
    given = problem(Shape(16, 64, k + 2), types, scale=scale)
    with pytest.raises(
        InvalidOnDevice, match=r"f16 ends at 65504; fill A with smaller numbers, as in a=uniform\*0\.01"
    ):
        result_scale(given)
    for rules in ("a=uniform*0.1", "a=uniform*0.01"):
        assert result_scale(given, operand_rules(rules)) > 0


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_gate_is_caught(name: str) -> None:
    for shape, types in ((SMALL, "f32"), (SMALL, "f8e4m3"), (LARGE, "f32"), (LARGE, "bf16"), (LONG, "bf16")):
        given = problem(shape, types, fused="bias+swiglu")
        with pytest.raises(WrongResult, match="of matrix"):
            verify(given, computed(given, WRONG[name]))


@pytest.mark.parametrize("shape", [SMALL, LARGE])
def test_a_wrong_or_missing_element_is_named_by_its_place_in_d(shape: Shape, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifying, "_BLOCK", 2**12)
    given = problem(shape, "bf16")
    operands, last = computed(given), given.columns_of_d - 1
    verify(given, operands)
    right = operands.d[1, 11, last].copy()
    operands.d[1, 11, last] = encode(given.types.cd, np.float32(0.6 * result_scale(given)))
    with pytest.raises(WrongResult, match=rf"\(11, {last}\) of matrix 1"):
        verify(given, operands)
    operands.d[1, 11, last] = right
    operands.d[1, 12, last] = poison(given.types.cd)
    with pytest.raises(ElementNotWritten, match=rf"\(12, {last}\) of matrix 1"):
        verify(given, operands)


@pytest.mark.parametrize("fused", ["swiglu", "bias+swiglu"])
def test_tiled_computes_gates_of_groups(device: CudaDevice, fused: str) -> None:
    groups = Groups.of([5, 0, 9, 1])
    for types in ("f32 nn", "f64 nt alpha=-2"):
        text = f"tiled(tile=8) {groups.rows}x22x17 {types} fused={fused} groups={groups}"
        assert_wide_product(device, Configuration.parse(text), at_address)
    assert device.measure(Configuration.parse(text), QUICK).verify_error is not None


def test_a_card_with_a_wrong_gate_gives_no_row(device: CudaDevice, cupy: FakeCupy) -> None:
    configuration = Configuration.parse("tiled(tile=8) 40x90x50 f32 fused=swiglu")
    cupy.gemm = lambda a, b: np.stack([row @ b for row in a])  # the bits of a row do not depend on others
    row = device.measure(configuration, QUICK.model_copy(update={"determinism": True}))
    assert (row.deterministic, row.batch_invariant) == (True, True)
    cupy.gemm = lambda a, b: np.roll(a @ b, 45, axis=1)
    with pytest.raises(WrongResult):
        device.measure(configuration, QUICK)


# --- campaigns ----------------------------------------------------------------------------------------


def campaign(block: str, rest: str = "") -> Campaign:
    text = f"name: gates\nproblems: {{{block}, types: f32, fused: [none, swiglu]}}\nkernels: {{family: tiled}}\n{rest}"
    return loads(text, name="gates.yaml", owner="ann", limit=1000)


@pytest.mark.parametrize(
    ("block", "why"),
    [
        ("shapes: [8x8x8, 8x9x8]", "n is even, not 9"),
        ("m: 8, n: 8..16 +1, k: 8", "n is even, not 9"),
        ("shapes: 8x8x8, beta: [0, 1]", "beta is 0, not 1"),
        ("domain: {m: 1..8, n: 1..99, k: 1..8}, beta: 1", "beta is 0, not 1"),
        ("experts: 4, top_k: 2, tokens: 8, routing: uniform, weights: 7x8", "n is even, not 7"),
    ],
)
def test_a_block_whose_gates_do_not_work_is_refused(block: str, why: str) -> None:
    with pytest.raises(CampaignFileError, match=f"fused.*{why}"):
        campaign(block)


def test_a_domain_draws_even_n_for_gates() -> None:
    one = campaign("domain: {m: 1..64, n: 1..999, k: 1..64}", "search: {strategy: random, problems: 40}")
    drawn = {configuration.problem for configuration in one.expand()}
    assert len(drawn) == 40
    assert {p.shape.n % 2 for p in drawn if p.fused.gated} == {0}
    assert {p.shape.n % 2 for p in drawn if not p.fused.gated} == {0, 1}
