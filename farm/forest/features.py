"""What a forest sees of a configuration on a card: sizes, traffic, waves and occupancy of the kernel's blocks, and kinds.

Features named `log2_` are logarithms, so that a tree's threshold means a ratio; they are taken all at once, at the end. A
feature that a family does not have is 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain

import numpy as np

from .card import Card
from .choice import COMPARED, Choices, Foretold
from .columns import BYTES_OF_B, EXTENTS, IS_SPARSE, OF_KIND
from .completed_rows import Configurations
from .energy import Efforts
from .numeric import Array, Floats
from .physics import LIBRARY_TILES, Library, Tiling, Work, bytes_of_b, load_bytes, reference_ms, scale_and_bias_bytes
from .timing import Loops, Timing, time_ms
from .vocabulary import Vocabulary

_MANY_WAVES = 64.0

Block = tuple[tuple[str, ...], Floats]
"""Names of features, and what each is or is the logarithm of, [features, rows]; NaN where a family has none."""


@dataclass(frozen=True)
class Seen:
    """The inputs of a model: the features of rows, and their times by a physical formula."""

    blocks: Sequence[Block]
    reference_ms: Floats
    # By the roofline alone.
    roofline_ms: Floats
    flops: Floats
    efforts: Efforts

    @property
    def names(self) -> tuple[str, ...]:
        """Of all features."""
        return tuple(chain.from_iterable(names for names, _ in self.blocks))

    @property
    def plain(self) -> Mapping[str, Floats]:
        """By feature, what it is or is the logarithm of; NaN where a family has none."""
        return dict(zip(self.names, chain.from_iterable(values for _, values in self.blocks), strict=True))

    def features(self, names: Sequence[str]) -> Floats:
        """[features, rows], NaN where a family has none."""
        places, every = self._every(names)
        return every.take(places, axis=0)

    def matrix(self, names: Sequence[str]) -> Array:
        """[rows, features] in float32, which is what scikit-learn's trees compare with."""
        places, every = self._every(names)
        found = every.astype("float32")
        np.copyto(found, 0.0, where=np.isnan(found))
        return found.take(places, axis=0).T

    def _every(self, names: Sequence[str]) -> tuple[Array, Floats]:
        """Where these features stand among all, and all of them, [features, rows]."""
        among, blocks = zip(*self.blocks, strict=True)
        places, logarithms = _places(among, tuple(names))
        found = np.concatenate(blocks)
        with np.errstate(divide="ignore", invalid="ignore"):
            np.log2(found, out=found, where=logarithms)
        return places, found

    def varying(self) -> list[str]:
        """The features that are not the same in all rows."""
        names = self.names
        x = self.matrix(names)
        return [name for index, name in enumerate(names) if len(x) and np.any(x[:, index] != x[0, index])]


@cache
def _places(among: tuple[tuple[str, ...], ...], names: tuple[str, ...]) -> tuple[Array, Array]:
    """The places of these features among the names of all blocks, and which of all are logarithms, [features, 1]."""
    every = list(chain.from_iterable(among))
    of = {name: place for place, name in enumerate(every)}
    return np.array([of[name] for name in names], "intp"), np.array([[name.startswith("log2_")] for name in every])


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
        timed, known, loops = _timed(rows, vocabulary, work, tiling, card, timing or Timing.none())
        strips = loops["strips"]
        foretold = (choices or Choices.none()).foretell(rows, work, card)
        blocks = (
            *_sizes(rows, work, card),
            *_alignments(rows),
            *_library(rows, work, library, card),
            *_tiling(rows, work, tiling, card),
            *_timing(timed, known, work, strips),
            *_choice(foretold, work),
            *_groups(rows, card),
            *_loads(loops),
            *_kinds(rows, vocabulary),
            (vocabulary.trained, rows.parameters),
            (("log2_flops_per_thread",), (work.flops / rows.parameter("threads"))[None]),
        )
        roofline = reference_ms(work, library, tiling, card)
        supposed = np.where(np.isnan(foretold.time_ms), roofline, foretold.time_ms)
        efforts = Efforts.of(rows, vocabulary, work, tiling, strips, card)
        return Seen(blocks, np.where(known, timed["time"], supposed), roofline, work.flops, efforts)


def _timed(
    rows: Configurations, vocabulary: Vocabulary, work: Work, tiling: Tiling, card: Card, timing: Timing
) -> tuple[Mapping[str, Floats], Array, Mapping[str, Floats]]:
    """What `time_ms` gives, in which rows its constants are known, and of their loops what features need."""
    if np.isnan(tiling.blocks).all():
        nothing = dict.fromkeys(("waits", "single", "converted"), np.zeros(len(rows)))
        return (
            dict.fromkeys(("time", *_PARTS), tiling.blocks),
            np.zeros(len(rows), bool),
            {"strips": tiling.blocks} | nothing,
        )
    loops = Loops.of(rows, vocabulary, work, tiling, card)
    logs, known = timing.constants(loops)
    return time_ms(logs, loops, card), known, loops.columns


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


def _block(features: Mapping[str, Floats]) -> Block:
    return tuple(features), np.array(list(features.values()))


def _sizes(rows: Configurations, work: Work, card: Card) -> Iterator[Block]:
    m, n, k, ab, cd, batch = (rows[name] for name in (*EXTENTS, "ab_bytes", "cd_bytes", "batch"))
    matrices = batch * rows["active_groups"]
    mn, mk, nk = m * n, m * k, n * k
    roof = np.maximum(work.compute_ms, work.memory_ms)
    yield _block(
        {
            **{"log2_m": m, "log2_n": n, "log2_k": k, "log2_mn": mn, "log2_mk": mk, "log2_nk": nk},
            **{"log2_aspect": m / n, "log2_depth": k / np.sqrt(mn)},
            # Sizes are of one product; work and traffic are of the whole batch.
            "log2_batch": batch,
            "log2_flops": work.flops,
            "log2_bytes": work.bytes,
            "log2_intensity": work.flops / work.bytes,
            # How the card's two limits compare, and how both do with the floor of a launch.
            "log2_roofline": roof,
            "log2_balance": work.compute_ms / work.memory_ms,
            "log2_floored": roof + card.floor_ms,
        }
    )
    # Shares of the L2 that the problem and its operands take.
    yield (
        _OPERANDS,
        np.array([work.bytes, mk * ab * batch, bytes_of_b(rows) * matrices, m * rows.columns_of_d * cd * batch])
        / card.l2_bytes,
    )


_OPERANDS = ("log2_l2", "log2_l2_a", "log2_l2_b", "log2_l2_d")


def _alignments(rows: Configurations) -> Iterator[Block]:
    yield _ALIGNMENTS, np.log2(rows.alignments)
    # What kernels a library has for a row depends on the operand that is aligned worst.
    loads = load_bytes(rows)
    yield _LOADS, loads
    yield _LEAST_LOADS, np.minimum.accumulate(loads)[1:]


_ALIGNMENTS = ("align_a", "align_b", "align_c")
_LOADS = ("log2_load_a", "log2_load_b", "log2_store_c")
_LEAST_LOADS = ("log2_least_load", "log2_least_access")


def _timing(timed: Mapping[str, Floats], known: Array, work: Work, strips: Floats) -> Iterator[Block]:
    """The fitted formula's time, what share of it each part has, and how they compare; NaN where it knows nothing."""
    time = np.where(known, timed["time"], np.nan)
    shares = np.array([timed[name] for name in _PARTS]) / time
    yield _block(
        {
            "log2_timed": time,
            **dict(zip(_SHARES, shares, strict=True)),
            "log2_timed_bound": timed["latency"] / np.where(known, timed["issue"], np.nan),
            "log2_timed_flops": work.compute_ms / time,
            "log2_timed_bytes": work.memory_ms / time,
            "log2_reuse": strips / work.bytes,
        }
    )


_PARTS = ("computing", "latency", "issue", "memory", "l2")
_SHARES = tuple(f"log2_timed_{name}" for name in _PARTS)


def _choice(foretold: Foretold, work: Work) -> Iterator[Block]:
    """The kernel that a library is supposed to choose, and how the others compare with it; NaN where none is known."""
    yield ("log2_choice_time",), foretold.kernel[:1]
    yield _CHOICE_TIMES, np.array([work.compute_ms, work.memory_ms]) / foretold.time_ms
    yield _CHOSEN, foretold.kernel[1:]
    yield _OVER, foretold.over


_CHOSEN = ("log2_choice_rows", "log2_choice_columns", "log2_choice_slices")
_CHOICE_TIMES = ("log2_choice_flops", "log2_choice_bytes")
_OVER = tuple(f"log2_choice_{number}" for number in range(COMPARED))


def _library(rows: Configurations, work: Work, library: Library, card: Card) -> Iterator[Block]:
    """What a library that may choose its tiles would face."""
    extents = np.array([rows["m"], rows["n"]])
    squares = rows.row_tiles(128) * np.ceil(rows["n"] / 128) * rows["batch"]
    yield _EFFICIENCIES, library.efficiency
    yield _block(
        {
            "log2_library_time": library.compute_ms,
            "log2_library_loss": library.compute_ms / work.compute_ms,
            "library_tile": library.tile,
            "log2_library_slices": library.slices,
            "log2_waves_128": squares / card.multiprocessors,
        }
    )
    yield _PADDINGS, np.array([rows.row_tiles(64), np.ceil(rows["n"] / 64)]) * 64 / extents


_EFFICIENCIES = tuple(f"efficiency_{rows}x{columns}" for rows, columns in LIBRARY_TILES)
_PADDINGS = ("padding_m_64", "padding_n_64")


def _tiling(rows: Configurations, work: Work, tiling: Tiling, card: Card) -> Iterator[Block]:
    """What the kernel's own blocks face; NaN where its tiles are not known."""
    waves = tiling.blocks / card.multiprocessors
    full = waves / tiling.resident
    whole, whole_full = np.ceil(waves), np.ceil(full)
    edges = tiling.rows + tiling.columns
    warp_rows, warp_columns = rows.parameter("warp_m"), rows.parameter("warp_n")
    edge_bytes = tiling.rows * rows["ab_bytes"] + tiling.columns * rows[BYTES_OF_B]
    strips = tiling.blocks * edge_bytes * (rows["k"] / tiling.slices)
    at_once = np.sqrt(np.minimum(tiling.blocks, card.multiprocessors * tiling.resident))
    yield _block(
        {
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
            "occupancy": tiling.resident * tiling.warps * 32 / card.threads,
            "resident_blocks": tiling.resident,
            "log2_busy_warps": np.minimum(tiling.resident, whole) * tiling.warps,
            "log2_shared_bytes": tiling.shared_bytes,
            "registers": tiling.registers,
            "log2_block_threads": tiling.threads,
            "log2_outputs_per_thread": tiling.outputs,
            "lane_efficiency": tiling.threads / (tiling.warps * 32),
            # flops per byte that a block, and a warp or a thread of it, loads: what a tile saves in traffic.
            "log2_tile_intensity": tiling.area / edges,
            "log2_warp_intensity": np.where(
                np.isnan(warp_rows), np.sqrt(tiling.outputs) / 2, warp_rows * warp_columns / (warp_rows + warp_columns)
            ),
            **{"log2_tile_m": tiling.rows, "log2_tile_n": tiling.columns},
            **{"log2_tile_k": tiling.depth, "log2_slices": tiling.slices},
            # What the blocks read of the L2 over what the problem has, and the share of the L2 that those at work need for a step.
            "log2_strips": strips / work.bytes,
            "log2_wave_strip": at_once * edge_bytes * tiling.depth / card.l2_bytes,
            **{"log2_grid_m": tiling.grid_rows, "log2_grid_n": tiling.grid_columns},
            "log2_wave_time": tiling.compute_ms,
            "log2_wave_loss": tiling.compute_ms / work.compute_ms,
        }
    )


def _loads(loops: Mapping[str, Floats]) -> Iterator[Block]:
    """What a step waits for, loads one by one and converts; NaN where there is none."""
    yield ("waits",), loops["waits"][None]
    found = np.array([loops["single"], loops["converted"]])
    yield _LOADED, np.where(found > 0, found, np.nan)


_LOADED = ("log2_single_loads", "log2_converted")

_GROUP_EDGES = np.array([[16.0], [64.0], [128.0]])
"""Rows of tiles: the fewest that tensor cores of Hopper and older cards take, and usual ones."""


def _groups(rows: Configurations, card: Card) -> Iterator[Block]:
    """How the rows are spread over groups; NaN where there are none."""
    if rows.sizes is None:
        yield _OF_GROUPS, np.full((len(_OF_GROUPS), len(rows)), np.nan)
    else:
        m, number, active, largest = (rows[name] for name in ("m", "groups", "active_groups", "largest_group"))
        tiles = rows.row_tiles(_GROUP_EDGES)
        waves = tiles[1:] * np.ceil(rows["n"] / _GROUP_EDGES[1:]) / card.multiprocessors
        spread = np.vstack([number, active, largest, m / active, largest * active / m, tiles * _GROUP_EDGES / m])
        every = np.vstack([spread, tiles, np.ceil(waves)])
        yield _OF_GROUPS, np.where(rows.grouped, every, np.nan)
    yield ("grouped",), rows.grouped.astype("float64")[None]


_OF_GROUPS = (
    *("log2_groups", "log2_active_groups", "log2_largest_group", "log2_rows_of_group", "log2_group_skew"),
    *("group_padding_16", "group_padding_64", "group_padding_128"),
    *("log2_group_tiles_16", "log2_group_tiles_64", "log2_group_tiles_128"),
    *("log2_group_waves_64", "log2_group_waves_128"),
)


def _kinds(rows: Configurations, vocabulary: Vocabulary) -> Iterator[Block]:
    yield _one_hot("is_", rows.families, vocabulary.family_names)
    yield _one_hot("ab_is_", rows.types, vocabulary.types)
    yield OF_KIND, rows.of_kind
    yield ("reads_c",), (rows["beta"] != 0).astype("float64")[None]
    yield _one_hot("scale_is_", rows.scales, vocabulary.scale_names)
    added = scale_and_bias_bytes(rows)
    yield ("log2_scale_and_bias_bytes",), np.where(added > 0, added, np.nan)[None]
    yield ("sparse_b",), rows[IS_SPARSE][None]
    yield ("fewer_bytes_b",), (rows["ab_bytes"] - rows[BYTES_OF_B])[None]
    operations, fused = vocabulary.operations
    yield tuple(f"fuses_{name}" for name in operations), fused.take(rows.fusions, axis=1)


def _one_hot(prefix: str, positions: Array, values: tuple[str, ...]) -> Block:
    """For each value, in which rows it stands, by the positions of the rows' values."""
    names, unit = _units(prefix, values)
    return names, unit.take(positions, axis=1)


@cache
def _units(prefix: str, values: tuple[str, ...]) -> Block:
    """The features of `_one_hot` of each value."""
    return tuple(prefix + value for value in values), np.eye(len(values))
