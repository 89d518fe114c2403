"""Packages of a release, and environments in which they are installed as users do it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]

PACKED = (
    "farm",
    "workers",
    "trainer",
    "migrations",
    "examples/datasets",
    "examples/campaigns",
    "examples/kernels",
    "deploy",
)
"""Folders of the repository that are in the packages."""

UV = Path(sys.executable).parent / "uv"
_DROPPED = ("FARM_", "MLFLOW_", "PYTHON", "VIRTUAL_ENV", "UV_PYTHON", "UV_PROJECT", "GIT_")


def make_dist(folder: Path, *, checkout: Path = ROOT, umask: int = 0o022, **variables: str) -> Path:
    """The packages of the last commit of a checkout."""
    done = subprocess.run(
        [checkout / "requirements" / "make-dist", folder],
        env={**user_environment(), "UV": str(UV), "PYTHON": sys.executable, **variables},
        umask=umask,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


def user_environment() -> dict[str, str]:
    """The variables of somebody who never heard of this checkout."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_DROPPED)}
    own = str(Path(sys.executable).parent)
    return {**kept, "PATH": os.pathsep.join(part for part in kept["PATH"].split(os.pathsep) if part != own)}


@dataclass(frozen=True)
class Installation:
    """An environment with the farm, and a folder in which it is used.

    Attributes:
        programs: The folder with `farm`.
        folder: The working folder, which has its home.
        variables: More variables.
        path: More folders with programs, such as those of an installer.
    """

    programs: Path
    folder: Path
    variables: Mapping[str, str] = field(default_factory=dict)
    path: Sequence[Path] = ()

    def run(self, command: str | Sequence[str], timeout: float = 1500) -> subprocess.CompletedProcess[str]:
        """Runs a command, or a line of the shell, as a user of the environment does."""
        return subprocess.run(
            ["bash", "-c", command] if isinstance(command, str) else [*command],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def succeeds(self, command: str | Sequence[str]) -> str:
        done = self.run(command)
        assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        return done.stdout

    def follow_messages(self, command: str, commands: int = 4) -> list[str]:
        """Runs a command until it succeeds, and each command that its errors name for a missing extra. Those commands."""
        followed: list[str] = []
        while (done := self.run(command)).returncode != 0:
            assert "Traceback" not in done.stderr, done.stderr
            text = " ".join(done.stderr.split())
            named = re.search(r"((?:pip|pipx|uv) [^;()]*?(?:'[^']*\[[^']*\]'|\S+\[\S+\]))", text)
            assert named is not None, f"no command in: {text}\n{done.stdout[-1000:]}"
            followed.append(named[1])
            assert len(followed) <= commands, followed
            self.succeeds(named[1])
        return followed

    @property
    def environment(self) -> dict[str, str]:
        usual = user_environment()
        path = os.pathsep.join(map(str, (self.programs, *self.path, usual["PATH"])))
        home = self.folder / ".farm"
        locks = {"FARM_HOME": str(home), "FARM_DEVICE_LOCKS": f"{home}-locks", "FARM_DEVICES": "cpu"}
        return {**usual, **locks, "COLUMNS": "1000", "PATH": path, **self.variables}
