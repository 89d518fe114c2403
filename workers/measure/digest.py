"""The digest of a result: 64 bits that change whenever a bit of D changes.

Definition. Let e(i) be the bits of element i of D in row-major order of [m,n], of a batch of [batch,m,n], as an unsigned integer, independent of what
the type means by them: a NaN's payload and the sign of a zero count. Then, modulo 2^64,

    digest = sum over i of mix(e(i) + (i + 1) * 0x9E3779B97F4A7C15)

where `mix` is the finaliser of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators",
2014), a bijection of 64-bit words. So:

- A change of a single element, by one bit or by many, always changes the digest: `mix` is injective.
- Any other change (elements that are swapped, a column, everything) is missed with a probability of about 2^-64. A sum that
  only weights elements by their place misses changes that cancel; mixed words have no such structure.
- The order of summation does not matter, so threads can share the work, and neither does how D lies in memory.
- The digest of the first rows of D needs no other rows, so results of problems with different m can be compared.

The same function runs on a card (`workers/kernels/digest.cu`), and gives the same number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

GOLDEN = 0x9E3779B97F4A7C15
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)

BITS: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
"""By the bytes of an element: the type of its bits."""

_BLOCK = 2**15
"""Elements that are mixed at once: their words stay in a processor's cache."""


def digest(d: Any) -> int:
    """The digest of a NumPy array, which may be any view: 0 to 2^64 - 1."""
    total, index = 0, 0
    with np.errstate(over="ignore"):
        for part in _parts(d):
            words = part.view(BITS[part.itemsize]).astype(np.uint64)
            words += np.arange(index + 1, index + 1 + part.size, dtype=np.uint64) * np.uint64(GOLDEN)
            index += part.size
            words ^= words >> np.uint64(30)
            words *= _FIRST
            words ^= words >> np.uint64(27)
            words *= _SECOND
            words ^= words >> np.uint64(31)
            total += int(words.sum(dtype=np.uint64))
    return total % 2**64


def _parts(d: Any) -> Any:
    """Flat, contiguous pieces of an array in row-major order, which copy no more than one piece at a time."""
    if d.flags.c_contiguous:
        flat = d.reshape(-1)
        for first in range(0, flat.size, _BLOCK):
            yield flat[first : first + _BLOCK]
        return
    rows = max(1, _BLOCK // max(1, d[0].size))
    for first in range(0, len(d), rows):
        yield np.ascontiguousarray(d[first : first + rows]).reshape(-1)


def text(found: int) -> str:
    """A digest as the column `result_digest` has it."""
    return f"{found:016x}"


@dataclass(frozen=True, slots=True)
class Difference:
    """How two results differ in their bits."""

    elements: int
    of: int
    matrix: int | None  # of the first element that differs, in row-major order; None without a batch
    row: int
    column: int
    before: int  # its bits
    after: int
    width: int  # hexadecimal digits of an element

    def __str__(self) -> str:
        share = f"{self.elements:,} of {self.of:,} elements differ"
        bits = f"{self.before:#0{self.width + 2}x} became {self.after:#0{self.width + 2}x}"
        of = "" if self.matrix is None else f" of matrix {self.matrix}"
        return f"{share}, the first at ({self.row}, {self.column}){of}, where {bits}"


def difference(before: NDArray[Any], after: NDArray[Any]) -> Difference | None:
    """Compares the bits of two results [m,n] or [batch,m,n] of one type. None where they are equal."""
    kind, shape = BITS[before.itemsize], before.shape
    count, first = 0, -1
    before, after = (x.reshape(-1, shape[-1]) for x in (before, after))
    rows, columns = before.shape
    step = max(1, _BLOCK // columns)
    for at in range(0, rows, step):
        one, other = (np.ascontiguousarray(x[at : at + step]).view(kind) for x in (before, after))
        places = np.flatnonzero(one != other)
        if first < 0 and places.size:
            first = at * columns + int(places[0])
        count += places.size
    if first < 0:
        return None
    row, column = divmod(first, columns)
    bits = [int(np.ascontiguousarray(x[row : row + 1]).view(kind)[0, column]) for x in (before, after)]
    matrix, row = divmod(row, shape[-2]) if len(shape) == 3 else (None, row)
    return Difference(count, before.size, matrix, row, column, bits[0], bits[1], 2 * before.itemsize)
