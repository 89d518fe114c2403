"""What needs no device of the next jobs, done while the device measures this one."""

from __future__ import annotations

import logging
import threading
from collections import deque

from farm.kernels import Configuration
from workers.devices import Device

log = logging.getLogger(__name__)


AHEAD = 3
"""Jobs that are prepared before their turn: compiling one takes about as long as timing one. Not more, as a compiler that
ends the process is blamed on the job that is being measured."""


class Preparation:
    """A thread that prepares one configuration at a time, in order, so that a kernel is compiled before its turn.

    Nobody waits for it: where more than `AHEAD` wait, the oldest is given up. It starts when it is first asked, and is a
    daemon, so that a compilation does not hold up the end of the process.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._changed = threading.Condition()
        self._waiting: deque[Configuration] = deque(maxlen=AHEAD)
        self._ended = False
        self._thread: threading.Thread | None = None

    def ask(self, configuration: Configuration) -> None:
        """Prepares it soon; returns at once."""
        with self._changed:
            self._waiting.append(configuration)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="preparation", daemon=True)
                self._thread.start()
            self._changed.notify()

    def end(self) -> None:
        """Ends the thread after what it is at; returns at once."""
        with self._changed:
            self._ended = True
            self._changed.notify()

    def _work(self) -> None:
        while (configuration := self._take()) is not None:
            try:
                self._device.prepare(configuration)
            except Exception:  # the job meets it again in its turn, where it is a failure with its reason
                log.warning("preparing %s raised", configuration, exc_info=True)

    def _take(self) -> Configuration | None:
        """What is to be prepared next, as soon as there is something; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self._waiting)
            return None if self._ended else self._waiting.popleft()
