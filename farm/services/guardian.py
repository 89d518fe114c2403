"""A guardian that runs one program and leaves nothing of it behind. It is a script of its own: it imports only Python.

    python -I -S guardian.py GRACE_SECONDS LOG MAX_BYTES COMMAND…

Its standard input is the lifeline: the end of the process that started it closes it, however that process ends. On
that, or on SIGTERM, the program gets SIGTERM, and after the grace time SIGKILL. Every process that the program itself
started and left behind becomes the guardian's (PR_SET_CHILD_SUBREAPER) and is ended in the same way. The exit code is the
program's, or 128 and the number of the signal that ended it. Other files that it inherits stay open until it ends,
so that a lock on one of them outlives a parent that is killed.

With a LOG (`-`: none), the guardian writes what the program and its processes print to that file, and rotates it at so many bytes. It
is the only one that has the file open. It reads on until all of them ended, so that no line is lost. What a full disk does not take is
dropped, and the program does not wait for it.

A pipe, not PR_SET_PDEATHSIG, watches the parent: that signal also comes when only the thread that forked ends. The
guardian has one thread, so it does use the signal for its own program, against its own sudden end.
"""

import contextlib
import ctypes
import os
import pathlib
import select
import signal
import sys
import time

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
STRAGGLERS_GRACE_S = 5.0
CANNOT_EXECUTE = 127  # as in a shell
LOG_FILES = 4
"""Earlier parts of a log that are kept: `.1` is the latest."""
MAX_LINE_BYTES = 1 << 20
BLOCK_BYTES = 1 << 16
MAX_BLOCKS = 16
"""Read in a row, so that signals are looked at while a program prints without a pause. More than a pipe holds."""


class Output:
    """What the program prints: a pipe, and the log that its lines go to."""

    def __init__(self, log: str, max_bytes: int) -> None:
        from logging import LogRecord  # a guardian without a log starts faster
        from logging.handlers import RotatingFileHandler

        self._record = LogRecord
        # Bytes that are not UTF-8 are written as they came.
        self._file = RotatingFileHandler(
            log, maxBytes=max_bytes, backupCount=LOG_FILES, encoding="utf-8", errors="surrogateescape"
        )
        self._file.handleError = lambda record: None  # type: ignore[method-assign]  # a full disk: the program goes on
        self._line = b""
        self.pipe, self.writer = os.pipe()
        os.set_blocking(self.pipe, False)

    def read(self) -> bool:
        """Writes what is in the pipe to the log, some blocks at a time. False where no process has its other end any more."""
        for _ in range(MAX_BLOCKS):
            try:
                block = os.read(self.pipe, BLOCK_BYTES)
            except BlockingIOError:
                return True
            *lines, self._line = (self._line + block).split(b"\n")
            for line in lines:
                self._write(line)
            if len(self._line) > MAX_LINE_BYTES:
                self._write(self._line)
                self._line = b""
            if not block:
                return False
        return True

    def end(self) -> None:
        self.read()
        if self._line:
            self._write(self._line)
        with contextlib.suppress(OSError):
            self._file.close()

    def _write(self, line: bytes) -> None:
        text = line.decode("utf-8", "surrogateescape")
        self._file.handle(self._record("", 0, "", 0, text, None, None))


def prctl(option: int, value: int) -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def launch(command: list[str], output: "Output | None") -> int:
    """Starts the program in a session of its own, so that signals meant for it do not reach the guardian."""
    guardian = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != guardian:
            os._exit(CANNOT_EXECUTE)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        if output is not None:
            os.dup2(output.writer, 1)
            os.dup2(output.writer, 2)
        os.closerange(3, 256)  # above all the lock that says that this program runs: it is the guardian's to hold
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        sys.stderr.flush()
    os._exit(CANNOT_EXECUTE)


def collect(statuses: dict[int, int]) -> bool:
    """Collects every child that has ended. False where there are no children left."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return False
        if pid == 0:
            return True
        statuses[pid] = os.waitstatus_to_exitcode(status)


def children() -> list[int]:
    """Our children now, adopted ones included."""
    found = []
    # Not `Path.glob`: it looks at each file itself, and fails where a process ends at that moment (ESRCH).
    for process in pathlib.Path("/proc").iterdir():
        if process.name.isdecimal():
            with contextlib.suppress(OSError):
                parent = (process / "stat").read_text(errors="replace").rpartition(")")[2].split()[1]
                if int(parent) == os.getpid():
                    found.append(int(process.name))
    return found


def kill(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def end_stragglers(statuses: dict[int, int], output: "Output | None") -> None:
    """Ends what the program left behind: first signalled, then killed."""
    end, signalled = time.monotonic() + STRAGGLERS_GRACE_S, set[int]()
    while collect(statuses):
        late = time.monotonic() > end
        for pid in children():
            if late:
                kill(pid, signal.SIGKILL)
            elif pid not in signalled:
                kill(pid, signal.SIGTERM)
                signalled.add(pid)
        if output is not None:
            output.read()
        time.sleep(0.02)


def main(grace_s: float, log: str, max_bytes: int, command: list[str]) -> int:
    wake, woken = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    asked_to_end: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: asked_to_end.append(number))
    signal.signal(signal.SIGCHLD, lambda *_: None)  # a handler, so that it wakes the loop
    prctl(PR_SET_CHILD_SUBREAPER, 1)

    output = None if log == "-" else Output(log, max_bytes)
    program, statuses = launch(command, output), dict[int, int]()
    printed = []
    if output is not None:
        os.close(output.writer)
        printed = [output.pipe]
    lifeline, deadline = [0], None
    while collect(statuses) and program not in statuses:
        if asked_to_end and deadline is None:
            kill(program, signal.SIGTERM)
            deadline = time.monotonic() + grace_s
        timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
        if timeout == 0.0:
            kill(program, signal.SIGKILL)
            timeout = 1.0
        ready = select.select([wake, *lifeline, *printed], [], [], timeout)[0]
        if output is not None and output.pipe in ready and not output.read():
            printed = []
        if wake in ready:
            os.read(wake, 4096)
        if 0 in ready and not os.read(0, 4096):
            lifeline = []
            asked_to_end.append(0)
    end_stragglers(statuses, output)
    if output is not None:
        output.end()
    code = statuses[program]
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4:]))
