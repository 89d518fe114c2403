"""A campaign file that is wrong is told so: everything at once, each with its line, its field and what would be right."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farm.campaign import Campaign, TargetKind, load
from farm.campaign.problem_blocks import AxesBlock
from farm.errors import CampaignFileError, CampaignTooLarge
from farm.gemm import Layout, Shape
from farm.kernels import Kernel
from farm.measurement import MeasuringRules

GOOD = """\
name: sweep
owner: anna
problems:
  shapes: [512x512x512]
  types: f32
kernels:
  family: tiled
"""


@pytest.fixture
def write(tmp_path: Path):
    def to_file(text: str | bytes) -> Path:
        path = tmp_path / "sweep.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return to_file


@pytest.fixture
def read(write):
    def from_text(text: str) -> Campaign:
        return load(write(text), limit=1_000_000)

    return from_text


@pytest.fixture
def problems_of(write, monkeypatch):
    """All lines of the error, without the path that each begins with."""
    monkeypatch.setattr("farm.formatting.MAX_LISTED", 1000)

    def of_text(text: str | bytes) -> list[str]:
        path = write(text)
        with pytest.raises(CampaignFileError) as raised:
            load(path, limit=1_000_000)
        lines = str(raised.value).splitlines()
        assert all(line.startswith(f"{path}:") for line in lines)
        return [line.removeprefix(f"{path}:").strip() for line in lines]

    return of_text


def test_a_full_file_is_read(read):
    campaign = read("""\
name: full
description: everything a file can say
owner: anna
priority: -5
targets:
  - any
  - {type: nvidia-h200}
  - {each: cpu-x}
  - {host: gpu01}
  - {device: GPU-1}
problems:
  - shapes: [[512, 512, 1025], 64x64x64, {set: paper-27}]
    types: [f32, f16:f16:f32]
    layouts: [nn, TN]
    alpha: 2
    beta: [0, 0.5]
  - m: [1, 4..8 +2, 512..2048 x2]
    n: 512
    k: 16..18
    types: bf16
kernels:
  - {family: tiled, tile: [1, 2, 4..32 +4]}
  - family: blas
constraints:
  - m * n * k <= 2**40
measure:
  timing: {target_rse: 1e-2, min_samples: 5}
  power: none
""")
    assert (campaign.owner, campaign.priority) == ("anna", -5)
    assert {t.kind for t in campaign.targets} == set(TargetKind)
    listed = next(b for b in campaign.problems if Layout.TN in b.layouts)
    assert len(list(listed.shapes)) == 29
    assert listed.alpha == (2.0,)
    assert listed.beta == (0.0, 0.5)
    product = next(b for b in campaign.problems if Layout.TN not in b.layouts)
    assert next(product.each_shape()) == Shape(1, 512, 16)
    assert product.lengths() == {
        "m": 7,
        "n": 1,
        "k": 3,
        "types": 1,
        "layouts": 1,
        "alpha": 1,
        "beta": 1,
        "batch": 1,
        "scale": 1,
        "fused": 1,
        "sparsity": 1,
        "groups": 1,
    }
    assert campaign.measure.timing.target_rse == 0.01
    assert campaign.measure.timing.min_samples == 5
    assert campaign.size == (29 * 2 * 2 * 2 + 21) * (10 + 1)


def test_what_is_left_out_takes_its_default(read, monkeypatch):
    monkeypatch.setattr("farm.campaign.campaign.login_name", lambda: "berta")
    campaign = read(GOOD.replace("owner: anna\n", ""))
    assert campaign.owner == "berta"
    assert [t.kind for t in campaign.targets] == [TargetKind.ANY]
    (configuration,) = campaign.expand()
    assert configuration.canonical == "tiled(tile=16) 512x512x512 f32:f32:f32 nn alpha=1 beta=0"


def test_three_numbers_are_one_shape_and_not_three_cubes(read):
    campaign = read(GOOD.replace("[512x512x512]", "[128, 256, 512]"))
    assert [c.problem.shape for c in campaign.expand()] == [Shape(128, 256, 512)]


def test_every_problem_is_reported_at_once_in_the_order_of_the_file(problems_of):
    assert problems_of("""\
name: My Sweep
priority: 500
desciption: misspelt
targets: [gpu]
problems:
  - shapes: [[512, 512, 0], 512x-4x3, {set: paper-72}, 7]
    types: [f33]
    layouts: [nx]
    alpha: .inf
    m: 3
  - m: 512..8192 y2
    n: [0, 4..2, 8..16 x1]
  - types: f32
  - 5
kernels:
  - family: tiled
    tile: [33, 4..64 +4, 2.5]
    stages: 3
  - family: tilde
  - tile: 3
constraints:
  - m = 5
measure:
  timing: {target_rse: 2, max_second: 1, min_samples: abc, warmup_seconds: }
  power: off
""") == [
        "1: name: 'My Sweep' cannot name a campaign; use up to 100 lower-case letters, digits, - _ ., as in my-sweep",
        "2: priority: 500 is too large; write a whole number from -100 up to 100 (higher goes first, for all owners)",
        "3: desciption: there is no such field here; did you mean description?",
        "4: targets[0]: 'gpu' is not a target; write any, {type: nvidia-h200}, {each: nvidia-h200}, {host: gpu01} "
        "or {device: GPU-…}",
        "6: problems[0].shapes[0]: '512x512x0' is not a shape: k is 0. Write m, n and k as whole numbers from 1 to "
        "2147483647, as in 512x512x1024.",
        "6: problems[0].shapes[1]: '512x-4x3' is not a shape: n is -4. Write m, n and k as whole numbers from 1 to "
        "2147483647, as in 512x512x1024.",
        "6: problems[0].shapes[2]: there is no shape set 'paper-72'; did you mean paper-27?",
        "6: problems[0].shapes[3]: 7 is not a shape; write [m, n, k], 512x512x1024 or {set: paper-27}",
        "7: problems[0].types[0]: 'f33' is not an element type. Use one of f64, f32, tf32, f16, bf16, f8e4m3, f8e5m2, "
        "f8e4m3e5m2, f8e5m2e4m3, i8, f16i8, bf16i8, f16i4, bf16i4, f16f4, bf16f4, or inputs:output:accumulator as in f16:f16:f32.",
        "8: problems[0].layouts[0]: 'nx' is not a layout. Use nn, nt, tn or tt: n for a matrix stored as written, "
        "t for one stored transposed.",
        "9: problems[0].alpha: '.inf' is not a finite number; write a number such as 1 or 0.5",
        "10: problems[0].m: a block of problems has shapes, or m, n and k, not both; remove shapes or m",
        "11: problems[1].types: it is missing; write for example types: f32",
        "11: problems[1].m: '512..8192 y2' is not a value of m; write a whole number, or a range as in "
        "512..2048 +512 or 512..8192 x2",
        "11: problems[1].k: it is missing; write for example k: 512..8192 x2",
        "12: problems[1].n[0]: 0 is zero; n goes from 1 to 2147483647",
        "12: problems[1].n[1]: the range 4..2 counts down; write 2..4",
        "12: problems[1].n[2]: the range 8..16 x1 has the factor 1; a factor is 2 or more",
        "13: problems[2].shapes: it is missing; give shapes (shapes: [512x512x512]), or the axes m, n and k",
        "14: problems[3]: 5 is not a mapping; its fields are types, layouts, alpha, beta, scale, fused, sparsity, batch, groups, shapes",
        "17: kernels[0].tile[0]: 33 is too large; tile goes from 1 to 32",
        "17: kernels[0].tile[1]: the range 4..64 +4 reaches 64, which is too large; tile goes from 1 to 32",
        "17: kernels[0].tile[2]: 2.5 is not a value of tile; write a whole number, or a range as in 512..2048 +512 "
        "or 512..8192 x2",
        "18: kernels[0].stages: there is no such field here; the fields are family, tile",
        "19: kernels[1]: there is no kernel family 'tilde'; did you mean tiled?",
        "20: kernels[2].family: it is missing; write for example family: tiled",
        "22: constraints[0]: 'm = 5' is not an expression: invalid syntax at character 3; write == to compare",
        "24: measure.timing.target_rse: 2 is too large; write a number above 0 and below 1 (stop at this relative "
        "standard error of the mean)",
        "24: measure.timing.min_samples: 'abc' does not fit here; write a whole number from 2 up to 100,000 (minimum "
        "number of samples)",
        "24: measure.timing.warmup_seconds: it has no value; write a number from 0 up to 60 (warm-up before the "
        "first sample, in seconds), or remove the field",
        "24: measure.timing.max_second: there is no such field here; did you mean max_seconds?",
        "25: measure.power: 'off' is not known here; write none or fraction or all (measure the power of no configuration, of a fraction, or of all)",
    ]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("colour: red", "8: colour: there is no such field here; the fields are name, description, owner, priority, "
         "targets, problems, kernels, configurations, constraints, measure, search, repeat"),
        ("configuration: x", "8: configuration: there is no such field here; did you mean configurations?"),
        ("owner: ben", "8: owner: it stands here a second time (first on line 2); keep one of them"),
        ("priority: high", "8: priority: 'high' does not fit here; write a whole number from -100 up to 100 (higher goes first, for all owners)"),
        ("description: [a]", "8: description: a description is text; write it after the colon, or remove the field"),
        ("targets: []", "8: targets: the list is empty; write at least one value, or remove the field"),
        ("constraints: stages > 3", "8: constraints: it names stages, and no kernel of this campaign (tiled) has that; "
         "remove it, or add the kernels it is for"),
        ("measure: {timing: {min_samples: 50, max_samples: 20}}", "8: measure.timing.min_samples: min_samples is 50 and "
         "max_samples 20; the minimum cannot exceed the maximum"),
        ("measure: 3", "8: measure: 3 is not a mapping; its fields are"),
        ("targets: {type: }", "8: targets: type names nothing; write any"),
    ],
)  # fmt: skip
def test_one_wrong_line_makes_one_problem(problems_of, line, problem):
    (found,) = problems_of(GOOD + line + "\n")
    assert found.startswith(problem)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "1: the file is empty; a campaign has a name, problems and kernels at least"),
        ("# nothing\n", "1: the file is empty"),
        ("- a\n", "1: a campaign is a mapping of fields (name: …, problems: …, kernels: …), this is a list"),
        ("just text\n", "1: a campaign is a mapping of fields (name: …, problems: …, kernels: …), this is a single value"),
        ("name: x\nproblems: [\n  a\n", "4:1: not YAML: while parsing a flow sequence expected ',' or ']'"),
        ("name: x\n\tkernels: 3\n", "2:1: not YAML: while scanning for the next token found character '\\t' that cannot "
         "start any token; indent with spaces, YAML does not take tabs"),
        ("constraints: a: b\n", "1:15: not YAML: mapping values are not allowed here; put quotes"),
        ("name: *nowhere\n", "1:7: not YAML: found undefined alias 'nowhere'"),
        ("name: a\n---\nname: b\n", "2:1: not YAML: expected a single document"),
        ("name: x\ndescription: \x01\n", "2: not YAML: the control character #x01; remove it"),
        (b"name: x\nowner: \xff\n", "2: byte 15 is not UTF-8; save the file as UTF-8 text"),
        *(
            (text, "lists and mappings are nested too deeply to be a campaign")
            for text in (
                "[" * 20_000,
                "a: " + "[" * 101 + "]" * 101,
                "{a: " * 101 + "1" + "}" * 101,
                "".join(f"{' ' * depth}a:\n" for depth in range(102)),
                "a0: &a0 [1]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 1000)),
            )
        ),
    ],
)  # fmt: skip
def test_what_is_not_a_campaign_at_all_is_said_plainly(problems_of, text, problem):
    (found,) = problems_of(text)
    assert found.startswith(problem)


def test_of_thousands_of_problems_the_first_twenty_are_listed_and_the_rest_counted(write):
    listed = "".join(f"  - {number}x0x64\n" for number in range(1, 5001))
    text = f"name: a\nproblems:\n  types: f32\n  shapes:\n{listed}kernels:\n  family: tiled\n"
    path = write(text)
    with pytest.raises(CampaignFileError) as raised:
        load(path, limit=1_000_000)
    lines = str(raised.value).splitlines()
    assert len(lines) == 21
    assert [line.split(": ")[0] for line in lines[:20]] == [f"{path}:{number}" for number in range(5, 25)]
    assert lines[-1] == "and 4,980 more problems"


def test_a_missing_file_and_a_folder_are_told_apart(tmp_path):
    with pytest.raises(CampaignFileError, match="there is no such file"):
        load(tmp_path / "absent.yaml", limit=1)
    with pytest.raises(CampaignFileError, match="this is a folder"):
        load(tmp_path, limit=1)


def test_tags_are_refused_and_nothing_is_constructed(problems_of):
    assert problems_of(GOOD + "description: !!python/object/apply:os.getcwd []\n")[0].startswith("8: the tag ")


def test_an_alias_may_repeat_but_not_contain_itself_or_explode(read, problems_of):
    assert read(GOOD.replace("types: f32", "types: &t [f32]\n  alpha: &one 1\n  beta: *one")).size == 1
    assert "8: an alias (*) stands inside what it repeats; write the values out" in problems_of(GOOD + "x: &x [*x]\n")
    bomb = "a: &a0 [1,1,1,1,1,1,1,1,1,1]\n"
    bomb += "".join(f"b{i}: &a{i + 1} [{','.join([f'*a{i}'] * 10)}]\n" for i in range(9))
    assert problems_of(bomb)[-1].endswith("the file stands for more than 500,000 values; split the campaign")


def test_words_that_other_yaml_readers_convert_stay_words(read, problems_of):
    assert read(GOOD.replace("anna", "no")).owner == "no"
    assert problems_of(GOOD.replace("512x512x512", "[0512, 8, 8]")) == [
        "4: problems.shapes[0]: a shape is three whole numbers; write [m, n, k], 512x512x1024 or {set: paper-27}"
    ]


def test_a_number_too_long_for_python_is_a_problem_and_no_crash(problems_of):
    assert problems_of(GOOD + f"priority: {'9' * 5000}\n")[0] == f"8: {'9' * 20}… is not a number that fits here"


def test_no_message_is_in_the_words_of_a_library(problems_of):
    text = "\n".join(
        problems_of(
            "name: [1]\nproblems: {shapes: 3, types: {a: 1}, layouts: [[x]], alpha: yes}\nkernels: tiled\nmeasure: []\n"
        )
    )
    for word in ("Input should", "valid", "pydantic", "dictionary", "None", "Extra"):
        assert word not in text


@pytest.mark.parametrize("axes", ["m: 1..10000, n: 1..10000, k: 1..10000", "m: 1..2147483647, n: [1..1000], k: 1"])
def test_an_axis_product_of_a_million_millions_is_refused_at_once(write, axes):
    path = write(f"name: x\nproblems: {{{axes}, types: f32}}\nkernels: {{family: tiled}}\n")
    with pytest.raises(
        CampaignTooLarge, match=r"The largest factors: problems\[0\]\.m [\d,]+, problems\[0\]\.n [\d,]+"
    ):
        load(path, limit=20_000_000)  # going through them would take days


def test_the_limit_itself_is_allowed(write):
    path = write(GOOD.replace("family: tiled", "family: tiled\n  tile: 1..32"))
    assert load(path, limit=32).size == 32
    with pytest.raises(CampaignTooLarge, match="asks for 32 configurations; one campaign may hold 31"):
        load(path, limit=31)


FIELD_NAMES = [*Campaign.model_fields, *AxesBlock.model_fields, *MeasuringRules.model_fields]
FIELD_NAMES += ["shapes", "set", "family", "tile", "threads", "min_samples", "max_samples", "type", "each"]
scalars = st.one_of(
    st.none(),
    st.integers(-5, 5000),
    st.floats(),
    st.sampled_from(["f32", "nn", "tiled", "blas", "any", "8x8x8", "1..8 x2", "1..9", "m > 1", "tile > k", "paper-27"]),
    st.text(max_size=8),
)
anything = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(FIELD_NAMES) | st.text(max_size=5), inner, max_size=5)
    ),
    max_leaves=20,
)


@settings(max_examples=100)
@given(st.dictionaries(st.sampled_from(FIELD_NAMES), anything))
def test_whatever_stands_in_a_file_is_a_campaign_or_a_list_of_problems(document):
    complete = {"name": "x", "problems": {"shapes": "8x8x8", "types": "f32"}, "kernels": {"family": "tiled"}}
    for data in (document, complete | document):
        with contextlib.suppress(CampaignFileError):
            assert Campaign.from_document(data).size > 0


@settings(max_examples=200)
@given(st.data())
def test_a_damaged_file_is_a_campaign_or_a_list_of_problems(tmp_path_factory, data):
    at = data.draw(st.integers(0, len(GOOD)))
    damaged = GOOD[:at] + data.draw(st.text(max_size=4)) + GOOD[at + data.draw(st.integers(0, 3)) :]
    path = tmp_path_factory.getbasetemp() / "damaged.yaml"
    path.write_text(damaged, newline="")
    problems = ""
    try:
        assert load(path, limit=10**9).size > 0
    except CampaignFileError as error:
        problems = str(error)
    assert all(line.startswith(f"{path}:") for line in problems.splitlines())


def test_what_a_file_says_cannot_break_the_lines_of_the_message(problems_of):
    (found,) = problems_of(GOOD + '"a\\nb\\e[31m": 1\n')
    assert found.startswith("8: a b [31m: there is no such field here")


LISTED = """\
name: listed
owner: anna
configurations:
  - tiled(tile=32) 64x64x64 f32
  - blas() 64x64x64 f32:f32:f32 tn beta=1
  - tiled(tile=32) 64x64x64 f32:f32:f32 nn alpha=1 beta=0
"""


def test_a_campaign_may_list_its_configurations(read, problems_of, write):
    campaign = read(LISTED)
    assert [one.canonical for one in campaign.expand()] == [
        "blas(threads=1) 64x64x64 f32:f32:f32 tn alpha=1 beta=1",
        "tiled(tile=32) 64x64x64 f32:f32:f32 nn alpha=1 beta=0",
    ]
    assert (campaign.size, campaign.families) == (2, ("blas", "tiled"))
    assert campaign.measures(Kernel.of("tiled", tile=32))
    assert not campaign.measures(Kernel.of("tiled", tile=8))
    again = Campaign.from_document(campaign.document)
    assert (again, again.digest) == (campaign, campaign.digest)
    assert read(LISTED.replace("tile=32", "tile=16")).digest != campaign.digest
    with pytest.raises(CampaignTooLarge, match="asks for 3 configurations; one campaign may hold 2"):
        load(write(LISTED), limit=2)


def test_what_is_wrong_in_a_list_of_configurations_has_its_line(problems_of):
    assert problems_of(
        LISTED + "  - tiled(tile=99) 8x8x8 f32\n  - 5\n  - x\nkernels: {family: tiled}\nsearch: grid\n"
    ) == [
        "7: configurations[3]: tiled does not accept tile=99: tile goes from 1 to 32.",
        "8: configurations[4]: 5 is not a configuration; write tiled(tile=16) 512x512x512 f32",
        "9: configurations[5]: 'x' is not a configuration: it does not have that form. Write it as in: "
        "tiled(tile=16) 512x512x512 f32:f32:f32 nn alpha=1 beta=0",
        "10: kernels: configurations are all that such a campaign measures; remove kernels, or configurations",
        "11: search: configurations are all that such a campaign measures; remove search, or configurations",
    ]
    assert problems_of("name: x\nconfigurations: []\n") == [
        "2: configurations: the list is empty; write at least one value, or remove the field"
    ]
    (found,) = problems_of(LISTED + "colour: red\n")
    assert found == (
        "7: colour: there is no such field here; the fields are name, description, owner, priority, targets, "
        "configurations, measure, repeat"
    )
