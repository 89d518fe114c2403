"""The worker's part of the family `blocked`. Only a worker that measures imports it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from farm.kernels import Configuration
from workers.kernels.base import CpuKernel


class BlockedFamily:
    """The family on this machine's processor."""

    @contextmanager
    def bind(self, configuration: Configuration) -> Iterator[CpuKernel]:
        block = dict(configuration.kernel.parameters)["block"]

        def multiply(a: Any, b: Any, d: Any) -> None:
            d[...] = 0
            for i in range(0, a.shape[0], block):
                for p in range(0, a.shape[1], block):
                    d[i : i + block] += np.matmul(a[i : i + block, p : p + block], b[p : p + block])

        yield CpuKernel(multiply=multiply, details={"block": block})
