"""Definitions of users' kernels: what names one, what is checked, their launch bounds, and how campaign files have them."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from farm.campaign import Campaign, load, loads
from farm.campaign.loading import texts_named
from farm.campaign.source_blocks import SourceBlock
from farm.devices import DeviceKind, DeviceTraits, traits_of_capability
from farm.errors import BadBinary, BadDefinition, BadKernelParameter, CampaignFileError
from farm.kernels import Configuration, Kernel, own_triton
from farm.kernels.definition import Definition, known
from farm.kernels.families import binary_from_json
from farm.kernels.own_arguments import extents_of
from farm.kernels.own_code import MAX_CODE_BYTES, MAX_TRITON_BYTES, Language, why_not_compilable
from support.docs_scripts import docs_script
from support.own_kernels import CODE, ENTRY, TRITON_CODE, defined, in_triton

HOPPER = traits_of_capability((9, 0))

CAMPAIGN = f"""\
name: own
owner: ann
targets: any
problems: {{shapes: 64x64x64, types: f32}}
kernels:
- family: source
  file: my_gemm.cu
  entry: {ENTRY}
  grid: [ceil(n / BN), ceil(m / BM), batch]
  block: [BM * BN / 4]
  shared_bytes: 4 * (BM + BN) * 8
  arguments: [a, b, c, d, m, n, k, batch, alpha, beta]
  requires: layout == 'nn'
  parameters: {{BM: [32, 64], BN: 16}}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "my_gemm.cu").write_text(CODE)
    return tmp_path


def written(folder: Path, text: str = CAMPAIGN) -> Path:
    path = folder / "own.yaml"
    path.write_text(text)
    return path


def line(definition: Definition, problem: str = "64x64x64 f32", parameters: str = "BM=32,BN=16") -> Configuration:
    return Configuration.parse(f"source(definition={definition.id},{parameters}) {problem}")


# --- what names one -----------------------------------------------------------------------------------


def test_a_number_names_the_content_and_not_the_file() -> None:
    one = defined()
    assert one.id == defined(file="copy.cu").id
    assert one.id == Definition.from_json(json.loads(json.dumps(one.to_json()))).id
    assert 0 < one.id < 2**52
    assert float(one.id) == one.id
    changes: list[dict[str, Any]] = [
        {"code": CODE + "\n"}, {"grid": ("1",)}, {"block": ("32",)}, {"shared_bytes": "0"}, {"arguments": ("d",)},
        {"requires": ()}, {"file": "my_gemm.ptx"}, {"parameters": ("BM", "BN", "BK")},
    ]  # fmt: skip
    assert len({one.id, *(defined(**change).id for change in changes)}) == 1 + len(changes)


def test_a_definition_is_known_as_long_as_something_holds_it() -> None:
    one, same = defined(code=CODE + "// held"), defined(code=CODE + "// held")
    number = one.id
    del one
    assert known(number) is same
    del same
    assert known(number) is None


def test_a_canonical_line_has_the_number_and_the_parameters() -> None:
    definition = defined()
    configuration = line(definition)
    text = f"source(BM=32,BN=16,definition={definition.id}) 64x64x64 f32:f32:f32 nn alpha=1 beta=0"
    assert configuration.canonical == text
    assert Configuration.parse(text) == configuration
    assert Configuration.from_columns(configuration.columns()) == configuration


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"bm": 1}, "has no parameter 'bm'"),
        ({"BM": 2**31}, "BM goes from -2147483648 to 2147483647"),
        ({"BM": 1.5}, "BM is a whole number"),
        ({"definition": -1}, "definition goes from 0 to"),
    ],
)
def test_wrong_parameters_are_refused(given: dict[str, Any], why: str) -> None:
    with pytest.raises(BadKernelParameter, match=why):
        Kernel.of("source", **given)


def test_other_families_have_no_open_parameters() -> None:
    with pytest.raises(BadKernelParameter, match="tiled has no parameter 'BM'"):
        Kernel.of("tiled", BM=1)


# --- checks -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"file": "my_gemm.txt"}, "file: 'my_gemm.txt' is no .cu, .ptx, .cubin, .py file"),
        ({"code": " "}, "file: my_gemm.cu is empty"),
        ({"code": CODE + "\0"}, "my_gemm.cu has a zero byte"),
        ({"code": CODE + "/" * MAX_CODE_BYTES}, "my_gemm.cu is larger than 1,024 KiB"),
        ({"file": "a.cubin", "code": "?"}, "a.cubin is not base64"),
        ({"file": "a.cubin", "code": base64.b64encode(b"PTX").decode()}, "a.cubin is no cubin"),
        ({"entry": "my gemm"}, "entry: 'my gemm' is not the name of a kernel"),
        ({"entry": "other"}, "entry: my_gemm.cu has no other"),
        ({"parameters": ("bm",)}, "parameters: 'bm' is not a parameter"),
        ({"grid": ()}, "grid: write one to three expressions"),
        ({"block": ("1",) * 4}, "block: write one to three expressions"),
        ({"grid": ("n / BX",)}, "grid: at character 5, there is no name BX"),
        ({"grid": ("layout",)}, "grid: at character 1, layout is a word where a number is needed"),
        ({"grid": ("ceil(n, 2)",)}, "ceil takes one number"),
        ({"grid": ("__import__('os')",)}, "grid: .*is not allowed here"),
        ({"shared_bytes": "has(m)"}, "shared_bytes: .*not allowed here"),
        ({"requires": ("m",)}, "requires: .*compare it"),
        ({"arguments": ("a", "b")}, "arguments: there is no d"),
        ({"arguments": ("d", "d")}, "arguments: d is there twice"),
        (
            {"arguments": ("d", "e")},
            "there is no argument 'e'; use a, b, c, d, scale_a, scale_b, bias, group_offsets, alpha, beta, m, n, k, batch, .*, BM, BN",
        ),
        ({"arguments": ("d", "a:i64")}, "a has no width"),
        ({"arguments": ("d", "m:i16")}, "a width is i32 or i64"),
    ],
)
def test_bad_definitions_are_refused_with_the_key(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(BadDefinition, match=why):
        defined(**changes)


@pytest.mark.parametrize(
    "directive",
    [
        '#include "/proc/self/environ"', "#include </etc/passwd>", "#include <../../etc/passwd>", "#include <a/../../b>",
        '#  include "x"', '%:include "x"', '??=include "x"', '#inc\\\nlude "x"', '#/* */include "x"', '#/*\n*/ include "x"',
        '#include_next "x"', '#import "x"', '#embed "x"', "#define where </etc/passwd>\n#include where", '#include /* */ "x"',
        "#inc\\\rlude <../x>", 'int y;\r#include "x"', '#if __has_include("/etc/passwd")', "#include <.env>", '#\\u0069nclude "x"',
    ],
)  # fmt: skip
def test_a_source_that_reads_files_of_the_worker_is_refused(directive: str) -> None:
    assert why_not_compilable(f"int x;\n{directive}\n{CODE}") is not None
    with pytest.raises(BadDefinition, match="not allowed"):
        defined(code=f"{directive}\n{CODE}")


def test_headers_of_cuda_are_allowed() -> None:
    code = (
        "#include <cuda_fp16.h>\n  #  include <cooperative_groups/reduce.h> // sums\n// what a tile includes\n" + CODE
    )
    assert defined(code=code).id
    assert why_not_compilable("x\n#include <mma.h>\n#include 'y'") is not None


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"entry": "other", "code": "def other(): pass"}, "entry: my_gemm.py has no function other with the decorator"),
        ({"block": ("32",)}, "block: my_gemm.py takes none: Triton knows it; use warps"),
        ({"shared_bytes": "8"}, "shared_bytes: my_gemm.py takes none"),
        ({"warps": "WARPS"}, "warps: at character 1, there is no name WARPS"),
        (
            {"arguments": ("a", "d")},
            r"arguments: my_gemm takes 8 \(a, b, d, m, n, k, .*\) as well as its constants, and there are 2",
        ),
        (
            {"constants": ()},
            "constants: my_gemm takes the constant EVEN; name it in parameters, or give it an expression",
        ),
        (
            {"constants": (("EVEN", "1"), ("ODD", "0"))},
            "constants: my_gemm takes no constant ODD; it takes BM, BN, EVEN",
        ),
        ({"constants": (("EVEN", "k %"),)}, "constants: 'k %' is not an expression"),
        ({"code": TRITON_CODE + "#" * MAX_TRITON_BYTES}, "file: my_gemm.py is larger than 256 KiB"),
        ({"code": "import triton\nimport triton.os\n"}, "file: my_gemm.py: line 2: 'import triton.os' is not allowed"),
    ],
)
def test_bad_definitions_in_triton_are_refused_with_the_key(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(BadDefinition, match=why):
        in_triton(**changes)
    with pytest.raises(BadDefinition, match=r"warps: my_gemm.cu takes none: it is for .py files alone"):
        defined(warps="4")


# --- launching ----------------------------------------------------------------------------------------


def test_bounds_are_computed_for_each_problem() -> None:
    launch = defined().launch(line(defined(), "65x33x7 f32 nn batch=3").problem, {"BM": 32, "BN": 16})
    assert (launch.grid, launch.block, launch.shared_bytes) == ((3, 3, 3), (128, 1, 1), 1536)
    assert (launch.blocks, launch.threads) == (27, 128)


@pytest.mark.parametrize(
    ("changes", "problem", "why"),
    [
        ({}, "64x64x64 f32 nt", "source my_gemm.cu requires layout == 'nn'"),
        (
            {"requires": ("1 / (m - 64) > 0",)},
            "64x64x64 f32",
            "requires 1 / \\(m - 64\\) > 0, which cannot be computed: ",
        ),
        ({"grid": ("n // (m - 64)",)}, "64x64x64 f32", "its launch bounds cannot be computed: .*zero"),
        ({"grid": ("n / 7",)}, "64x64x64 f32", "launch bound 'n / 7' is 9.14286, which is not a whole number"),
        ({"grid": ("n - 64",)}, "64x64x64 f32", "its grid has 0 along x, and CUDA takes 1 to 2,147,483,647"),
        ({"grid": ("1", "100000")}, "64x64x64 f32", "its grid has 100,000 along y, and CUDA takes 1 to 65,535"),
        ({"grid": ("2 ** 2000",)}, "64x64x64 f32", "its grid has a number of 2001 bits along x"),
        ({"shared_bytes": "2 ** 2000"}, "64x64x64 f32", "its shared_bytes are a number of 2001 bits"),
        ({"grid": ("1e300 * 1e300",)}, "64x64x64 f32", "is inf, which is not a whole number"),
        ({"grid": ("*".join(["2 ** 2000"] * 20),)}, "64x64x64 f32", "its grid has a number of 40001 bits"),
        ({"grid": ("m ** m",)}, "100x64x64 f32", "cannot be computed|a number of"),
        ({"block": ("1", "1", "65")}, "64x64x64 f32", "its block has 65 along z, and CUDA takes 1 to 64"),
        ({"block": ("1024", "2")}, "64x64x64 f32", "needs 2,048 threads in a block, the device allows 1,024"),
        ({"shared_bytes": "m - 100"}, "64x64x64 f32", "its shared_bytes are -36"),
        ({"shared_bytes": "2 ** 20"}, "64x64x64 f32", "needs 1,048,576 bytes of shared memory, the device has 232,448"),
        ({"arguments": ("d", "a")}, "64x64x64 f32 nn alpha=2", "takes no alpha, so alpha must be 1"),
        ({"arguments": ("d", "a")}, "64x64x64 f32 nn alpha=1 beta=1", "takes no c, so beta must be 0"),
        ({"arguments": ("d", "a"), "grid": ("1",)}, "64x64x64 f32 nn batch=2", "does not name batch in its grid"),
        ({}, "64x64x64 f32 nn scale=tensor", "does not name scale in requires, so scale must be none"),
        ({}, "64x64x64 f32 nn fused=bias", "does not name fused in requires, so fused must be none"),
        ({"requires": ("scale == 'row'",)}, "64x64x64 f32 nn scale=row", "takes no scale_a and no scale_b"),
        ({"requires": ("fused in ('bias', 'relu')",)}, "64x64x64 f32 nn fused=bias", "takes no bias"),
        ({"requires": ("fused in ('bias', 'relu')",)}, "64x64x64 f32 nn fused=gelu", "requires fused in"),
    ],
)
def test_what_cannot_be_launched_is_invalid_with_the_reason(changes: dict[str, Any], problem: str, why: str) -> None:
    definition = defined(**changes)
    found = line(definition, problem).why_invalid(HOPPER)
    assert found is not None
    with pytest.raises(AssertionError, match=why):
        raise AssertionError(found)


def test_a_definition_needs_all_of_its_parameters() -> None:
    definition = defined()
    why = "source my_gemm.cu has the parameters BM, BN, not BM"
    assert line(definition, parameters="BM=32").why_invalid(HOPPER) == why
    assert "needs a definition" in str(Configuration.parse("source() 64x64x64 f32").why_invalid(HOPPER))
    assert line(definition).why_invalid(HOPPER) is None
    cpu = DeviceTraits(kind=DeviceKind.CPU, memory_bytes=2**34)
    assert line(definition).why_invalid(cpu) == "source runs on cuda devices, this is a cpu device"


def test_where_a_definition_is_not_known_the_worker_decides() -> None:
    assert Configuration.parse("source(definition=7) 64x64x64 f32").why_invalid(HOPPER) is None


def test_strides_are_those_of_the_layout() -> None:
    def strides(problem: str) -> list[int]:
        found = extents_of(Configuration.parse(f"source() {problem}").problem)
        return [found[f"stride_{pair}"] for pair in ("am", "ak", "bk", "bn", "cm", "cn", "dm", "dn")]

    assert strides("2x6x5 f16 nn") == [5, 1, 6, 1, 6, 1, 6, 1]
    assert strides("2x6x5 f16 tt") == [1, 2, 1, 5, 6, 1, 6, 1]
    assert strides("2x6x5 f16 nt fused=swiglu") == [5, 1, 1, 5, 3, 1, 3, 1]


# --- Triton -------------------------------------------------------------------------------------------


def binary(definition: Definition, problem: str, device: DeviceTraits = HOPPER) -> dict[str, str]:
    made = line(definition, problem).binary(device)
    assert made is not None
    assert binary_from_json(json.loads(json.dumps(made.to_json()))) == made
    return dict(made.definitions)


def test_a_binary_is_compiled_for_what_integers_are_known_to_be() -> None:
    definition = in_triton()
    first = binary(definition, "64x48x32 f16 nn")
    assert first["ARGUMENTS"] == "address_fp16:address_fp16:address_fp16:i32_16:i64_16:i32_16:i32_1:fp32"
    assert binary(definition, "64x48x33 f16 nn")["ARGUMENTS"].endswith(":i32_16:i64_16:i32:i32_1:fp32")
    assert binary(definition, "1x48x32 f32:f32:f32 tn")["ARGUMENTS"].split(":")[2:7] == [
        "address_fp32",
        "i32_1",
        "i64_16",
        "i32_16",
        "i32_1",
    ]
    assert {name: value for name, value in first.items() if name.startswith(("CONSTANT_", "NUM_"))} == {
        "CONSTANT_BM": "32", "CONSTANT_BN": "16", "CONSTANT_EVEN": "1", "NUM_WARPS": "4", "NUM_STAGES": "3",
    }  # fmt: skip
    assert binary(definition, "64x48x31 f16")["CONSTANT_EVEN"] == "0"
    assert binary(definition, "128x48x32 f16 nn") == first
    assert binary(definition, "64x48x32 f16 tn") != first
    assert binary(in_triton(code=f"{TRITON_CODE}# other\n"), "64x48x32 f16")["CODE"] != first["CODE"]


def test_only_kernels_in_triton_are_built() -> None:
    definition = defined()
    assert line(definition).binary(HOPPER) is None
    assert Configuration.parse("source(definition=7) 64x64x64 f16").binary(HOPPER) is None


def test_what_a_compilation_is_given() -> None:
    definition = in_triton()
    made = line(definition, "64x48x33 f16 nn").binary(HOPPER)
    assert made is not None
    text, given = own_triton.compilation(made, definition)
    assert text == definition.triton.text
    assert given["signature"] == {
        "a": "*fp16", "b": "*fp16", "d": "*fp16", "m": "i32", "n": "i64", "k": "i32", "alpha": "fp32"
    }  # fmt: skip
    assert given["constants"] == {"stride_ak": 1, "BM": 32, "BN": 16, "EVEN": 0}
    assert given["multiples"] == ["a", "b", "d", "m", "n"]
    assert [one.name for one in own_triton.launched(definition, line(definition, "64x48x33 f16").problem, {"BM": 32, "BN": 16})] == [
        "a", "b", "d", "m", "n", "k", "alpha"
    ]  # fmt: skip
    for wrong in (None, in_triton(code=f"{TRITON_CODE}# other\n")):
        with pytest.raises(BadBinary, match=r"has no definition|not of the definition"):
            own_triton.compilation(made, wrong)
    kinds = dict(made.definitions)["ARGUMENTS"]
    changed = {**dict(made.definitions), "ARGUMENTS": kinds.replace("address_fp16", "tensordesc", 1)}
    with pytest.raises(BadBinary, match="not of the definition"):
        own_triton.compilation(replace(made, definitions=tuple(changed.items())), definition)


@pytest.mark.parametrize(
    ("changes", "device", "why"),
    [
        ({"warps": "3"}, HOPPER, "its warps are 3, and Triton takes 1, 2, 4, 8, 16 or 32"),
        ({"stages": "0"}, HOPPER, "its stages are 0; use 1 to 16"),
        ({"constants": (("EVEN", "k / 7"),)}, HOPPER, "its constant 'k / 7' is 4.57143, which is not a whole number"),
        ({}, traits_of_capability((7, 5)), "needs compute capability 8.0 for Triton, the device has 7.5"),
    ],
)
def test_what_triton_cannot_compile_is_invalid_with_the_reason(
    changes: dict[str, Any], device: DeviceTraits, why: str
) -> None:
    definition = in_triton(**changes)
    assert why in (line(definition, "64x48x32 f16").why_invalid(device) or "")
    assert line(in_triton(), "64x48x32 f16").why_invalid(HOPPER) is None


# --- campaign files -----------------------------------------------------------------------------------


def test_a_campaign_has_the_source_in_its_document_and_the_same_digest_elsewhere(folder: Path) -> None:
    path = written(folder)
    campaign = load(path, limit=100)
    (definition,) = campaign.definitions.values()
    assert (definition.code, definition.file, definition.parameters) == (CODE, "my_gemm.cu", ("BM", "BN"))
    lines = [one.canonical for one in campaign.expand()]
    assert [text.partition(" ")[0] for text in lines] == [
        f"source(BM={bm},BN=16,definition={definition.id})" for bm in (32, 64)
    ]
    texts = texts_named(path.read_text(), path)
    sent = loads(path.read_text(), name="elsewhere.yaml", limit=100, owner=None, files=texts)
    stored = Campaign.from_document(json.loads(json.dumps(campaign.document)))
    assert sent == stored == campaign
    assert {sent.digest, stored.digest} == {campaign.digest}
    (folder / "my_gemm.cu").write_text(CODE + "// faster\n")
    assert load(path, limit=100).digest != campaign.digest


def test_spaces_in_expressions_make_no_other_kernel(folder: Path) -> None:
    first = load(written(folder), limit=100)
    spaced = CAMPAIGN.replace("ceil(n / BN)", "ceil( n/BN )").replace("layout == 'nn'", "[layout=='nn']")
    assert load(written(folder, spaced), limit=100).digest == first.digest


def test_a_triton_file_is_read_with_its_constants(folder: Path) -> None:
    (folder / "my_gemm.py").write_text(TRITON_CODE)
    text = CAMPAIGN.replace("my_gemm.cu", "my_gemm.py").replace(
        "  block: [BM * BN / 4]\n  shared_bytes: 4 * (BM + BN) * 8\n", ""
    )
    text = text.replace("[a, b, c, d, m, n, k, batch, alpha, beta]", "[a, b, d, m, 'n:i64', k, stride_ak, alpha]")
    campaign = load(written(folder, f"{text}  constants: {{EVEN: k % 2 == 0}}\n"), limit=100)
    (definition,) = campaign.definitions.values()
    assert definition.id == in_triton().id
    assert Campaign.from_document(json.loads(json.dumps(campaign.document))).digest == campaign.digest
    with pytest.raises(CampaignFileError, match="constants: EVEN: at character 1, there is no name kk"):
        load(written(folder, f"{text}  constants: {{EVEN: kk == 0}}\n"), limit=100)


def test_a_cubin_is_read_as_base64(folder: Path) -> None:
    (folder / "my.cubin").write_bytes(b"\x7fELF\0\xff")
    (definition,) = load(written(folder, CAMPAIGN.replace("my_gemm.cu", "my.cubin")), limit=100).definitions.values()
    assert (definition.binary, definition.language) == (b"\x7fELF\0\xff", Language.CUBIN)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("file: my_gemm.cu", "file: missing.cu", "7: kernels[0].file: there is no file "),
        (
            "file: my_gemm.cu",
            "file: my_gemm.cpp",
            "7: kernels[0].file: 'my_gemm.cpp' is none of .cu, .ptx, .cubin, .py",
        ),
        (f"entry: {ENTRY}", "entry: other", "6: kernels[0]: entry: my_gemm.cu has no other"),
        (f"  entry: {ENTRY}\n", "", "6: kernels[0].entry: it is missing; write for example entry: my_gemm"),
        ("ceil(m / BM)", "ceil(m / BX)", "9: kernels[0].grid[1]: at character 10, there is no name BX"),
        ("[a, b,", "[e, b,", "12: kernels[0].arguments[0]: there is no argument 'e'"),
        ("layout ==", "lay ==", "13: kernels[0].requires: at character 1, there is no name lay"),
        ("BN: 16", "bn: 16", "14: kernels[0].parameters: 'bn' cannot name a parameter"),
        ("BN: 16", "BN: 1.5", "14: kernels[0].parameters: BN: 1.5 is not a value of BN; write a whole number"),
        ("BN: 16", "BN: []", "14: kernels[0].parameters: BN has no value"),
        ("parameters: {BM: [32, 64], BN: 16}", "parameters: 3", "parameters are a mapping from names to values"),
        ("parameters:", "tile: 3\n  parameters:", "14: kernels[0].tile: there is no such field here"),
    ],
)
def test_a_mistake_is_named_with_its_place(folder: Path, old: str, new: str, says: str) -> None:
    assert old in CAMPAIGN
    with pytest.raises(CampaignFileError) as wrong:
        load(written(folder, CAMPAIGN.replace(old, new)), limit=100)
    assert says in str(wrong.value).replace(str(folder / "own.yaml:"), "")


def test_a_file_that_was_not_sent_is_named() -> None:
    with pytest.raises(CampaignFileError, match=r"my_gemm.cu was not sent with the campaign, .*\{name: …, code: …\}"):
        loads(CAMPAIGN, name="own.yaml", limit=100, owner=None)


def test_models_do_not_learn_from_own_kernels(folder: Path) -> None:
    learning = CAMPAIGN.replace("{shapes: 64x64x64, types: f32}", "{domain: serving-and-general, types: f32}")
    with pytest.raises(CampaignFileError, match="no model learns from kernels of source"):
        load(written(folder, learning + "search: {strategy: learn}\n"), limit=10**6)


def test_the_page_describes_every_key() -> None:
    page = (Path(__file__).parents[2] / "docs" / "own_kernels.md").read_text()
    assert docs_script("campaign_keys").markdown(SourceBlock) in page
