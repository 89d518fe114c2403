"""Kernels are compiled before their turn, several at once where the host has processors for that."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from farm.kernels import Configuration
from workers.devices import host
from workers.preparation import AHEAD, Preparation

LINES = [Configuration.parse(f"tiled(tile={tile}) 64x64x64 f32") for tile in (8, 16, 32)]


def test_as_many_are_prepared_at_once_as_there_are_threads() -> None:
    together, prepared, done = threading.Barrier(3, timeout=60), list[Any](), threading.Semaphore(0)

    def prepare(configuration: Configuration) -> None:
        together.wait()  # breaks, and raises, where they come one after the other
        prepared.append(configuration)
        done.release()

    preparation = Preparation(SimpleNamespace(prepare=prepare), threads=3)  # type: ignore[arg-type]
    for line in LINES:
        preparation.ask(line)
    assert all(done.acquire(timeout=60) for _ in LINES)
    preparation.end()
    assert sorted(map(str, prepared)) == sorted(map(str, LINES))


@pytest.mark.parametrize(("processors", "threads"), [(1, 1), (2, 1), (8, 2), (16, AHEAD), (128, AHEAD)])
def test_a_host_with_few_processors_compiles_one_at_a_time(
    monkeypatch: pytest.MonkeyPatch, processors: int, threads: int
) -> None:
    monkeypatch.setattr(host, "usable_threads", lambda: processors)
    assert Preparation(SimpleNamespace())._most == threads  # type: ignore[arg-type]
