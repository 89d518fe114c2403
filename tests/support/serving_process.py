"""`farm serve` as a process of a test."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from support.homes import environment


class Serving:
    """A server that runs, its address, and what it wrote to stderr so far."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self._process = process
        self._said = list[str]()
        self._listener = threading.Thread(target=self._listen)
        self._listener.start()
        self.address = process.stdout.readline().strip()
        if not self.address:
            process.wait(120)
            self._listener.join()
            raise AssertionError(self.said)

    def _listen(self) -> None:
        assert self._process.stderr is not None
        with suppress(ValueError):  # closed at the end of the block, where a process of the server still has it open
            self._said.extend(iter(self._process.stderr.readline, ""))

    @property
    def said(self) -> str:
        return "".join(self._said)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Its exit code after that signal."""
        self._process.send_signal(number)
        code = self._process.wait(120)
        self._listener.join()
        return code


@contextmanager
def serving(folder: Path, database_url: str, *options: str, **variables: str) -> Iterator[Serving]:
    """`farm serve` on a free port of this machine, until the block ends."""
    named = {"FARM_DATABASE_URL": database_url, "PYTHONPATH": os.pathsep.join(sys.path), **variables}
    with subprocess.Popen(
        [sys.executable, "-m", "farm", "serve", "--port", "0", *options],
        cwd=folder,
        env=environment(folder / ".farm", **named),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Serving(process)
        finally:
            process.kill()
