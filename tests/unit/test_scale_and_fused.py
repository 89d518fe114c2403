"""Scale factors and fused operations: what a problem with them is called, how large they are, and who can compute them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from farm.devices import DeviceKind, DeviceTraits
from farm.errors import BadConfiguration, BadFusion, BadGate, BadScale
from farm.fusion import Activation, Fusion
from farm.gemm import ADDED_COLUMNS, ElementTypes, Problem, Shape
from farm.kernels import FAMILIES, Configuration
from farm.scale import Scale
from farm.sparsity import Sparsity

BOTH = "cublaslt(algorithm=0) 128x256x64 f8e4m3:bf16:f32 nt alpha=1 beta=0 batch=8 scale=1x128:128x128 fused=bias+gelu"
CARD = DeviceTraits(kind=DeviceKind.CUDA, memory_bytes=2**33, compute_capability=(9, 0))


def test_the_line_reads_back_in_any_order_and_without_them_nothing_changed() -> None:
    one = Configuration.parse(BOTH)
    assert (one.problem.scale, one.problem.fused, one.canonical) == (Scale.GROUP_BLOCK, Fusion.BIAS_GELU, BOTH)
    assert Configuration.from_columns(one.columns()) == one
    assert Configuration.parse("cublaslt() 128x256x64 f8e4m3 nt fused=bias+gelu scale=1x128:128x128 batch=8") == one
    plain = Configuration.parse("cublaslt() 128x256x64 f8e4m3 nt scale=none fused=none")
    assert plain.canonical == "cublaslt(algorithm=0) 128x256x64 f8e4m3:bf16:f32 nt alpha=1 beta=0"
    old = {name: value for name, value in plain.columns().items() if name not in ADDED_COLUMNS}
    assert Configuration.from_columns(old) == plain
    assert (
        len({Configuration.parse(f"cublaslt() 64 f8e4m3 nt {rest}").id for rest in ("", "scale=row", "fused=relu")})
        == 3
    )


def test_what_is_not_known_is_named() -> None:
    with pytest.raises(
        BadScale, match=r"'2x128' names no scale factors\. Use one of none, tensor, row, 1x128, 1x128:128x128"
    ):
        Configuration.parse("cublaslt() 64 f8e4m3 nt scale=2x128")
    with pytest.raises(
        BadFusion, match=r"'swish' names no fused operations\. Use one of none, bias, relu, gelu, silu, bias"
    ):
        Configuration.parse("cublaslt() 64 f16 fused=swish")
    with pytest.raises(BadConfiguration, match="there is no 'gamma'; use alpha, beta, batch, scale, fused, groups"):
        Configuration.parse("cublaslt() 64 f16 gamma=1")
    with pytest.raises(BadConfiguration, match="beta is there twice"):
        Configuration.parse("cublaslt() 64 f16 beta=1 beta=2")


def test_a_fusion_says_what_it_consists_of() -> None:
    assert {fusion: (fusion.bias, fusion.activation, fusion.gated) for fusion in Fusion} == {
        Fusion.NONE: (False, None, False),
        Fusion.BIAS: (True, None, False),
        Fusion.RELU: (False, Activation.RELU, False),
        Fusion.GELU: (False, Activation.GELU, False),
        Fusion.SILU: (False, Activation.SILU, False),
        Fusion.BIAS_RELU: (True, Activation.RELU, False),
        Fusion.BIAS_GELU: (True, Activation.GELU, False),
        Fusion.BIAS_SILU: (True, Activation.SILU, False),
        Fusion.SWIGLU: (False, Activation.SILU, True),
        Fusion.BIAS_SWIGLU: (True, Activation.SILU, True),
    }


@pytest.mark.parametrize(
    ("scale", "factors"),
    [
        ("none", (0, 0)),
        ("tensor", (1, 1)),
        ("row", (300, 200)),
        ("1x128", (300 * 3, 200 * 3)),
        ("1x128:128x128", (300 * 3, 2 * 3)),
        ("128x128:1x128", (3 * 3, 200 * 3)),
    ],
)
def test_each_block_has_a_factor_and_the_last_may_be_smaller(scale: str, factors: tuple[int, int]) -> None:
    assert Scale(scale).factors(300, 200, 257) == factors


def test_factors_and_bias_are_read_and_take_memory() -> None:
    shape, types = Shape(128, 256, 512), ElementTypes.parse("f8e4m3")
    plain = Problem(shape, types, batch=3)
    scaled = Problem(shape, types, batch=3, scale=Scale.ROW, fused=Fusion.BIAS_RELU)
    added = 3 * ((128 + 256) * 4 + 256 * 2)
    assert scaled.flops == plain.flops
    assert scaled.bytes - plain.bytes == added
    assert scaled.operand_bytes - plain.operand_bytes == added
    assert Problem(shape, types, fused=Fusion.GELU).bytes == Problem(shape, types).bytes


def test_half_of_the_columns_is_a_gate_which_d_does_not_have() -> None:
    shape, types = Shape(128, 256, 512), ElementTypes.parse("bf16")
    silu, gated = (Problem(shape, types, batch=3, fused=fused) for fused in (Fusion.BIAS_SILU, Fusion.BIAS_SWIGLU))
    assert (gated.columns_of_d, silu.columns_of_d, gated.flops) == (128, 256, silu.flops)
    assert silu.bytes - gated.bytes == silu.operand_bytes - gated.operand_bytes == 3 * 128 * 128 * 2
    with pytest.raises(
        BadGate, match="fused=swiglu does not work: half of B's columns is the gate, so n is even, not 63"
    ):
        Configuration.parse("tiled() 64x63x64 f32 fused=swiglu")
    with pytest.raises(BadGate, match=r"half as many columns as the product, so beta is 0, not 0\.5"):
        Configuration.parse("tiled() 64 f32 beta=0.5 fused=bias+swiglu")


def test_a_family_without_them_refuses_them() -> None:
    why = Configuration.parse("tiled() 64 f32 scale=row").why_invalid(CARD)
    assert why == "tiled has no scale=row, only none"
    why = Configuration.parse("cublaslt() 64 f16 fused=silu").why_invalid(CARD)
    assert why == "cublaslt has no fused=silu, only none, bias, relu, gelu, bias+relu, bias+gelu"
    why = Configuration.parse("cublaslt() 64 f16 fused=swiglu").why_invalid(CARD)
    assert why == "cublaslt has no fused=swiglu, only none, bias, relu, gelu, bias+relu, bias+gelu"


def test_the_document_s_table_says_which_family_computes_what() -> None:
    text = (Path(__file__).parents[2] / "docs" / "problems.md").read_text()
    head, *rows = re.findall(r"^\| .* \|$", text.split("## What computes what")[1].split("\n\n")[1], flags=re.MULTILINE)
    names = re.findall(r"`(\w+)`", head)
    runs = {name: family for name, family in FAMILIES.items() if family.worker is not None}
    assert set(names) == set(runs)
    told: dict[str, dict[str, bool]] = {}
    for kind, *cells in (row.strip("| ").split(" | ") for row in rows):
        has = {name: cell != "no" for name, cell in zip(names, cells, strict=True)}
        field = kind.strip("`").split("=")[0]
        told |= {f"{field} {value}": has for value in re.findall(r"[\w+:]+(?=`)", kind)} or {kind: has}
    for name, family in runs.items():
        assert told["batch"][name] == family.batched
        for field, values, known in (
            ("scale", Scale, family.scales),
            ("fused", Fusion, family.fusions),
            ("sparsity", Sparsity, family.sparsities),
        ):
            for value in values:
                assert value == "none" or told[f"{field} {value}"][name] == (value in known)
