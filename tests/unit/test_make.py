"""`make setup`, with a Python and a uv that only note what they are given."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]

PYTHON = """#!/bin/sh
case "$*" in
  *"pip install"*) ;;
  *"pip config list"*) {config} ;;
  *) exec {python} "$@" ;;
esac
"""
UV = '#!/bin/sh\necho "$UV_SYSTEM_CERTS|${{SSL_CERT_FILE:-}}" >> {notes}\n'


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder with what `make setup` needs, and a virtual environment in name."""
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(REPOSITORY / name, tmp_path)
    shutil.copytree(REPOSITORY / "requirements", tmp_path / "requirements")
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    return tmp_path


def certificates_of_uv(clone: Path, *, config: str = "", **variables: str) -> list[str]:
    """`UV_SYSTEM_CERTS|SSL_CERT_FILE` for each call of uv, where `pip config list` prints this."""
    programs, notes = clone / ".venv" / "bin", clone / "notes"
    (clone / "config").write_text(config)
    (programs / "python").write_text(PYTHON.format(python=sys.executable, config=f"cat {clone}/config"))
    (programs / "uv").write_text(UV.format(notes=notes))
    for program in programs.iterdir():
        program.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("UV_", "SSL_", "MAKE", "PIP_"))}
    done = subprocess.run(
        ["make", "--silent", "setup", f"PYTHON={sys.executable}"],
        cwd=clone,
        env={**kept, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return notes.read_text().splitlines()


def test_uv_trusts_the_certificates_of_the_system(clone: Path) -> None:
    assert certificates_of_uv(clone) == ["1|", "1|"]


def test_uv_trusts_the_certificates_that_pip_is_configured_with(clone: Path) -> None:
    config = ":env:.cert='/etc/own.pem'\nglobal.cert='/etc/all.pem'\nglobal.index-url='https://example/simple'\n"
    assert certificates_of_uv(clone, config=config) == ["1|/etc/own.pem"] * 2


def test_what_is_set_for_uv_stays(clone: Path) -> None:
    own = {"UV_SYSTEM_CERTS": "0", "SSL_CERT_FILE": "/etc/mine.pem"}
    assert certificates_of_uv(clone, **own) == ["0|/etc/mine.pem"] * 2


@pytest.mark.parametrize(
    ("arguments", "card", "campaign"),
    [
        (["EXTRA=cuda13"], True, "examples/campaigns/learn-quickstart.yaml"),
        (["EXTRA=cuda13"], False, "examples/campaigns/quickstart.yaml"),
        (["EXTRA=build"], True, "examples/campaigns/quickstart.yaml"),
        (["EXTRA="], True, "examples/campaigns/quickstart.yaml"),
        (["EXTRA=cuda12", "CAMPAIGN=own.yaml"], True, "own.yaml"),
    ],
)
def test_a_gpu_is_learned_about_where_its_extra_is_asked_for_and_a_card_is_there(
    clone: Path, arguments: list[str], card: bool, campaign: str
) -> None:
    if not card and Path("/proc/driver/nvidia/gpus").is_dir():
        pytest.skip("this machine has a card")
    programs = clone / "programs"
    programs.mkdir()
    (programs / "nvidia-smi").write_text("#!/bin/sh\n" + ("echo 'GPU 0: made up'\n" if card else "exit 9\n"))
    (programs / "nvidia-smi").chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    kept |= {"PATH": f"{programs}{os.pathsep}{kept['PATH']}"}
    done = subprocess.run(
        ["make", "--dry-run", "run", *arguments], cwd=clone, env=kept, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1].split()[-2:] == ["run", campaign]
