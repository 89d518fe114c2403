"""Charts as plain data: axes with their units, series with names, points and texts (pure).

Nothing here draws: `drawn` makes pictures of charts, `interactive` figures for a browser, and both tell series apart by colour and
by marker or dashes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from farm.compare.statistics import Floats, Ints

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Okabe and Ito (2008), told apart with any colour vision; their yellow is too pale for white paper, and black for a dark page."""

SHADES = {
    "light": ("#E66C5C", "#CC4778", "#A51F99", "#7201A8", "#46039F", "#0D0887"),
    "dark": ("#B02991", "#CC4778", "#E16462", "#F2844B", "#FCA636", "#F0F921"),
}
"""Sequential scale by colour scheme, from the smallest value to the largest: parts of matplotlib's plasma, whose lightness
changes steadily, so that colour vision does not matter. Each has a contrast of about 3:1 or more with its page."""

BAND_OPACITY = 0.2
"""Of the area between the bounds of a line."""

INK = "#808080"
"""Of lines to hold points against: legible on white and on black."""


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


MARKERS, DASHES = tuple(Marker), tuple(Dashes)


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
    label: str
    unit: str = ""
    scale: Scale = Scale.LINEAR
    names: tuple[str, ...] = ()
    # What it shows at the least; None: what there is.
    ends: tuple[float, float] | None = None

    @property
    def title(self) -> str:
        """`time (ms)`."""
        return f"{self.label} ({self.unit})" if self.unit else self.label


@dataclass(frozen=True, slots=True)
class Words:
    """A text for each point, in parts: thousands of points share a few names. `which` has a number into each part's names."""

    parts: tuple[Sequence[str], ...]
    which: tuple[Ints, ...]  # of each part [points]

    def text(self, point: int) -> str:
        return "\n".join(part[int(of[point])] for part, of in zip(self.parts, self.which, strict=True))

    def taken(self, points: Ints) -> Words:
        return Words(self.parts, tuple(of[points] for of in self.which))


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Points of one name. A logarithmic axis leaves out what is not above 0."""

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
    # Whether its points are joined, and how; None: they are not.
    line: Dashes | None = None
    # To hold others against: grey, whatever its look.
    reference: bool = False
    # Behind the others, where these are what matters.
    faint: bool = False
    # Bounds of y: a bar at each point, or one band along the line.
    low: Floats | None = None
    high: Floats | None = None
    band: bool = False
    words: Words | None = None

    def colour(self, scheme: str = "light") -> str:
        """On a page of that colour scheme: `light` or `dark`."""
        if self.reference:
            return INK
        return colour_of(self.look) if self.shade is None else shade_of(self.shade, scheme)

    def __post_init__(self) -> None:
        sizes = {len(each) for each in (self.x, self.y, self.low, self.high) if each is not None}
        if self.words is not None:
            sizes |= {len(of) for of in self.words.which}
        if len(sizes) > 1:
            raise ValueError(f"{self.name}: columns of {sorted(sizes)} points")


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Points and lines over two axes."""

    # Of its file: lower-case words with hyphens.
    name: str
    title: str
    # What it shows, in a sentence or two with figures: read out where it cannot be seen.
    message: str
    x: Axis
    y: Axis
    series: tuple[Series, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatMap:
    """A value for each place of two axes of names: [y, x], NaN where there is none."""

    name: str
    title: str
    message: str
    x: Axis
    y: Axis
    value: Axis
    values: Floats
    # How many it is of.
    counts: Ints

    def __post_init__(self) -> None:
        shape = (len(self.y.names), len(self.x.names))
        if self.values.shape != shape or self.counts.shape != shape:
            raise ValueError(
                f"{self.name}: {self.values.shape} values and {self.counts.shape} counts for {shape} names"
            )


Picture = Chart | HeatMap


def rounded(values: Floats, digits: int = 5) -> Floats:
    """The values with so many significant digits; NaN, infinity, 0 and what no measurement comes near as they are."""
    found = np.array(values, dtype=np.float64)
    size = np.abs(found)
    usual = (size > 1e-200) & (size < 1e200)
    scale = 10.0 ** (digits - 1 - np.floor(np.log10(size[usual])))
    found[usual] = np.round(found[usual] * scale) / scale
    return found


def number(value: float, digits: int = 3) -> str:
    """`1,234`, `0.0123`, `2.1e+09`: for people, with so many significant digits."""
    if not np.isfinite(value):
        return "–"
    if 1000 <= abs(value) < 1e6:
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def slug(text: str) -> str:
    """A text as the name of a file: `f16:f16:f32` is `f16-f16-f32`."""
    kept = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in text.lower())
    return "-".join(part for part in kept.split("-") if part)
