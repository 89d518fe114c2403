"""`farm` as people use it: a process of its own, on a database of the test's own, with no broker and an empty registry."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from farm.cli.app import app
from farm.errors import FarmError
from farm.settings import settings

Command = Callable[..., subprocess.CompletedProcess[str]]


def farm_in(folder: Path, database_url: str, *, timeout_s: float = 60) -> Command:
    """Runs `farm` with the given arguments, and environment variables as keyword arguments."""

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("FARM_", "MLFLOW_"))}
        here = {
            "FARM_HOME": str(folder / ".farm"),
            "FARM_DATABASE_URL": database_url,
            "FARM_BROKER_URL": f"redis+socket://{folder}/no.sock",
            "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db",
        }
        return subprocess.run(
            [sys.executable, "-m", "farm", *arguments],
            cwd=folder,
            env={**kept, **here, **environment},
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    return run


def farm_here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """As `farm_in` for commands that need a registry alone, in this process: MLflow takes seconds to import."""
    monkeypatch.setenv("FARM_HOME", str(folder / ".farm"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder}/mlflow.db")

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        settings.cache_clear()
        done = CliRunner().invoke(app, arguments)
        settings.cache_clear()
        error = done.exception
        if isinstance(error, FarmError):
            return subprocess.CompletedProcess(arguments, error.exit_code, done.stdout, f"{done.stderr}error: {error}")
        if error is not None and not isinstance(error, SystemExit):
            raise error
        return subprocess.CompletedProcess(arguments, done.exit_code, done.stdout, done.stderr)

    return run


def refused(done: subprocess.CompletedProcess[str], code: int, *says: str) -> None:
    """The command ended with that exit code and a message with those words, and printed no data and no traceback."""
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    for words in says:
        assert words in done.stderr, done.stderr
