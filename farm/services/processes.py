"""Starts, identifies and ends processes that outlive the command that started them.

After a crash or a reboot, a process number may belong to another program. So a process is identified by its number with its start
time, or by its working directory.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from farm.services import guardian

ENDING_SECONDS = 10.0
"""Maximum time to end a process with its descendants. No signal reaches a process that waits in a driver."""


@dataclass(frozen=True, slots=True)
class Account:
    """An account of this machine that a service runs under."""

    name: str
    uid: int
    gid: int

    def as_popen_arguments(self) -> dict[str, Any]:
        """Arguments of `subprocess` to run as this user, without the caller's groups."""
        return {"user": self.uid, "group": self.gid, "extra_groups": []}


def become(user: Account | None) -> dict[str, Any]:
    """Arguments of `subprocess` to run as `user`; None: the present account."""
    return user.as_popen_arguments() if user else {}


@cache
def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def start_stamp(pid: int) -> str | None:
    """Start time of a live process: the boot id, and clock ticks since. None if there is no such process.

    A zombie counts as ended: the first process of a container may never collect it.
    """
    try:
        # The name in parentheses may hold anything, so fields are counted from behind it (proc_pid_stat(5)).
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    state, start_ticks = fields[0], fields[19]
    return None if state in "ZX" else f"{_boot()}:{start_ticks}"


def is_alive(pid: int, stamp: str | None = None) -> bool:
    """Whether the process is alive and, if a stamp is given, has this stamp."""
    found = start_stamp(pid)
    return found is not None and stamp in (None, found)


def works_in(pid: int, folder: Path, *names: str) -> bool:
    """Whether a live process of one of those program names has `folder` as its working directory."""
    if not is_alive(pid):
        return False
    try:
        process = psutil.Process(pid)
        return process.name() in names and process.cwd() == str(folder)
    except psutil.Error:
        return False


def all_working_in(folder: Path, *names: str) -> list[int]:
    """The live processes of those program names whose working directory is `folder`."""
    return [pid for pid in psutil.pids() if works_in(pid, folder, *names)]


def start_detached(
    command: Sequence[str],
    *,
    log: Path,
    environment: Mapping[str, str],
    folder: Path,
    user: Account | None = None,
    private: bool = False,
) -> int:
    """Starts a command in a session of its own, no child of ours, with its output appended to `log`.

    Ctrl-C in the terminal does not reach it, and no parent must collect it. With `private`, only its user can read its
    new files. Returns its process number.
    """
    with log.open("ab") as output:
        launched = subprocess.run(
            ["/bin/sh", "-c", '"$@" >&2 & echo $!', "sh", *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=output,
            env=dict(environment),
            cwd=folder,
            start_new_session=True,
            umask=0o077 if private else -1,
            check=True,
            **become(user),
        )
    return int(launched.stdout)


def start_guarded(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    grace_s: float,
    log: Path | None = None,
    max_log_bytes: int = 0,
    **options: Any,
) -> subprocess.Popen[bytes]:
    """Starts a command under a guardian (see `farm.services.guardian`): nothing of it outlives the guardian or the caller.

    With a `log`, the guardian writes the output there, and rotates it above that size. `options` go to `subprocess.Popen`. SIGTERM to the guardian ends the command, which gets `grace_s` seconds for it.
    """
    return subprocess.Popen(
        [sys.executable, "-I", "-S", guardian.__file__, str(grace_s), str(log or "-"), str(max_log_bytes), *command],
        stdin=subprocess.PIPE,  # the lifeline
        env=environment,
        start_new_session=True,
        **options,
    )


def end_guarded(process: subprocess.Popen[bytes]) -> None:
    """Ends a guardian and the processes that it guards."""
    process.terminate()
    try:
        process.wait(ENDING_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()


def wait_gone(pids: Sequence[int], timeout_s: float) -> bool:
    """Whether all of the processes ended in time."""
    end = time.monotonic() + timeout_s
    while any(is_alive(pid) for pid in pids):
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def end_with(pids: Sequence[int], steps: Sequence[tuple[signal.Signals, float]]) -> bool:
    """Sends one signal after another, each with seconds to act on it, until all have ended. False: some live on."""
    for number, seconds in steps:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        if wait_gone(pids, seconds):
            return True
    return not any(is_alive(pid) for pid in pids)


def end_tree(pid: int) -> None:
    """Kills a process and all that it started, at once."""
    try:
        root = psutil.Process(pid)
        family = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(family, timeout=5)


def last_lines(log: Path, *, since: int = 0, lines: int = 1) -> str:
    """The last non-empty lines that a log gained after the byte offset `since`; a note where there are none."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(since if since <= size else 0, size - 8192))
            text = file.read().decode(errors="replace")
    except OSError:
        text = ""
    found = [line.rstrip() for line in text.splitlines() if line.strip()]
    return "\n".join(found[-lines:]) or "no output"
