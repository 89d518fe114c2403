"""Pauses before a program is started again, or a server that did not answer is tried again."""

from __future__ import annotations

from dataclasses import dataclass, field

MAX_PAUSE_S = 60.0
HEALTHY_AFTER_S = 60.0
"""A program that ran this long before it ended is started again at once."""


@dataclass(slots=True)
class BackOff:
    """Pauses of one program: 1, 2, 4 … seconds, at most a minute; none after a healthy run.

    Its methods take times in seconds of one monotonic clock.
    """

    restarts: int = 0
    pause_s: float = 0.0  # after the end noted last
    _started_at: float | None = field(default=None, init=False)
    _due_at: float | None = field(default=None, init=False)  # None while the program is thought to run

    def started(self, now: float) -> None:
        """Notes a start; it counts as a restart where an end was noted before."""
        if self._due_at is not None:
            self.restarts += 1
        self._started_at, self._due_at = now, None

    def ended(self, now: float) -> bool:
        """Notes the end of a run. False where it was noted before."""
        if self._due_at is not None:
            return False
        healthy = self._started_at is not None and now - self._started_at >= HEALTHY_AFTER_S
        self.pause_s = 0.0 if healthy else min(max(1.0, 2 * self.pause_s), MAX_PAUSE_S)
        self._due_at = now + self.pause_s
        return True

    def is_due(self, now: float) -> bool:
        """Whether the program has ended and its pause is over."""
        return self._due_at is not None and now >= self._due_at
