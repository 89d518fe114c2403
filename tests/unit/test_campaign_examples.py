"""The campaigns in examples/ and the files shown in docs/campaigns.md load, and plan to what they say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from farm.campaign import Campaign, KnownDevice, load, plan, shape_sets
from farm.campaign.constraints import PROBLEM_NAMES
from farm.campaign.domain import SOURCES, named_domains
from farm.campaign.named_shapes import MODELS
from farm.campaign.problem_blocks import AxesBlock, DomainBlock, ShapesBlock
from farm.campaign.strategies import STRATEGIES
from farm.devices import Backend, DeviceKind, DeviceTraits
from farm.kernels import FAMILIES
from farm.measurement import MeasuringRules
from support.known_devices import CPU

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples" / "campaigns").glob("*.yaml"))
TRACES = ROOT / "tests" / "data" / "traces"
DOCS = (ROOT / "docs" / "campaigns.md").read_text()

GPU = KnownDevice(
    "GPU-1",
    "nvidia-h200",
    "gpu01",
    DeviceTraits(
        kind=DeviceKind.CUDA, memory_bytes=2**37, max_threads_per_block=1024, shared_memory_per_block_bytes=227 * 1024
    ),
    Backend.CUDA,
)


def example(name: str) -> Campaign:
    return load(ROOT / "examples" / "campaigns" / f"{name}.yaml", limit=100_000)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_every_example_loads_and_no_job_of_it_breaks_a_rule(path):
    summary = plan(load(path, limit=1_000_000), [CPU, GPU], allow_missing=False).summary()
    assert summary.jobs > 0
    assert summary.invalid == ()


def test_the_issue_s_three_examples_are_there():
    assert {p.stem for p in EXAMPLES} >= {"quickstart", "paper-tiled", "llm-shapes"}


def test_quickstart_suits_a_laptop_without_a_gpu():
    summary = plan(example("quickstart"), [CPU], allow_missing=False).summary()
    (count,) = summary.counts
    assert 60 <= count.jobs <= 100
    assert summary.estimated_seconds["type:cpu-laptop"] < 40


def test_quickstart_uses_a_gpu_where_there_is_one():
    summary = plan(example("quickstart"), [CPU, GPU], allow_missing=False).summary()
    assert {(c.family, c.pool) for c in summary.counts} == {("blas", "type:cpu-laptop"), ("tiled", "type:nvidia-h200")}


def test_paper_tiled_is_the_paper_s_shapes_times_its_tiles():
    campaign = example("paper-tiled")
    configurations = list(campaign.expand())
    assert {c.problem.shape for c in configurations} == set(shape_sets()["paper-27"].shapes)
    assert {dict(c.kernel.parameters)["tile"] for c in configurations} == {1, 2, 4, 8, 12, 16, 20, 24, 28, 32}
    assert len(configurations) == 270


def test_llm_shapes_measures_decode_and_prefill():
    tokens = {c.problem.shape.m for c in example("llm-shapes").expand()}
    assert tokens == {1, 8, 32, 128, 512, 2048, 8192}


@pytest.mark.parametrize("block", re.findall(r"```yaml\n(.*?)```", DOCS, re.DOTALL))
def test_every_campaign_in_the_documentation_loads(tmp_path, block):
    path = tmp_path / "documented.yaml"
    path.write_text(block)
    (tmp_path / "routing.csv").write_text("3,0,5\n1,1,6\n")
    (tmp_path / "trace.json.gz").write_bytes((TRACES / "profiler.json").read_bytes())
    assert load(path, limit=1_000_000).size > 0


def test_the_documentation_names_every_field_family_set_and_name_of_a_constraint():
    timing = MeasuringRules.model_fields["timing"].annotation
    assert timing is not None
    names = [
        *Campaign.model_fields,
        *AxesBlock.model_fields,
        *ShapesBlock.model_fields,
    ]
    names += [*MeasuringRules.model_fields, *timing.model_fields, *shape_sets(), *FAMILIES, *PROBLEM_NAMES]
    names += [*STRATEGIES, *(name for strategy in STRATEGIES.values() for name in strategy.model_fields)]
    names += [*DomainBlock.model_fields, *named_domains(), *MODELS]
    names += [name for fields in SOURCES.values() for name in fields.model_fields]
    names += [p.name for family in FAMILIES.values() for p in family.parameters]
    missing = [name for name in names if not re.search(rf"`{re.escape(name)}\b[^`]*`|`[^`]*\b{re.escape(name)}`", DOCS)]
    assert missing == []
