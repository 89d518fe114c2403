"""Messages of a process that the farm started: JSON objects on its standard output, one a line."""

from __future__ import annotations

import json
import os
import select
import time
from signal import Signals
from subprocess import Popen
from typing import Any

from farm.errors import BadInput, FarmError, NotFound, ServiceUnavailable


class NoMessage(Exception):
    """A process gave no further message. Its text says why."""

    @property
    def answer(self) -> dict[str, Any]:
        """A failure of a measurement, as the process itself would have reported it."""
        return {"failure": {"kind": "killed", "message": str(self)}}


class JsonLines:
    """Reads the messages of a process, whose standard output is a pipe."""

    def __init__(self, process: Popen[bytes]) -> None:
        assert process.stdout is not None
        self._process, self._file = process, process.stdout.fileno()
        self._read = b""

    def next(self, seconds: float, late: str) -> dict[str, Any]:
        """The next message. Raises `NoMessage` if the process ends without one, or with `late` after that time."""
        end = time.monotonic() + seconds
        while b"\n" not in self._read:
            if not select.select([self._file], [], [], max(0.0, end - time.monotonic()))[0]:
                raise NoMessage(late)
            block = os.read(self._file, 65_536)
            if not block:
                raise NoMessage(_how_it_ended(self._process.wait()))
            self._read += block
        line, _, self._read = self._read.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer


def _how_it_ended(status: int) -> str:
    """The meaning of an exit status. A guardian exits with 128 plus the signal that ended its program."""
    number = -status if status < 0 else status - 128
    if number in set(Signals):
        return f"its process was killed by {Signals(number).name}"
    return f"its process ended with status {status}, and did not say what it measured"


def refusal(exit_code: int, message: str) -> FarmError:
    """The error of a `refused` message of a process that measures (`workers.answers`)."""
    kinds: tuple[type[FarmError], ...] = (BadInput, ServiceUnavailable, NotFound)
    return next(kind for kind in kinds if kind.exit_code == exit_code)(detail=message)
