"""`grid` measures every kernel of every problem under the campaign's own rules."""

from __future__ import annotations

from typing import ClassVar, Literal

from farm.campaign.strategies.strategy import Search


class Grid(Search):
    """The strategy `grid`."""

    meaning: ClassVar[str] = "all kernels"

    strategy: Literal["grid"] = "grid"
