"""BLAS in one thread: for small matrices, several threads spend far more time waiting for each other than working."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cache

from threadpoolctl import ThreadpoolController


@cache
def _libraries() -> ThreadpoolController:
    """Finding the libraries that have threads takes longer than a small fit."""
    return ThreadpoolController()


def one_thread() -> AbstractContextManager[object]:
    """Inside the block, BLAS works in the thread that calls it."""
    found: AbstractContextManager[object] = _libraries().limit(limits=1, user_api="blas")
    return found
