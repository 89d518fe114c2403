"""Groups of rows for cuBLASLt's grouped products: one launch, for which sizes and addresses lie on the card.

cuBLAS documents the interface as experimental. A matrix is an array of addresses, with arrays of rows, columns and leading
dimensions. Empty groups are left out. Scalars lie on the card too, because with those of the host some versions compute wrong
results on Hopper (CUDA 13.4 release notes, 6681084).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from farm.gemm import Problem
from farm.groups import Groups
from workers.kernels.base import Placement
from workers.kernels.group_offsets import group_offsets

_FIRST_VERSION, _FIRST_ON_HOPPER = 130200, 130601
"""Of cuBLAS. Hopper has groups since 13.4.0, but before 13.6.1 launches that share a workspace may hang (CUDA 13.3 release notes,
6456362)."""


def why_no_groups(lt: Any, capability: tuple[int, int] | None) -> str | None:
    """Why the loaded library computes no groups on a card; None where it does."""
    if not hasattr(lt, "grouped_matrix_layout_create"):
        return "cublaslt: the installed nvmath-python has no grouped products; install version 1.0 or newer"
    first = _FIRST_ON_HOPPER if capability is not None and capability[0] == 9 else _FIRST_VERSION
    found = int(lt.get_version())
    if found >= first:
        return None
    needed, loaded = (f"{n // 10000}.{n // 100 % 100}.{n % 100}" for n in (first, found))
    return f"cublaslt: cuBLAS {loaded} is loaded, and groups need {needed} or newer on this card"


class GroupsOnCard:
    """What the library reads of the groups of a problem. It has the addresses of a `Placement`, each of an array of addresses."""

    def __init__(self, cp: Any, problem: Problem, groups: Groups, placement: Placement) -> None:
        self._cp = cp
        parts = [*groups.with_rows()]
        self.sizes: NDArray[np.int64] = np.array([rows.stop - rows.start for _, rows in parts], np.int64)
        firsts = np.array([rows.start for _, rows in parts], np.uint64)
        numbers = np.array([number for number, _ in parts], np.uint64)
        self._has_c = bool(placement.addends)
        bases = np.array(
            [(*placement.addresses(index), *placement.added(index)[:2]) for index in range(placement.sets)], np.uint64
        )
        self._pointers = cp.asarray(bases[:, :, None] + group_offsets(problem, firsts, numbers))
        self._scalars = cp.asarray(np.array([problem.alpha, problem.beta], np.float32))
        self._extents: list[Any] = []

    def extents(self, rows: int, columns: int | None, leading: int) -> tuple[int, int, int]:
        """Addresses of arrays with the rows, columns and leading dimension of each group's matrix. Columns None: the groups' rows."""
        count = len(self.sizes)
        each = [self.sizes if x is None else np.full(count, x, np.int64) for x in (rows, columns, leading)]
        held = self._cp.asarray(np.stack(each))
        self._extents.append(held)
        first = int(held.data.ptr)
        size = count * int(held.itemsize)
        return first, first + size, first + 2 * size

    @property
    def scalars(self) -> tuple[int, int]:
        """The addresses of alpha and beta."""
        first = int(self._scalars.data.ptr)
        return first, first + int(self._scalars.itemsize)

    def averages(self, problem: Problem) -> dict[str, int]:
        """The average sizes that the heuristic takes, by the library's names. The library sees D column by column, with n rows."""
        return {
            "GROUPED_DESC_D_AVERAGE_ROWS": problem.shape.n,
            "GROUPED_DESC_D_AVERAGE_COLS": max(1, round(float(self.sizes.mean()))),
            "GROUPED_AVERAGE_REDUCTION_DIM": problem.shape.k,
        }

    def addresses(self, index: int) -> tuple[int, int, int, int]:
        a, b, c, d = (self._row(index, place) for place in range(4))
        return a, b, c if self._has_c else 0, d

    def added(self, index: int) -> tuple[int, int, int]:
        """Without scale factors, no address is read."""
        return self._row(index, 4), self._row(index, 5), 0

    def _row(self, index: int, place: int) -> int:
        places, count = self._pointers.shape[1:]
        return int(self._pointers.data.ptr + (index * places + place) * count * self._pointers.itemsize)
