"""A home of a farm, and the command line in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from support.commands import called


@dataclass(frozen=True)
class Farm:
    """A farm home of its own, and the command line on it."""

    folder: Path
    devices: str = "cpu"

    def __call__(self, *arguments: str, code: int = 0, timeout: float = 280) -> subprocess.CompletedProcess[str]:
        """What starts programs is a process of its own. What asks is not: one more second each time, of imports."""
        if arguments[0] in ("run", "train"):
            done = subprocess.run(
                [sys.executable, "-m", "farm", *arguments],
                cwd=self.folder,
                env=self.environment,
                capture_output=True,
                text=True,
                timeout=timeout,
                check=False,
            )
        else:
            done = called(arguments, self.folder, self.environment)
        assert done.returncode == code, f"{arguments} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr
        return done

    @property
    def environment(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("FARM_", "MLFLOW_"))}
        home = self.folder / ".farm"
        # Other tests may serve this processor at the same time.
        return {
            **kept, "FARM_HOME": str(home), "FARM_DEVICE_LOCKS": f"{home}-locks", "FARM_DEVICES": self.devices
        }  # fmt: skip

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "--json").stdout)

    def processes(self) -> list[psutil.Process]:
        """Everything that runs for this home."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.status() != psutil.STATUS_ZOMBIE and str(self.folder) in " ".join(
                    (*process.cmdline(), process.environ().get("FARM_HOME", ""))
                ):
                    found.append(process)
            except psutil.Error:
                continue
        return found
