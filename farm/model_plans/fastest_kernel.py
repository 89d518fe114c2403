"""What the farm has measured of the fastest kernel of a problem on a device type."""

from __future__ import annotations

from dataclasses import dataclass

from farm.kernels import Configuration


@dataclass(frozen=True, slots=True, kw_only=True)
class FastestKernel:
    """The kernel whose median time is the least.

    Attributes:
        ms: The median of its rows, of the wanted time.
        ms_min: The least of its rows.
        ms_max: The largest of its rows.
        rse: The largest relative standard error of the time among its rows.
        mj: Median energy. None where no row has a power.
        mj_min: The least energy of its rows.
        mj_max: The largest energy of its rows.
        power_rse: The largest relative standard error of the power among its rows.
        rows: Its rows.
        limit_w: The least power limit among its rows. None where no row has one.
        power_limited: Whether the power limit lowered clocks in a row. None: not known.
    """

    configuration: Configuration
    ms: float
    ms_min: float
    ms_max: float
    rse: float
    mj: float | None
    mj_min: float | None
    mj_max: float | None
    power_rse: float | None
    rows: int
    limit_w: float | None
    power_limited: bool | None
