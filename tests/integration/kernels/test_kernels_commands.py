"""`farm kernels`, and what commands say of kernels that jobs wait for."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from sqlalchemy import Engine

from farm.builds.cache import KernelCache
from farm.campaign import Campaign
from farm.cli.run import _require_builder
from farm.db import devices, kernels
from farm.db.campaigns import Stored
from farm.errors import NoBuilder
from farm.services import ServiceUrls
from farm.services.session import Session
from farm.settings import Settings
from support.commands import farm_here, farm_in, refused
from support.kernel_builds import TOOLCHAINS_HERE, Submit, awaited, let_go
from support.samples import ahead
from support.toolkit import Toolkit

CAMPAIGN = (
    "name: ahead\nproblems: {m: [64, 128], n: 64, k: 32, types: [f16]}\nkernels: [{family: cutlass, stages: [2, 3]}]\n"
)


def test_kernels_are_built_in_one_place_and_added_to_a_farm_in_another(
    engine: Engine, gpu: int, submit: Submit, database_url: str, toolkit: Toolkit, tmp_path: Path
) -> None:
    (tmp_path / "ahead.yaml").write_text(CAMPAIGN)
    farm = farm_here(tmp_path, database_url)
    given = ("kernels", "build", "ahead.yaml", "--arch", "sm_90a", "-o", "out")
    built = farm(*given, "--json", **toolkit.variables)
    assert built.returncode == 0, built.stderr
    assert len(json.loads(built.stdout)["kernels"]) == 2
    again = farm(*given, **toolkit.variables)
    assert again.stdout.startswith("2 kernels of ")
    assert "0 were built now" in again.stdout
    assert len(toolkit.compiled()) == 2
    stored = submit(Campaign.from_document(ahead()))
    assert json.loads(farm("kernels", "add", "out", "--json").stdout) == {"added": 2, "known": 0, "refused": []}
    assert let_go(engine) == 12
    assert awaited(engine, stored) == (0, 0, 0)
    listed = json.loads(farm("kernels", "list", "--json").stdout)
    assert [kernel["state"] for kernel in listed["kernels"]] == ["built", "built"]
    refused(farm("kernels", "add", str(tmp_path)), 2, "holds no built kernels")


def test_people_are_told_what_is_waited_for_and_who_would_build_it(
    engine: Engine, gpu: int, database_url: str, tmp_path: Path
) -> None:
    (tmp_path / "ahead.yaml").write_text(CAMPAIGN)
    farm = farm_here(tmp_path, database_url)
    assert "2 kernels are needed, built ahead of time." in farm("submit", "ahead.yaml", "--dry-run").stdout
    with engine.begin() as connection:
        devices.heartbeat(connection, gpu)
    told = farm("submit", "ahead.yaml")
    assert "4 of them wait for 2 kernels to be built." in told.stdout
    assert "No builder with cutlass 4.2.0, cuda 13.0.88 is running" in told.stderr
    assert "on a host with the extra build" in told.stderr
    status = json.loads(farm("status", "ahead", "--json").stdout)
    lacking = ["cutlass 4.2.0, cuda 13.0.88"]
    assert status["kernels_awaited"] == {"kernels": 2, "building": 0, "jobs": 4, "without_builder": lacking}
    assert "kernels: 4 jobs wait for 2 to be built (0 in progress)" in farm("status", "ahead").stdout
    listed = farm("kernels", "list", "ahead")
    assert listed.stdout.count("wanted") == 2
    assert "Builders: none" in listed.stderr
    assert "ahead waits for no kernels" in farm("kernels", "list", "ahead", "--state", "built").stdout


def test_a_run_that_nobody_can_build_for_ends_and_says_so(engine: Engine, stored: Stored, database_url: str) -> None:
    opened = Session(Settings(), ServiceUrls(database_url, None, "sqlite://"), engine)
    with engine.begin() as connection:
        kernels.announce(connection, "elsewhere", toolchains=TOOLCHAINS_HERE[1:], slots=1)
        with pytest.raises(
            NoBuilder, match=r"12 jobs need 2 kernels .* those of cutlass 4.2.0, cuda 13.0.88.*\[build\]"
        ):
            _require_builder(opened, connection, stored.campaign_id, [])
        _require_builder(opened, connection, stored.campaign_id, TOOLCHAINS_HERE[:1])
        kernels.announce(connection, "elsewhere", toolchains=TOOLCHAINS_HERE, slots=1)
        _require_builder(opened, connection, stored.campaign_id, [])


@pytest.mark.long
@pytest.mark.skipif(importlib.util.find_spec("cutlass_library") is None, reason="the extra build is not installed")
def test_the_small_campaign_builds_with_the_real_compiler(database_url: str, tmp_path: Path) -> None:
    few = str(Path(__file__).parents[3] / "examples" / "campaigns" / "cutlass-few.yaml")
    built = farm_in(tmp_path, database_url, timeout_s=280)("kernels", "build", few, "--arch", "sm_90a", "-o", "out")
    assert built.returncode == 0, built.stderr
    assert built.stdout.startswith("12 kernels of ")
    assert len(list(KernelCache(tmp_path / "out").records())) == 12


def test_kernels_build_says_what_does_not_compile_and_keeps_the_rest(
    database_url: str, toolkit: Toolkit, tmp_path: Path
) -> None:
    (tmp_path / "ahead.yaml").write_text(CAMPAIGN)
    toolkit.refuse("-DSTAGES=3")
    given = ("kernels", "build", "ahead.yaml", "--arch", "sm_80", "--arch", "sm_90a", "-o", "out")
    built = farm_here(tmp_path, database_url)(*given, **toolkit.variables)
    assert built.returncode == 6
    assert built.stdout.count("it is refused") == 2
    assert len(list(KernelCache(tmp_path / "out").records())) == 2
    assert "2 of 4 kernels are not there" in built.stderr


def test_kernels_build_refuses_what_makes_no_sense(database_url: str, toolkit: Toolkit, tmp_path: Path) -> None:
    (tmp_path / "plain.yaml").write_text(
        "name: plain\nproblems: {m: 64, n: 64, k: 32, types: [f32]}\nkernels: [{family: tiled}]\n"
    )
    farm = farm_here(tmp_path, database_url)
    refused(farm("kernels", "build", "plain.yaml", "--arch", "sm_90a"), 2, "needs a kernel that is built ahead")
    refused(farm("kernels", "build", "plain.yaml", "--arch", "hopper"), 2, "Write it as nvcc does, as in sm_90a")
