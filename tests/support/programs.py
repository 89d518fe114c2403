"""The farm's programs as processes of a test: on the services and in the home that the test gives them."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
import redis
from sqlalchemy import Engine, text

from support.homes import environment, eventually

COORDINATOR = (sys.executable, "-m", "farm.coordinator")
FARM_WORKER = (sys.executable, "-m", "workers.main")

_JUST_BEGUN = text("""
SELECT count(*) FROM batches
WHERE jobs > 40 AND current_job_id IS NOT NULL AND claimed_at > clock_timestamp() - interval '2 s'
""")
"""Batches of some four seconds in their first half."""


def kill_in_a_batch(engine: Engine, measuring: Callable[[], Sequence[psutil.Process]]) -> None:
    """Kills the one process that measures, in the first half of a batch of some four seconds.

    It is stopped before the batch is looked at a second time: on a busy machine the batch may otherwise end in between.
    """

    def just_begun() -> bool:
        with engine.connect() as connection:
            return bool(connection.execute(_JUST_BEGUN).scalar_one())

    def killed() -> bool:
        if not just_begun():
            return False
        (process,) = measuring()
        process.suspend()
        if just_begun():
            process.kill()
            return True
        process.resume()
        return False

    eventually(killed)


class Program:
    """A process of the farm with its log."""

    def __init__(self, command: Sequence[str], log: Path, variables: dict[str, str]) -> None:
        self._log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(command, env=variables, stderr=output)

    def log(self) -> str:
        return self._log.read_text()

    @property
    def pid(self) -> int:
        return self._process.pid

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def wait(self) -> int:
        return self._process.wait(120)

    def stop(self) -> int:
        self._process.send_signal(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        """At once; what a farm-worker started ends with it."""
        self._process.kill()
        self._process.wait()

    def children_that_measure(self) -> list[psutil.Process]:
        """The child processes of Celery that this farm-worker's devices have."""
        return measuring(self._process.pid)


def measuring(pid: int) -> list[psutil.Process]:
    """The processes below this one in which devices measure: the child processes of Celery."""
    found = []
    for process in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has just ended
            if "spawn_main(" in " ".join(process.cmdline()):
                found.append(process)
    return found


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


_RESERVED: list[socket.socket] = []


def free_port() -> int:
    """A port of loopback that stays free until a program of the tests listens on it.

    The socket stays bound and never listens. So the kernel gives the port to nobody, but a server that sets SO_REUSEADDR, as
    all of ours do, can listen on it.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    _RESERVED.append(held)
    return int(held.getsockname()[1])


def redis_answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.RedisError:
        return False
