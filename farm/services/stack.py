"""The processes of one machine other than its services: the coordinator, the workers, the trainer and the builder."""

from __future__ import annotations

import fcntl
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from farm import python_program
from farm.broker.queues import BUILD_QUEUE, TRAIN_QUEUE
from farm.builds import installed_toolchains
from farm.errors import ProgramEnded
from farm.services import guardian
from farm.services.embedded import ServiceUrls
from farm.services.home import Home
from farm.services.log_rotation import set_aside
from farm.services.processes import end_tree, last_lines, start_guarded
from farm.settings import Settings, environment_for_children, settings
from farm.variables import IDLE_EXIT_SECONDS

GRACE_S = 40.0
"""Time of a program to end after SIGTERM. Workers take up to 30 s to finish their jobs."""


@dataclass(frozen=True, slots=True)
class Program:
    """One process of the stack."""

    name: str
    command: tuple[str, ...]
    # Its queue. `farm up` runs such a program only while there is work for it.
    queue: str | None = None


COORDINATOR = Program("coordinator", tuple(python_program.program("farm.coordinator")))
WORKERS = Program("workers", tuple(python_program.program("workers.main")))
TRAINER = Program("trainer", tuple(python_program.program("trainer.main")), queue=TRAIN_QUEUE)
BUILDER = Program("builder", tuple(python_program.program("workers.main", "--build")), queue=BUILD_QUEUE)


KNOWN = {program.name: program for program in (COORDINATOR, TRAINER, BUILDER, WORKERS)}
"""Programs of a machine, in the order of their start."""


def programs(settings: Settings, *, workers: bool, trainer: bool, builder: bool) -> tuple[Program, ...]:
    """The known programs, with or without those; the builder only where this machine can build."""
    without = {
        *(() if workers else (WORKERS,)),
        *(() if trainer else (TRAINER,)),
        *(() if builder and installed_toolchains(settings) else (BUILDER,)),
    }
    return tuple(program for program in KNOWN.values() if program not in without)


class _Running:
    """A program under its guardian (see `farm.services.guardian`)."""

    def __init__(
        self,
        program: Program,
        log: Path,
        environment: dict[str, str],
        grace_s: float,
        lock: IO[str],
    ) -> None:
        self.log, self.lock, self._grace_s = log, lock, grace_s
        max_log_bytes = settings().log_max_bytes
        set_aside(log, max_log_bytes)
        self.log_start = log.stat().st_size if log.exists() else 0
        with log.open("ab") as output:
            self._guardian = start_guarded(
                program.command,
                environment=environment,
                grace_s=grace_s,
                log=log,
                max_log_bytes=max_log_bytes,
                # What the guardian itself has to say, such as a program that does not exist.
                stdout=output,
                stderr=subprocess.STDOUT,
                # If we are killed, the lock stays until the guardian has ended the program.
                pass_fds=(lock.fileno(),),
            )

    @property
    def pid(self) -> int:
        return self._guardian.pid

    def exit_code(self) -> int | None:
        return self._guardian.poll()

    def stop(self) -> None:
        """Asks it to end and waits; past its grace time everything of it is killed."""
        self._guardian.terminate()
        try:
            self._guardian.wait(self._grace_s + guardian.STRAGGLERS_GRACE_S + 5.0)
        except subprocess.TimeoutExpired:
            end_tree(self._guardian.pid)
            self._guardian.wait()
        finally:
            self.close()

    def close(self) -> None:
        if self._guardian.stdin is not None:
            self._guardian.stdin.close()


class Stack:
    """Starts programs as children, watches them, and stops them, workers first and the coordinator last.

    Ctrl-C in the terminal does not reach them, so the caller decides when they end. They end with the caller, even if it is
    killed. Their output goes to `logs/<name>.log` of the home.

    With `idle_exit_s`, a program with a queue waits for `restart`, ends after that many seconds without work, and waits again.

    A home runs each program once. A program of another process (`farm up`, another `farm run`) is taken over by `check` or
    `take_over` when that process stops it.
    """

    def __init__(
        self,
        urls: ServiceUrls,
        home: Path,
        *,
        programs: Sequence[Program],
        grace_s: float = GRACE_S,
        idle_exit_s: float | None = None,
    ) -> None:
        self._home = Home(home.resolve())
        self._programs = {program.name: program for program in programs}
        self._grace_s = grace_s
        self._running: dict[str, _Running] = {}  # in the order in which they started
        self._waiting: dict[str, IO[str]] = {}  # the locks of programs that wait for work
        self._on_demand = {p.name for p in programs if p.queue is not None and idle_exit_s is not None}
        self._environment = environment_for_children(
            FARM_HOME=str(self._home.path),
            FARM_DATABASE_URL=urls.database_url,
            MLFLOW_TRACKING_URI=urls.tracking_uri,
            **({"FARM_BROKER_URL": urls.broker_url} if urls.broker_url else {}),
        )
        self._until_idle = {} if idle_exit_s is None else {IDLE_EXIT_SECONDS: f"{idle_exit_s:g}"}

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    @classmethod
    def attach_or_start(cls, settings: Settings, urls: ServiceUrls, programs: Iterable[str]) -> Self:
        """A stack of the known programs of those names: of each, the one that runs already, or our own."""
        wanted = set(programs)
        return cls(urls, settings.home, programs=[p for p in KNOWN.values() if p.name in wanted])

    def start(self) -> None:
        """Starts every program that does not run in this or another process of this home."""
        Home.at(self._home.path)
        self.take_over()

    def take_over(self) -> list[str]:
        """Starts programs that another process has stopped. Returns their names."""
        return [name for name in self.elsewhere() if self._try_start(name)]

    def restart(self, name: str) -> None:
        """Starts a program of ours that has ended, or that waits for work."""
        self._launch(name, self._waiting.pop(name) if name in self._waiting else self._stopped(name))

    def rest(self, name: str) -> None:
        """From now on, a program of ours that has ended waits for work."""
        self._waiting[name] = self._stopped(name)

    def _stopped(self, name: str) -> IO[str]:
        """Ends the remains of a program of ours. Returns its lock, which is still held."""
        running = self._running.pop(name)
        running.stop()
        return running.lock

    def _try_start(self, name: str) -> bool:
        lock = (self._home.run / f"{name}.up.lock").open("a")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            return False
        if name in self._on_demand:
            self._waiting[name] = lock
        else:
            self._launch(name, lock)
        return True

    def _launch(self, name: str, lock: IO[str]) -> None:
        try:
            environment = {**self._environment, **(self._until_idle if name in self._on_demand else {})}
            program, log = self._programs[name], self._home.log(name)
            self._running[name] = _Running(program, log, environment, self._grace_s, lock)
        except BaseException:
            lock.close()
            raise

    def stop(self) -> None:
        """Stops all programs, the last started first, each with its grace time."""
        while self._running:
            _, running = self._running.popitem()
            running.stop()
            running.lock.close()
        while self._waiting:
            self._waiting.popitem()[1].close()

    def check(self) -> None:
        """Raises `ProgramEnded` (an `EmbeddedServiceFailed`) with its last output if a program of ours has ended."""
        self.take_over()
        for name in self.ended():
            running = self._running[name]
            raise ProgramEnded(
                service=name,
                how=_how(running.exit_code()),
                why=last_lines(running.log, since=running.log_start, lines=5),
                log=running.log,
            )

    def ended(self) -> list[str]:
        """Our programs that ended without a request."""
        return [name for name, running in self._running.items() if running.exit_code() is not None]

    def idled_out(self) -> list[str]:
        """Our programs that ended because they had no work."""
        return [name for name in self.ended() if name in self._on_demand and self._running[name].exit_code() == 0]

    def waiting(self) -> dict[str, Program]:
        """Our programs that wait for work."""
        return {name: self._programs[name] for name in self._waiting}

    def elsewhere(self) -> list[str]:
        """Programs that another process runs."""
        return [name for name in self._programs if name not in self._running and name not in self._waiting]

    def pids(self) -> dict[str, int]:
        """The process of each program of ours: its guardian, whose child it is."""
        return {name: running.pid for name, running in self._running.items()}

    def logs(self) -> dict[str, Path]:
        return {name: self._home.log(name) for name in self._programs}


def _how(exit_code: int | None) -> str:
    if exit_code is not None and exit_code > 128:
        return f"signal {exit_code - 128}"
    return f"exit code {exit_code}"
