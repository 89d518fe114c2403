"""Warnings of MLflow are ignored in several threads at once, and Python's filters are restored after the last one."""

from __future__ import annotations

import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest

from farm.registry import mlflow_warnings_ignored


def test_warnings_are_ignored_until_the_last_thread_is_done() -> None:
    before = list(warnings.filters)
    first_is_inside, second_is_inside, first_is_done = (threading.Event() for _ in range(3))

    def first() -> None:
        with mlflow_warnings_ignored():
            first_is_inside.set()
            assert second_is_inside.wait(60)
        first_is_done.set()

    def second() -> None:
        assert first_is_inside.wait(60)
        with mlflow_warnings_ignored():
            second_is_inside.set()
            assert first_is_done.wait(60)
            warnings.warn("of MLflow", DeprecationWarning, stacklevel=1)  # an error where it is not ignored

    with ThreadPoolExecutor(2) as pool:
        for done in (pool.submit(first), pool.submit(second)):
            done.result()
    assert warnings.filters == before
    with pytest.raises(DeprecationWarning):
        warnings.warn("of the farm", DeprecationWarning, stacklevel=1)


def test_an_error_inside_restores_the_filters_and_blocks_may_be_nested() -> None:
    before = list(warnings.filters)
    with pytest.raises(ValueError, match="of MLflow"), mlflow_warnings_ignored(), mlflow_warnings_ignored():
        raise ValueError("of MLflow")
    assert warnings.filters == before
