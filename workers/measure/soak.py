"""A soak: keeps a device under load, and compares the bits of a result again and again.

A digest is taken about ten times a second, each of a launch of its own in the middle of the load. The result is copied
first, so that a difference can be looked into although the device goes on. A digest is fetched when the next one is due,
and by then more work is queued, so a card does not run dry.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from farm.errors import InvalidOnDevice
from workers.measure.exactness import Answer, Result
from workers.measure.nvml import Telemetry

DIGEST_SECONDS = 0.1
"""Between two digests."""

REPORT_SECONDS = 0.5
"""Between two reports of how far it is."""


ATTEMPTS = 3
"""Launches to get a right result, with which a corrupted one is compared."""


class Load(Protocol):
    """A configuration that keeps a device busy."""

    result: Result

    def work(self) -> None:
        """Keeps the device busy for some 10 ms more."""

    def copy(self) -> Any:
        """A copy of `result.d` on the device. Raises `MemoryError`."""

    def telemetry(self) -> Telemetry:
        """Reads clocks and temperature."""


@dataclass(slots=True)
class Soak:
    """What a soak has seen so far. Ranges are the least and the largest value, None where the device does not tell."""

    wanted_s: float
    seconds: float = 0.0
    digests: int = 0
    differences: int = 0
    difference: str | None = None  # the first one, as a sentence
    sm_clock_mhz: tuple[int, int] | None = None
    temperature_c: tuple[int, int] | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def look(self, reading: Telemetry) -> None:
        """Adds a reading to the ranges."""
        for name in ("sm_clock_mhz", "temperature_c"):
            value, known = getattr(reading, name), getattr(self, name)
            if value is not None:
                least, largest = known or (value, value)
                setattr(self, name, (min(least, value), max(largest, value)))


def soak(load: Load, seconds: float, clock: Callable[[], float] = time.perf_counter) -> Iterator[Soak]:
    """Keeps a device under load for that long. Yields what was seen about twice a second, and at the end.

    Raises `InvalidOnDevice` for a kernel whose launches may differ, before any load.
    """
    result = load.result
    if not result.declared:
        raise InvalidOnDevice(why="a soak compares the bits of results, and launches of this kernel may differ")
    found, copied = Soak(seconds), _Copied(load)
    began = reported = clock()
    yield found
    load.work()
    copied.take()
    due = clock() + DIGEST_SECONDS
    while True:
        load.work()
        now = clock()
        found.seconds = now - began
        if now >= due or found.seconds >= seconds:
            _compare(copied, result, found)
            found.look(load.telemetry())
            if found.seconds >= seconds:
                break
            copied.take()
            due = now + DIGEST_SECONDS
        if now - reported >= REPORT_SECONDS:
            reported = now
            yield found
    yield found


class _Copied:
    """The digest of a copy of the result of one launch."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._answer: Answer | None = None
        self._d: Any = None

    def take(self) -> None:
        """Computes the result again, behind what runs, copies it and begins the digest of the copy."""
        result = self._load.result
        result.launch()
        try:
            self._d = self._load.copy()
        except MemoryError:  # the digest is that of the result itself, which is overwritten when a difference is known
            self._d, self._answer = None, result.begin()
            return
        self._answer = result.begin(self._d)

    def fetch(self) -> int | None:
        """The digest; None if none was taken."""
        return None if self._answer is None else self._answer()

    def difference(self) -> str:
        """How the copy differs from a result whose digest is right, as a sentence."""
        result = self._load.result
        if self._d is None:
            return "There was no memory for a copy."
        if all(result.again() != result.first for _ in range(ATTEMPTS)):
            return f"{ATTEMPTS} further launches differ as well."
        return result.difference_from(self._d)


def _compare(copied: _Copied, result: Result, found: Soak) -> None:
    """Counts the digest that was taken last."""
    digest = copied.fetch()
    if digest is None:
        return
    found.digests += 1
    if digest != result.first:
        found.differences += 1
        if found.difference is None:
            found.difference = f"After {found.seconds:.1f} s: {copied.difference()}"
