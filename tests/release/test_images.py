"""The stages of the Dockerfile, as far as they run without containers: what is copied, installed and started."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.installations import ROOT, UV, user_environment

pytestmark = [pytest.mark.release, pytest.mark.timeout(3000)]

STAGES: dict[str, str] = dict(
    re.findall(r"^FROM \S+ AS (\w+)\n(.*?)(?=^FROM|\Z)", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE | re.DOTALL)
)  # fmt: skip
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
LARGE = {"gpu", "build"}
"""Stages with gigabytes of packages, whose versions are only resolved."""


class Image:
    """A folder in the place of an image's root, with an environment in the place of its Python."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.work = root / "opt" / "gemm-farm"
        self.work.mkdir(parents=True)
        self.python = root / "venv" / "bin" / "python"
        self._call(str(UV), "venv", "--quiet", "--python", sys.executable, str(root / "venv"))

    def build(self, stage: str, *, dry: bool = False) -> None:
        """Runs the COPY and RUN lines of a stage, less those that need root."""
        for line in re.sub(r"\\\n", " ", STAGES[stage]).splitlines():
            word, _, rest = line.partition(" ")
            if word == "COPY":
                self._copy(rest.split())
            elif word == "RUN" and not re.match(r"useradd|apt-get", rest):
                self._run(rest.replace("${CUDA_EXTRA}", "cuda13"), dry=dry)

    def _copy(self, words: list[str]) -> None:
        other = None if not words[0].startswith("--from=") else self.root.parent / words.pop(0).removeprefix("--from=")
        *sources, target = words
        place = self.root / target.lstrip("/") if target.startswith("/") else self.work / target
        for source in sources:
            found = (ROOT if other is None else other) / source.lstrip("/")
            assert other is not None or _in_context(source), f"{source} is not in the context of .dockerignore"
            if found.is_dir():
                shutil.copytree(found, place, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(found, place / found.name)

    def _run(self, line: str, *, dry: bool) -> None:
        line = re.sub(r"^pip install", f"{UV} pip install --python {self.python}", line)
        line = re.sub(r"\buv pip install --system", f"{UV} pip install --python {self.python}", line)
        line = line.replace("--compile-bytecode ", "").replace("/dist", f"{self.root}/dist")
        line = re.sub(r"^python ", f"{self.python} ", line)
        self._call("bash", "-euc", line.replace(" install ", " install --dry-run ") if dry else line)

    def _call(self, *words: str) -> None:
        variables = {**user_environment(), "UV_QUIET": "1"}
        done = subprocess.run(words, cwd=self.work, env=variables, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{words}\n{done.stderr[-3000:]}"


def _in_context(name: str) -> bool:
    kept = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    return name in kept or any(one.startswith(f"{name}/") for one in kept)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an image for each stage; that of the wheel is built."""
    folder = tmp_path_factory.mktemp("images")
    image = Image(folder / "wheel")
    image.build("base")
    image.build("wheel")
    return folder


@pytest.mark.parametrize("stage", sorted(set(STAGES) - {"base", "wheel"}))
def test_a_stage_installs_and_its_programs_start(images: Path, stage: str) -> None:
    image = Image(images / stage)
    image.build("base")
    image.build(stage, dry=stage in LARGE)
    if stage in LARGE:
        return
    programs = {
        tuple(words[:3] if words[:2] == ["python", "-m"] else words[:1])
        for service in COMPOSE["services"].values()
        if service.get("build", {}).get("target") == stage
        for words in [service["command"]]
        if words[0] != "sh"
    }
    for program in programs:
        image._call(str(image.python.with_name(program[0])), *program[1:], "--help")
    if stage != "mlflow":
        image._call(str(image.python.with_name("farm")), "replay")
        image._call(str(image.python), "-c", "from farm.db.migrate import MIGRATIONS; assert any(MIGRATIONS.iterdir())")
