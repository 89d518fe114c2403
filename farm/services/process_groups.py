"""Process groups: a process and its descendants, managed by the parent without a guardian.

The process leads a session of its own, and what it starts stays in its process group. When it ends, the parent kills
the rest of the group, and collects it where the parent is a subreaper (`collect_orphans`). When the parent ends, the
kernel ends the process, which asks for that with `end_with_parent`. For programs of the farm, which call it; any other
program is run under a guardian (see `farm.services.guardian`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence

from farm.services.guardian import PR_SET_CHILD_SUBREAPER, PR_SET_PDEATHSIG, prctl
from farm.variables import PARENT_PID

POLL_SECONDS = 0.05


def collect_orphans() -> None:
    """Makes this process the parent of orphaned descendants (subreaper)."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)


def end_with_parent(number: signal.Signals, parent: int | None = None) -> None:
    """Sends this process a signal when its parent ends. `parent`: the expected parent; None: the present one.

    The kernel follows the thread that started this process, so that thread must live as long as its process.
    """
    prctl(PR_SET_PDEATHSIG, number)
    if parent is not None and os.getppid() != parent:  # it ended before
        os.kill(os.getpid(), number)


def end_with_starter() -> None:
    """For a program that `ProcessGroup` starts: SIGTERM comes when its starter ends."""
    if (parent := os.environ.get(PARENT_PID)) is not None:
        end_with_parent(signal.SIGTERM, int(parent))


class ProcessGroup:
    """A command that was started in a process group of its own."""

    def __init__(self, command: Sequence[str], *, environment: Mapping[str, str], grace_s: float) -> None:
        self._grace_s = grace_s
        self._kill_at: float | None = None
        self._leader = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            env={**environment, PARENT_PID: str(os.getpid())},
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self._leader.pid

    def poll(self) -> int | None:
        """The exit status of the command, or None while it or anything that it started lives."""
        if self._leader.poll() is None:
            if self._kill_at is not None and time.monotonic() >= self._kill_at:
                self._kill()
            return None
        self._kill()
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-self.pid, os.WNOHANG)[0]:
                pass
            return None  # something of it lives still
        return self._leader.returncode

    def terminate(self) -> None:
        """Sends SIGTERM to the command. `poll` and `wait` kill the group after the grace time."""
        if self._kill_at is None:
            self._kill_at = time.monotonic() + self._grace_s
        self._leader.terminate()

    def wait(self) -> int:
        """Waits until the command and all its descendants have ended."""
        while (status := self.poll()) is None:
            time.sleep(POLL_SECONDS)
        return status

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
