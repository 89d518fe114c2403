"""A kernel's time from its blocks, the loops of each, and what these read: a formula whose constants are fitted.

A roofline describes how fast a card can be, not a kernel. Here each kernel has constants of its own: what a step of its loop costs
while the card is idle (latency) and while it is full (issue), what a block costs in addition to its steps, and what shares of the
bandwidths it reaches. They are learned in logarithms as sums over `levels`, so that a kernel with few known rows
borrows from its family, and one in another layout or alignment from the same kernel. A forest learns what the formula misses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .arrays import Expected, read_arrays, require
from .card import Card
from .columns import BYTES_OF_B, IS_SPARSE
from .completed_rows import Configurations
from .loads import Loads
from .numeric import Array, Floats
from .physics import LOAD_BYTES, Tiling, Work
from .vocabulary import Vocabulary

CONSTANTS: Mapping[str, float] = {
    # ms of a step of k of a block: always, and where all that it reads comes from memory.
    "step_ms": 5e-4,
    "miss_ms": 3e-4,
    # The time of a full multiprocessor's step over that at the peak.
    "issue": 1.3,
    # ms of a block in addition to its steps, and of a launch.
    "block_ms": 1e-3,
    "launch_ms": 2e-3,
    # Time over that at the bandwidth of memory, and at the L2's (`_L2_OVER_MEMORY`).
    "memory": 1.1,
    "l2": 1.5,
    # How even the last wave is: large where blocks drift apart, and no wave ends as a whole.
    "drift": 1.0,
    # Adding up slices, over what their traffic takes; and, of one tile, for each block that shares it.
    "adding": 1.0,
    "sharing": 1.0,
    # ns of a load instruction of A and of B, more of which are needed for a badly aligned operand.
    "load_a": 1e-3,
    "load_b": 1e-3,
    # Of the norm that joins computing, L2 and memory: infinite where they overlap wholly, 1 where one follows another.
    "overlap": 3.0,
    # ms that a step waits for a load, and ns of a thread for an element that it loads by itself, and for a weight that it converts.
    "wait_ms": 2.5e-4,
    "single": 5.0,
    "convert": 2.0,
}
"""The constants of the formula with what is supposed of them before anything is measured."""

_OLDER = len(CONSTANTS) - 3
"""Constants of models before format 10, whose times have no waits, single loads and conversions."""
_NEVER = -1e3
"""The logarithm of a constant that adds nothing."""

_START: Floats = np.log(np.array(list(CONSTANTS.values())))[:, None]

OF_TILES = ("tile_m", "tile_n", "tile_k", "warps", "stages")
"""Parameters of Triton kernels. Each is a level, because most kernels that are asked for have few rows of their own or none."""

LEVELS = ("base", "kernel", "layout", "types", "kernel in layout", "a", "b", "c", *OF_TILES)
"""What a constant is a sum over; a, b and c are the alignments of the leading dimensions."""

_WHICH = np.arange(len(LEVELS), dtype="uint64")[:, None]

_MIXERS = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93))
_HIGHEST_BYTE, _HALF, _SIXTEEN = np.uint64(56), np.uint64(32), np.uint64(16)

_SCALE, _FUSION, _GROUPED, _SPARSE = 1 << 8, 1 << 16, 1 << 24, 1 << 25
"""Steps between the numbers of types with other scale factors, with other fused operations, in groups, and with a sparse B."""

_L2_OVER_MEMORY = 2.0
_SHARPNESS = 4

_MIN_STEPS = 8
"""Minimum steps of k that stream-k gives to a block (CUTLASS 4.2, PersistentTileSchedulerSm90StreamKParams)."""
_ADDING_MS = 1e-3

_ALONE = np.array([1.0, 1.0, 0.0])[:, None]


@dataclass(frozen=True)
class Loops:
    """What the formula needs of a row; each is [rows]."""

    columns: Mapping[str, Floats]
    # [levels, rows]: names of the levels of each row, as numbers.
    keys: Array
    usable: Array  # where a kernel's tiles are known

    def __getitem__(self, name: str) -> Floats:
        return self.columns[name]

    def part(self, rows: Array) -> Loops:
        return Loops(
            {name: values[rows] for name, values in self.columns.items()}, self.keys[:, rows], self.usable[rows]
        )

    @classmethod
    def of(cls, rows: Configurations, vocabulary: Vocabulary, work: Work, tiling: Tiling, card: Card) -> Loops:
        m, n, k, ab, of_b, batch = (rows[name] for name in ("m", "n", "k", "ab_bytes", BYTES_OF_B, "batch"))
        tile_m, tile_n, depth, slices = tiling.rows, tiling.columns, tiling.depth, tiling.slices
        # A family without clusters has blocks by themselves; one without stream-k shares no tiles.
        alone = np.fmax(np.array([rows.parameter(name) for name in ("cluster_m", "cluster_n", "stream_k")]), _ALONE)
        clusters, stream = alone[:2], alone[2]
        # Clusters are launched whole.
        launched = np.ceil(np.array([tiling.grid_rows, tiling.grid_columns]) / clusters)
        (grid_m, grid_n), (clusters_m, clusters_n) = launched * clusters, launched
        widths = np.minimum(rows.alignments[:2], LOAD_BYTES / np.array([ab, of_b]))
        tiles, loads = (tile_m, tile_n), Loads.of(rows, tiling)
        columns = {
            "blocks": grid_m * grid_n * slices * batch,
            "steps": tiling.steps,
            "resident": tiling.resident,
            "bytes": work.bytes,
            # What tiles read of the L2: A once for each column of tiles, and B for each row of them.
            "strips": np.maximum((clusters_n * m * ab + clusters_m * n * of_b) * k * batch, 1.0),
            "step_ms": 2.0 * tile_m * tile_n * depth * card.multiprocessors / work.peak,
            **{name: tile * depth / at_once for name, tile, at_once in zip("ab", tiles, widths, strict=True)},
            "sliced": (slices > 1) * (_ADDING_MS + m * n * batch * 4.0 * slices / card.bytes_per_ms),
            "summed": _ADDING_MS + m * n * batch * 8.0 / card.bytes_per_ms,
            "area": tile_m * tile_n / 128**2,
            "stream": stream,
            "waits": loads.waits,
            "single": loads.single,
            "converted": loads.converted,
            # Blocks of 128 threads, as which a block keeps a multiprocessor busy.
            "warpgroups": tiling.threads / 128,
        }
        return cls(columns, _keys(rows, vocabulary), np.isfinite(tiling.blocks))


def _keys(rows: Configurations, vocabulary: Vocabulary) -> Array:
    """The levels of each row as numbers, [levels, rows]; different levels have different ones, for all that matters."""
    values = np.zeros((len(LEVELS), len(rows)), "uint64")
    layouts = values[2]
    layouts[:] = 1 + rows["a_transposed"] + 2 * rows["b_transposed"]
    values[1] = vocabulary.kernels(rows)
    # Scale factors, fused operations, groups and sparsity are part of the types.
    values[3] = rows.types + _SCALE * rows.scales + _FUSION * rows.fusions + _GROUPED * rows.grouped
    values[3] += (_SPARSE * rows[IS_SPARSE]).astype("uint64")
    values[4] = values[1] + (layouts << _HIGHEST_BYTE)
    values[5:8] = np.minimum(rows.alignments, LOAD_BYTES)
    by_warps = np.isfinite(rows.parameter("warps"))
    values[8:] = np.where(by_warps, [rows.parameter(name) for name in OF_TILES], 0.0)
    # A base for each family and width of elements: SIMT and tensor cores have little in common.
    values *= _MIXERS[0]
    values += (64 * rows.families + rows["ab_bytes"]).astype("uint64")
    values *= _MIXERS[1]
    values ^= values >> _HALF
    values *= _SIXTEEN
    values += _WHICH
    return values


def time_ms(logs: Floats, loops: Loops, card: Card) -> dict[str, Floats]:
    """The formula's time as `time`, and parts of it: `logs` [constants, rows] are logarithms of the constants.

    `computing` is of the blocks, in rounds of as many as the card holds; `latency` and `issue` what its steps would take if
    only the one or the other counted; `memory` and `l2` the traffic's.
    """
    *usual, wait, single, convert = np.exp(logs)
    step, miss, issuing, begin, launch, of_memory, of_l2, drift, adding, sharing, load_a, load_b, norm = usual
    blocks, steps, resident, count = loops["blocks"], loops["steps"], loops["resident"], float(card.multiprocessors)
    by_threads = 1e-6 * (loops["single"] * single + loops["converted"] * convert)
    issue = loops["step_ms"] * issuing + 1e-6 * (loops["a"] * load_a + loops["b"] * load_b)
    issue = issue + by_threads * loops["warpgroups"]
    latency = step + miss * np.minimum(1.0, loops["bytes"] / loops["strips"]) + wait * loops["waits"] + by_threads

    rounds = blocks / (count * resident)
    whole = np.floor(rounds)
    last = np.ceil((blocks - whole * count * resident) / count)
    # Of a round with as many blocks on each multiprocessor as it holds, and of one with those that are left.
    held = np.array([resident, np.maximum(last, 1.0)])
    full, rest = begin + steps * (latency**_SHARPNESS + (held * issue) ** _SHARPNESS) ** (1 / _SHARPNESS)
    even = whole * full + np.where(last > 0, rest, 0.0)
    computing = np.where(whole > 0, (even + drift * rounds * full) / (1 + drift), even)
    added = adding * loops["sliced"]
    if loops["stream"].any():
        # Where the last wave is less than half full, its tiles and those of the wave before are shared by all blocks.
        waves = np.floor(blocks / count)
        tail, before = blocks - waves * count, np.maximum(waves - 1, 0.0)
        shared = blocks - before * count
        units = np.clip(np.floor(shared * steps / _MIN_STEPS), 1.0, count)
        each = (full - begin) / np.maximum(steps, 1.0) * np.ceil(shared * steps / units)
        streamed = before * full + begin + each
        streamed = streamed + 1e-3 * sharing * np.maximum(units / np.maximum(shared, 1.0) - 1, 0.0) * loops["area"]
        streams = (loops["stream"] > 0) & (tail > 0) & (2 * tail < count) & (steps > _MIN_STEPS)
        computing = np.where(streams, streamed, computing)
        added = added + np.where(streams, adding * loops["summed"], 0.0)
    memory = loops["bytes"] * of_memory / card.bytes_per_ms
    l2 = loops["strips"] * of_l2 / (_L2_OVER_MEMORY * card.bytes_per_ms)
    parts = np.array([computing, memory, l2])
    longest = np.maximum.reduce(parts, axis=0)
    joined = longest * np.add.reduce((parts / longest) ** norm, axis=0) ** (1 / norm)
    return {
        "time": joined + launch + added,
        "computing": computing,
        "latency": steps * latency * np.maximum(rounds, 1.0),
        "issue": steps * issue * np.maximum(blocks / count, 1.0),
        "memory": memory,
        "l2": l2,
    }


@dataclass(frozen=True)
class Timing:
    """Fitted constants: `logs` [levels of all rows, constants] of each key, which are sorted."""

    keys: Array
    logs: Floats

    @classmethod
    def none(cls) -> Timing:
        """Nothing is known: the roofline stands."""
        return cls(np.zeros(0, "uint64"), np.zeros((0, len(CONSTANTS))))

    def constants(self, loops: Loops) -> tuple[Floats, Array]:
        """Logarithms of the constants of each row [constants, rows], and the rows with a known base."""
        if not len(self.keys):
            return start(loops.keys.shape[1]), np.zeros(loops.keys.shape[1], bool)
        place = self.keys.searchsorted(loops.keys)
        known = self.keys.take(place, mode="clip") == loops.keys
        logs = self.logs.take(place, axis=0, mode="clip")
        found: Floats = _START + np.add.reduce(logs * known[..., None], axis=0).T
        return found, known[0] & loops.usable

    def save(self, path: Path) -> None:
        np.savez_compressed(path, keys=self.keys, logs=self.logs)

    @classmethod
    def read(cls, content: bytes, name: str, *, waits: bool = True) -> Timing:
        """What `save` wrote, or without `waits` a version of before these were learned. Raises `BadFiles`."""
        stored = len(CONSTANTS) if waits else _OLDER
        found = read_arrays(content, name, {"keys": Expected("<u8", (None,)), "logs": Expected("<f8", (None, stored))})
        keys, missing = found["keys"], len(CONSTANTS) - stored
        logs = np.pad(found["logs"], ((0, 0), (0, missing)), constant_values=_NEVER)
        require(len(keys) == len(logs), f"{name}: keys and constants are not of one number")
        require(keys[1:] > keys[:-1], f"{name}: keys are not sorted")
        require(np.isfinite(logs), f"{name}: a constant is no number")
        return cls(keys, logs)


def start(rows: int) -> Floats:
    """What is supposed of the constants, [constants, rows], in logarithms."""
    return np.repeat(_START, rows, axis=1)
