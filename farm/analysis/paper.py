"""The paper's own measurements of tiles, for comparison with a study of the farm.

From the tables that GPPerf, the repository of the paper (arXiv 2411.16954), publishes for its tiled kernel in single
precision on one GeForce RTX 4070: times, and average board power. Of their 39 shapes, the 12 with m and n of 8192 or
16384 and k of 1024, 8192 or 16384. The other 27, up to 2048, are left out: none took less than 5.5 ms for any
work, and from tile 8 on their power is within 12 W of the idle card's 33 W, so they show little about the kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from farm.analysis.tiles import TileSummary, ratio

PAPER_SOURCE = "GPPerf (arXiv 2411.16954), GeForce RTX 4070, 12 shapes with m and n of 8192 or 16384"
PAPER_TILES = (
    TileSummary(
        tile=1, problems=12, fastest=0, thriftiest=0, speed_up=1.0, energy_ratio=1.0,
        power_min_w=97.957, power_max_w=114.184,
    ),
    TileSummary(
        tile=4, problems=12, fastest=0, thriftiest=0, speed_up=37.8072, energy_ratio=0.0284975,
        power_min_w=67.481, power_max_w=140.328,
    ),
    TileSummary(
        tile=8, problems=12, fastest=0, thriftiest=0, speed_up=108.746, energy_ratio=0.00805205,
        power_min_w=55.14, power_max_w=128.706,
    ),
    TileSummary(
        tile=16, problems=12, fastest=11, thriftiest=3, speed_up=184.051, energy_ratio=0.00418046,
        power_min_w=53.018, power_max_w=111.934,
    ),
    TileSummary(
        tile=32, problems=12, fastest=1, thriftiest=9, speed_up=162.916, energy_ratio=0.00416362,
        power_min_w=49.68, power_max_w=90.489,
    ),
)  # fmt: skip
"""By tile, as `farm.analysis.tiles` summarizes the published rows; compared with tile 1."""


@dataclass(frozen=True, slots=True)
class ComparedTile:
    """A tile that both measured, against one baseline that both measured."""

    here: TileSummary
    paper: TileSummary
    paper_speed_up: float | None
    paper_energy_ratio: float | None


def compare_with_paper(summary: Sequence[TileSummary], baseline: int) -> list[ComparedTile]:
    """The tiles that both measured. Empty where the paper did not measure the baseline.

    The paper's ratios are means over the same shapes for every tile, so another baseline divides them.
    """
    paper = {known.tile: known for known in PAPER_TILES}
    base = paper.get(baseline)
    if base is None:
        return []
    return [
        ComparedTile(here, known, ratio(known.speed_up, base.speed_up), ratio(known.energy_ratio, base.energy_ratio))
        for here in summary
        if (known := paper.get(here.tile)) is not None
    ]
