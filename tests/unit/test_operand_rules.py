"""What matrices are filled with: one grammar, one normal form, and the JSON form of earlier versions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from farm.campaign import loads
from farm.errors import CampaignFileError
from farm.measurement import MeasuringRules
from farm.operands import DISTRIBUTIONS, MatrixRules, OperandRules, operand_rules

WEIGHTS = {"file": "/weights/w.npy", "sha256": "4f2a91c0" * 8}
BASE = "name: sweep\nproblems: [{shapes: [64x64x64], types: f32}]\nkernels: [{family: tiled, tile: 8}]\n"

matrices = st.one_of(
    st.none(),
    st.builds(
        lambda distribution, scale: {"distribution": distribution} | ({} if scale is None else {"scale": scale}),
        st.sampled_from(DISTRIBUTIONS),
        st.one_of(st.none(), st.sampled_from([1.0, 0.5, 1e-6, 30.0])),
    ),
)


@given(
    st.fixed_dictionaries({"distribution": st.sampled_from(DISTRIBUTIONS), "a": matrices, "b": matrices, "c": matrices})
)
def test_the_text_and_the_json_of_rules_read_back_as_the_same_rules(keys: dict[str, Any]) -> None:
    rules = OperandRules.model_validate(keys)
    assert operand_rules(rules.text) == rules
    assert OperandRules.model_validate_json(rules.model_dump_json()) == rules
    assert OperandRules.model_validate(rules.model_dump(exclude_defaults=True)) == rules
    assert hash(operand_rules(rules.text)) == hash(rules)


def test_rules_of_earlier_versions_keep_their_json_form() -> None:
    for distribution in ("uniform", "normal", "zeros", "ones", "sparse"):
        rules = OperandRules(distribution=distribution, seed=3)  # type: ignore[arg-type]
        assert rules.model_dump(mode="json") == {"distribution": distribution, "seed": 3}
        assert rules.text == distribution
    assert "operands" not in MeasuringRules().model_dump(mode="json", exclude_defaults=True)


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ({}, "uniform"),
        ({"a": "uniform", "c": {"scale": 1}}, "uniform"),
        ({"distribution": "normal", "scale": 0.02}, "normal*0.02"),
        ({"a": "normal*0.02", "b": "normal*0.02", "c": {"distribution": "normal", "scale": 0.02}}, "normal*0.02"),
        ({"distribution": "normal", "b": "zeros"}, "a=normal b=zeros c=normal"),
        ({"scale": 3, "a": "ones"}, "a=ones*3 b=uniform*3 c=uniform*3"),
        ({"zeros": 0}, None),
        ("zeros*5", "zeros"),
        ("b=integers", "a=uniform b=integers c=uniform"),
        ({"b": WEIGHTS, "c": "zeros"}, "a=uniform b=file:4f2a91c0 c=zeros"),
        ({"a": WEIGHTS, "b": WEIGHTS, "c": WEIGHTS}, "a=file:4f2a91c0 b=file:4f2a91c0 c=file:4f2a91c0"),
    ],
)
def test_equal_contents_are_equal_rules_with_one_text(written: Any, text: str | None) -> None:
    if text is None:
        with pytest.raises(ValidationError):
            OperandRules.model_validate(written)
        return
    rules = OperandRules.model_validate(written)
    assert rules.text == text
    assert rules == OperandRules.model_validate(rules.model_dump())


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ("norml", "there is no distribution 'norml'; use uniform, normal, zeros"),
        ("a=normal b", "'b' is not one of a=…, b=… and c=…"),
        ("a=normal a=zeros", "'a=zeros' is not one of"),
        ("normal*x", "the scale is 'x'; write a number from 1e-06 to 1e+06"),
        ("normal*0", "the scale is '0'"),
        ("", "'' names no operands"),
        ("b=file:4f2a91c0", "names no file that can be read; write file:weights.npy"),
        ({"a": {"tensor": "w"}}, "tensor belongs to a file"),
        ({"a": {**WEIGHTS, "scale": 2}}, "the numbers of a file have no distribution and no scale"),
        ({"a": {**WEIGHTS, "tensor": "w"}}, "/weights/w.npy has one array and no names of tensors; remove w"),
        ({"a": {**WEIGHTS, "file": "/w.safetensors"}}, "has several tensors; name one with tensor: NAME"),
        ({"a": {**WEIGHTS, "file": "w.npy"}}, "must be the absolute path that it has on the workers"),
        ({"a": {**WEIGHTS, "sha256": "4F"}}, "sha256 is not 64 lower-case hexadecimal digits"),
        ({"a": {"file": "/w.npy"}}, "the sha256 of /w.npy is missing"),
        ({"a": {"file": "/w.pt", "sha256": "0" * 64}}, "is no .npy or .safetensors file"),
    ],
)
def test_a_mistake_is_one_clear_message(written: Any, says: str) -> None:
    with pytest.raises(ValidationError) as caught:
        OperandRules.model_validate(written)
    (detail,) = caught.value.errors()
    assert says in str(detail["ctx"]["error"])


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ("{a: norml}", "measure.operands.a: there is no distribution 'norml'"),
        (
            "{a: {distribution: norml}}",
            "measure.operands.a.distribution: 'norml' is not known here; write uniform or normal",
        ),
        ("{a: {scal: 3}}", "measure.operands.a.scal: there is no such field here; did you mean scale?"),
        ("{scale: 0}", "measure.operands.scale: 0 is too small"),
        ("{b: {file: none.npy}}", "measure.operands.b: there is no file"),
        ("a=normal d=zeros", "measure.operands: 'a=normal d=zeros' names no operands"),
    ],
)
def test_a_mistake_in_a_campaign_file_has_its_place(written: str, says: str, tmp_path: Path) -> None:
    from farm.campaign import load

    path = tmp_path / "sweep.yaml"
    path.write_text(f"{BASE}measure: {{operands: {written}}}\n")
    with pytest.raises(CampaignFileError, match=r"sweep\.yaml:4: ") as caught:
        load(path, limit=100)
    assert says in str(caught.value)


def test_short_forms_in_a_file_are_the_long_ones() -> None:
    def of(operands: str) -> Any:
        return loads(f"{BASE}measure: {{operands: {operands}}}\n", name="f.yaml", limit=10, owner="ann")

    long = of("{a: {distribution: normal, scale: 0.02}, c: {distribution: zeros}}")
    for short in ("{a: normal*0.02, c: zeros}", "a=normal*0.02 c=zeros", "a=normal*0.02 b=uniform c=zeros"):
        assert (of(short), of(short).digest) == (long, long.digest)
    assert of("{distribution: uniform}").digest == of("uniform").digest != long.digest
    assert json.loads(json.dumps(long.document))["measure"]["operands"]["c"] == {"distribution": "zeros"}


def test_a_matrix_alone_is_read_from_its_short_form() -> None:
    assert MatrixRules.model_validate("ones*0.5").text == "ones*0.5"
