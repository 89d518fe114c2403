"""Which kernel parameter a chart of one family shows by colour and marker, and the groups of its values (pure)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from farm.compare.statistics import Floats, Ints, medians_at
from farm.report.result_points import Results, varying_parameters

MAX_SHADES = 10
"""Groups of one chart: more shades of a scale cannot be told apart."""


@dataclass(frozen=True, slots=True)
class Shade:
    """Points whose kernels share a value of the parameter, or a range of values."""

    label: str
    position: float
    """On the colour scale: 0 for the smallest value, 1 for the largest."""

    points: Ints


@dataclass(frozen=True, slots=True)
class Shading:
    parameter: str
    values: tuple[int, ...]
    others: tuple[str, ...]
    """Parameters that vary as well, and are not shown."""

    shades: tuple[Shade, ...]

    @property
    def message(self) -> str:
        """One sentence for captions and screen readers."""
        also = f", and not {', '.join(self.others)}, which vary too" if self.others else ""
        return (
            f" Colour and marker show the parameter {self.parameter}, from {self.values[0]} to {self.values[-1]}{also}."
        )


def shading(results: Results, points: Ints) -> Shading | None:
    """How to show these points by a parameter; None where they have several families or no parameter varies.

    Of several parameters that vary, the one whose values differ most in their median share of the best speed.
    """
    used = np.unique(results.kernel[points])
    kernels = [results.kernels[number] for number in used]
    if len({kernel.family for kernel in kernels}) != 1:
        return None
    (varying,) = varying_parameters(kernels).values()
    if not varying:
        return None
    at = np.searchsorted(used, results.kernel[points])
    # A family may leave a parameter out where it has no meaning: such kernels have its smallest value.
    of_kernel = {
        name: np.array([dict(kernel.parameters).get(name, values[0]) for kernel in kernels])
        for name, values in varying.items()
    }
    shares = results.share_of_best[points]
    effects = {name: effect(shares, np.searchsorted(varying[name], of_kernel[name])[at]) for name in varying}
    chosen = min(effects, key=lambda name: (-effects[name], name))
    values = varying[chosen]
    groups = [list(map(int, group)) for group in np.array_split(values, min(len(values), MAX_SHADES))]
    own = of_kernel[chosen][at]
    return Shading(
        parameter=chosen,
        values=tuple(values),
        others=tuple(sorted(varying.keys() - {chosen})),
        shades=tuple(
            Shade(
                label=f"{chosen} {group[0]}" + (f"–{group[-1]}" if len(group) > 1 else ""),
                position=number / (len(groups) - 1),
                points=points[np.isin(own, group)],
            )
            for number, group in enumerate(groups)
        ),
    )


def effect(shares: Floats, places: Ints) -> float:
    """How far apart the medians of a parameter's values are. `places` has the number of each share's value."""
    medians = medians_at(shares, places, int(places.max(initial=0)) + 1)
    known = medians[np.isfinite(medians)]
    return float(np.ptp(known)) if len(known) else 0.0
