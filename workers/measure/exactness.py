"""Does a kernel give the same bits again?

A device takes a digest of D (`workers.measure.digest`) of its first operand set after the first launch, whose result is
verified, and after the last launch under load. Between them the set was computed again and again. Verification by
tolerance finds a wrong kernel, and this finds a device that computes a right one wrongly now and then.

A digest is a function that was called, but not waited for: a card goes on, and its answer is fetched later.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from farm.errors import ResultCorrupted
from workers.measure.digest import difference, text

Answer = Callable[[], int]
"""Waits for a digest."""

BeginDigest = Callable[[Any], Answer]
"""Queues the digest of an array behind what runs."""

DigestWith = Callable[[int], int | None]
"""Computes the problem with that many rows and returns the digest of its D; None where that cannot run here."""

FURTHER_LAUNCHES = 3
"""Launches whose digests decide whether a kernel is deterministic, where the rules ask for it."""

FIRST, LAST = "the first launch", "the last launch under load"


@dataclass(slots=True)
class Exactness:
    """What a row says of its result's bits."""

    digest: int | None = None
    deterministic: bool | None = None
    batch_invariant: bool | None = None

    def columns(self) -> dict[str, Any]:
        """Columns of a measurement."""
        return {
            "result_digest": None if self.digest is None else text(self.digest),
            "deterministic": self.deterministic,
            "batch_invariant": self.batch_invariant,
        }


class Result:
    """D of one operand set, whose bits are compared between launches."""

    def __init__(
        self, d: Any, launch: Callable[[], object], begin: BeginDigest, *, poison: Any, deterministic: bool
    ) -> None:
        """Begins the digest of `d`, which holds the verified result of the first launch.

        Args:
            d: the result [m,n] or [batch,m,n], NumPy's or CuPy's.
            launch: computes `d` again, behind what runs.
            begin: begins a digest.
            poison: what `d` is filled with before a launch that is compared, so that an element that it does not write
                shows.
            deterministic: False for a kernel whose launches may differ, since it adds up with atomics.
        """
        self.d = d
        self._launch = launch
        self._begin = begin
        self._poison = poison
        self.declared = deterministic
        self._begun = begin(d)
        self._first: int | None = None

    @property
    def first(self) -> int:
        """The digest of the verified result."""
        if self._first is None:
            self._first = self._begun()
        return self._first

    def begin(self, copy: Any = None) -> Answer:
        """Begins the digest of what `d`, or a copy of it, holds when everything that was queued before has run."""
        return self._begin(self.d if copy is None else copy)

    def digest_of_rows(self, rows: int) -> int:
        """The digest of the first rows of what `d` holds, of each matrix."""
        return self._begin(self.d[..., :rows, :])()

    def launch(self) -> None:
        """Computes `d` again, in memory that does not hold the result before."""
        self.d.fill(self._poison)
        self._launch()

    def again(self) -> int:
        """The digest of a further launch."""
        self.launch()
        return self.begin()()

    def check(self, *, further: int = 0) -> Exactness:
        """Compares the digest of what `d` holds now, and of so many further launches, with that of the first launch.

        Returns a digest, and where there were further launches, whether the kernel is deterministic. Without a digest,
        launches of this kernel differ: by its declaration, or because two in a row did.

        Raises `ResultCorrupted` if the kernel is deterministic, and a digest differs.
        """
        if not self.declared:
            same = [self.again() == self.first for _ in range(further)]
            return Exactness(deterministic=all(same) if further else None)
        held = self.begin()()
        for launch in range(further + 1):
            if held != self.first:
                return self._examine(held, LAST if launch == 0 else f"one of {further} launches after the load")
            if launch < further:
                held = self.again()
        return Exactness(self.first, True if further else None)

    def _examine(self, held: int, launch: str) -> Exactness:
        """Tells a corrupted result from a kernel that is not deterministic, by two more launches."""
        corrupted = _on_host(self.d)
        right, again = self.again(), self.again()
        if right != again:
            return Exactness(deterministic=False)
        if right == held:
            raise ResultCorrupted(launch=FIRST, difference="Its elements are not kept.")
        raise ResultCorrupted(launch=launch, difference=self.difference_from(corrupted))

    def difference_from(self, corrupted: Any) -> str:
        """How a corrupted result differs from the right one, which `d` holds, as a sentence. None: it could not be kept."""
        right = _on_host(self.d)
        corrupted = None if corrupted is None else _on_host(corrupted)
        if corrupted is None or right is None:
            return "There is no memory to compare their elements."
        return f"{difference(right, corrupted)}."


def _on_host(d: Any) -> NDArray[Any] | None:
    """A copy of a result; None where there is no memory for it."""
    try:
        return np.array(d.get() if hasattr(d, "get") else d)
    except MemoryError:
        return None


def batch_sizes(m: int) -> list[int]:
    """Numbers of rows with which a result is compared to see whether it is batch-invariant: 1, and half of them."""
    return sorted({1, m // 2} - {0, m})


def compare(result: Result, rows: int, digest_with: DigestWith, *, determinism: bool) -> Exactness:
    """Compares the bits of a result with `rows` rows, and with `determinism` those of further launches and with fewer rows.

    Raises `ResultCorrupted`.
    """
    found = result.check(further=FURTHER_LAUNCHES if determinism else 0)
    if found.deterministic:
        found.batch_invariant = batch_invariant(result, rows, digest_with)
    return found


def batch_invariant(result: Result, rows: int, digest_with: DigestWith) -> bool | None:
    """Whether the first rows of D have the same bits where the problem has fewer rows; None if no smaller one can run.

    In the sense of batch invariance of inference servers: a row of the result must not depend on how many other rows there
    are. Where the problem is a batch of products, each of them has fewer rows, and there are as many products. None with groups,
    because another number of rows is other groups.
    """
    found: list[bool] = []
    result.launch()
    for fewer in batch_sizes(rows):
        other = digest_with(fewer)
        if other is not None:
            found.append(other == result.digest_of_rows(fewer))
    return all(found) if found else None
