"""The datasets that come with the farm: each is found by name, described correctly, and complete."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from farm import datasets, shipped
from farm.campaign import KnownDevice, Target, TargetKind, load, plan
from farm.devices import Backend
from farm.errors import BadRecording, NoSuchDataset
from farm.measurement import is_test_row

FOUND = shipped.folder("datasets")
assert FOUND is not None
FOLDER = FOUND
ROOT = FOLDER.parent.parent
NAMES = sorted(datasets.shipped())
README = (FOLDER / "README.md").read_text()


def table_rows(text: str, first: str) -> Iterator[dict[str, str]]:
    """The rows of the Markdown tables whose first column has that name."""
    for block in re.findall(rf"^\| {first} \|.*\n(?:\|.*\n)+", text, flags=re.MULTILINE):
        head, _, *lines = [
            [cell.strip().strip("`") for cell in line.strip("|\n").split("|")] for line in block.splitlines()
        ]
        yield from (dict(zip(head, line, strict=True)) for line in lines)


def test_a_dataset_is_found_by_name_with_all_of_its_files() -> None:
    assert NAMES == [
        "both-times", "compare-cards", "cutlass-tuned", "domain", "domain-kernels", "domain-test", "hopper-f16", "learn-domain", "learn-quickstart", "low-bit", "paper-all-tiles", "paper-cutlass", "paper-cutlass-energy", "paper-tiled", "problem-kinds", "problem-kinds-groups", "problem-kinds-groups-test", "problem-kinds-kernels", "problem-kinds-kernels-test", "problem-kinds-test",
    ]  # fmt: skip
    found = datasets.find("compare-cards")
    assert found.rows == 612
    assert found.device_types == ["nvidia-h100-80gb-hbm3", "nvidia-h200"]
    assert [len(datasets.devices(part.path)) for part in found.parts] == [2, 4]
    assert datasets.devices(datasets.find("paper-tiled").parts[0].path) == (None,)


def test_an_unknown_name_is_answered_with_those_that_are_close_and_all_that_are_known() -> None:
    with pytest.raises(NoSuchDataset) as refused:
        datasets.find("paper-tild")
    assert re.search(r"'paper-tild'\. Did you mean paper-tiled", str(refused.value))
    assert ", ".join(NAMES) in str(refused.value)
    with pytest.raises(BadRecording, match="there is no such file"):
        datasets.find("nowhere.parquet")


@pytest.mark.parametrize("installed", ["environment", "user", "site/packages"])
def test_an_installation_without_examples_finds_those_that_its_wheel_brought(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: str
) -> None:
    monkeypatch.setattr(shipped, "__file__", str(tmp_path / "site" / "packages" / "farm" / "shipped.py"))
    paths = lambda _, scheme=None: str(tmp_path / ("environment" if scheme is None else "user"))  # noqa: E731
    monkeypatch.setattr(shipped.sysconfig, "get_path", paths)
    assert datasets.shipped() == {}
    with pytest.raises(NoSuchDataset, match="brings no datasets: name the path"):
        datasets.find("paper-tiled")
    share = tmp_path / installed / "share" / "gemm-farm"
    share.mkdir(parents=True)
    (share / "datasets").symlink_to(FOLDER)
    (share / "campaigns").symlink_to(ROOT / "examples" / "campaigns")
    assert sorted(datasets.shipped()) == NAMES
    assert datasets.find("paper-tiled").campaign == share / "campaigns" / "paper-tiled.yaml"


INVALID_ON_THE_CARD = {"low-bit": 4, "problem-kinds-groups-test": 1}
"""Jobs that the card refused for what a recording does not know."""


@pytest.mark.parametrize("name", NAMES)
def test_the_campaign_of_a_dataset_asks_for_what_its_files_hold_and_needs_no_kernels(name: str) -> None:
    dataset = datasets.find(name)
    assert dataset.campaign is not None
    for part in dataset.parts:
        device = KnownDevice("REC-1", "recorded-x", "here", part.origin.traits, Backend.RECORDED)
        campaign = load(dataset.campaign, limit=10**6).changed(targets=(Target(TargetKind.DEVICE, "REC-1"),))
        jobs = list(plan(campaign, [device], allow_missing=False).jobs())
        asked = {job.configuration for job in jobs if job.invalid_reason is None}
        held = {configuration for _, configuration in datasets.configurations(part.path)}
        if name.startswith("learn-"):  # what it asks for beyond its first rounds depends on what it measures
            assert len(asked - held) <= 1
        else:
            assert held <= asked
            assert len(asked - held) == INVALID_ON_THE_CARD.get(name, 0)
        assert not any(job.binaries for job in jobs)


def test_rows_of_test_sets_are_labelled_and_no_others() -> None:
    for name in NAMES:
        for part in datasets.find(name).parts:
            rows = pq.read_table(part.path, columns=["round", "details"]).to_pylist()
            of_test_set = [name.endswith("-test") or name == "domain-kernels" or name.startswith("learn-")] * len(rows)
            assert [each and row["round"] == 0 for each, row in zip(of_test_set, rows, strict=True)] == [
                is_test_row(json.loads(row["details"])) for row in rows
            ], name


@pytest.fixture(scope="module")
def described() -> dict[str, dict[str, str]]:
    """The rows of the README's tables, by the name of the file."""
    return {row["file"]: row for row in table_rows(README, "file")}


def test_every_file_is_described(described: dict[str, dict[str, str]]) -> None:
    assert sorted(described) == sorted(path.name for path in FOLDER.glob("*.parquet"))


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.parquet")), ids=lambda path: path.stem)
def test_a_file_is_as_it_is_described(path: Path, described: dict[str, dict[str, str]]) -> None:
    said, rows = described[path.name], pq.read_table(path)
    assert said["rows"] == f"{rows.num_rows:,}"
    if path.stem.endswith("-sentinels"):
        assert set(rows["device_name"].to_pylist()) == {said["device"]}
        return
    origin: Any = json.loads(rows.schema.metadata[b"gemm-farm"])
    assert said["device"] == origin["device_name"]
    assert said["cards"] == str(len(set(rows["device_uuid"].to_pylist())))
    assert said["with power"] == f"{rows.num_rows - rows['power_w'].null_count:,}"
    assert rows["campaign"].unique().to_pylist() == [said["campaign"]]
    ends = pc.min_max(rows["measured_at"]).as_py()
    days = list(dict.fromkeys(f"{ends[end]:%Y-%m-%d}" for end in ("min", "max")))
    assert said["measured (UTC)"] == " to ".join(days)
    assert rows["source"].unique().to_pylist() == ["measured"]
    families = [f"{count:,}" for count in Counter(rows["family"].to_pylist()).values()]
    assert re.findall(r"\(([\d,]+) rows\)", said["what it shows"]) in ([], families)
    named = {name for row in table_rows(README, "column") for name in re.findall(r"\w+", row["column"])}
    assert set(rows.column_names) <= named


def test_every_count_of_rows_in_the_tutorial_is_that_of_the_file() -> None:
    """The table of datasets has the rows and the rows with power of each; no other number stands beside a dataset's name."""
    shown = {row["dataset"]: row for row in table_rows((ROOT / "docs" / "tutorial.md").read_text(), "dataset")}
    assert sorted(shown) == NAMES
    for name, row in shown.items():
        tables = [pq.read_table(part.path, columns=["power_w", "device_uuid"]) for part in datasets.find(name).parts]
        assert row["rows"] == f"{sum(table.num_rows for table in tables):,}"
        assert row["with power"] == f"{sum(table.num_rows - table['power_w'].null_count for table in tables):,}"
