"""The farm's programs as processes of a test: on the services and in the home that the test gives them."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
from homes import environment

COORDINATOR = (sys.executable, "-m", "farm.coordinator")
FARM_WORKER = (sys.executable, "-m", "workers.main")

JUST_BEGUN = """
SELECT count(*) FROM batches
WHERE jobs > 40 AND current_job_id IS NOT NULL AND claimed_at > clock_timestamp() - interval '2 s'
"""
"""Batches of some four seconds in their first half."""


class Program:
    """A process of the farm with its log."""

    def __init__(self, command: Sequence[str], log: Path, variables: dict[str, str]) -> None:
        self._log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(command, env=variables, stderr=output)

    def log(self) -> str:
        return self._log.read_text()

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def wait(self) -> int:
        return self._process.wait(60)

    def stop(self) -> int:
        self._process.send_signal(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        """At once; of farm-worker, the guardians then end what it started."""
        self._process.kill()
        self._process.wait()

    def children_that_measure(self) -> list[psutil.Process]:
        """The child processes of Celery that this farm-worker's devices have."""
        family = psutil.Process(self._process.pid).children(recursive=True)
        return [process for process in family if "spawn_main(" in " ".join(process.cmdline())]


Start = Callable[..., Program]


@contextmanager
def programs(folder: Path, **variables: str) -> Iterator[Start]:
    """Starts programs with the home `folder/.farm` and those variables, and ends them after the block."""
    started: list[Program] = []

    def start(command: Sequence[str], *arguments: str, name: str = "program", **more: str) -> Program:
        log = folder / f"{name}-{len(started)}.log"
        started.append(Program([*command, *arguments], log, environment(folder / ".farm", **{**variables, **more})))
        return started[-1]

    try:
        yield start
    finally:
        for program in started:
            program.kill()


def free_port() -> int:
    """A port of loopback on which nothing listens now."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])
