"""A call of PyTorch as a graph over cold operand sets, and its burst and settled time, without anything of the farm."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

REST_SECONDS = 1.0
BURST_MS, SETTLED_SECONDS = (2.0, 20.0), 1.0
REPLAY_MS = 1.0
MAX_SETS = 256


def cold_sets(set_bytes: int, l2_bytes: int) -> int:
    """As many operand sets as cover the L2 twice, and two at least."""
    return min(MAX_SETS, max(2, -(-2 * l2_bytes // set_bytes)))


class TorchGraph:
    """A graph of calls, each with the next operand set."""

    def __init__(self, torch: Any, call: Callable[..., Any], operands: Sequence[tuple[Any, ...]]) -> None:
        self._torch = torch
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            outputs = [call(*given) for given in operands]
            stream.synchronize()
            before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            before.record()
            call(*operands[-1])
            after.record()
            stream.synchronize()
            rough_ms = max(before.elapsed_time(after), 0.002)
            self.launches = max(1, round(REPLAY_MS / rough_ms))
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph, stream=stream):
                kept = [call(*operands[index % len(operands)]) for index in range(self.launches)]
        self._stream, self._keep = stream, (operands, outputs, kept)

    def times(self, seconds: float, rest_seconds: float = REST_SECONDS) -> tuple[float, float | None]:
        """The burst time after a rest, and the settled time where the load is long enough for one, in ms."""
        torch = self._torch
        torch.cuda.synchronize()
        time.sleep(rest_seconds)
        events: list[Any] = []
        with torch.cuda.stream(self._stream):
            began = time.perf_counter()
            while time.perf_counter() - began < seconds:
                events.append(torch.cuda.Event(enable_timing=True))
                events[-1].record()
                self._graph.replay()
                while len(events) > 20 and not events[-20].query():
                    time.sleep(0.0002)
            self._stream.synchronize()
        at_ms = [events[0].elapsed_time(event) for event in events]
        first = [
            (end - begin) / self.launches
            for begin, end in pairwise(at_ms)
            if begin >= BURST_MS[0] and end <= BURST_MS[1]
        ] or [at_ms[1] / self.launches]
        late = [at for at in at_ms if at >= 1e3 * SETTLED_SECONDS]
        settled = (late[-1] - late[0]) / (len(late) - 1) / self.launches if len(late) > 10 else None
        return statistics.median(first), settled
