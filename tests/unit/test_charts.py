"""Charts as data, and what the renderers for Plotly and matplotlib make of them."""

from __future__ import annotations

import dataclasses
import io
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from farm.charts import matplotlib_renderer, plotly_renderer
from farm.charts.chart import (
    BAND_OPACITY,
    COLOURS,
    GREY,
    Axis,
    Chart,
    Dashes,
    HeatMap,
    Panels,
    PointTexts,
    Rule,
    Scale,
    Series,
    colour_of,
    marker_of,
    number,
    shade_of,
    slug,
)
from farm.errors import ServiceUnavailable
from farm.report import page


def numbers(*values: float) -> np.ndarray:
    return np.array(values, np.float64)


def chart(*series: Series, x: Axis | None = None, y: Axis | None = None) -> Chart:
    return Chart(
        name="a-chart",
        title="A chart",
        message="It shows something.",
        x=x or Axis(label="size", unit="GFLOP", scale=Scale.LOG),
        y=y or Axis(label="time", unit="ms", scale=Scale.LOG),
        series=series,
    )


def heat_map(values: np.ndarray) -> HeatMap:
    height, width = values.shape
    return HeatMap(
        name="a-map",
        title="A map",
        message="It shows something.",
        x=Axis(label="tile_n", scale=Scale.NAMES, names=tuple(str(2**n) for n in range(width))),
        y=Axis(label="tile_m", scale=Scale.NAMES, names=tuple(str(2**n) for n in range(height))),
        value=Axis(label="share", unit="%", limits=(0.0, 100.0)),
        values=values,
        counts=np.arange(values.size).reshape(values.shape),
    )


POINTS = Series(name="measured", x=numbers(1, 2, 3), y=numbers(0.5, 0.25, math.nan), look=0)
ROOF = Series(name="roof", x=numbers(1, 3), y=numbers(1, 1), points=False, line=Dashes.DASHED, reference=True)


# --- data ------------------------------------------------------------------------------------------------


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=1, max_size=20))
def test_rounding_keeps_five_digits_and_what_is_no_number(values: list[float]) -> None:
    for before, after in zip(values, plotly_renderer.rounded(np.array(values)), strict=True):
        if math.isnan(before):
            assert math.isnan(after)
        elif before == 0 or math.isinf(before) or not 1e-200 < abs(before) < 1e200:
            assert after == pytest.approx(before)
        else:
            assert after == pytest.approx(before, rel=1e-4)


def test_rounded_numbers_are_short() -> None:
    assert plotly_renderer.rounded(numbers(1234567.8, 0.000123456789, 99999.9)).tolist() == [
        1234600.0,
        0.00012346,
        100000.0,
    ]


def test_42_looks_differ_in_colour_or_marker() -> None:
    looks = {(colour_of(look), marker_of(look)) for look in range(42)}
    assert len(looks) == 42
    assert len({colour_of(look) for look in range(len(COLOURS))}) == len(COLOURS)


def test_columns_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match=r"measured: columns of \[2, 3\]"):
        Series(name="measured", x=numbers(1, 2, 3), y=numbers(1, 2))
    with pytest.raises(ValueError, match="names"):
        HeatMap(
            **{**{f: getattr(heat_map(np.zeros((2, 2))), f) for f in HeatMap.__slots__}, "values": np.zeros((3, 2))}
        )


def test_a_point_is_told_in_the_texts_of_its_numbers() -> None:
    texts = PointTexts((["one", "two"], ["small", "large"]), (np.array([1, 0]), np.array([0, 0])))
    assert [texts.text(0), texts.text(1)] == ["two\nsmall", "one\nsmall"]


@pytest.mark.parametrize(
    ("value", "text"), [(1234.5, "1,234"), (0.012345, "0.0123"), (48.57, "48.6"), (2e9, "2e+09"), (math.nan, "–")]
)
def test_numbers_for_people(value: float, text: str) -> None:
    assert number(value) == text


def test_names_of_files_have_nothing_that_a_shell_or_a_folder_minds() -> None:
    assert slug("Roofline nvidia-h200 f16:f16:f32/../x") == "roofline-nvidia-h200-f16-f16-f32-x"


# --- for a browser ---------------------------------------------------------------------------------------


def test_every_series_is_a_trace_with_its_units_and_nothing_that_json_lacks() -> None:
    figure = json.loads(json.dumps(plotly_renderer.figure(chart(POINTS, ROOF)), allow_nan=False))
    points, roof = figure["data"]
    assert (points["name"], points["mode"], points["x"], points["y"]) == (
        "measured",
        "markers",
        [1, 2, 3],
        [0.5, 0.25, None],
    )
    assert (roof["name"], roof["mode"], roof["line"]["dash"]) == ("roof", "lines", "dash")
    assert points["marker"]["color"] == COLOURS[0]
    assert figure["layout"]["xaxis"]["title"]["text"] == "size (GFLOP)"
    assert figure["layout"]["yaxis"]["type"] == "log"
    assert " ms" in points["hovertemplate"]


def test_texts_of_points_are_written_once_and_points_have_numbers() -> None:
    texts = PointTexts((["a", "b"],), (np.array([1, 0, 1]),))
    other = PointTexts(texts.parts, (np.array([0, 0, 0]),))
    coded = [Series(name=str(n), x=POINTS.x, y=POINTS.x, texts=w) for n, w in enumerate((texts, other))]
    figure = plotly_renderer.figure(chart(*coded))
    assert figure["layout"]["meta"]["texts"] == [["a", "b"]]
    assert [trace["meta"]["texts"] for trace in figure["data"]] == [[[1, 0, 1]], [[0, 0, 0]]]
    # Where series have different lists, each has its texts whole.
    apart = Series(name="apart", x=POINTS.x, y=POINTS.x, texts=PointTexts((["c"],), (np.zeros(3, np.int64),)))
    figure = plotly_renderer.figure(chart(coded[0], apart))
    assert [trace["text"] for trace in figure["data"]] == [["b", "a", "b"], ["c", "c", "c"]]


def test_names_cannot_become_markup_of_plotly() -> None:
    named = Series(
        name="<b>x</b>", x=POINTS.x, y=POINTS.x, texts=PointTexts((["<a href='x'>"],), (np.zeros(3, np.int64),))
    )
    text = json.dumps(plotly_renderer.figure(chart(named, x=Axis(label="<i>size</i>"))))
    assert "<b>" not in text
    assert "<i>" not in text
    assert "<a " not in text
    assert "&lt;b&gt;x" in text


def test_many_points_are_drawn_by_the_graphics_card_with_all_that_lies_before_them() -> None:
    many = np.arange(1.0, plotly_renderer.MANY + 1)
    figure = plotly_renderer.figure(chart(ROOF, Series(name="many", x=many, y=many), POINTS))
    assert [trace["type"] for trace in figure["data"]] == ["scatter", "scattergl", "scattergl"]
    assert {trace["type"] for trace in plotly_renderer.figure(chart(ROOF, POINTS))["data"]} == {"scatter"}


def test_bounds_are_bars_from_the_value() -> None:
    bounded = Series(name="x", x=numbers(1), y=numbers(2), low=numbers(1.5), high=numbers(4))
    (trace,) = plotly_renderer.figure(chart(bounded))["data"]
    assert (trace["error_y"]["arrayminus"], trace["error_y"]["array"]) == ([0.5], [2])


def test_bounds_of_a_line_may_be_one_band_that_both_renderers_fill() -> None:
    x, y = numbers(1, 2, 3), numbers(20, 10, 8)
    line = Series(name="all", x=x, y=y, low=y / 2, high=2 * y, band=True, line=Dashes.SOLID, look=3)
    band, trace = plotly_renderer.figure(chart(line))["data"]
    assert (band["x"], band["y"]) == ([1, 2, 3, 3, 2, 1], [40, 20, 16, 4, 5, 10])
    assert (band["fill"], band["showlegend"]) == ("toself", False)
    assert band["legendgroup"] == trace["legendgroup"]
    assert "error_y" not in trace
    assert band["meta"]["look"] == trace["meta"]["look"] == 3
    tinted = np.asarray(opened(matplotlib_renderer.png(chart(line)))).astype(int)
    share = (np.abs(tinted - tint(COLOURS[3], BAND_OPACITY)).max(axis=-1) < 3).mean()
    assert share > 0.05


def tint(colour: str, opacity: float) -> np.ndarray:
    """A colour on white paper."""
    return 255 + opacity * (np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) - 255)


def test_a_heat_map_tells_its_values_and_of_how_many_they_are() -> None:
    figure = json.loads(
        json.dumps(plotly_renderer.figure(heat_map(np.array([[10.0, math.nan], [30.0, 40.0]]))), allow_nan=False)
    )
    (trace,) = figure["data"]
    assert trace["z"] == [[10, None], [30, 40]]
    assert trace["customdata"] == [[0, 1], [2, 3]]
    assert (trace["zmin"], trace["zmax"]) == (0, 100)
    assert "n = %{customdata:,}" in trace["hovertemplate"]
    assert figure["layout"]["xaxis"]["title"]["text"] == "tile_n"


def test_a_text_cannot_end_the_script_that_it_is_in() -> None:
    text = page.script_json({"x": "</script><!-- & \u2028"})
    assert "<" not in text
    assert "&" not in text
    assert json.loads(text) == {"x": "</script><!-- & \u2028"}


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("tiled(tile=8,stages=2)", "tiled(tile=8,<wbr>stages=2)"),
        ("1,008 GFLOP/s per W", "1,008 GFLOP/s per W"),
        ("<b>, 1,200,000", "&lt;b&gt;,<wbr> 1,200,000"),
    ],
)
def test_texts_break_after_commas_but_not_inside_numbers(text: str, written: str) -> None:
    assert page.breakable(text) == written


def test_without_plotly_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plotly_renderer, "find_spec", lambda _: None)
    with pytest.raises(ServiceUnavailable, match=r"pip install .*\[web\]"):
        plotly_renderer.plotly_script()


# --- as pictures -----------------------------------------------------------------------------------------


def opened(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data)).convert("RGB")


def has_colour(image: Image.Image, colour: str, *, within: int = 40) -> bool:
    pixels = np.asarray(image).reshape(-1, 3).astype(int)
    wanted = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)])
    return bool((np.abs(pixels - wanted).max(axis=1) < within).sum() > 20)


def test_each_series_is_in_the_picture_in_its_colour() -> None:
    second = Series(name="more", x=numbers(1, 2, 3), y=numbers(3, 4, 5), look=1, line=Dashes.SOLID)
    image = opened(matplotlib_renderer.png(chart(POINTS, second, ROOF)))
    assert all(has_colour(image, colour) for colour in (COLOURS[0], COLOURS[1], "#808080"))
    alone = opened(matplotlib_renderer.png(chart(POINTS)))
    assert not has_colour(alone, COLOURS[1])


def test_a_picture_for_a_page_is_small_and_as_large_as_it_says() -> None:
    rng = np.random.default_rng(0)
    many = Series(name="many", x=rng.lognormal(size=16_000), y=rng.lognormal(size=16_000), faint=True)
    found = matplotlib_renderer.page_images(chart(many, ROOF))
    for data in (found.light, found.dark):
        assert len(data) < 100_000
        assert opened(data).size == (found.width, found.height)
        assert has_colour(opened(data), COLOURS[0], within=120)


@pytest.mark.parametrize("picture", [chart(POINTS, ROOF), heat_map(np.array([[0.0, 100.0]]))], ids=["chart", "map"])
def test_a_picture_has_a_variant_for_a_dark_page(picture: Chart | HeatMap) -> None:
    found = matplotlib_renderer.page_images(picture)
    for scheme, data in (("light", found.light), ("dark", found.dark)):
        pixels = np.asarray(opened(data)).reshape(-1, 3)
        paper = [int(matplotlib_renderer.PAPER[scheme][at : at + 2], 16) for at in (1, 3, 5)]
        assert np.abs(pixels[0].astype(int) - paper).max() < 4
        assert has_colour(opened(data), matplotlib_renderer.INK[scheme], within=60), "axes and texts"
        if isinstance(picture, Chart) and scheme == "dark":
            assert not has_colour(opened(data), matplotlib_renderer.PAPER["light"], within=10)


@pytest.mark.parametrize("picture", [chart(POINTS, ROOF), heat_map(np.array([[0.0, 50.0], [75.0, 100.0]]))])
def test_both_variants_of_a_picture_have_the_same_layout(picture: Chart | HeatMap) -> None:
    figure = matplotlib_renderer._render(picture, titled=False, scheme="dark")
    assert matplotlib_renderer.page_images(picture).dark == matplotlib_renderer._small(figure)[0]


def luminance(colour: str) -> float:
    """Relative luminance of WCAG 2."""
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_shades_are_in_order_of_lightness_and_stand_out_from_the_page(scheme: str) -> None:
    shades = [luminance(shade_of(position, scheme)) for position in np.linspace(0, 1, 10)]
    assert shades == sorted(shades, reverse=scheme == "light")
    page_luminance = luminance(matplotlib_renderer.PAPER[scheme])
    for one in shades:
        low, high = sorted((one, page_luminance))
        assert (high + 0.05) / (low + 0.05) > 2.9


def test_shades_and_rings_are_drawn_alike_by_both_renderers() -> None:
    low = Series(name="tile 1", x=numbers(1, 2), y=numbers(1, 2), shade=0.0, look=0)
    high = Series(name="tile 32", x=numbers(1, 2), y=numbers(3, 4), shade=1.0, look=1)
    ring = Series(name="best", x=numbers(1, 2), y=numbers(3, 4), ring=True, reference=True)
    traces = json.loads(json.dumps(plotly_renderer.figure(chart(low, high, ring))))["data"]
    assert [trace["marker"]["color"] for trace in traces] == [shade_of(0, "light"), shade_of(1, "light"), GREY]
    assert [trace.get("meta", {}).get("dark") for trace in traces] == [shade_of(0, "dark"), shade_of(1, "dark"), None]
    assert [trace["marker"]["symbol"] for trace in traces] == ["circle", "square", "circle-open"]
    found = matplotlib_renderer.page_images(chart(low, high, ring))
    for scheme, data in (("light", found.light), ("dark", found.dark)):
        assert all(has_colour(opened(data), shade_of(position, scheme)) for position in (0.0, 1.0))


def compared() -> Chart:
    """Two groups compared with a baseline, on rows with names."""
    ratios = Series(name="B", x=numbers(0.8, 1.25), y=numbers(0, 1), x_low=numbers(0.7, 1.2), x_high=numbers(0.9, 1.3))
    x = Axis(label="ratio", scale=Scale.LOG, limits=(0.5, 2.0), ticks=(0.8, 1, 1.25), decimals=4)
    y = Axis(label="", scale=Scale.NAMES, names=("f16", "f32"), downwards=True)
    described = chart(ratios, x=x, y=y)
    return dataclasses.replace(described, rules=(Rule(name="baseline", x=1.0),))


def test_bounds_of_x_rules_ticks_and_limits_are_in_both_renderers() -> None:
    figure = plotly_renderer.figure(compared())
    (trace,) = figure["data"]
    assert (trace["error_x"]["arrayminus"], trace["error_x"]["array"]) == ([0.1, 0.05], [0.1, 0.05])
    assert "%{x:,.4f}" in trace["hovertemplate"]
    layout = figure["layout"]
    assert [(shape["x0"], shape["line"]["color"]) for shape in layout["shapes"]] == [(1.0, GREY)]
    assert (layout["xaxis"]["tickvals"], layout["xaxis"]["ticktext"]) == ([0.8, 1, 1.25], ["0.8", "1", "1.25"])
    low, high = layout["xaxis"]["range"]
    assert math.log10(0.48) < low < math.log10(0.5) < math.log10(2) < high
    assert (layout["yaxis"]["ticktext"], layout["yaxis"]["autorange"]) == (["f16", "f32"], "reversed")
    image = opened(matplotlib_renderer.png(compared()))
    assert all(has_colour(image, colour) for colour in (COLOURS[0], GREY))
    axes = matplotlib_renderer._render(compared(), titled=True).axes[0]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["0.8", "1", "1.25"]
    assert axes.get_ylim() == (1.5, -0.5)


@pytest.mark.parametrize("names_on", ["x", "y"])
def test_bars_go_along_the_axis_that_has_no_names(names_on: str) -> None:
    places, lengths = numbers(0, 1), numbers(2, 8)
    names = Axis(label="card", scale=Scale.NAMES, names=("A", "B"))
    values = Axis(label="time", unit="ms")
    if names_on == "y":
        described = chart(Series(name="best", x=lengths, y=places, bars=True), x=values, y=names)
    else:
        described = chart(Series(name="best", x=places, y=lengths, bars=True), x=names, y=values)
    (trace,) = plotly_renderer.figure(described)["data"]
    assert (trace["type"], trace["orientation"], trace["text"]) == ("bar", "h" if names_on == "y" else "v", ["A", "B"])
    (first, second) = matplotlib_renderer._render(described, titled=True).axes[0].patches
    extent = "get_width" if names_on == "y" else "get_height"
    assert (getattr(first, extent)(), getattr(second, extent)()) == (2, 8)


def test_a_heat_map_of_ratios_is_logarithmic_and_light_where_they_are_low() -> None:
    described = dataclasses.replace(
        heat_map(np.array([[1.0, math.nan], [2.0, 9.0]])),
        value=Axis(label="time / best time", scale=Scale.LOG, limits=(1.0, 3.0), ticks=(1, 3)),
        counts=None,
        low_is_best=True,
    )
    (trace,) = json.loads(json.dumps(plotly_renderer.figure(described), allow_nan=False))["data"]
    assert trace["z"][0] == [0, None]
    assert trace["text"][1] == ["2", "9"]
    assert (trace["zmin"], trace["zmax"], trace["reversescale"]) == (0, pytest.approx(math.log10(3)), True)
    assert trace["colorbar"]["ticktext"] == ["1", "3"]
    rendered = matplotlib_renderer._render(described, titled=True)
    weights = {text.get_text(): text.get_weight() for text in rendered.axes[0].texts}
    assert weights == {"1": "bold", "–": "normal", "2": "normal", "9": "normal"}


def test_panels_share_one_legend_of_their_rules() -> None:
    panel = dataclasses.replace(compared(), rules=(Rule(name="fastest: tile 8", x=1.0, look=1),))
    rendered = matplotlib_renderer._render_panels(Panels(name="all", title="All", charts=(panel,) * 5))
    assert len(rendered.axes) == 5
    assert [text.get_text() for text in rendered.legends[0].get_texts()] == ["fastest: tile 8"]
    assert has_colour(opened(matplotlib_renderer.png(Panels(name="a", title="A", charts=(panel,)))), COLOURS[1])


def test_a_heat_map_is_dark_where_it_is_low_and_light_where_it_is_high() -> None:
    image = opened(matplotlib_renderer.png(heat_map(np.array([[0.0, 100.0]]))))
    # Ends of cividis.
    assert has_colour(image, "#00224e", within=12)
    assert has_colour(image, "#fee838", within=12)


@pytest.mark.filterwarnings("error")
def test_charts_at_the_edge_are_drawn_without_a_warning() -> None:
    one = Series(name="one $ \\alpha_1", x=numbers(5), y=numbers(5))
    nothing = Series(name="nothing", x=numbers(), y=numbers())
    for picture in (
        chart(one),
        chart(nothing, one),
        chart(
            Series(name="x", x=numbers(0, 1), y=numbers(1, 2)), x=Axis(label="x"), y=Axis(label="y", limits=(0.0, 3.0))
        ),
        heat_map(np.full((1, 1), math.nan)),
        heat_map(np.arange(14.0 * 12).reshape(14, 12)),  # taller and wider than the usual picture
        chart(
            Series(name="names", x=numbers(0, 1), y=numbers(1, 2), low=numbers(0.5, 1), high=numbers(2, 3)),
            x=Axis(label="x", scale=Scale.NAMES, names=("a", "b")),
        ),
    ):
        assert np.asarray(opened(matplotlib_renderer.png(picture))).std() > 0
        json.dumps(plotly_renderer.figure(picture), allow_nan=False)
