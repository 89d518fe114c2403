"""A prediction of the kernel that a library chooses: the one that a formula predicts to be the fastest.

A library is called with a product and not with a kernel, so the tiles that `timing` needs are unknown. Which it has, and what a
step of each costs, is learned from measurements that say what was chosen (`trainer.choice`). Of a new problem the formula
gives a time to each kernel that the library chose for others of its kind, with k in one piece and cut so that the blocks fill the
card; the least of these is the reference, and the times of the others relative to it show how certain the choice is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from .arrays import Expected, read_arrays, require
from .card import Card
from .completed_rows import Configurations
from .numeric import Array, Floats
from .physics import LOAD_BYTES, Work, load_bytes

KERNELS = 16
"""The most kernels that are kept for a kind of problem: the ones that were chosen most often."""

COMPARED = 2
"""Of these, the first, whose times are compared with the least one: comparing more tells the trees nothing else."""

CONSTANTS: Mapping[str, float] = {
    # ns of a step of one element of k: of a block by itself; and over the time at the peak, where a multiprocessor is busy.
    "step_ns": 10.0,
    "issue": 1.3,
    # us of a block in addition to its steps.
    "block_us": 1.0,
    # Time over that at the bandwidth of memory.
    "memory": 1.2,
    # us of a launch, and of adding up slices; and the time of the traffic of adding over that at the bandwidth of memory.
    "launch_us": 1.5,
    "adding_us": 1.0,
    "traffic": 1.0,
}
"""The constants of the formula with what is supposed of them before anything is measured."""

OF_KERNELS = 4
"""The first of these are of each kernel, the others of a kind of problem."""

TILES = ("rows", "columns", "resident")
"""What else is known of a kernel: the tile of a block, and the blocks that a multiprocessor holds at a time."""

_MIN_SLICE = 32.0

_SCALED = 1 << 8
"""The step between the numbers of kinds with other scale factors."""


def kinds(rows: Configurations) -> Array:
    """What decides which kernels a library has for a row: the bytes of an element, whether all operands load at the full width,
    which the newest kernels need, and the scale factors, which other kernels apply."""
    wide = load_bytes(rows).min(axis=0) >= LOAD_BYTES
    found: Array = (2 * rows["ab_bytes"] + wide).astype("int64") + _SCALED * rows.scales
    return found


def time_ms(of: Floats, sizes: Floats, slices: Floats, card: Card) -> Floats:
    """The formula's time: `of` are `TILES` and `CONSTANTS`, `sizes` m, n, k, batch, bytes and operations per ms of the
    peak."""
    tile_rows, tile_columns, resident, step, issue, block, memory, launch, adding, traffic = of
    m, n, k, batch, moved, peak = sizes
    count = float(card.multiprocessors)
    blocks = np.ceil(m / tile_rows) * np.ceil(n / tile_columns) * batch * slices
    depth = k / slices
    waiting = (1e-6 * step * depth + 1e-3 * block) * np.ceil(blocks / (count * resident))
    each = blocks / count
    # A last wave that is not full costs a part of a whole one: blocks drift apart.
    waves = np.maximum(1.0, (each + np.ceil(each)) / 2)
    computing = 2.0 * count * tile_rows * tile_columns * issue / peak * depth * waves
    moving = memory * moved / card.bytes_per_ms
    squares = (waiting * waiting, computing * computing, moving * moving)
    longest = np.sqrt(np.sqrt(squares[0] * squares[0] + squares[1] * squares[1] + squares[2] * squares[2]))
    added = 1e-3 * adding + traffic * 4.0 * m * n * batch * slices / card.bytes_per_ms
    found: Floats = 1e-3 * launch + longest + (slices > 1) * added
    return found


def sizes_of(rows: Configurations, work: Work) -> Floats:
    """[6, rows], as `time_ms` takes them."""
    return np.array([rows["m"], rows["n"], rows["k"], rows["batch"], work.bytes, work.peak])


@dataclass(frozen=True)
class Foretold:
    """What the kernels of each row would take; NaN where none is known."""

    # [4, rows]: the least time in ms, rows and columns of the tile of the kernel that has it, and its slices of k.
    kernel: Floats
    # [compared kernels, rows]: the time of each over the least.
    over: Floats

    @property
    def time_ms(self) -> Floats:
        found: Floats = self.kernel[0]
        return found


@dataclass(frozen=True)
class Choices:
    """Kernels of each kind of problem of one family: `kernels` is [kinds, tiles and constants, kernels], NaN for fewer."""

    family: str
    kinds: Array
    kernels: Floats

    @classmethod
    def none(cls) -> Choices:
        """Nothing is known."""
        return cls("", np.zeros(0, "int64"), np.zeros((0, len(TILES) + len(CONSTANTS), KERNELS)))

    def __bool__(self) -> bool:
        return len(self.kinds) > 0

    def foretell(self, rows: Configurations, work: Work, card: Card) -> Foretold:
        """For rows of the family with a known kind and without groups; NaN for others. Where too little was measured with scale factors,
        it is that of the kernels without."""
        found = np.full((4 + COMPARED, len(rows)), np.nan)
        if self and self.family in rows.texts["family"].values:
            own = np.flatnonzero(rows.texts["family"].is_in((self.family,)) & ~rows.grouped)
            kind = kinds(rows).take(own)
            if rows.scales.any():
                kind = np.where(np.isin(kind, self.kinds), kind, kind % _SCALED)
            place = self.kinds.searchsorted(kind)
            known = self.kinds.take(place, mode="clip") == kind
            if known.any():
                own, place = own[known], place[known]
                found[:, own] = self._of_known(place, sizes_of(rows, work).take(own, axis=1), card)
        return Foretold(found[:4], found[4:])

    def _of_known(self, place: Array, sizes: Floats, card: Card) -> Floats:
        """`Foretold` in one, [4 + compared kernels, rows], of rows by the places of their kinds."""
        # [tiles and constants, rows, kernels]
        of = self._ordered.take(place, axis=1)
        sizes = sizes[..., None]
        edges = np.ceil(sizes[:2] / of[:2])
        filling = np.floor(card.multiprocessors * of[2] / (edges[0] * edges[1] * sizes[3]))
        filling = np.maximum(1.0, np.minimum(filling, np.floor(sizes[2] / _MIN_SLICE)))
        slices = np.array([np.ones_like(filling), filling])
        times = time_ms(of, sizes, slices, card)
        cut = times[1] < times[0]
        times, slices = np.where(cut, times[1], times[0]), np.where(cut, filling, 1.0)
        every = np.arange(len(place))
        best = np.where(np.isnan(times), np.inf, times).argmin(axis=1)
        least = times[every, best]
        found = np.empty((4 + COMPARED, len(place)))
        found[0], found[1:3], found[3] = least, of[:2, every, best], slices[every, best]
        np.divide(times[:, :COMPARED].T, least, out=found[4:])
        return found

    @cached_property
    def _ordered(self) -> Floats:
        """`kernels` as [tiles and constants, kinds, kernels]."""
        return np.ascontiguousarray(self.kernels.swapaxes(0, 1))

    def save(self, path: Path) -> None:
        np.savez_compressed(path, family=self.family, kinds=self.kinds, kernels=self.kernels)

    @classmethod
    def read(cls, content: bytes, name: str) -> Choices:
        """What `save` wrote. Raises `BadFiles`."""
        found = read_arrays(
            content,
            name,
            {
                "family": Expected("U"),
                "kinds": Expected("<i8", (None,)),
                "kernels": Expected("<f8", (None, len(TILES) + len(CONSTANTS), KERNELS)),
            },
        )
        kinds, kernels = found["kinds"], found["kernels"]
        require(len(kinds) == len(kernels), f"{name}: kinds and kernels are not of one number")
        require(kinds[1:] > kinds[:-1], f"{name}: kinds are not sorted")
        require(~np.isinf(kernels), f"{name}: a constant is no number")
        require(np.isnan(kernels[:, : len(TILES)]) | (kernels[:, : len(TILES)] > 0), f"{name}: a tile is empty")
        return cls(str(found["family"]), kinds, kernels)
