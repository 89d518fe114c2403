"""The wheel in clean environments, installed as users do it: each command that a message names for what is missing works."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from support.homes import need_embedded_services
from support.installations import ROOT, UV, Installation, make_dist, user_environment

pytestmark = [pytest.mark.release, pytest.mark.timeout(3000)]

EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
SMALL = ("embedded", "s3", "trainer", "web")
"""Extras that are installed. Of others, gigabytes or a GPU's, versions are resolved."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    (found,) = make_dist(tmp_path_factory.mktemp("made") / "dist").glob("*.whl")
    return found


def called(*command: object, **variables: str) -> str:
    done = subprocess.run(
        [str(word) for word in command], env={**user_environment(), **variables}, capture_output=True, text=True, check=False
    )  # fmt: skip
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def measures_the_quickstart(installation: Installation, *options: str) -> list[str]:
    """Follows messages to the end of the quickstart. The commands that they named."""
    need_embedded_services()
    try:
        followed = installation.follow_messages(" ".join(["farm run quickstart", *options]))
        rows = json.loads(installation.succeeds("farm results --campaign quickstart --json"))
        assert len(rows) > 10
    finally:
        installation.run("farm down")
    return followed


def test_pip_installs_a_farm_that_measures_trains_and_reports(wheel: Path, tmp_path: Path) -> None:
    called(sys.executable, "-m", "venv", tmp_path / "venv")
    farm = Installation(tmp_path / "venv" / "bin", tmp_path)
    farm.succeeds(f"pip install --quiet {wheel}")
    assert "farm run" in farm.succeeds("farm run --help")
    assert "paper-tiled" in farm.succeeds("farm replay")
    assert json.loads(farm.succeeds("farm measure 'blas(threads=1) 64x64x64 f32' --device cpu --json"))["measurement"]
    followed = measures_the_quickstart(farm)
    assert followed == [f"pip install '{wheel}[{extra}]'" for extra in ("trainer", "embedded")]
    assert farm.follow_messages("farm report quickstart") == [f"pip install '{wheel}[web]'"]
    farm.succeeds("pip check")
    # A link that an upgrade switches: programs that were started through it name the folder of their release.
    farm.succeeds("ln -sfn venv current")
    assert "usage" in farm.succeeds("current/bin/farm-coordinator --help")
    first = (tmp_path / "venv" / "bin" / "farm-coordinator").read_text().splitlines()[0]
    assert first.startswith(f"#!{tmp_path}/venv/bin/python")


def test_uv_pip_installs_into_an_environment_without_pip(wheel: Path, tmp_path: Path) -> None:
    called(UV, "venv", "--quiet", "--python", sys.executable, tmp_path / "venv")
    called(UV, "pip", "install", "--quiet", "--python", tmp_path / "venv", wheel)
    farm = Installation(tmp_path / "venv" / "bin", tmp_path, path=[UV.parent])
    (followed,) = measures_the_quickstart(farm, "--no-train")
    assert followed == f"uv pip install --python {tmp_path}/venv/bin/python '{wheel}[embedded]'"


def test_uv_tool_installs_a_farm_that_measures(wheel: Path, tmp_path: Path) -> None:
    folders = {"UV_TOOL_DIR": str(tmp_path / "tools"), "UV_TOOL_BIN_DIR": str(tmp_path / "bin")}
    called(UV, "tool", "install", "--quiet", "--python", sys.executable, f"{wheel}[s3]", **folders)
    assert {path.name for path in (tmp_path / "bin").iterdir()} == {
        "farm", "farm-coordinator", "farm-worker", "farm-trainer",
    }  # fmt: skip
    farm = Installation(tmp_path / "bin", tmp_path, folders, [UV.parent])
    (followed,) = measures_the_quickstart(farm, "--no-train")
    assert followed == f"uv tool install --force '{wheel}[s3,embedded]'"


def test_pipx_installs_a_farm_that_measures(wheel: Path, tmp_path: Path) -> None:
    called(UV, "venv", "--quiet", "--python", sys.executable, tmp_path / "pipx")
    called(UV, "pip", "install", "--quiet", "--python", tmp_path / "pipx", "pipx")
    folders = {"PIPX_HOME": str(tmp_path / "home"), "PIPX_BIN_DIR": str(tmp_path / "bin"), "PIPX_MAN_DIR": str(tmp_path / "man")}  # fmt: skip
    programs = tmp_path / "pipx" / "bin"
    called(programs / "pipx", "install", "--quiet", "--python", sys.executable, wheel, **folders)
    farm = Installation(tmp_path / "bin", tmp_path, folders, [programs])
    (followed,) = measures_the_quickstart(farm, "--no-train")
    assert followed == f"pipx runpip gemm-farm install '{wheel}[embedded]'"


@pytest.mark.parametrize("extra", EXTRAS)
def test_an_extra_can_be_had(wheel: Path, tmp_path: Path, extra: str) -> None:
    called(UV, "venv", "--quiet", "--python", sys.executable, tmp_path / "venv")
    dry = [] if extra in SMALL else ["--dry-run"]
    called(UV, "pip", "install", "--quiet", *dry, "--python", tmp_path / "venv", f"{wheel}[{extra}]")
    if not dry:
        called(UV, "pip", "check", "--quiet", "--python", tmp_path / "venv")


def test_an_installation_of_a_target_folder_finds_its_datasets(wheel: Path, tmp_path: Path) -> None:
    called(sys.executable, "-m", "venv", tmp_path / "venv")
    farm = Installation(tmp_path / "venv" / "bin", tmp_path, {"PYTHONPATH": str(tmp_path / "target")})
    farm.succeeds(f"pip install --quiet --target target {wheel}")
    assert "paper-tiled" in farm.succeeds("python -m farm replay")


def test_a_farm_is_built_of_the_sdist_alone(wheel: Path, tmp_path: Path) -> None:
    (sdist,) = wheel.parent.glob("*.tar.gz")
    called(UV, "venv", "--quiet", "--python", sys.executable, tmp_path / "venv")
    called(UV, "pip", "install", "--quiet", "--python", tmp_path / "venv", sdist)
    assert "paper-tiled" in Installation(tmp_path / "venv" / "bin", tmp_path).succeeds("farm replay")
