"""Messages of a process that the farm started: JSON objects on its standard output, one a line."""

from __future__ import annotations

import json
import os
import select
import time
from signal import Signals
from typing import IO, Any

from farm.errors import BadInput, FarmError, NotFound, ServiceUnavailable


class JsonLines:
    """Reads the messages of a process."""

    def __init__(self, stdout: IO[bytes]) -> None:
        self._file = stdout.fileno()
        self._read = b""

    def next(self, seconds: float) -> dict[str, Any] | None:
        """The next message; None if the process ended without one. Raises `TimeoutError`."""
        end = time.monotonic() + seconds
        while b"\n" not in self._read:
            if not select.select([self._file], [], [], max(0.0, end - time.monotonic()))[0]:
                raise TimeoutError
            block = os.read(self._file, 65_536)
            if not block:
                return None
            self._read += block
        line, _, self._read = self._read.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer


def how_it_ended(status: int) -> str:
    """The meaning of an exit status. A guardian exits with 128 plus the signal that ended its program."""
    number = -status if status < 0 else status - 128
    if number in set(Signals):
        return f"its process was killed by {Signals(number).name}"
    return f"its process ended with status {status}, and did not say what it measured"


def refusal(exit_code: int, message: str) -> FarmError:
    """The error of a `refused` message of a process that measures (`workers.answers`)."""
    kinds: tuple[type[FarmError], ...] = (BadInput, ServiceUnavailable, NotFound)
    return next(kind for kind in kinds if kind.exit_code == exit_code)(detail=message)
