"""What a forest sees of a configuration on a card: sizes, traffic, waves and occupancy of the kernel's blocks, and kinds.

Features named `log2_` are logarithms, so that a tree's threshold means a ratio; they are taken all at once, at the end. A
feature that a family does not have is 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from .card import Card
from .choice import Choices, Foretold
from .columns import EXTENTS, Array, Configurations, Floats, Vocabulary, stacked
from .energy import Efforts
from .physics import LIBRARY_TILES, Library, Tiling, Work, load_bytes, reference_ms
from .timing import Loops, Timing, time_ms

_MANY_WAVES = 64.0

_EFFICIENCIES = tuple(f"efficiency_{rows}x{columns}" for rows, columns in LIBRARY_TILES)


@dataclass(frozen=True)
class Seen:
    """What a model knows of rows before it is asked: their features, and the time that physics gives them."""

    # By feature, what it is or is the logarithm of; NaN where a family has none.
    plain: Mapping[str, Floats]
    reference_ms: Floats
    # By the roofline alone.
    roofline_ms: Floats
    flops: Floats
    efforts: Efforts

    def features(self, names: Sequence[str]) -> Floats:
        """[features, rows], NaN where a family has none."""
        found = stacked([self.plain[name] for name in names], len(self.flops))
        with np.errstate(divide="ignore", invalid="ignore"):
            np.log2(found, out=found, where=_logarithms(tuple(names)))
        return found

    def matrix(self, names: Sequence[str]) -> Array:
        """[rows, features] in float32, which is what scikit-learn's trees compare with."""
        found = self.features(names).astype("float32")
        found[np.isnan(found)] = 0.0
        return found.T

    def varying(self) -> list[str]:
        """The features that are not the same in all rows."""
        every = list(self.plain)
        x = self.matrix(every)
        return [name for index, name in enumerate(every) if len(x) and np.any(x[:, index] != x[0, index])]


@cache
def _logarithms(names: tuple[str, ...]) -> Array:
    """Which features are logarithms, [features, 1]."""
    return np.array([[name.startswith("log2_")] for name in names])


def see(
    rows: Configurations,
    vocabulary: Vocabulary,
    card: Card,
    timing: Timing | None = None,
    choices: Choices | None = None,
) -> Seen:
    """The features of completed rows on that card, with the fitted times of its kernels and of those that a library chooses;
    without them, the roofline stands."""
    with np.errstate(divide="ignore", invalid="ignore"):
        work = Work.of(rows, card)
        library, tiling = Library.of(rows, work, card), Tiling.of(rows, work, card)
        loops = Loops.of(rows, vocabulary, work, tiling, card)
        fitted = timing or Timing.none()
        logs, known = fitted.constants(loops)
        timed = time_ms(logs, loops, card)
        chosen = choices or Choices.none()
        foretold = chosen.foretell(rows, work, card)
        plain = {
            **_sizes(rows, work, card),
            **_alignments(rows),
            **_library(rows, work, library, card),
            **_tiling(rows, work, tiling, card),
            **_timing(timed, known, work, loops),
            **_choice(foretold, work),
            **_kinds(rows, vocabulary),
            **dict(zip(vocabulary.trained, rows.parameters, strict=True)),
            "log2_flops_per_thread": work.flops / rows.parameter("threads"),
        }
        roofline = reference_ms(work, library, tiling, card)
        supposed = np.where(np.isnan(foretold.time_ms), roofline, foretold.time_ms)
        efforts = Efforts.of(rows, vocabulary, work, tiling, loops["strips"], card)
        return Seen(plain, np.where(known, timed["time"], supposed), roofline, work.flops, efforts)


def efforts_of(rows: Configurations, vocabulary: Vocabulary, card: Card) -> Efforts:
    """What the energies of a card are fitted on."""
    with np.errstate(divide="ignore", invalid="ignore"):
        work = Work.of(rows, card)
        tiling = Tiling.of(rows, work, card)
        loops = Loops.of(rows, vocabulary, work, tiling, card)
        return Efforts.of(rows, vocabulary, work, tiling, loops["strips"], card)


def loops_of(rows: Configurations, vocabulary: Vocabulary, card: Card) -> Loops:
    """What the constants of kernels' times are fitted on."""
    with np.errstate(divide="ignore", invalid="ignore"):
        work = Work.of(rows, card)
        return Loops.of(rows, vocabulary, work, Tiling.of(rows, work, card), card)


def _sizes(rows: Configurations, work: Work, card: Card) -> dict[str, Floats]:
    m, n, k, ab, cd = (rows[name] for name in (*EXTENTS, "ab_bytes", "cd_bytes"))
    roof = np.maximum(work.compute_ms, work.memory_ms)
    return {
        **{"log2_m": m, "log2_n": n, "log2_k": k, "log2_mn": m * n, "log2_mk": m * k, "log2_nk": n * k},
        **{"log2_aspect": m / n, "log2_depth": k / np.sqrt(m * n)},
        "log2_flops": work.flops,
        "log2_bytes": work.bytes,
        "log2_intensity": work.flops / work.bytes,
        # How the card's two limits compare, and how both do with the floor of a launch.
        "log2_roofline": roof,
        "log2_balance": work.compute_ms / work.memory_ms,
        "log2_floored": roof + card.floor_ms,
        # Shares of the L2 that the problem and its operands take.
        "log2_l2": work.bytes / card.l2_bytes,
        "log2_l2_a": m * k * ab / card.l2_bytes,
        "log2_l2_b": k * n * ab / card.l2_bytes,
        "log2_l2_d": m * n * cd / card.l2_bytes,
    }


def _alignments(rows: Configurations) -> dict[str, Floats]:
    loads = load_bytes(rows)
    return {
        **dict(zip(("align_a", "align_b", "align_c"), np.log2(rows.alignments), strict=True)),
        # What kernels a library has for a row depends on the operand that is aligned worst.
        **dict(zip(("log2_load_a", "log2_load_b", "log2_store_c"), loads, strict=True)),
        "log2_least_load": np.minimum(loads[0], loads[1]),
        "log2_least_access": loads.min(axis=0),
    }


def _timing(timed: Mapping[str, Floats], known: Array, work: Work, loops: Loops) -> dict[str, Floats]:
    """The fitted formula's time, what share of it each part has, and how they compare; NaN where it knows nothing."""
    time = np.where(known, timed["time"], np.nan)
    return {
        "log2_timed": time,
        **{f"log2_timed_{name}": timed[name] / time for name in ("computing", "latency", "issue", "memory", "l2")},
        "log2_timed_bound": timed["latency"] / np.where(known, timed["issue"], np.nan),
        "log2_timed_flops": work.compute_ms / time,
        "log2_timed_bytes": work.memory_ms / time,
        "log2_reuse": loops["strips"] / loops["bytes"],
    }


def _choice(foretold: Foretold, work: Work) -> dict[str, Floats]:
    """The kernel that a library is supposed to choose, and how the others compare with it; NaN where none is known."""
    return {
        "log2_choice_time": foretold.time_ms,
        "log2_choice_flops": work.compute_ms / foretold.time_ms,
        "log2_choice_bytes": work.memory_ms / foretold.time_ms,
        "log2_choice_rows": foretold.tile_rows,
        "log2_choice_columns": foretold.tile_columns,
        "log2_choice_slices": foretold.slices,
        **{f"log2_choice_{number}": over for number, over in enumerate(foretold.over)},
    }


def _library(rows: Configurations, work: Work, library: Library, card: Card) -> dict[str, Floats]:
    """What a library that may choose its tiles would face."""
    squares = np.ceil(rows["m"] / 128) * np.ceil(rows["n"] / 128)
    return {
        **dict(zip(_EFFICIENCIES, library.efficiency, strict=True)),
        "log2_library_time": library.compute_ms,
        "log2_library_loss": library.compute_ms / work.compute_ms,
        "library_tile": library.tile,
        "log2_library_slices": library.slices,
        "log2_waves_128": squares / card.multiprocessors,
        **{f"padding_{axis}_64": np.ceil(rows[axis] / 64) * 64 / rows[axis] for axis in "mn"},
    }


def _tiling(rows: Configurations, work: Work, tiling: Tiling, card: Card) -> dict[str, Floats]:
    """What the kernel's own blocks face; NaN where its tiles are not known."""
    waves = tiling.blocks / card.multiprocessors
    full = waves / tiling.resident
    whole, whole_full = np.ceil(waves), np.ceil(full)
    warps = np.ceil(tiling.threads / 32)
    area, edges = tiling.rows * tiling.columns, tiling.rows + tiling.columns
    outputs = area / tiling.threads
    warp_rows, warp_columns = rows.parameter("warp_m"), rows.parameter("warp_n")
    strips = tiling.blocks * edges * (rows["k"] / tiling.slices) * rows["ab_bytes"]
    at_once = np.sqrt(np.minimum(tiling.blocks, card.multiprocessors * tiling.resident))
    return {
        "log2_blocks": tiling.blocks,
        "log2_waves": waves,
        "log2_full_waves": full,
        # What share of the time of whole waves there is work for all multiprocessors; with all that they hold at a time.
        "wave_efficiency": waves / whole,
        "full_wave_efficiency": full / whole_full,
        "last_wave": full - np.floor(full),
        "whole_waves": np.minimum(whole_full, _MANY_WAVES),
        "padding_m": tiling.grid_rows * tiling.rows / rows["m"],
        "padding_n": tiling.grid_columns * tiling.columns / rows["n"],
        "padding_k": tiling.steps * tiling.depth * tiling.slices / rows["k"],
        "log2_steps": tiling.steps,
        "occupancy": tiling.resident * warps * 32 / card.threads,
        "resident_blocks": tiling.resident,
        "log2_busy_warps": np.minimum(tiling.resident, whole) * warps,
        "log2_shared_bytes": tiling.shared_bytes,
        "registers": tiling.registers,
        "log2_block_threads": tiling.threads,
        "log2_outputs_per_thread": outputs,
        "lane_efficiency": tiling.threads / (warps * 32),
        # flops per byte that a block, and a warp or a thread of it, loads: what a tile saves in traffic.
        "log2_tile_intensity": area / edges,
        "log2_warp_intensity": np.where(
            np.isnan(warp_rows), np.sqrt(outputs) / 2, warp_rows * warp_columns / (warp_rows + warp_columns)
        ),
        **{"log2_tile_m": tiling.rows, "log2_tile_n": tiling.columns},
        **{"log2_tile_k": tiling.depth, "log2_slices": tiling.slices},
        # What the blocks read of the L2 over what the problem has, and the share of the L2 that those at work need for a step.
        "log2_strips": strips / work.bytes,
        "log2_wave_strip": at_once * edges * tiling.depth * rows["ab_bytes"] / card.l2_bytes,
        **{"log2_grid_m": tiling.grid_rows, "log2_grid_n": tiling.grid_columns},
        "log2_wave_time": tiling.compute_ms,
        "log2_wave_loss": tiling.compute_ms / work.compute_ms,
    }


def _kinds(rows: Configurations, vocabulary: Vocabulary) -> dict[str, Floats]:
    return {
        **_one_hot("is_", rows.families, vocabulary.names),
        **_one_hot("ab_is_", rows.types, vocabulary.types),
        **{name: rows[name] for name in ("ab_bytes", "cd_bytes", "acc_bytes", "a_transposed", "b_transposed")},
        "reads_c": (rows["beta"] != 0).astype("float64"),
    }


def _one_hot(prefix: str, positions: Array, values: tuple[str, ...]) -> dict[str, Floats]:
    """For each value, in which rows it stands, by the positions of the rows' values."""
    names, unit = _units(prefix, values)
    return dict(zip(names, unit.take(positions, axis=1), strict=True))


@cache
def _units(prefix: str, values: tuple[str, ...]) -> tuple[Sequence[str], Floats]:
    """Names of the features of `_one_hot`, and what they are for each value: [features, values]."""
    return [prefix + value for value in values], np.eye(len(values))
