"""Configurations of every example campaign can be written, stored, printed and typed again, and stay what they are."""

from __future__ import annotations

import json
import random
import shlex
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import farm
from farm.campaign import Campaign, KnownDevice, load, plan
from farm.cli.measuring_options import rules_of
from farm.devices import Backend, DeviceKind, DeviceTraits, traits_of_capability
from farm.kernels import FAMILIES, Configuration
from farm.repro import repro_command
from support.command_tree import top_level

EXAMPLES = sorted((Path(farm.__file__).parent.parent / "examples" / "campaigns").glob("*.yaml"))
DEVICES = [
    KnownDevice(
        "CPU-1", "cpu-laptop", "box", DeviceTraits(kind=DeviceKind.CPU, memory_bytes=2**33, threads=2), Backend.CPU
    ),
    KnownDevice(
        "GPU-1",
        "nvidia-t4",
        "gpu01",
        DeviceTraits(
            kind=DeviceKind.CUDA,
            memory_bytes=2**34,
            compute_capability=(7, 5),
            max_threads_per_block=1024,
            shared_memory_per_block_bytes=64 * 1024,
        ),
        Backend.CUDA,
    ),
]
H200 = KnownDevice("GPU-2", "nvidia-h200", "gpu02", traits_of_capability((9, 0)), Backend.CUDA)
each_example = pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)


@cache
def campaign_of(path: Path) -> Campaign:
    return load(path, limit=1_000_000)


@cache
def some(path: Path) -> list[Configuration]:
    """Up to 200 of its configurations, with each kernel that it asks for: the largest example has 82,000."""
    all_of_them = list(campaign_of(path).expand())
    drawn = random.Random(path.stem).sample(all_of_them, min(200, len(all_of_them)))
    return [*{configuration.kernel: configuration for configuration in all_of_them}.values(), *drawn]


def typed(line: str) -> dict[str, Any]:
    """The parameters that `farm measure` gets of a line that is typed into a shell."""
    program, name, *words = shlex.split(line)
    assert (program, name) == ("farm", "measure")
    found: dict[str, Any] = top_level().commands["measure"].make_context(name, words).params
    return found


@each_example
def test_a_configuration_survives_its_own_text_and_the_columns_that_it_is_stored_in(path: Path) -> None:
    for configuration in some(path):
        again = Configuration.parse(str(configuration))
        assert again == configuration
        assert again.canonical == configuration.canonical
        stored = json.loads(json.dumps(configuration.columns()))
        assert Configuration.from_columns(stored).canonical == configuration.canonical


@each_example
def test_the_line_that_repeats_a_configuration_is_typed_as_the_same_measurement(path: Path) -> None:
    rules = campaign_of(path).measure
    for configuration in some(path)[::10]:
        found = typed(repro_command(configuration, "GPU-4e7a5dfa", rules))
        assert Configuration.parse(found["configuration"]) == configuration
        assert found["device"] == "GPU-4e7a5dfa"
        options = ("power", "job_seconds", "warm_l2", "distribution", "seed")
        assert rules_of(found["rules"], **{name: found[name] for name in options}) == rules


def test_the_configurations_that_a_dry_run_shows_can_be_typed() -> None:
    # A target `each` is of devices that are there. Campaigns that draw their problems draw only what a kernel runs.
    there = {path: [*DEVICES, H200] if path.stem == "compare-cards" else DEVICES for path in EXAMPLES}
    listed = {path: campaign for path in EXAMPLES if not (campaign := campaign_of(path)).draws}
    plans = [plan(campaign, there[path], allow_missing=True) for path, campaign in listed.items()]
    shown = [group.example for made in plans for group in made.summary().invalid]
    assert [str(Configuration.parse(example)) for example in shown] == shown
    assert any(example.startswith("cutlass(") for example in shown)


def test_the_examples_ask_for_every_family_and_every_parameter_of_cutlass() -> None:
    """So that the tests above are about all of them: split_k and align are in no campaign but the short one."""
    asked = {configuration.kernel for path in EXAMPLES for configuration in some(path)}
    assert {kernel.family for kernel in asked} == {name for name, one in FAMILIES.items() if one.worker is not None}
    cutlass = [dict(kernel.parameters) for kernel in asked if kernel.family == "cutlass"]
    for parameter in FAMILIES["cutlass"].parameters:
        assert len({values[parameter.name] for values in cutlass}) > 1, parameter.name
