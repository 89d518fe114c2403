"""A package that is installed beside the farm adds a kernel family: `examples/family_package`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "examples" / "family_package"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which pip has installed the package."""
    folder = tmp_path_factory.mktemp("package")
    source = folder / "source"
    copied = ("pyproject.toml", "blocked_gemm/__init__.py", "blocked_gemm/worker.py")
    for name in copied:  # building leaves files beside the source
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text((PACKAGE / name).read_text())
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "--target", str(folder / "site"), str(source)], check=True, timeout=300)
    return folder / "site"


def farm(site: Path, home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(site), "FARM_HOME": str(home), "COLUMNS": "200"}
    command = [sys.executable, "-m", "farm", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)


def test_a_family_of_a_package_is_measured(installed: Path, tmp_path: Path) -> None:
    ran = farm(installed, tmp_path, "measure", "blocked(block=48) 100x90x110 f32 nt", "--device", "cpu", "--json")
    assert ran.returncode == 0, ran.stderr
    row = json.loads(ran.stdout)
    assert row["measurement"]["runtime_ms"] > 0
    assert row["measurement"]["details"]["block"] == 48
    assert row["measurement"]["verify_error"] < 1e-5


def test_a_campaign_file_is_checked_by_the_parameters_of_a_package(installed: Path, tmp_path: Path) -> None:
    file = tmp_path / "blocked.yaml"
    file.write_text(
        "name: blocked\nproblems: {shapes: 64x64x64, types: f32}\nkernels: {family: blocked, block: [8, 4096]}\n"
    )
    ran = farm(installed, tmp_path, "submit", str(file), "--dry-run")
    assert ran.returncode != 0
    assert "block goes from 8 to 1024" in ran.stderr


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("import nothing_of_that_name", "ModuleNotFoundError: No module named 'nothing_of_that_name'"),
        ("BLOCKED = 5", "blocked_gemm:BLOCKED is no KernelFamily"),
        ("from farm.kernels.blas import BLAS as BLOCKED", "its family 'blas' has the name of one of the farm itself"),
    ],
)
def test_a_package_that_cannot_be_used_is_named_and_other_families_work(
    installed: Path, tmp_path: Path, text: str, why: str
) -> None:
    site = tmp_path / "site"
    (site / "blocked_gemm").mkdir(parents=True)
    (site / "blocked_gemm" / "__init__.py").write_text(f"{text}\n")
    for info in installed.glob("*.dist-info"):
        (site / info.name).symlink_to(info)
    ran = farm(site, tmp_path, "measure", "blas(threads=1) 8x8x8 f32", "--device", "cpu", "--json")
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["measurement"]["runtime_ms"] > 0
    assert "the package blocked-gemm cannot be used" in ran.stderr
    assert why in " ".join(ran.stderr.split())
    assert "Traceback" not in ran.stderr


def test_a_worker_s_part_that_cannot_be_imported_fails_its_own_jobs_alone(installed: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    (site / "blocked_gemm").mkdir(parents=True)
    (site / "blocked_gemm" / "__init__.py").write_text((PACKAGE / "blocked_gemm" / "__init__.py").read_text())
    for info in installed.glob("*.dist-info"):
        (site / info.name).symlink_to(info)
    why = "the package blocked-gemm cannot be used: blocked_gemm.worker:BlockedFamily"
    ran = farm(site, tmp_path, "measure", "blas(threads=1) 8x8x8 f32", "--device", "cpu", "--json")
    assert ran.returncode == 0, ran.stderr
    assert why in " ".join(ran.stderr.split())
    ran = farm(site, tmp_path, "measure", "blocked(block=48) 100x90x110 f32 nt", "--device", "cpu")
    assert ran.returncode != 0
    assert why in " ".join(ran.stderr.split())
    assert "Traceback" not in ran.stderr
