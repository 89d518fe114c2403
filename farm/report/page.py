"""A report as one HTML file that needs nothing else: it holds its styles, scripts, figures and images."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from farm.charts import matplotlib_renderer, plotly_renderer
from farm.charts.chart import Figure
from farm.errors import ServiceUnavailable
from farm.installing import INSTALL
from farm.report.document import Report

if TYPE_CHECKING:
    from jinja2 import Environment

PRINTED_ROWS = 50
"""Rows of a long table that are printed."""

SCROLLED_ROWS = 20
"""Rows of a table, from which on it scrolls in a box of its own on the screen."""

_BREAKS = re.compile(r"(?<=,)(?<!\d,(?=\d))")
"""After each comma that is not between digits."""

_TEMPLATES = files("farm.report").joinpath("templates")


def need_web() -> None:
    """Raises `ServiceUnavailable` where a library is missing that pages need."""
    matplotlib_renderer.need_matplotlib()
    plotly_renderer.plotly_script()
    try:
        import jinja2  # noqa: F401
    except ImportError:
        raise ServiceUnavailable(detail=f"Reports need Jinja, which is not installed here: {INSTALL['web']}") from None


@dataclass(frozen=True, slots=True)
class Shown:
    """A chart on the page: a figure for scripts, and PNGs for readers without scripts and for paper."""

    chart: Figure
    figure: str  # JSON
    drawing: str  # data: URL
    dark: str  # the same for a dark page
    width: int
    height: int


def html(
    report: Report,
    *,
    links: Mapping[str, str] = MappingProxyType({}),
    progress: Callable[[int, int], None] = lambda _, __: None,
) -> str:
    """The page.

    Args:
        links: Addresses by their text, shown at the top. A file has none.
        progress: Is called with how many of how many charts are rendered.
    """
    shown = dict[str, Shown]()
    for number, chart in enumerate(report.charts):
        progress(number, len(report.charts))
        images = matplotlib_renderer.page_images(chart)
        figure = script_json(plotly_renderer.figure(chart))
        shown[chart.name] = Shown(
            chart, figure, _data_url(images.light), _data_url(images.dark), images.width, images.height
        )
    template = _environment().get_template("report.html")
    return template.render(
        report=report,
        links=links,
        shown=shown,
        style=_text("report.css"),
        plotly=_closed(plotly_renderer.plotly_script()) if shown else "",
        charts=_closed(_text("charts.js")) if shown else "",
        tables=_closed(_text("tables.js")),
        printed_rows=PRINTED_ROWS,
        scrolled_rows=SCROLLED_ROWS,
    )


def _data_url(png: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(png).decode("ascii")


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    made = Environment(
        loader=FunctionLoader(_text), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    made.filters["breakable"] = breakable
    return made


def breakable(text: str) -> str:
    """Text that may break after a comma, as in names of kernels, but not inside a number such as 1,008."""
    from markupsafe import Markup, escape

    return Markup("<wbr>").join(map(escape, _BREAKS.split(text)))


def _text(name: str) -> str:
    return _TEMPLATES.joinpath(name).read_text(encoding="utf-8")


def script_json(value: Any) -> str:
    """JSON for a script element: no text in it can end the element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _closed(script: str) -> str:
    """A script for a script element: in its strings, `<\\/script` is the same as `</script`."""
    return script.replace("</script", "<\\/script").replace("<!--", "<\\!--")
