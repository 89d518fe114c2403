"""An account of the messages that a consumer refused."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable

from farm.broker.task_messages import Reason

log = logging.getLogger(__name__)

LOG_SECONDS = 60.0
"""Between two lines on messages that were refused, at least."""

_SHOWN_BYTES = 100


class Refusals:
    """Counts what was refused, and logs it now and then, however much it is.

    Args:
        count: called with the reason of each refusal, for metrics.
    """

    def __init__(self, count: Callable[[Reason], object] | None = None) -> None:
        self._count = count
        self._since: Counter[Reason] = Counter()
        self._log_at_s = time.monotonic()

    def __reduce__(self) -> tuple[type[Refusals], tuple[()]]:
        """Another process gets an empty account without `count`, which is of the parent that reads the messages."""
        return Refusals, ()

    def add(self, queue: str, reason: Reason, detail: str, raw: bytes = b"") -> None:
        if self._count is not None:
            self._count(reason)
        self._since[reason] += 1
        now = time.monotonic()
        if now < self._log_at_s:
            return
        log.warning(
            "refused %d messages; the last one, of queue %s: %s (%s)",
            self._since.total(),
            ascii(queue[:_SHOWN_BYTES]),
            detail,
            ascii(raw[:_SHOWN_BYTES]),
        )
        self._since.clear()
        self._log_at_s = now + LOG_SECONDS
