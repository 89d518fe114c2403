"""`farm report` by hand, on real Postgres: what the page says is what was measured, and it needs nothing but itself."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, text

from farm.campaign import Campaign
from farm.charts import matplotlib_renderer
from farm.charts.matplotlib_renderer import PageImages
from farm.db import measurements
from farm.db.campaigns import Stored
from farm.devices import DeviceIdentity
from farm.installing import INSTALL
from farm.kernels import Configuration
from farm.measurement import Measurement
from farm.registry import Trust
from farm.report import report_data
from farm.report.page import PRINTED_ROWS
from farm.settings import settings
from support import learning_curves as curves
from support.cheap_training import cheap_trainings
from support.commands import Command, farm_here, refused
from support.samples import card, cpu, document, row
from trainer.forest import ForestSettings
from trainer.reading import read_training_table
from trainer.registry import train_and_register

H200 = "nvidia-h200"
HARM = '<script>alert("x")</script><img src=x onerror=alert(1)>'
VOID = {"meta", "link", "img", "br", "hr", "input", "wbr"}

Landed = Callable[..., int]


class Page(HTMLParser):
    """A page taken apart: every element closed in its order, what it refers to, and what people read by section."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.sections: dict[str, str] = {}
        self.images: list[dict[str, str | None]] = []
        self.references: list[str] = []
        self.ids: list[str] = []
        self.scripts: dict[str, str] = {}
        self.handlers: list[str] = []
        self._section, self._script = "", ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.ids += [value for name, value in attrs if name == "id" and value]
        self.references += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "action", "data")]
        self.handlers += [name for name in given if name.startswith("on")]
        if tag == "section":
            self._section = given["id"] or ""
        if tag == "script":
            self._script = given.get("id") or f"script {len(self.scripts)}"
        if tag == "img":
            self.images.append(given)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert tag not in VOID
        assert self.open.pop() == tag
        if tag == "section":
            self._section = ""

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts[self._script] = self.scripts.get(self._script, "") + data
        elif self._section:
            self.sections[self._section] = self.sections.get(self._section, "") + data


@pytest.fixture
def command(tmp_path: Path, database_url: str) -> Command:
    return farm_here(tmp_path, database_url)


@pytest.fixture
def rendered() -> None:
    """For a test that looks at the pictures of its page."""


@pytest.fixture(autouse=True)
def pictures_of_one_pixel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rendering the pictures takes nine tenths of the time of a page, and most tests read its words alone."""
    if "rendered" not in request.fixturenames:
        pixel = PageImages(b"\x89PNG", b"\x89PNG", 1, 1)
        monkeypatch.setattr(matplotlib_renderer, "page_images", lambda described: pixel)


@pytest.fixture
def land(engine: Engine, announce: Callable[[DeviceIdentity], int], submit: Callable[[Campaign], Stored]) -> Landed:
    """A campaign of tiles on `shapes`, and a row for each of its jobs on each card, by `taken`; returns its id."""

    def landed(
        taken: Callable[[Configuration], Measurement | None],
        *,
        name: str = "tiles",
        cards: Sequence[DeviceIdentity] = (card(1, kind=H200),),
        shapes: Sequence[str] = ("512x512x512", "1024x1024x1024"),
        kernels: Any = None,
        **changes: Any,
    ) -> int:
        ids = {one.uuid: announce(one) for one in cards}
        asked = document(
            name=name,
            problems={"shapes": list(shapes), "types": ["f32"]},
            kernels=kernels or [{"family": "tiled", "tile": [8, 16, 32]}],
            targets=[{"device": one.uuid} for one in cards],
            **changes,
        )
        campaign_id = submit(Campaign.from_document(asked)).campaign_id
        with engine.begin() as connection:
            jobs = connection.execute(
                text("""
                    SELECT j.id AS job_id, c.*, p.device_uuid FROM lanes l JOIN pools p ON p.id = l.pool_id
                    JOIN jobs j ON j.lane_id = l.id JOIN configurations c ON c.id = j.configuration_id
                    WHERE l.campaign_id = :id AND j.state = 'open'
                """),
                {"id": campaign_id},
            ).mappings()
            rows = list[measurements.Row]()
            for job in jobs.all():
                one = Configuration.from_columns(job)
                made = taken(one)
                if made is not None:
                    rows.append((job["job_id"], campaign_id, one.id, ids[job["device_uuid"]], made))
            measurements.insert(connection, rows)
            connection.execute(
                text("UPDATE jobs SET state = 'done' WHERE id = ANY(:ids)"), {"ids": [landed[0] for landed in rows]}
            )
            connection.execute(
                text("UPDATE lanes l SET done = (SELECT count(*) FROM jobs WHERE lane_id = l.id AND state = 'done')")
            )
        return campaign_id

    return landed


def tile_of(one: Configuration) -> int:
    return dict(one.kernel.parameters)["tile"]


def taken(one: Configuration) -> Measurement:
    """Tile 16 is the fastest, tile 32 takes the least energy."""
    ms, watts = {8: (4.0, 100.0), 16: (1.0, 400.0), 32: (1.25, 200.0)}[tile_of(one)]
    return row(ms * one.problem.flops / 1e9, power_w=watts, details={"occupancy": tile_of(one) / 32, "waves": 2.0})


def opened(folder: Path, name: str = "tiles.html") -> tuple[str, Page]:
    written = (folder / name).read_text(encoding="utf-8")
    return written, Page(written)


def made(command: Command, *arguments: str) -> dict[str, Any]:
    done = command("report", *arguments, "--json")
    assert done.returncode == 0, done.stderr

    def no_constant(name: str) -> None:
        raise AssertionError(name)

    found: dict[str, Any] = json.loads(done.stdout, parse_constant=no_constant)
    return found


# --- the page --------------------------------------------------------------------------------------------


def test_a_page_is_whole_and_needs_no_network(command: Command, land: Landed, tmp_path: Path) -> None:
    land(taken)
    done = command("report", "tiles")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "tiles.html\n"
    written, page = opened(tmp_path)
    assert [one for one in page.references if not one.startswith(("data:", "#"))] == []
    assert page.handlers == []
    assert len(set(page.ids)) == len(page.ids)
    links = {one.removeprefix("#") for one in page.references if one.startswith("#")}
    assert links <= set(page.ids)
    assert list(page.sections) == [
        "findings", "campaign", "roofline", "sizes", "parameters", "pareto", "best", "tiles", "devices", "model", "provenance",
    ]  # fmt: skip
    assert "default-src 'none'" in written
    (charts,) = [script for script in page.scripts.values() if "farmCharts" in script]
    assert "sendChartToCloud" in charts.partition("modeBarButtonsToRemove: [")[2].partition("]")[0]


@pytest.mark.usefixtures("rendered")
def test_each_chart_is_there_as_a_figure_and_as_a_picture_that_says_what_it_shows_and_the_page_is_not_large(
    command: Command, land: Landed, tmp_path: Path
) -> None:
    land(taken)
    found = made(command, "tiles", "--png", "pictures")
    written, page = opened(tmp_path)
    assert len(written.encode()) < 15e6
    names = [one["name"] for one in found["pictures"]]
    assert names == [
        "roofline-nvidia-h200-f32", "time-nvidia-h200", "energy-nvidia-h200", "parameters-nvidia-h200-tiled-tile-size",
        "pareto-nvidia-h200", "tiles-nvidia-h200",
    ]  # fmt: skip
    figures = {name: json.loads(page.scripts[f"figure-{name}"]) for name in names}
    roofline = figures["roofline-nvidia-h200-f32"]
    assert {trace["name"]: len(trace["x"]) for trace in roofline["data"] if "markers" in trace["mode"]} == {
        "tile 8 (2)": 2,
        "tile 16 (2)": 2,
        "tile 32 (2)": 2,
        "the fastest of each problem (2)": 2,
    }
    alternatives = [f"{one['title']}. {one['message']}" for one in found["pictures"]]
    for scheme in ("in-light", "in-dark"):
        images = [image for image in page.images if scheme in (image["class"] or "").split()]
        assert [image["alt"] for image in images] == alternatives
    assert all((image["src"] or "").startswith("data:image/png;base64,") for image in page.images)
    assert all(len(image["src"] or "") < 100_000 * 4 / 3 for image in page.images)
    assert found["pngs"] == [f"pictures/{name}.png" for name in names]
    assert all((tmp_path / one).read_bytes().startswith(b"\x89PNG") for one in found["pngs"])


def test_a_learning_campaign_has_its_curve_as_a_chart_and_a_table(
    command: Command,
    announce: Callable[[DeviceIdentity], int],
    submit: Callable[[Campaign], Stored],
    engine: Engine,
    tmp_path: Path,
) -> None:
    announce(cpu())
    stored = submit(Campaign.from_document(document(**curves.LEARNS)))
    curves.decided(engine, stored.campaign_id)
    found = made(command, "learning", "--png", "pictures")
    _, page = opened(tmp_path, "learning.html")
    names = list(page.sections)
    assert names[names.index("campaign") + 1] == "learning"
    (picture,) = [one for one in found["pictures"] if one["name"].startswith("learning")]
    assert "8.0% (95% interval 6.4 to 10.0%) after 300 device seconds" in picture["message"]
    assert (tmp_path / f"pictures/{picture['name']}.png").read_bytes().startswith(b"\x89PNG")
    figure = json.loads(page.scripts[f"figure-{picture['name']}"])
    assert figure["layout"]["yaxis"]["type"] == "log"
    assert [trace["name"] for trace in figure["data"][1:]] == ["all, with 95% interval", "blas", "tiled"]
    section = page.sections["learning"]
    assert f"No further round is measured: {curves.BUDGET_USED}." in section
    for cell in ("200.0", "2,400", "8.0 to 12.5", "20 jobs of 10 problems"):
        assert cell in section
    assert [point["round"] for point in found["learning"]] == [1, 2, 3]


def test_a_campaign_that_does_not_learn_has_no_learning_curve(command: Command, land: Landed, tmp_path: Path) -> None:
    land(taken)
    found = made(command, "tiles")
    assert "learning" not in found
    assert "learning" not in opened(tmp_path)[1].sections


def test_what_is_found_is_what_was_measured(command: Command, land: Landed, tmp_path: Path) -> None:
    land(taken)
    found = made(command, "tiles")
    (best,) = found["findings"]["best"]
    tflops = 1e9 / 1e-3 / 1e12  # a GFLOP in a ms
    assert (best["fastest"]["kernel"], best["fastest"]["tflops"]) == ("tiled(tile=16)", pytest.approx(tflops))
    assert best["fastest"]["share_of_peak"] == pytest.approx(tflops / 66.9)
    assert best["most_efficient"]["kernel"] == "tiled(tile=32)"
    assert best["most_efficient"]["gflops_per_w"] == pytest.approx(1 / (1.25e-3 * 200))
    assert found["pareto"] == {H200: {"2": 2}}
    (heat,) = found["parameters"]
    assert (heat["tile"], heat["configurations"]) == (["8", "16", "32"], [[1, 1]] * 3)
    assert heat["share_of_best_pct"] == [pytest.approx([25, 25]), pytest.approx([100, 100]), pytest.approx([80, 80])]
    assert {one["best"]["kernel"] for one in found["best"]["found"]} == {"tiled(tile=16)"}
    _, page = opened(tmp_path)
    says = page.sections["findings"]
    assert "6 of 6 jobs have a result (100%)." in says
    assert "The highest speed on nvidia-h200 in f32 is 1 TFLOP/s, 1.49% of the card's peak" in says
    assert "On nvidia-h200 tiled(tile=16) is the fastest on both problems." in says
    assert "times" not in found  # no row has both times
    assert "not the one of least energy on 2 of 2 problems" in says
    assert "saves 37.5% of the energy for 25% more time" in says
    assert "tile: " in page.sections["campaign"] or "tile:" in page.sections["campaign"]
    assert "GPU-1" in page.sections["provenance"]
    assert "library" in page.sections["provenance"]


def test_several_kernels_that_are_the_fastest_are_counted(command: Command, land: Landed, tmp_path: Path) -> None:
    """Tile 8 is the fastest on the small problem, tile 16 on the two others."""
    land(
        lambda one: row(0.5 if (tile_of(one) == 8) == (one.problem.shape.m == 512) else 1.0),
        shapes=("512x512x512", "1024x1024x1024", "2048x2048x2048"),
        kernels=[{"family": "tiled", "tile": [8, 16]}],
    )
    made(command, "tiles")
    assert (
        "tiled(tile=16) is the fastest on 2 of 3 problems, the most of the 2 kernels that are the fastest on any. It reaches 95% of "
        "the best's speed on 2, and 50% at worst."
    ) in opened(tmp_path)[1].sections["findings"]


def of_both_times(one: Configuration) -> Measurement:
    """Tile 16 is the fastest and power-limited; the two times of the others differ by 1%."""
    limited = tile_of(one) == 16
    settled = 1.0 if limited else 2.0
    return row(
        settled,
        runtime_settled_ms=settled,
        runtime_burst_ms=settled * (0.85 if limited else 0.99),
        power_limited=limited,
    )


def test_burst_times_that_differ_are_a_section_and_a_column_of_the_report(
    command: Command, land: Landed, tmp_path: Path
) -> None:
    land(of_both_times)
    found = made(command, "tiles")
    limited, others = found["times"]
    assert (limited["power-limited"], limited["configurations"], limited["apart"]) == ("yes", 2, 2)
    assert limited["median burst / settled"] == pytest.approx(0.85)
    assert (others["power-limited"], others["configurations"], others["apart"]) == ("no", 4, 0)
    assert [one["best"]["runtime_burst_ms"] for one in found["best"]["found"]] == pytest.approx([0.85, 0.85])
    _, page = opened(tmp_path)
    assert (
        "On nvidia-h200 the power limiter slows down 2 of 6 configurations: their burst times are 85% of their settled times "
        "in the median."
    ) in page.sections["times"]
    assert "burst ms" in page.sections["best"]
    shown = command("best", "tiles").stdout
    assert "burst ms" in shown
    assert "0.85" in shown
    assert "burst ms" in command("results", "--campaign", "tiles").stdout


def test_burst_times_of_devices_are_compared_where_they_differ(command: Command, land: Landed, tmp_path: Path) -> None:
    cards = [card(1, kind=H200), card(2, kind=H200)]
    land(of_both_times, cards=cards)
    made(command, "tiles")
    assert "burst time" in opened(tmp_path)[1].sections["devices"]
    land(taken, name="alike", cards=cards)
    made(command, "alike")
    assert "burst time" not in opened(tmp_path, "alike.html")[1].sections["devices"]


def test_another_protocol_is_named_with_the_rows_and_the_model(command: Command, land: Landed, tmp_path: Path) -> None:
    land(lambda one: row(1.0 + tile_of(one), protocol="server"), measure={"protocol": "server"})
    made(command, "tiles")
    _, page = opened(tmp_path)
    assert "server" in page.sections["provenance"]
    assert "server" not in page.sections["findings"]


def test_times_that_hardly_differ_are_shown_once(command: Command, land: Landed, tmp_path: Path) -> None:
    land(lambda one: row(1.0 + tile_of(one), runtime_burst_ms=0.99 * (1 + tile_of(one)), power_limited=False))
    assert "times" not in made(command, "tiles")
    _, page = opened(tmp_path)
    assert "times" not in page.sections
    assert "burst ms" not in page.sections["best"]
    assert "burst" not in command("best", "tiles").stdout
    assert "burst" not in command("results", "--campaign", "tiles").stdout


def test_names_and_errors_cannot_become_markup(command: Command, land: Landed, engine: Engine, tmp_path: Path) -> None:
    device = replace(card(1, kind=H200), name=HARM)
    land(
        lambda one: None if tile_of(one) == 8 else replace(taken(one), environment={HARM: HARM}, clock_policy=HARM),
        cards=[device],
        description=HARM,
        owner=HARM,
    )
    with engine.begin() as connection:
        connection.execute(
            text("""
                INSERT INTO failures (job_id, lane_id, kind, message)
                SELECT id, lane_id, 'failed', :harm FROM jobs WHERE state = 'open'
            """),
            {"harm": HARM},
        )
        connection.execute(text("UPDATE jobs SET state = 'dead' WHERE state = 'open'"))
        connection.execute(text("UPDATE lanes SET dead = jobs - done"))
    found = made(command, "tiles")
    written, page = opened(tmp_path)
    assert HARM not in written
    assert "<script>alert" not in written
    assert HARM in page.sections["findings"]
    assert HARM in page.sections["campaign"]
    assert page.sections["provenance"].count(HARM) >= 3
    assert page.handlers == []
    assert found["findings"]["failed"] == [
        {"state": "dead", "kind": "failed", "reason": HARM.replace("(1)", "(…)"), "example": HARM, "jobs": 2}
    ]
    assert "2 jobs failed at each attempt (dead)." in page.sections["findings"]


def test_a_long_table_can_be_filtered_and_is_cut_on_paper(command: Command, land: Landed, tmp_path: Path) -> None:
    land(taken, shapes=[f"{64 * m}x64x64" for m in range(1, PRINTED_ROWS + 6)])
    command("report", "tiles")
    written, page = opened(tmp_path)
    assert written.count("<tr class=beyond>") == 5
    assert f"The first {PRINTED_ROWS} of {PRINTED_ROWS + 5} rows are printed" in page.sections["best"]
    assert '<input type="search"' in written


def test_times_of_the_baseline_stand_beside_the_best(command: Command, land: Landed, tmp_path: Path) -> None:
    def with_cublaslt(one: Configuration) -> Measurement:
        return row(2 * one.problem.flops / 1e9) if one.kernel.family == "cublaslt" else taken(one)

    land(with_cublaslt, kernels=[{"family": "tiled", "tile": [8, 16, 32]}, {"family": "cublaslt"}])
    found = made(command, "tiles")
    assert found["best"]["summary"]["median_speed_up"] == pytest.approx(2.0)
    _, page = opened(tmp_path)
    assert "cuBLASLt ms" in page.sections["best"]
    assert "2.000 times as fast in the median" in page.sections["best"]
    assert [one["name"] for one in found["pictures"] if "roofline" in one["name"]] == ["roofline-nvidia-h200-f32"]


# --- what is not there -----------------------------------------------------------------------------------


def test_a_section_without_data_says_why(command: Command, land: Landed, tmp_path: Path) -> None:
    land(lambda one: row(1.0), kernels=[{"family": "cublaslt"}])
    nothing = made(command, "tiles")["nothing"]
    assert nothing == {
        "parameters": "No parameter of a kernel family takes two values in what was measured.",
        "pareto": "No row of this campaign has power (2 configurations have a time): ask for it with measure: {power: all} on "
        "devices that report it.",
        "tiles": "No kernel of the family tiled was measured, and no row says the occupancy of its kernel in two different "
        "values.",
        "devices": "One device alone measured this campaign.",
        "model": "The registry has no champion for nvidia-h200.",
    }
    _, page = opened(tmp_path)
    for name, why in nothing.items():
        assert why in page.sections[name]


def test_a_campaign_of_which_nothing_was_measured_has_a_page_that_says_so(
    command: Command, land: Landed, tmp_path: Path
) -> None:
    land(lambda _: None)
    done = command("report", "tiles")
    assert done.returncode == 0, done.stderr
    assert "It has no measurements under its own rules" in done.stderr
    written, page = opened(tmp_path)
    assert "Nothing of this campaign was measured under its own rules yet." in page.sections["roofline"]
    assert "SO FAR: 6 jobs of this campaign are open" in written
    assert len(written) < 100_000


def test_a_campaign_that_goes_on_is_reported_so_far(command: Command, land: Landed, tmp_path: Path) -> None:
    land(lambda one: taken(one) if tile_of(one) > 8 else None)
    done = command("report", "tiles")
    assert "SO FAR: 2 jobs of this campaign are open" in done.stderr
    _, page = opened(tmp_path)
    assert "4 of 6 jobs have a result (66.7%)." in page.sections["findings"]
    assert "2 jobs are open" in page.sections["findings"]


def test_rows_that_were_not_measured_here_are_labelled_loudly(command: Command, land: Landed, tmp_path: Path) -> None:
    land(lambda one: replace(taken(one), source="recorded"))
    done = command("report", "tiles")
    assert "RECORDED: 6 of 6 rows were replayed" in done.stderr
    written, page = opened(tmp_path)
    assert re.search(r'<p class="warning" role="note">RECORDED: 6 of 6 rows', written)
    assert "RECORDED" in page.sections["provenance"]


# --- devices and types -----------------------------------------------------------------------------------


def slower(factor: float) -> Callable[[Configuration], Measurement]:
    return lambda one: row(factor * one.problem.flops / 1e9, power_w=100.0)


def test_devices_that_measured_the_same_are_compared_and_one_type_can_be_asked_for(
    command: Command, land: Landed, engine: Engine, tmp_path: Path
) -> None:
    cards = [card(1, kind=H200), card(2, kind="nvidia-a100-sxm4-80gb")]
    land(taken, cards=cards)
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE measurements DISABLE TRIGGER USER"))
        connection.execute(
            text("""
                UPDATE measurements SET runtime_ms = runtime_ms * 1.5
                WHERE device_id = (SELECT id FROM devices WHERE uuid = 'GPU-2')
            """)
        )
    found = made(command, "tiles")
    (one,) = found["devices"]
    ratio = {one["baseline"]: 1.0} | {side["name"]: side["overall"]["time"]["ratio"] for side in one["sides"]}
    assert ratio["nvidia-a100-sxm4-80gb"] / ratio[H200] == pytest.approx(1.5)
    assert {picture["name"] for picture in found["pictures"]} >= {
        "roofline-nvidia-h200-f32",
        "roofline-nvidia-a100-sxm4-80gb-f32",
        "comparison-" + one["baseline"],
    }
    alone = made(command, "tiles", "--type", H200, "--force")
    assert {origin["device_type"] for origin in alone["provenance"]["devices"]} == {H200}
    assert {one["device_type"] for one in alone["best"]["found"]} == {H200}
    assert alone["nothing"]["devices"] == "One device alone measured this campaign."
    assert not [one for one in alone["pictures"] if "a100" in one["name"]]


def test_the_champion_stands_beside_what_was_measured_and_what_it_learned_from_is_told(
    command: Command, land: Landed, engine: Engine, tmp_path: Path, new_registry: Callable[[Path], str]
) -> None:
    sizes = [64 * n for n in range(1, 9)]
    shapes = [f"{m}x{n}x512" for m in sizes for n in (256, 512)]
    land(taken, shapes=shapes, name="first")
    uri = new_registry(tmp_path)
    with cheap_trainings():
        train_and_register(
            read_training_table(engine, H200),
            H200,
            tracking_uri=uri,
            code_version="1.0",
            settings=ForestSettings(trees=5),
            trust=Trust(settings(), engine),
        )
    land(taken, shapes=["640x640x512", shapes[0]], name="second")
    found = made(command, "second")
    (model,) = found["model"]
    assert model["model"]["name"] == "gemm-forest-nvidia-h200"
    assert set(model["evaluation"]) >= {"unseen_shapes"}
    runtime = model["here"]["runtime_ms"]
    assert {name: one["configurations"] for name, one in runtime.items()} == {"all": 6, "trained_on": 3, "new": 3}
    assert runtime["trained_on"]["median_error_pct"] < 1
    assert {"parity-time-nvidia-h200", "parity-power-nvidia-h200"} <= {one["name"] for one in found["pictures"]}
    _, page = opened(tmp_path, "second.html")
    assert "3 configurations of this campaign are among them." in page.sections["model"]
    figure = json.loads(page.scripts["figure-parity-time-nvidia-h200"])
    assert [trace["name"] for trace in figure["data"]] == ["equal", "that it was trained on (3)", "new to it (3)"]


def test_all_is_of_one_snapshot(engine: Engine, land: Landed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that land after the report began are not in any part of it."""
    land(taken)
    real = report_data._results

    def while_more_lands(*arguments: Any) -> Any:
        land(taken, name="tiles2")
        with engine.begin() as connection:
            connection.execute(text("ALTER TABLE measurements DISABLE TRIGGER USER"))
            connection.execute(
                text("UPDATE measurements SET campaign_id = (SELECT id FROM campaigns WHERE name = 'tiles')")
            )
        return real(*arguments)

    monkeypatch.setattr(report_data, "_results", while_more_lands)
    found = report_data.gather(engine, "tiles")
    assert found.results.rows.sum() == found.rows == 6
    monkeypatch.undo()
    assert report_data.gather(engine, "tiles").results.rows.sum() == 12


# --- mistakes --------------------------------------------------------------------------------------------


def test_what_cannot_be_is_said(
    command: Command, land: Landed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    land(taken)
    refused(command("report", "nothing"), 4, "no campaign 'nothing'", "tiles")
    refused(command("report", "tiles", "--type", "h9000"), 4, "no rows on the device type h9000", H200)
    refused(command("report", "tiles", "--type", "it's \\"), 4, "no rows on the device type it's \\")
    refused(command("report", "tiles", "--output", "no/such/folder.html"), 2, "there is no folder no/such")
    refused(command("report", "tiles", "--output", str(tmp_path)), 2, "is a folder")
    (tmp_path / "file").write_text("")
    refused(command("report", "tiles", "--png", "file"), 2, "file cannot be written")
    monkeypatch.setattr("farm.charts.plotly_renderer.find_spec", lambda _: None)
    refused(command("report", "tiles"), 3, INSTALL["web"])


POWERS = {"uniform": 500.0, "zeros": 250.0, "normal": 480.0, "a=normal b=zeros c=normal": 300.0}


def of_operands(distribution: str) -> Callable[[Configuration], Measurement]:
    """Slower and at lower clocks where the card draws more."""

    def taken(one: Configuration) -> Measurement:
        power = POWERS[distribution]
        time = tile_of(one) * (0.5 + power / 1000)
        return row(
            time, runtime_burst_ms=0.9 * tile_of(one), runtime_settled_ms=time, power_w=power, sm_clock_mhz=2000 - int(power),
            distribution=distribution,
        )  # fmt: skip

    return taken


def test_campaigns_with_other_operands_are_compared_configuration_by_configuration(
    command: Command, land: Landed, tmp_path: Path
) -> None:
    for distribution in POWERS:
        land(of_operands(distribution), measure={"power": "all", "operands": distribution}, name="operands")
    land(of_operands("zeros"), shapes=["64x64x64"], measure={"operands": "zeros"}, name="others")
    found = made(command, "operands")["operands"]
    assert [one["operands"] for one in found] == ["uniform", "normal", "a=normal b=zeros c=normal", "zeros"]
    assert [one["power W"] for one in found] == [500, 480, 300, 250]
    assert [one["power %"] for one in found] == pytest.approx([100, 96, 60, 50])
    assert [one["settled time %"] for one in found] == pytest.approx([100, 98, 80, 75])
    assert [one["burst time %"] for one in found] == pytest.approx([100] * 4)
    assert found[-1]["SM clock %"] == pytest.approx(100 * 1750 / 1500)
    assert found[-1]["energy %"] == pytest.approx(37.5)
    assert [one["configurations"] for one in found] == [6] * 4
    _, page = opened(tmp_path, "operands.html")
    assert "How much operands matter" in page.sections["operands"]
    assert "from 50% (zeros) to 96% (normal) of that of uniform" in page.sections["operands"]


def test_operands_are_left_out_where_all_rows_have_the_same(command: Command, land: Landed, tmp_path: Path) -> None:
    land(of_operands("uniform"), measure={"power": "all"})
    land(of_operands("zeros"), shapes=["64x64x64"], measure={"operands": "zeros"}, name="others")
    assert "operands" not in made(command, "tiles")
    assert "operands" not in opened(tmp_path)[1].sections
