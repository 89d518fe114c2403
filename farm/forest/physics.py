"""Work and traffic of a GEMM, how a kernel's tiles cover it, and the time that physics alone would give.

A forest cannot go beyond the targets it was trained on, so it never learns milliseconds: it learns by what factor a
configuration misses a reference time. That factor moves little with size. The reference is a roofline (Williams,
Waterman and Patterson, CACM 52(4), 2009) whose computing comes in whole waves of blocks, above the floor of a launch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .card import Card
from .columns import BIAS, BYTES_OF_B, IS_SPARSE
from .completed_rows import Configurations
from .numeric import Floats, stacked

LIBRARY_TILES = ((64, 64), (128, 64), (64, 128), (128, 128), (256, 128), (128, 256))
"""Tiles that vendors' libraries have kernels of, for every type."""

_LIBRARY_SLICES = np.array([1.0, 2.0, 4.0, 8.0, 16.0])[:, None]
_MIN_SLICE = 128
"""Libraries do not cut k into shorter pieces."""

_FEEDING = 48.0
"""What a tile pays for its operands: its time grows by this over the harmonic mean of its edges, halved. A rough figure: a
forest learns what it misses."""

_TILE_ROWS, _TILE_COLUMNS = np.array(LIBRARY_TILES, "float64").T[:, :, None]
_TILE_AREA = _TILE_ROWS * _TILE_COLUMNS
_TILE_WORK = (1 + _FEEDING * (1 / _TILE_ROWS + 1 / _TILE_COLUMNS) / 2) * 2.0 * _TILE_AREA
"""Operations of a tile for each step of k, with what feeding it costs; all of these are [tiles, 1]."""

_SLICING_MS = 1e-3
"""The minimum cost of adding up slices: about one more launch."""

_SHARPNESS = 4
"""Of the maximum of computing and memory: times that are alike add up a little, as in no kernel they overlap wholly."""

_HOPPER_THREADS = 384
"""Of a block of a warp-specialised kernel: two groups of warps that compute, and one that copies (CUTLASS 3.x)."""

_BLOCK_BYTES = 1024
"""Shared memory that the system takes of each block (CUDA C++ Programming Guide, from compute capability 8.0)."""

_MIN_REGISTERS, _MAX_REGISTERS = 24, 255

_SIMT_REGISTERS, _TENSOR_REGISTERS = np.array([[66.0], [1.2]]), np.array([[64.0], [1.3]])
"""Registers of a thread of CUTLASS 2.x, in addition to those for each output: rough fits to what nvcc 13.0 gave 41 kernels."""
_COPYING_REGISTERS = 40.0
"""More of them where tiles go through registers on their way to shared memory, as tensor kernels of two stages have it."""

LOAD_BYTES = 16
"""The most that a thread loads at once."""


def flops_of(rows: Configurations) -> Floats:
    """2·m·n·k operations of each product of each row's batch."""
    return 2.0 * rows["m"] * rows["n"] * rows["k"] * rows["batch"]


def scale_and_bias_bytes(rows: Configurations) -> Floats:
    """Bytes of the scale factors, which have four each or those of A's type for weights of fewer bits, and of the bias of one product
    of each row. Each group with rows has factors of B and a bias."""
    m, n, k, matrices = rows["m"], rows["n"], rows["k"], rows["active_groups"]
    of_a = np.ceil(m / rows["a_lines"]) * np.ceil(k / rows["a_inner"])
    of_b = np.ceil(n / rows["b_lines"]) * np.ceil(k / rows["b_inner"])
    of_factor = np.where(rows[BYTES_OF_B] < rows["ab_bytes"], rows["ab_bytes"], 4.0)
    found: Floats = of_factor * (of_a + matrices * of_b) + matrices * n * rows["cd_bytes"] * rows[BIAS]
    return found


SPARSE_SPEED_UP = 2.0
"""Sparse tensor cores take half as long: the peak in NVIDIA's data sheets, which counts zeros."""


def bytes_of_b(rows: Configurations) -> Floats:
    """Bytes of a matrix B of each row; of a sparse one, those of the elements that are kept, and of their indexes of two bits."""
    n, k, size = rows["n"], rows["k"], rows[BYTES_OF_B]
    dense: Floats = k * n * size
    if not rows[IS_SPARSE].any():
        return dense
    kept = (np.ceil(k / 4) + np.ceil((k - 1) / 4)) * n
    return np.where(rows[IS_SPARSE] > 0, kept * size + np.ceil(kept / 4), dense)


def compulsory_bytes(rows: Configurations) -> Floats:
    """Bytes of each row's batch with A, B, scale factors and bias read once, D written once, and C read once where beta is not 0.
    B of groups without rows is not read."""
    m, k = rows["m"], rows["k"]
    inputs = m * k * rows["ab_bytes"] + rows["active_groups"] * bytes_of_b(rows)
    outputs = m * rows.columns_of_d * rows["cd_bytes"]
    added = scale_and_bias_bytes(rows)
    return (inputs + outputs * np.where(rows["beta"] == 0, 1.0, 2.0) + added) * rows["batch"]


def load_bytes(rows: Configurations) -> Floats:
    """The most bytes that one load of A and of B, and one store of C, can move at once: [3, rows]."""
    widths = stacked([rows["ab_bytes"], rows[BYTES_OF_B], rows["cd_bytes"]], len(rows))
    found: Floats = np.minimum(rows.alignments * widths, LOAD_BYTES)
    return found


@dataclass(frozen=True)
class Work:
    """The work of a problem, independent of the kernel: operations, bytes, and the minimum ms for each."""

    flops: Floats
    bytes: Floats
    peak: Floats  # operations per ms
    compute_ms: Floats
    memory_ms: Floats

    @classmethod
    def of(cls, rows: Configurations, card: Card) -> Work:
        flops, traffic = flops_of(rows), compulsory_bytes(rows)
        peak = rows.texts["ab"].map(card.flops_per_ms.__getitem__) * np.where(rows[IS_SPARSE] > 0, SPARSE_SPEED_UP, 1.0)
        return cls(flops, traffic, peak, flops / peak, traffic / card.bytes_per_ms)


@dataclass(frozen=True)
class Library:
    """What the best of a vendor's usual tiles would take, for rows whose own tiles are not known."""

    compute_ms: Floats
    tile: Floats  # which of the usual tiles
    slices: Floats
    # [usual tiles, rows]: the share of a multiprocessor's work that is not padding or an empty last wave.
    efficiency: Floats

    @classmethod
    def of(cls, rows: Configurations, work: Work, card: Card) -> Library:
        m, n, k, count = rows["m"], rows["n"], rows["k"], card.multiprocessors
        outputs = m * n * rows["batch"]
        blocks = rows.row_tiles(_TILE_ROWS) * np.ceil(n / _TILE_COLUMNS) * rows["batch"]
        efficiency = outputs / (np.ceil(blocks / count) * (count * _TILE_AREA))
        wave_ms = _TILE_WORK * count * k / work.peak
        # A slice leaves a partial sum in the L2, in four bytes, which is written and read.
        adding_ms = _SLICING_MS + _LIBRARY_SLICES * (outputs * 8.0 / (3 * card.bytes_per_ms))
        adding_ms = np.where(k < _MIN_SLICE * _LIBRARY_SLICES, np.inf, adding_ms)
        adding_ms[0] = 0.0
        # [tiles, slices, rows]
        times = np.ceil(blocks[:, None] * _LIBRARY_SLICES / count) / _LIBRARY_SLICES * wave_ms[:, None] + adding_ms
        every = times.reshape(len(LIBRARY_TILES) * len(_LIBRARY_SLICES), -1)
        tile, slices = np.divmod(every.argmin(axis=0), len(_LIBRARY_SLICES))
        return cls(np.minimum.reduce(every), tile, _LIBRARY_SLICES.take(slices), efficiency)


@dataclass(frozen=True)
class Tiling:
    """How a kernel whose tiles are known covers a problem; NaN where they are not. The grid is of one product of a batch, the blocks
    are of all. Tiles have rows of one group."""

    rows: Floats
    columns: Floats
    depth: Floats
    area: Floats
    slices: Floats
    threads: Floats  # of a block
    warps: Floats  # of a block
    outputs: Floats  # of a thread
    shared_bytes: Floats  # of a block
    registers: Floats  # of a thread, estimated
    grid_rows: Floats
    grid_columns: Floats
    blocks: Floats
    steps: Floats  # of the K loop of a block
    resident: Floats  # blocks that a multiprocessor holds at a time
    compute_ms: Floats  # in whole waves of one block for each multiprocessor

    @classmethod
    def _unknown(cls, nothing: Floats, slices: Floats) -> Tiling:
        """For rows without known tiles: `nothing` is NaN."""
        known = {"slices": slices, "resident": np.ones(len(nothing))}
        return cls(**{**dict.fromkeys(cls.__dataclass_fields__, nothing), **known})

    @classmethod
    def of(cls, given: Configurations, work: Work, card: Card) -> Tiling:
        """Blocks, steps and what a multiprocessor holds: the occupancy calculation of the CUDA C++ Programming Guide."""
        edge, split, warp_rows, warp_columns, stated, stages, *tile = (given.parameter(name) for name in _TILING)
        ab, of_b, square = given["ab_bytes"], given[BYTES_OF_B], ~np.isnan(edge)
        rows, columns, depth = np.where(np.isnan(tile), edge, tile)
        slices = np.where(np.isnan(split), 1.0, split)
        if np.isnan(rows).all():
            return cls._unknown(rows, slices)
        area = rows * columns
        threads = np.where(square, edge * edge, 32 * (rows / warp_rows) * (columns / warp_columns))
        of_block = np.where(np.isnan(stated), _HOPPER_THREADS, 32 * stated)
        threads = np.where(np.isnan(threads) & ~np.isnan(rows), of_block, threads)
        # Stages of 0 are as many as fit.
        staged = np.where(np.isnan(stages), 1.0, stages) * (rows * ab + columns * of_b) * depth
        shared = np.where(stages == 0, card.shared_bytes, staged)
        outputs = area / threads
        # Accumulators, two strips of operands, and addresses; allocated eight at a time.
        wanted = outputs + 4 * np.sqrt(outputs) + _MIN_REGISTERS
        simt = ab >= 4
        fixed, each = np.where(simt, _SIMT_REGISTERS, _TENSOR_REGISTERS)
        copying = np.where(~simt & (stages == 2), _COPYING_REGISTERS, 0.0)
        wanted = np.where(np.isnan(warp_rows), wanted, fixed + each * outputs + copying)
        registers = np.minimum(np.ceil(wanted / 8) * 8, _MAX_REGISTERS)
        warps = np.ceil(threads / 32)
        lanes = 32 * warps
        held = np.minimum(card.threads / lanes, card.registers / (lanes * registers))
        held = np.minimum(held, card.shared_bytes / (shared + _BLOCK_BYTES))
        resident = np.fmax(1.0, np.floor(np.minimum(held, card.blocks)))
        grid_rows, grid_columns = given.row_tiles(rows), np.ceil(given["n"] / columns)
        blocks = grid_rows * grid_columns * slices * given["batch"]
        steps = np.ceil(given["k"] / slices / depth)
        waves = np.ceil(blocks / card.multiprocessors)
        compute_ms = waves * card.multiprocessors * 2.0 * rows * columns * steps * depth / work.peak
        return cls(
            rows, columns, depth, area, slices, threads, warps, outputs, shared, registers, grid_rows, grid_columns, blocks,
            steps, resident, compute_ms,
        )  # fmt: skip


_TILING = ("tile", "split_k", "warp_m", "warp_n", "warps", "stages", "tile_m", "tile_n", "tile_k")
"""The parameters of kernels that decide their blocks."""


def reference_ms(work: Work, library: Library, tiling: Tiling, card: Card) -> Floats:
    """The time that physics gives each row: the floor, and the smooth maximum of computing in whole waves and of memory."""
    # Tiles and waves of a library are known of GPUs alone: a CPU has other blocks, and pads nothing.
    unknown = library.compute_ms if card.multiprocessors > 1 else work.compute_ms
    compute = np.where(np.isnan(tiling.compute_ms), unknown, tiling.compute_ms)
    both = (compute**_SHARPNESS + work.memory_ms**_SHARPNESS) ** (1 / _SHARPNESS)
    result: Floats = card.floor_ms + both
    return result
