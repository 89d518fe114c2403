"""Rate limiter for periodic steps of the coordinator."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class RateLimit:
    """Rate limit: due at once, and then `seconds` after it was last due."""

    seconds: float
    clock: Callable[[], float] = time.monotonic
    _due_s: float = field(default=-math.inf, init=False)

    def due(self) -> bool:
        """Whether it is due. If so, the next time is `seconds` from now."""
        now = self.clock()
        if now < self._due_s:
            return False
        self._due_s = now + self.seconds
        return True
