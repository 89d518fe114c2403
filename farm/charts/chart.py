"""The description of a chart: axes with units, and series with names, points and texts (pure).

Nothing here draws. `plotly_renderer` makes figures for a browser, `matplotlib_renderer` makes PNGs, and `terminal_renderer` makes
lines of text. Colour alone never tells series apart: they also differ by marker or dashes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

Floats = np.ndarray[Any, np.dtype[np.float64]]
Ints = np.ndarray[Any, np.dtype[np.int64]]

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Okabe and Ito (2008): distinct for any colour vision. Their yellow is too pale for white paper, and black for a dark page."""

SHADES = {
    "light": ("#E66C5C", "#CC4778", "#A51F99", "#7201A8", "#46039F", "#0D0887"),
    "dark": ("#B02991", "#CC4778", "#E16462", "#F2844B", "#FCA636", "#F0F921"),
}
"""Sequential scale by colour scheme, from the smallest value to the largest: parts of matplotlib's plasma, whose lightness
changes steadily, so that colour vision does not matter. Each has a contrast of about 3:1 or more with its page."""

BAND_OPACITY = 0.2
"""Opacity of the area between the bounds of a line."""

GREY = "#808080"
"""Colour of reference lines: legible on white and on black."""


class Marker(StrEnum):
    CIRCLE = "circle"
    SQUARE = "square"
    TRIANGLE = "triangle"
    DIAMOND = "diamond"
    CROSS = "cross"
    STAR = "star"
    TRIANGLE_DOWN = "triangle-down"


class Dashes(StrEnum):
    SOLID = "solid"
    DASHED = "dashed"
    DOTTED = "dotted"


MARKERS = tuple(Marker)


def colour_of(look: int) -> str:
    return COLOURS[look % len(COLOURS)]


def shade_of(position: float, scheme: str) -> str:
    """The colour at a position from 0 to 1 of the sequential scale."""
    anchors = np.array([[int(one[at : at + 2], 16) for at in (1, 3, 5)] for one in SHADES[scheme]], np.float64)
    places = np.linspace(0, 1, len(anchors))
    return "#" + "".join(f"{round(float(np.interp(position, places, channel))):02X}" for channel in anchors.T)


def marker_of(look: int) -> Marker:
    """There is one marker more than colours, so that 42 looks differ."""
    return MARKERS[look % len(MARKERS)]


class Scale(StrEnum):
    LINEAR = "linear"
    LOG = "log"
    NAMES = "names"  # places 0, 1, 2 … that have names


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """An axis, or the values of a heat map.

    Attributes:
        names: The names of the places 0, 1, 2 …, with the scale `NAMES`. An empty one has no tick.
        limits: The first and last value shown. None: those of the data.
        ticks: Values with a tick. Empty: the renderer chooses.
        decimals: Decimal places of values in text. None: significant digits.
        downwards: Whether the first place is at the top.
    """

    label: str
    unit: str = ""
    scale: Scale = Scale.LINEAR
    names: tuple[str, ...] = ()
    limits: tuple[float, float] | None = None
    ticks: tuple[float, ...] = ()
    decimals: int | None = None
    downwards: bool = False

    @property
    def title(self) -> str:
        """`time (ms)`."""
        return f"{self.label} ({self.unit})" if self.unit else self.label

    @property
    def padded_limits(self) -> tuple[float, float] | None:
        """The limits with a margin of 2% on both sides, for points at the very ends."""
        if self.limits is None:
            return None
        low, high = self.limits
        if self.scale is Scale.LOG:
            margin = (high / low) ** 0.02
            return low / margin, high * margin
        margin = 0.02 * (high - low)
        return low - margin, high + margin


@dataclass(frozen=True, slots=True)
class PointTexts:
    """A text for each point, in parts: thousands of points share a few names. `which` has a number into each part's names."""

    parts: tuple[Sequence[str], ...]
    which: tuple[Ints, ...]  # for each part [points]

    def text(self, point: int) -> str:
        return "\n".join(part[int(of[point])] for part, of in zip(self.parts, self.which, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Points with one name. A logarithmic axis leaves out values that are not above 0."""

    name: str
    x: Floats  # [points]
    y: Floats
    # Its colour and marker: the same number looks the same in every chart.
    look: int = 0
    points: bool = True
    # Its place on the sequential scale, from 0 to 1, instead of the colour of its look.
    shade: float | None = None
    # Whether its points are rings around the points of other series.
    ring: bool = False
    # Whether its points are bars: along x where the y axis has names, and along y otherwise.
    bars: bool = False
    # Whether a line joins its points, and which.
    line: Dashes | None = None
    # Grey, whatever its look: other series are compared with it.
    reference: bool = False
    # Behind the others, which are more important.
    faint: bool = False
    # Bounds of y: a bar at each point, or one band along the line.
    low: Floats | None = None
    high: Floats | None = None
    band: bool = False
    # Bounds of x.
    x_low: Floats | None = None
    x_high: Floats | None = None
    texts: PointTexts | None = None

    def colour(self, scheme: str = "light") -> str:
        """On a page of that colour scheme: `light` or `dark`."""
        if self.reference:
            return GREY
        return colour_of(self.look) if self.shade is None else shade_of(self.shade, scheme)

    def __post_init__(self) -> None:
        columns = (self.x, self.y, self.low, self.high, self.x_low, self.x_high)
        sizes = {len(column) for column in columns if column is not None}
        if self.texts is not None:
            sizes |= {len(of) for of in self.texts.which}
        if len(sizes) > 1:
            raise ValueError(f"{self.name}: columns of {sorted(sizes)} points")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A line through the whole chart at one value of x. Without a look it is grey."""

    name: str
    x: float
    look: int | None = None
    line: Dashes = Dashes.SOLID

    @property
    def colour(self) -> str:
        return GREY if self.look is None else colour_of(self.look)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Points, lines and bars over two axes."""

    # The name of its file, without the suffix.
    name: str
    title: str
    # What it shows, in a sentence or two with figures, for readers who cannot see it.
    message: str
    x: Axis
    y: Axis
    series: tuple[Series, ...]
    rules: tuple[Rule, ...] = ()

    @property
    def x_values(self) -> list[Floats]:
        return [each for one in self.series for each in (one.x, one.x_low, one.x_high) if each is not None]

    @property
    def y_values(self) -> list[Floats]:
        return [each for one in self.series for each in (one.y, one.low, one.high) if each is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatMap:
    """A value for each pair of places on two axes of names: [y, x], NaN where there is none.

    Attributes:
        counts: How many observations each value summarises. None: they are not counted.
        low_is_best: Whether low values are light and high ones dark.
    """

    name: str
    title: str
    message: str
    x: Axis
    y: Axis
    value: Axis
    values: Floats
    counts: Ints | None = None
    low_is_best: bool = False

    def __post_init__(self) -> None:
        shape = (len(self.y.names), len(self.x.names))
        if self.values.shape != shape or (self.counts is not None and self.counts.shape != shape):
            raise ValueError(f"{self.name}: {self.values.shape} values for {shape} names")


Figure = Chart | HeatMap


@dataclass(frozen=True, slots=True, kw_only=True)
class Panels:
    """Charts side by side in one PNG. They have the same rules, which one legend names."""

    name: str
    title: str
    charts: tuple[Chart, ...]
    # Whether each panel shows its title, and the legend names the series.
    titled: bool = False


def number(value: float, digits: int = 3) -> str:
    """`1,234`, `0.0123`, `2.1e+09`: for people, with so many significant digits."""
    if not math.isfinite(value):
        return "–"
    if 1000 <= abs(value) < 1e6:
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def slug(text: str) -> str:
    """A text as the name of a file: `f16:f16:f32` is `f16-f16-f32`."""
    kept = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in text.lower())
    return "-".join(part for part in kept.split("-") if part)
