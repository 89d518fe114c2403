"""A clock for cards without a GPU, so that times of their kernels are exact."""

from __future__ import annotations


class VirtualTime:
    """A clock that kernels and sleeping alone move, but for a microsecond for each look at it."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def perf_counter(self) -> float:
        self.now_s += 1e-6
        return self.now_s

    time = monotonic = perf_counter

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
