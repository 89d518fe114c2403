"""Detects a child that hangs. Its own deadline cannot end it if it is stopped, or in a call that blocks all threads."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Watchdog:
    """Judges a child by what its parent sees of it at each heartbeat."""

    # A lease that can be renewed for less than this counts as expired: job, deadline and landing have had their time.
    overdue_s: float
    # A child may have a task, and hold no lease, for this long: it opens the device, or waits to claim or land.
    unleased_s: float
    _task: str | None = field(default=None, init=False)
    _since: float = field(default=0.0, init=False)

    def should_kill(self, now: float, *, task: str | None, left_s: float | None) -> bool:
        """Whether the child must be ended.

        `now`: seconds of a clock that never goes backwards. `task`: what the child was given and has not finished.
        `left_s`: for how long the lease in hand can still be renewed; None without one.
        """
        if task is None:
            self._task = None
            return False
        if task != self._task or left_s is not None:
            self._task, self._since = task, now
        over = left_s <= self.overdue_s if left_s is not None else now - self._since > self.unleased_s
        if over:
            self._since = now
        return over
