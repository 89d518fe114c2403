"""Residency: how many blocks of a kernel a card holds at once, and the columns that follow."""

from __future__ import annotations

from typing import Any

from workers.kernels.base import CardContext

WARP = 32


def residency(card: CardContext, function: int, *, threads: int, blocks: int, dynamic_bytes: int = 0) -> dict[str, Any]:
    """`resident_columns` of a function of the driver."""
    resident = int(card.cp.cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor(function, threads, dynamic_bytes))
    return resident_columns(card, resident, threads=threads, blocks=blocks)


def resident_columns(card: CardContext, resident: int, *, threads: int, blocks: int) -> dict[str, Any]:
    """Columns of a row for a kernel with `resident` blocks per multiprocessor, launched with `blocks` blocks.

    `occupancy` is resident warps over the maximum; `waves` how often the card is filled with blocks.
    """
    warps = -(-threads // WARP)
    at_once = resident * (card.traits.multiprocessors or 0)
    return {
        "blocks": blocks,
        "blocks_per_multiprocessor": resident,
        "occupancy": resident * warps * WARP / card.threads_per_multiprocessor,
        "waves": blocks / at_once if at_once else None,
    }
