"""Preparation of the next jobs while the device measures: the work that needs no device, such as compiling."""

from __future__ import annotations

import logging
import threading
from collections import deque

from farm.kernels import Configuration
from workers.devices import Device

log = logging.getLogger(__name__)


AHEAD = 3
"""Jobs that are prepared in advance. Compiling one takes about as long as timing one. It is not more, because a compiler that ends
the process is counted against the job that is being measured."""


class Preparation:
    """A thread that prepares one configuration at a time, in order, so that a kernel is compiled before its turn.

    Callers do not wait for it. If more than `AHEAD` configurations wait, the oldest is dropped. The thread starts with the first
    configuration. It is a daemon, so that a compilation does not delay the end of the process.
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
        """Ends the thread after the present configuration; returns at once."""
        with self._changed:
            self._ended = True
            self._changed.notify()

    def _work(self) -> None:
        while (configuration := self._take()) is not None:
            try:
                self._device.prepare(configuration)
            except Exception:  # the job raises it again when it is measured, as a failure with its reason
                log.warning("preparing %s raised", configuration, exc_info=True)

    def _take(self) -> Configuration | None:
        """Waits for the next configuration to prepare. None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self._waiting)
            return None if self._ended else self._waiting.popleft()
