"""Preparation of the next jobs while the device measures: the work that needs no device, such as compiling."""

from __future__ import annotations

import logging
import threading
from collections import deque

from farm.kernels import Configuration
from workers.devices import Device, host

log = logging.getLogger(__name__)


AHEAD = 3
"""Jobs that are prepared in advance. Compiling one takes about as long as timing one. It is not more, because a compiler that ends
the process is counted against the job that is being measured."""


PROCESSORS_EACH = 4
"""A host compiles with one thread for each so many processors: others feed its cards."""


class Preparation:
    """Threads that prepare configurations in their order, so that a kernel is compiled before its turn.

    Callers do not wait for them. If more than `AHEAD` configurations wait, the oldest is dropped. A thread starts with each of the
    first configurations, up to as many as this host has processors for. They are daemons, so that a compilation does not delay
    the end of the process.
    """

    def __init__(self, device: Device, threads: int | None = None) -> None:
        self._device = device
        self._changed = threading.Condition()
        self._waiting: deque[Configuration] = deque(maxlen=AHEAD)
        self._ended = False
        self._threads: list[threading.Thread] = []
        wanted = host.usable_threads() // PROCESSORS_EACH if threads is None else threads
        self._most = min(AHEAD, max(1, wanted))

    def ask(self, configuration: Configuration) -> None:
        """Prepares it soon; returns at once."""
        with self._changed:
            self._waiting.append(configuration)
            if len(self._threads) < self._most:
                self._threads.append(threading.Thread(target=self._work, name="preparation", daemon=True))
                self._threads[-1].start()
            self._changed.notify()

    def end(self) -> None:
        """Ends the threads after their present configurations; returns at once."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

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
