"""Files of the packages: what `make dist` puts into the wheel and the sdist, by the build backend itself."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from support.installations import PACKED, ROOT


@pytest.fixture(scope="module")
def committed() -> set[str]:
    """The files that git has of the folders that are packed."""
    listed = subprocess.run(["git", "ls-files", "-z", *PACKED], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    return {name for name in listed.stdout.split("\0") if name and (ROOT / name).exists()}


def test_the_wheel_has_every_file_of_its_packages_and_all_examples(committed: set[str]) -> None:
    wheel = pytest.importorskip("hatchling.builders.wheel", reason="the environment has no hatchling: make setup")
    builder = wheel.WheelBuilder(str(ROOT))
    packed = {file.distribution_path for file in builder.recurse_included_files()}
    shared = {file.distribution_path for file in builder.recurse_forced_files(builder.config.shared_data)}
    data = {name for name in committed if name.startswith(("examples/", "deploy/"))}
    assert committed - data <= packed
    data = {f"share/gemm-farm/{name.removeprefix('examples/')}" for name in data}
    assert data <= shared
    assert {Path(name).parts[0] for name in packed} == {"farm", "workers", "trainer", "migrations"}


def test_the_sdist_has_what_the_wheel_is_built_of(committed: set[str]) -> None:
    sdist = pytest.importorskip("hatchling.builders.sdist", reason="the environment has no hatchling: make setup")
    packed = {file.distribution_path for file in sdist.SdistBuilder(str(ROOT)).recurse_included_files()}
    assert committed | {"CHANGELOG.md"} <= packed
    assert not {Path(name).parts[0] for name in packed} & {"tests", "docs", "benchmarks"}
