"""`farm` as people use it: on a database of the test's own, with no broker and an empty registry."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from unittest.mock import patch

import pytest

from farm.cli.app import carry_out
from farm.settings import settings

Command = Callable[..., subprocess.CompletedProcess[str]]

NOWHERE = "postgresql://nobody@127.0.0.1:1/none"
"""Where no database answers."""


def farm_in(folder: Path, database_url: str, *, timeout_s: float = 240) -> Command:
    """Runs `farm` with the given arguments, and environment variables as keyword arguments, in a process of its own."""

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "farm", *arguments],
            cwd=folder,
            env=_environment(folder, database_url, environment),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    return run


def farm_here(folder: Path, database_url: str) -> Command:
    """As `farm_in`, in this process: one of its own takes a second and more to import what it needs.

    For all but what a process has to itself: signals, the log, a terminal, what its children import.
    """

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return called(arguments, folder, _environment(folder, database_url, environment))

    return run


def called(arguments: Sequence[str], folder: Path, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """What `farm` did in this process, as if it were one of its own in that folder and environment."""
    stdout, stderr = io.StringIO(), io.StringIO()
    settings.cache_clear()
    try:
        with (
            contextlib.chdir(folder),
            patch.dict(os.environ, environment, clear=True),
            contextlib.redirect_stdout(stdout),
            contextlib.redirect_stderr(stderr),
            pytest.raises(SystemExit) as ended,
        ):
            carry_out(arguments)
    finally:
        settings.cache_clear()
    return subprocess.CompletedProcess(arguments, ended.value.code, stdout.getvalue(), stderr.getvalue())


def _environment(folder: Path, database_url: str, more: dict[str, str]) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("FARM_", "MLFLOW_"))}
    here = {
        "FARM_HOME": str(folder / ".farm"),
        "FARM_DATABASE_URL": database_url,
        "FARM_BROKER_URL": f"redis+socket://{folder}/no.sock",
        "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db",
        "FARM_MODEL_SIGNING_KEY": os.environ["FARM_TEST_MODEL_KEY"],
    }
    return {**kept, **here, **more}


def refused(done: subprocess.CompletedProcess[str], code: int, *says: str) -> None:
    """The command ended with that exit code and a message with those words, and printed no data and no traceback."""
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    for words in says:
        assert words in done.stderr, done.stderr
