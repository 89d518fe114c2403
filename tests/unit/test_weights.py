"""Matrices that files fill: what is read, how it travels, and what a worker refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farm.campaign import Campaign, load, loads, texts_named
from farm.errors import BadInput, CampaignFileError, InvalidOnDevice, WrongResult
from farm.gemm import ElementType, ElementTypes, Layout, Problem, Shape
from farm.kernels import Configuration
from farm.measurement import MeasuringRules
from farm.operands import MatrixRules, OperandRules
from farm.weights import describe, read_tensor
from workers.devices.cpu import CpuDevice, identify
from workers.measure.elements import decode, encode
from workers.measure.magnitudes import result_scale
from workers.measure.operands import HostArena, OperandSet, SetLayout
from workers.measure.verify import verify

DTYPES = {
    ElementType.F64: "F64",
    ElementType.F32: "F32",
    ElementType.F16: "F16",
    ElementType.BF16: "BF16",
    ElementType.F8E4M3: "F8_E4M3",
    ElementType.F8E5M2: "F8_E5M2",
    ElementType.I8: "I8",
}
RANDOM = np.random.default_rng(1)


def safetensors(path: Path, tensors: dict[str, tuple[str, Any]]) -> Path:
    """Writes a file as the format says: the header's length, the header, the tensors."""
    header, data = dict[str, Any](), b""
    for name, (dtype, array) in tensors.items():
        start, data = len(data), data + array.tobytes()
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [start, len(data)]}
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def rules_of(path: Path, tensor: str | None = None) -> MatrixRules:
    return MatrixRules.model_validate_json(describe(path, tensor))


@pytest.mark.parametrize("kind", DTYPES)
def test_a_tensor_of_each_type_is_read_as_it_is(kind: ElementType, tmp_path: Path) -> None:
    first, elements = (encode(kind, RANDOM.uniform(-1, 1, shape).astype(np.float32)) for shape in ((3, 5), (16, 24)))
    path = safetensors(
        tmp_path / "w.safetensors",
        {"other": ("F32", np.ones(3, "f4")), "a": (DTYPES[kind], first), "b": (DTYPES[kind], elements)},
    )
    found = read_tensor(path, "b")
    assert found.kind is kind
    assert np.array_equal(found.elements, elements)
    assert read_tensor(path, "a").sha256 != found.sha256


def test_an_array_of_numpy_is_the_same_tensor(tmp_path: Path) -> None:
    elements = RANDOM.standard_normal((6, 4)).astype(np.float16)
    np.save(tmp_path / "w.npy", elements)
    np.save(tmp_path / "f.npy", np.asfortranarray(elements))
    path = safetensors(tmp_path / "w.safetensors", {"w": ("F16", elements)})
    named = {read_tensor(tmp_path / "w.npy", None).sha256, read_tensor(tmp_path / "f.npy", None).sha256}
    assert named == {read_tensor(path, "w").sha256}


@pytest.mark.parametrize(
    ("write", "says"),
    [
        (lambda path: None, "there is no file"),
        (lambda path: path.write_bytes(b"\x10"), "is no .safetensors file: its header does not fit into it"),
        (lambda path: path.write_bytes((2**60).to_bytes(8, "little") + b"{}"), "its header does not fit into it"),
        (lambda path: path.write_bytes((2).to_bytes(8, "little") + b"[]"), "its header is not JSON with tensors"),
        (lambda path: safetensors(path, {"v": ("F32", np.ones((2, 2), "f4"))}), "has no tensor w; it has v"),
        (lambda path: safetensors(path, {"w": ("F32", np.ones(4, "f4"))}), "has the shape [4]; name a tensor of two"),
        (lambda path: safetensors(path, {"w": ("F32", np.ones((0, 4), "f4"))}), "has the shape [0x4]"),
        (lambda path: safetensors(path, {"w": ("BOOL", np.ones((2, 2), "?"))}), "is BOOL; use a tensor of F64, F32"),
        (lambda path: safetensors(path, {"w": ("F64", np.ones((2, 2), "f4"))}), "is damaged: w does not lie inside it"),
    ],
)
def test_a_file_that_cannot_be_used_says_why(write: Callable[[Path], object], says: str, tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    write(path)
    with pytest.raises(ValueError, match="w") as caught:
        read_tensor(path, "w")
    assert says in str(caught.value)


def test_a_numpy_file_of_other_things_says_why(tmp_path: Path) -> None:
    np.save(tmp_path / "o.npy", np.array([["a", "b"]]))
    with pytest.raises(ValueError, match=r"o\.npy has numbers of the type <U1; a \.npy file may have f64, f32"):
        read_tensor(tmp_path / "o.npy", None)
    np.save(tmp_path / "p.npy", np.array([[object()]]), allow_pickle=True)
    with pytest.raises(ValueError, match=r"p\.npy is no \.npy file of numbers"):
        read_tensor(tmp_path / "p.npy", None)


# --- how it travels ----------------------------------------------------------------------------------

CAMPAIGN = """
name: weights
problems: [{shapes: [8x6x4], types: f32, layouts: nt}]
kernels: [{family: blas, threads: 1}]
measure: {operands: {a: normal, b: {file: w.npy}}}
"""


def test_a_campaign_stores_the_path_and_the_content_of_a_file(tmp_path: Path) -> None:
    np.save(tmp_path / "w.npy", RANDOM.standard_normal((6, 4)).astype(np.float32))
    path = tmp_path / "weights.yaml"
    path.write_text(CAMPAIGN)
    campaign = load(path, limit=10)
    matrix = campaign.measure.operands.matrices["b"]
    assert matrix.file == str(tmp_path / "w.npy")
    assert matrix.sha256 == read_tensor(tmp_path / "w.npy", None).sha256
    assert Campaign.from_document(campaign.document) == campaign
    files = texts_named(CAMPAIGN, path)
    (tmp_path / "w.npy").unlink()
    sent = loads(CAMPAIGN, name="weights.yaml", limit=10, owner=campaign.owner, files=files)
    assert (sent, sent.digest) == (campaign, campaign.digest)
    with pytest.raises(CampaignFileError, match=r"yaml:5: measure\.operands\.b: there is no file"):
        texts_named(CAMPAIGN, path)


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({}, "w.npy was not sent with the campaign, and the server opens no files; use farm submit"),
        ({"w.npy": "3"}, "the description of w.npy that was sent is not valid"),
        ({"w.npy": '{"file": "w.npy", "sha256": "0"}'}, "the description of w.npy that was sent is not valid"),
        ({"w.npy": '{"distribution": "ones"}'}, "the description of w.npy that was sent is not valid"),
    ],
)
def test_a_server_opens_no_file_and_trusts_no_description(files: dict[str, str], says: str) -> None:
    with pytest.raises(CampaignFileError) as caught:
        loads(CAMPAIGN, name="weights.yaml", limit=10, owner="ann", files=files)
    assert says in str(caught.value)


def test_the_command_reads_files_where_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from farm.cli.measuring_options import rules_of as rules_of_options

    monkeypatch.chdir(tmp_path)
    path = safetensors(tmp_path / "w.safetensors", {"layer.0": ("BF16", np.ones((4, 4), "u2"))})
    found = rules_of_options("{}", distribution="a=normal b=file:w.safetensors#layer.0 c=zeros").operands
    digits = read_tensor(path, "layer.0").sha256[:8]
    assert found.text == f"a=normal b=file:{digits} c=zeros"
    again = rules_of_options(MeasuringRules(operands=found).model_dump_json()).operands
    assert again == found
    with pytest.raises(BadInput, match=r"operands\.b: .* has no tensor x; it has layer\.0"):
        rules_of_options("{}", distribution="b=file:w.safetensors#x")


# --- what a worker does ------------------------------------------------------------------------------


def problem(shape: str, types: str = "f32", layout: str = "nt", beta: float = 0.0) -> Problem:
    return Problem(Shape.parse(shape), ElementTypes.parse(types), Layout(layout), 1.0, beta)


def operands_of(given: Problem, rules: OperandRules) -> OperandSet:
    """An operand set with the right result in it, rounded to the output's type."""
    found = HostArena(2**10).sets(SetLayout.of(given, 64), 2, rules)[1]
    types = given.types
    exact = decode(types.ab.of_a, found.a) @ decode(types.ab.of_b, found.b)
    if found.c is not None:
        exact += given.beta * decode(types.cd, found.c)
    wide = types.cd in (ElementType.I32, ElementType.F64)
    found.d[:] = exact if wide else encode(types.cd, exact.astype(np.float32))
    return found


@pytest.mark.parametrize("layout", list(Layout))
def test_a_matrix_lies_as_its_layout_has_it_and_is_cut_to_the_problem(layout: Layout, tmp_path: Path) -> None:
    weights = RANDOM.standard_normal((50, 60)).astype(np.float32)
    np.save(tmp_path / "w.npy", weights)
    given = problem("20x30x40", layout=layout, beta=1.0)
    for name, part in (
        ("a", (40, 20) if layout.a_transposed else (20, 40)),
        ("b", (30, 40) if layout.b_transposed else (40, 30)),
        ("c", (20, 30)),
    ):
        rules = OperandRules.model_validate({name: rules_of(tmp_path / "w.npy")})
        sets = HostArena(2**10).sets(SetLayout.of(given, 64), 3, rules)
        stored = weights[: part[0], : part[1]]
        for one in sets:
            transposed = layout.a_transposed if name == "a" else layout.b_transposed if name == "b" else False
            assert np.array_equal(getattr(one, name), stored.T if transposed else stored)
        assert not np.shares_memory(getattr(sets[0], name), getattr(sets[1], name))


@pytest.mark.parametrize("types", ["f64", "f32", "tf32", "f16", "bf16", "f8e4m3", "i8"])
@pytest.mark.parametrize("shape", ["24x32x40", "300x270x310"])
def test_results_with_weights_of_each_type_are_verified(types: str, shape: str, tmp_path: Path) -> None:
    given = problem(shape, types)
    kind = given.types.ab
    numbers = RANDOM.standard_normal((300, 320)) * np.geomspace(0.01, 0.3, 300)[:, None] * (10 if types == "i8" else 1)
    elements = encode(ElementType.F32 if kind is ElementType.TF32 else kind, numbers.astype(np.float32))
    dtype = DTYPES[ElementType.F32 if kind is ElementType.TF32 else kind]
    path = safetensors(tmp_path / "w.safetensors", {"w": (dtype, elements)})
    rules = OperandRules.model_validate({"a": "normal", "b": rules_of(path, "w")})
    operands = operands_of(given, rules)
    checked = verify(given, operands, rules)
    assert checked.error <= checked.bound / 2
    measured = float(np.sqrt((decode(given.types.cd, operands.d) ** 2).mean()))
    assert measured == pytest.approx(result_scale(given, rules), rel=0.2)
    row, column = given.shape.m // 2, given.shape.n - 1  # a large column of B
    wrong = decode(given.types.cd, operands.d[row, column : column + 1]) + 2 * result_scale(given, rules)
    wide = given.types.cd in (ElementType.I32, ElementType.F64)
    operands.d[row, column] = wrong[0] if wide else encode(given.types.cd, wrong.astype(np.float32))[0]
    with pytest.raises(WrongResult, match=rf"\({row}, {column}\)"):
        verify(given, operands, rules)


def test_a_column_a_hundred_times_larger_is_no_error(tmp_path: Path) -> None:
    weights = RANDOM.standard_normal((400, 512)).astype(np.float32)
    weights[7] *= 100
    np.save(tmp_path / "w.npy", weights)
    given = problem("500x400x512", "f32")
    rules = OperandRules.model_validate({"a": "normal", "b": rules_of(tmp_path / "w.npy")})
    operands = operands_of(given, rules)
    scratch = np.zeros_like(operands.d)
    for inner in range(0, 512, 8):
        scratch += operands.a[:, inner : inner + 8] @ operands.b[inner : inner + 8]
    operands.d[:] = scratch
    verify(given, operands, rules)


def test_two_files_whose_large_numbers_meet_are_no_error(tmp_path: Path) -> None:
    """As activations and weights of one large channel."""
    weights = RANDOM.standard_normal((300, 512)).astype(np.float32)
    weights[::50, 3] = 100
    stored = encode(ElementType.BF16, weights)
    matrix = rules_of(safetensors(tmp_path / "w.safetensors", {"w": ("BF16", stored)}), "w")
    given = problem("300x300x512", "bf16")
    rules = OperandRules.model_validate({"a": matrix, "b": matrix})
    verify(given, operands_of(given, rules), rules)


@pytest.mark.parametrize(
    ("shape", "types", "layout", "says"),
    [
        ("8x6x4", "f64", "nt", "is f32, and the problem has f64; use a tensor of that type"),
        ("8x6x4", "f32", "nn", "is 6x4, and the problem needs 4x6 as its layout has it"),
        ("8x7x4", "f32", "nt", "is 6x4, and the problem needs 7x4"),
    ],
)
def test_weights_that_do_not_fit_are_one_clear_message(
    shape: str, types: str, layout: str, says: str, tmp_path: Path
) -> None:
    np.save(tmp_path / "w.npy", np.ones((6, 4), np.float32))
    given = problem(shape, types, layout)
    rules = OperandRules.model_validate({"b": rules_of(tmp_path / "w.npy")})
    with pytest.raises(InvalidOnDevice) as caught:
        HostArena(2**10).sets(SetLayout.of(given, 64), 1, rules)
    assert says in str(caught.value)


def test_a_file_that_is_missing_or_another_one_on_the_worker_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "w.npy"
    np.save(path, np.ones((6, 4), np.float32))
    rules, given = OperandRules.model_validate({"b": rules_of(path)}), problem("8x6x4")
    arena = HostArena(2**10)
    arena.sets(SetLayout.of(given, 64), 1, rules)
    np.save(path, np.full((6, 4), 2, np.float32))
    with pytest.raises(InvalidOnDevice, match=r"w\.npy on this host is another file than the campaign's"):
        HostArena(2**10).sets(SetLayout.of(given, 64), 1, rules)
    path.unlink()
    with pytest.raises(InvalidOnDevice, match=r"w\.npy cannot be read on this host .*; copy the file to that path"):
        HostArena(2**10).sets(SetLayout.of(given, 64), 1, rules)
    np.save(path, np.full((6, 4), np.nan, np.float32))
    rules = OperandRules.model_validate({"b": rules_of(path)})
    with pytest.raises(InvalidOnDevice, match="has elements that are not finite"):
        HostArena(2**10).sets(SetLayout.of(given, 64), 1, rules)


def test_a_row_names_the_content_of_its_weights(tmp_path: Path) -> None:
    path = tmp_path / "w.npy"
    np.save(path, RANDOM.standard_normal((64, 48)).astype(np.float32) * 0.02)
    device = CpuDevice(identify())
    device.open()
    operands = OperandRules.model_validate({"a": "normal*2", "b": rules_of(path), "seed": 5})
    rules = MeasuringRules.model_validate({"timing": {"max_seconds": 0.05, "min_samples": 3}, "operands": operands})
    row = device.measure(Configuration.parse("blas(threads=1) 32x64x48 f32 nt"), rules)
    digits = read_tensor(path, None).sha256[:8]
    assert (row.distribution, row.seed) == (f"a=normal*2 b=file:{digits} c=uniform", 5)
    with pytest.raises(InvalidOnDevice, match="is 64x48, and the problem needs 65x48"):
        device.measure(Configuration.parse("blas(threads=1) 32x65x48 f32 nt"), rules)
    device.close()
