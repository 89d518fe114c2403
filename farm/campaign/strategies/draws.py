"""Drawing some of a problem's kernels at random. The draw follows from a seed and the canonical forms alone."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from heapq import heappush, heappushpop, nsmallest
from typing import Protocol

from farm.kernels import Configuration


class KernelSample(Protocol):
    """Chooses which of a problem's configurations are measured."""

    def add(self, configuration: Configuration) -> None:
        """Offers one. The same again changes nothing."""

    def drawn(self) -> list[Configuration]:
        """Those that are measured."""


class Draw:
    """A number of a problem's configurations at random, or all if there are fewer.

    The draw follows from the seed and each configuration's canonical form alone: it is the same on every host and in any
    order, and a kernel that is drawn stays drawn when others are left out. Only those drawn are kept in memory.
    """

    def __init__(self, size: int, seed: int) -> None:
        self._size = size
        self._seed = seed
        self._drawn: dict[str, Configuration] = {}  # by canonical form
        self._numbers: list[tuple[int, str]] = []  # a heap: the largest of their numbers, negative, comes first

    def add(self, configuration: Configuration) -> None:
        """Offers one. The same again changes nothing."""
        name = configuration.canonical
        if name in self._drawn:
            return
        number = int.from_bytes(hashlib.sha256(f"{self._seed} {name}".encode()).digest()[:16], "big")
        entry = (-number, name)
        if len(self._numbers) < self._size:
            heappush(self._numbers, entry)
        elif entry > self._numbers[0]:
            del self._drawn[heappushpop(self._numbers, entry)[1]]
        else:
            return
        self._drawn[name] = configuration

    def drawn(self) -> list[Configuration]:
        return [self._drawn[name] for _, name in sorted(self._numbers, reverse=True)]


class FamilyDraw:
    """A number of a problem's configurations at random, with each family as likely as any other.

    Weighted sampling without replacement (Efraimidis and Spirakis, Information Processing Letters 97, 2006): a kernel
    weighs 1 / the number of kernels that its family has for the problem. As with `Draw`, the result follows from the seed
    and the canonical forms alone.
    """

    def __init__(self, size: int, seed: int) -> None:
        self._size = size
        self._seed = seed
        self._offered: dict[str, Configuration] = {}  # by canonical form

    def add(self, configuration: Configuration) -> None:
        """Offers one. The same again changes nothing."""
        self._offered[configuration.canonical] = configuration

    def drawn(self) -> list[Configuration]:
        kernels_of = Counter(one.kernel.family for one in self._offered.values())

        def key(name: str) -> float:
            return -math.log1p(-_share(self._seed, name)) * kernels_of[self._offered[name].kernel.family]

        return [self._offered[name] for name in nsmallest(self._size, self._offered, key=key)]


def _share(seed: int, name: str) -> float:
    """A number from [0, 1) that follows from both."""
    return int.from_bytes(hashlib.sha256(f"{seed} {name}".encode()).digest()[:6], "big") / 2**48
