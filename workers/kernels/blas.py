"""The `blas` family: the machine's BLAS through NumPy's `matmul`, in a given number of threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from threadpoolctl import ThreadpoolController

from farm.errors import InvalidOnDevice
from farm.groups import Groups
from farm.kernels import Configuration
from workers.kernels.base import CpuKernel


def blas_libraries() -> Any:
    """The libraries that NumPy uses, as threadpoolctl controls them."""
    return ThreadpoolController().select(user_api="blas")


def _multiply(groups: Groups | None) -> Callable[[Any, Any, Any], object]:
    """Calls BLAS once, or once for each group with rows."""
    if groups is None:
        return np.matmul
    parts = [*groups.with_rows()]

    def each_group(a: Any, b: Any, d: Any) -> None:
        for number, rows in parts:
            np.matmul(a[rows], b[number], d[rows])

    return each_group


class BlasFamily:
    """The family on this machine's processor."""

    def __init__(self) -> None:
        self._blas = blas_libraries()

    @contextmanager
    def bind(self, configuration: Configuration) -> Iterator[CpuKernel]:
        threads = dict(configuration.kernel.parameters)["threads"]
        if not self._blas.lib_controllers:
            raise InvalidOnDevice(why="the number of threads of NumPy's BLAS cannot be set here (threadpoolctl)")
        with self._blas.limit(limits=threads):
            in_force = {int(library["num_threads"]) for library in self._blas.info()}
            if in_force != {threads}:
                found = " and ".join(str(n) for n in sorted(in_force))
                raise InvalidOnDevice(why=f"{threads} BLAS threads were requested, but NumPy's BLAS uses {found}")
            # OpenBLAS shares out D, so that threads do not change sums; others say nothing of the kind.
            fixed = threads == 1 or {library["internal_api"] for library in self._blas.info()} == {"openblas"}
            yield CpuKernel(
                multiply=_multiply(configuration.problem.groups), details={"threads": threads}, deterministic=fixed
            )
