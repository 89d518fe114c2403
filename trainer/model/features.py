"""What a forest sees of a configuration on a card: sizes, traffic, waves and occupancy of the kernel's blocks, and kinds.

Sizes are logarithms to the base 2, so that a tree's threshold means a ratio. A feature that a family does not have is 0.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from .card import Card
from .columns import EXTENTS, Array, Configurations, Floats, Vocabulary
from .physics import Library, Tiling, Work, reference_ms

_WIDEST_ALIGNMENT = 8
"""Alignment is counted to 2^8 elements: wider than any vector load or tile edge that a kernel can profit from."""

_MANY_WAVES = 64.0


@dataclass(frozen=True)
class Seen:
    """What a model knows of rows before it is asked: their features by name, NaN where a family has none, and the time that
    physics gives them."""

    columns: dict[str, Floats]
    reference_ms: Floats
    flops: Floats

    def matrix(self, names: Sequence[str]) -> Array:
        """[rows, features] in float32, which is what scikit-learn's trees compare with."""
        found = np.empty((len(self.flops), len(names)), "float32")
        for index, name in enumerate(names):
            found[:, index] = self.columns[name]
        found[np.isnan(found)] = 0.0
        return found

    def varying(self) -> list[str]:
        """The features that are not the same in all rows."""
        every = list(self.columns)
        x = self.matrix(every)
        return [name for index, name in enumerate(every) if len(x) and np.any(x[:, index] != x[0, index])]


def see(rows: Configurations, vocabulary: Vocabulary, card: Card, only: Container[str] | None = None) -> Seen:
    """The features of completed rows on that card. With `only`, kinds and parameters that are not in it are left out."""
    element_bytes = vocabulary.element_bytes
    with np.errstate(divide="ignore", invalid="ignore"):
        work = Work.of(rows, element_bytes, card)
        library = Library.of(rows, work, card)
        tiling = Tiling.of(rows, work, card, element_bytes)
        columns = {
            **_sizes(rows, work, card, vocabulary),
            **{f"align_{name}": _alignment(rows[name]) for name in EXTENTS},
            **_library(rows, work, library, card),
            **_tiling(rows, work, tiling, card, vocabulary),
            **_kinds(rows, vocabulary, only),
            **{name: rows[name] for name in vocabulary.parameters if _trained(name, vocabulary)},
            "log2_flops_per_thread": np.log2(work.flops / rows.parameter("threads")),
        }
        return Seen(columns, reference_ms(work, library, tiling, card), work.flops)


def _trained(parameter: str, vocabulary: Vocabulary) -> bool:
    return any(parameter in family.parameters for family in vocabulary.families.values())


def _sizes(rows: Configurations, work: Work, card: Card, vocabulary: Vocabulary) -> dict[str, Floats]:
    m, n, k = (np.log2(rows[name]) for name in EXTENTS)
    ab, cd = (np.log2(rows.texts[name].map(vocabulary.element_bytes.__getitem__)) for name in ("ab", "cd"))
    cache = np.log2(card.l2_bytes)
    roof = np.maximum(work.compute_ms, work.memory_ms)
    return {
        **{"log2_m": m, "log2_n": n, "log2_k": k, "log2_mn": m + n, "log2_mk": m + k, "log2_nk": n + k},
        **{"log2_aspect": m - n, "log2_depth": k - (m + n) / 2},
        "log2_flops": np.log2(work.flops),
        "log2_bytes": np.log2(work.bytes),
        "log2_intensity": np.log2(work.flops / work.bytes),
        # How the card's two limits compare, and how both do with the floor of a launch.
        "log2_roofline": np.log2(roof),
        "log2_balance": np.log2(work.compute_ms / work.memory_ms),
        "log2_floored": np.log2(roof + card.floor_ms),
        # Shares of the L2 that the problem and its operands take.
        "log2_l2": np.log2(work.bytes) - cache,
        **{"log2_l2_a": m + k + ab - cache, "log2_l2_b": k + n + ab - cache, "log2_l2_d": m + n + cd - cache},
    }


def _alignment(extent: Floats) -> Floats:
    """log2 of the largest power of two that divides the extent, at most `_WIDEST_ALIGNMENT`."""
    whole = extent.astype("int64") | (1 << _WIDEST_ALIGNMENT)
    result: Floats = np.log2(whole & -whole)
    return result


def _library(rows: Configurations, work: Work, library: Library, card: Card) -> dict[str, Floats]:
    """What a library that may choose its tiles would face."""
    squares = np.ceil(rows["m"] / 128) * np.ceil(rows["n"] / 128)
    return {
        **{f"efficiency_{tile}": value for tile, value in library.efficiency.items()},
        "log2_library_time": np.log2(library.compute_ms),
        "log2_library_loss": np.log2(library.compute_ms / work.compute_ms),
        "library_tile": library.tile,
        "log2_library_slices": np.log2(library.slices),
        "log2_waves_128": np.log2(squares / card.multiprocessors),
        **{f"padding_{axis}_64": np.ceil(rows[axis] / 64) * 64 / rows[axis] for axis in "mn"},
    }


def _tiling(rows: Configurations, work: Work, tiling: Tiling, card: Card, vocabulary: Vocabulary) -> dict[str, Floats]:
    """What the kernel's own blocks face; NaN where its tiles are not known."""
    ab = rows.texts["ab"].map(vocabulary.element_bytes.__getitem__)
    waves = tiling.blocks / card.multiprocessors
    full = waves / tiling.resident
    warps = np.ceil(tiling.threads / 32)
    outputs = tiling.rows * tiling.columns / tiling.threads
    warp_rows, warp_columns = rows.parameter("warp_m"), rows.parameter("warp_n")
    strips = tiling.blocks * (tiling.rows + tiling.columns) * (rows["k"] / tiling.slices) * ab
    at_once = np.sqrt(np.minimum(tiling.blocks, card.multiprocessors * tiling.resident))
    return {
        "log2_blocks": np.log2(tiling.blocks),
        "log2_waves": np.log2(waves),
        "log2_full_waves": np.log2(full),
        # What share of the time of whole waves there is work for all multiprocessors; with all that they hold at a time.
        "wave_efficiency": waves / np.ceil(waves),
        "full_wave_efficiency": full / np.ceil(full),
        "last_wave": full - np.floor(full),
        "whole_waves": np.minimum(np.ceil(full), _MANY_WAVES),
        "padding_m": tiling.grid_rows * tiling.rows / rows["m"],
        "padding_n": tiling.grid_columns * tiling.columns / rows["n"],
        "padding_k": tiling.steps * tiling.depth * tiling.slices / rows["k"],
        "log2_steps": np.log2(tiling.steps),
        "occupancy": tiling.resident * warps * 32 / card.threads,
        "resident_blocks": tiling.resident,
        "log2_busy_warps": np.log2(np.minimum(tiling.resident, np.ceil(waves)) * warps),
        "log2_shared_bytes": np.log2(tiling.shared_bytes),
        "registers": tiling.registers,
        "log2_block_threads": np.log2(tiling.threads),
        "log2_outputs_per_thread": np.log2(outputs),
        "lane_efficiency": tiling.threads / (warps * 32),
        # flops per byte that a block, and a warp or a thread of it, loads: what a tile saves in traffic.
        "log2_tile_intensity": np.log2(tiling.rows * tiling.columns / (tiling.rows + tiling.columns)),
        "log2_warp_intensity": np.log2(
            np.where(np.isnan(warp_rows), np.sqrt(outputs) / 2, warp_rows * warp_columns / (warp_rows + warp_columns))
        ),
        **{"log2_tile_m": np.log2(tiling.rows), "log2_tile_n": np.log2(tiling.columns)},
        **{"log2_tile_k": np.log2(tiling.depth), "log2_slices": np.log2(tiling.slices)},
        # What the blocks read of the L2 over what the problem has, and the share of the L2 that those at work need for a step.
        "log2_strips": np.log2(strips / work.bytes),
        "log2_wave_strip": np.log2(at_once * (tiling.rows + tiling.columns) * tiling.depth * ab / card.l2_bytes),
        **{"log2_grid_m": np.log2(tiling.grid_rows), "log2_grid_n": np.log2(tiling.grid_columns)},
        "log2_wave_time": np.log2(tiling.compute_ms),
        "log2_wave_loss": np.log2(tiling.compute_ms / work.compute_ms),
    }


def _kinds(rows: Configurations, vocabulary: Vocabulary, only: Container[str] | None) -> dict[str, Floats]:
    size = vocabulary.element_bytes.__getitem__
    every: dict[str, tuple[str, Callable[[str], float]]] = {
        **{f"is_{family}": ("family", partial(_is, family)) for family in vocabulary.families},
        **{f"ab_is_{ab}": ("ab", partial(_is, ab)) for ab in vocabulary.usual_output},
        **{f"{name}_bytes": (name, size) for name in ("ab", "cd", "acc")},
        "a_transposed": ("layout", lambda layout: layout[0] == "t"),
        "b_transposed": ("layout", lambda layout: layout[1] == "t"),
    }
    wanted = every if only is None else [name for name in every if name in only]
    found = {name: rows.texts[every[name][0]].map(every[name][1]) for name in wanted}
    return {**found, "reads_c": (rows["beta"] != 0).astype("float64")}


def _is(wanted: str, text: str) -> bool:
    return text == wanted
