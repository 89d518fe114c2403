"""How many blocks of a kernel a card holds at once, and what follows from that."""

from __future__ import annotations

from typing import Any

from workers.kernels.base import CardContext

WARP = 32


def residency(card: CardContext, function: int, *, threads: int, blocks: int, dynamic_bytes: int = 0) -> dict[str, Any]:
    """Columns of a row for a function of the driver that is launched with so many threads in so many blocks.

    `occupancy` is resident warps over the most there can be; `waves` how often the card is filled with blocks.
    """
    resident = int(card.cp.cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor(function, threads, dynamic_bytes))
    warps = -(-threads // WARP)
    at_once = resident * (card.traits.multiprocessors or 0)
    return {
        "blocks": blocks,
        "blocks_per_multiprocessor": resident,
        "occupancy": resident * warps * WARP / card.threads_per_multiprocessor,
        "waves": blocks / at_once if at_once else None,
    }
