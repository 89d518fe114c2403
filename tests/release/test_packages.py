"""What `make dist` builds: the same bytes from the same commit, all that is committed, and nothing else."""

from __future__ import annotations

import json
import re
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

from support.installations import PACKED, ROOT, make_dist

pytestmark = pytest.mark.release


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone that somebody worked in: it has files that git does not know, and changes that are not committed."""
    folder = tmp_path_factory.mktemp("clone") / "gemm-farm"
    subprocess.run(["git", "clone", "--quiet", "--shared", str(ROOT), str(folder)], check=True)
    (folder / "farm" / "untracked.py").write_text("secret = 1\n")
    (folder / "examples" / "campaigns" / "untracked.yaml").touch()
    (folder / "farm" / "gpus.yaml").write_text("changed: true\n")
    return folder


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory, clone: Path) -> Path:
    return make_dist(tmp_path_factory.mktemp("one") / "dist", checkout=clone, umask=0o077, TZ="Asia/Tokyo")


def committed(*folders: str) -> set[str]:
    listed = subprocess.run(
        ["git", "ls-tree", "-r", "-z", "--name-only", "HEAD", *folders], cwd=ROOT, capture_output=True, text=True, check=True
    )  # fmt: skip
    return {name for name in listed.stdout.split("\0") if name}


def test_a_commit_gives_the_same_bytes_with_another_umask_folder_and_zone(
    dist: Path, tmp_path: Path, clone: Path
) -> None:
    again = make_dist(tmp_path / "dist", TZ="America/Lima")
    assert (again / "SHA256SUMS").read_text() == (dist / "SHA256SUMS").read_text()
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"], cwd=again, check=True)


def test_the_sdist_has_what_is_committed_and_nothing_else(dist: Path) -> None:
    (file,) = dist.glob("*.tar.gz")
    with tarfile.open(file) as sdist:
        found = {member.name.partition("/")[2]: member for member in sdist.getmembers()}
        gpus = sdist.extractfile(found["farm/gpus.yaml"])
        assert gpus is not None
        assert gpus.read() == subprocess.check_output(["git", "show", "HEAD:farm/gpus.yaml"], cwd=ROOT)
    more = {"PKG-INFO", "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", ".gitignore"}
    assert set(found) == committed(*PACKED) | more
    assert {member.mode for member in found.values()} <= {0o644, 0o755}
    assert {(member.uid, member.gid, member.uname) for member in found.values()} == {(0, 0, "")}


def test_the_wheel_has_what_is_committed_and_nothing_else(dist: Path) -> None:
    (file,) = dist.glob("*.whl")
    with zipfile.ZipFile(file) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
        (entries,) = (name for name in wheel.namelist() if name.endswith("entry_points.txt"))
        assert set(re.findall(r"^([\w-]+) =", wheel.read(entries).decode(), flags=re.MULTILINE)) == {
            "farm", "farm-coordinator", "farm-worker", "farm-trainer",
        }  # fmt: skip
    data = {
        f"gemm_farm-0.1.0.data/data/share/gemm-farm/{name.removeprefix('examples/')}" for name in committed(*PACKED[4:])
    }
    assert names == committed(*PACKED[:4]) | data


def test_a_bill_of_materials_has_every_package_of_its_lock_by_hash(dist: Path) -> None:
    files = sorted((dist / "sbom").iterdir())
    assert {file.name.partition(".")[0] for file in files} == {
        "trainer", "web", "worker", "worker-build", "worker-cuda12", "worker-cuda13", "worker-triton",
    }  # fmt: skip
    for file in files:
        bill = json.loads(file.read_text())
        assert bill["metadata"]["component"]["name"] == "gemm-farm"
        lock = (ROOT / "requirements" / f"{file.name.partition('.')[0]}.txt").read_text()
        pinned = re.findall(r"^([\w.-]+)(?:\[[\w,]+\])?==(\S+)", lock, flags=re.MULTILINE)
        found = {(one["name"].lower(), one["version"]) for one in bill["components"]}
        assert found == {(name.lower(), version) for name, version in pinned}
        assert all(one["externalReferences"][0]["hashes"] for one in bill["components"])


def test_a_bill_of_materials_is_valid(dist: Path) -> None:
    program = (
        "import sys; from cyclonedx.validation.json import JsonStrictValidator; from cyclonedx.schema import SchemaVersion\n"
        "print(JsonStrictValidator(SchemaVersion.V1_6).validate_str(sys.stdin.read()))"
    )
    python = ROOT / "build" / "dist-tools" / "bin" / "python"
    said = subprocess.run(
        [python, "-c", program], input=(dist / "sbom" / "worker.cdx.json").read_text(), capture_output=True, text=True, check=True
    )  # fmt: skip
    assert said.stdout.strip() == "None"


def test_a_folder_without_commits_is_told_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements" / "make-dist").write_text((ROOT / "requirements" / "make-dist").read_text())
    done = subprocess.run(
        ["bash", "requirements/make-dist"],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "GIT_CEILING_DIRECTORIES": str(tmp_path.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "pip wheel --no-deps ." in done.stderr
    assert list(tmp_path.iterdir()) == [tmp_path / "requirements"]


def test_a_folder_that_has_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    done = subprocess.run([ROOT / "requirements" / "make-dist", tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "Name another folder" in done.stderr
    assert (tmp_path / "thesis.tex").exists()
