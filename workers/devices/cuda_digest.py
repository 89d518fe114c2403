"""Digests of results on a card: `workers.measure.digest` in one launch, which is queued and not waited for."""

from __future__ import annotations

from typing import Any

import numpy as np

from farm.gemm import Problem
from workers.kernels.once import Once
from workers.kernels.tiled import source
from workers.measure.exactness import Answer

KERNEL = "digest"
"""Of digest.cu."""

THREADS = 256


class CudaDigests:
    """Takes digests on one card. Its kernel is compiled once for each size of an element, as those of `CudaVerifier` are."""

    def __init__(self, cp: Any, multiprocessors: int) -> None:
        self._cp = cp
        self._blocks = 16 * multiprocessors
        self._compiled = Once[int, Any]()

    def prepare(self, problem: Problem) -> None:
        """Compiles what the problem's result needs. May be called from another thread while the card is at work."""
        self._kernel(problem.types.cd.bytes)

    def begin(self, d: Any) -> Answer:
        """Queues the digest of an array of CuPy's on the current stream. One that is not contiguous is copied.

        The answer waits for the digest, and not for what is queued behind it.
        """
        cp = self._cp
        d = cp.ascontiguousarray(d)
        total = cp.empty(1, np.uint64)
        total.data.memset_async(0, total.nbytes)
        blocks = min(-(-d.size // THREADS), self._blocks)
        self._kernel(d.itemsize)((blocks,), (THREADS,), (d, np.uint64(d.size), total))
        on_host = np.frombuffer(cp.cuda.alloc_pinned_memory(total.nbytes), np.uint64, 1)
        total.get(out=on_host, blocking=False)
        copied = cp.cuda.get_current_stream().record()

        def answer() -> int:
            copied.synchronize()
            return int(on_host[0])

        return answer

    def _kernel(self, size: int) -> Any:
        def compiled() -> Any:
            module = self._cp.RawModule(code=source("digest.cu"), options=("-std=c++17", f"-DBYTES={size}"))
            return module.get_function(KERNEL)

        return self._compiled.get(size, compiled)
