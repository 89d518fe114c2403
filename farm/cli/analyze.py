"""`farm analyze`: what a campaign's measurements, or a recording's, show of a kernel family."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from farm.analysis.paper import PAPER_SOURCE, compare_with_paper
from farm.analysis.tile_recording import read_recording
from farm.analysis.tiles import (
    FAMILY,
    USUAL_BASELINE,
    DeviceTiles,
    ProblemTiles,
    TiledRow,
    TilePoint,
    TileSummary,
    analyze,
)
from farm.api import farm_of
from farm.api.results import pages
from farm.cli.files import ForceOption
from farm.cli.output import JsonOption, console, emit_json, remarks
from farm.cli.tables import Column, Table
from farm.errors import AmbiguousDevice, BadInput, NotFound, UnknownDevice
from farm.formatting import some_of
from farm.kernels import problem_columns
from farm.settings import settings

app = typer.Typer(help="Study measurements.", no_args_is_help=True)


@app.callback()
def _studies() -> None:
    pass


@app.command()
def tiles(
    campaign: Annotated[str | None, typer.Argument(help="The campaign, by name or digest.")] = None,
    recording: Annotated[
        Path | None, typer.Option("--recording", help="A Parquet file of measurements, in place of a campaign.")
    ] = None,
    device_type: Annotated[str | None, typer.Option("--device-type", "-t", help="Only this device type.")] = None,
    device: Annotated[
        str | None, typer.Option("--device", "-d", help="Only this device: its UUID or its start.")
    ] = None,
    baseline: Annotated[
        int, typer.Option("--baseline", "-b", min=1, max=32, help="The tile that others are compared with.")
    ] = USUAL_BASELINE,
    plot: Annotated[Path | None, typer.Option("--plot", help="Draw PNGs into this folder.")] = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show how tile size changes time, power, energy, occupancy and shared memory of the family tiled.

    Examples:
        farm analyze tiles paper-tiled
        farm analyze tiles --recording rows.parquet --baseline 4 --plot figures
    """
    if (campaign is None) == (recording is None):
        raise BadInput(detail="Name either a campaign, or a file of measurements with --recording FILE.")
    draw = None if plot is None else _artist(plot, force=force)
    where = f"Campaign {campaign}" if recording is None else str(recording)
    rows = _of_campaign(campaign) if recording is None else _of_recording(recording)
    studies = analyze(_chosen(rows, where, device_type, device), baseline=baseline)
    _remark(studies, baseline)
    drawn = iter(()) if draw is None else draw(studies)
    if as_json:
        documents = [_document(study) for study in studies]
        emit_json({"family": FAMILY, "device_types": documents, "plots": [str(path) for path in drawn]})
        return
    for study in studies:
        _print(study)
    for path in drawn:
        console.print(str(path), markup=False, soft_wrap=True)


def _artist(folder: Path, *, force: bool) -> Callable[[list[DeviceTiles]], Iterator[Path]]:
    """Draws into that folder. Raises `ServiceUnavailable` where it cannot, before anything is read."""
    from farm.analysis import tile_charts
    from farm.charts.matplotlib_renderer import need_matplotlib

    need_matplotlib()
    return lambda studies: tile_charts.write(studies, folder, force=force)


# --- which rows --------------------------------------------------------------------------------------


def _of_campaign(name: str | None) -> list[TiledRow]:
    assert name is not None
    with farm_of(settings()) as farm:
        found = pages(farm, None, campaign=name, family=FAMILY)
        return [TiledRow.from_columns(row) for page in found for row in page.rows]


def _of_recording(path: Path) -> list[TiledRow]:
    rows, provenance = read_recording(path)
    if provenance is not None:
        remarks.print(f"{escape(str(path))}: {escape(provenance.provenance)}")
    return rows


def _chosen(rows: list[TiledRow], where: str, device_type: str | None, device: str | None) -> list[TiledRow]:
    """The rows of that type and device. Raises `NotFound`, `UnknownDevice`, `AmbiguousDevice`."""
    if not rows:
        raise NotFound(detail=f"{where} has no measurements of the family {FAMILY}.")
    if device_type is not None:
        known = sorted({row.device_type for row in rows})
        rows = [row for row in rows if row.device_type == device_type]
        if not rows:
            raise NotFound(
                detail=f"{where} has no measurements of {FAMILY} on the device type {device_type}. "
                f"It has them on: {some_of(known)}."
            )
    if device is not None:
        uuids = sorted({row.device_uuid for row in rows if row.device_uuid is not None})
        found = [uuid for uuid in uuids if uuid == device] or [uuid for uuid in uuids if uuid.startswith(device)]
        if not found:
            raise UnknownDevice(which=device, known=some_of(uuids) or "none, these rows do not name their device")
        if len(found) > 1:
            raise AmbiguousDevice(which=device, candidates=some_of(found))
        rows = [row for row in rows if row.device_uuid == found[0]]
    return rows


def _remark(studies: list[DeviceTiles], wanted: int) -> None:
    for study in studies:
        kind = escape(study.device_type)
        count = len(study.problems)
        if study.baseline != wanted:
            remarks.print(f"{kind}: tile {wanted} was not measured; the baseline is tile {study.baseline}.")
        if study.off_baseline:
            remarks.print(
                f"{kind}: {study.off_baseline:,} of {count:,} problems lack tile {study.baseline}: they are "
                "compared with their smallest tile, and left out of the means."
            )
        if len(study.summary) == 1:
            remarks.print(f"{kind}: only tile {study.baseline} was measured, so there is nothing to compare.")
        if study.partly_powered:
            remarks.print(
                f"{kind}: {study.partly_powered:,} of {count:,} problems have the power of some tiles only; the least "
                "energy is among these."
            )


# --- as JSON -----------------------------------------------------------------------------------------


def _document(study: DeviceTiles) -> dict[str, Any]:
    beside = compare_with_paper(study.summary, study.baseline)
    return {
        "device_type": study.device_type,
        "rows": study.rows,
        "devices": study.devices,
        "baseline": study.baseline,
        "problems": [_problem_document(problem) for problem in study.problems],
        "summary": [asdict(summary) for summary in study.summary],
        "paper": {
            "source": PAPER_SOURCE,
            "tiles": [
                {**asdict(b.paper), "speed_up": b.paper_speed_up, "energy_ratio": b.paper_energy_ratio} for b in beside
            ],
        },
    }


def _problem_document(problem: ProblemTiles) -> dict[str, Any]:
    fastest, thriftiest, trade = problem.fastest, problem.thriftiest, problem.trade
    return {
        "label": problem.label,
        **problem_columns(problem.problem),
        "distribution": problem.distribution,
        "rows": problem.rows,
        "devices": problem.devices,
        "baseline": problem.baseline,
        "fastest": None if fastest is None else fastest.tile,
        "thriftiest": None if thriftiest is None else thriftiest.tile,
        "trade": None if trade is None else asdict(trade),
        "tiles": [
            {
                **asdict(point),
                "speed_up": problem.speed_up(point),
                "power_change_pct": problem.power_change_pct(point),
                "energy_change_pct": problem.energy_change_pct(point),
            }
            for point in problem.points
        ],
    }


# --- as tables ---------------------------------------------------------------------------------------


def _print(study: DeviceTiles) -> None:
    for problem in study.problems:
        _print_problem(study, problem)
        _print_trade(problem)
    _print_summary(study)
    console.print(
        f"{_counted(len(study.problems), 'problem')}, {_counted(study.rows, 'row')} of "
        f"{_counted(study.devices, 'device')}; speed-up and energy ratio are geometric means.\n"
    )
    _print_beside(study)


_PROBLEM = Table(
    "tiles of a problem",
    Column("tile", number=True),
    Column("time", "ms", number=True),
    Column("TFLOP/s", number=True, priority=2),
    Column("power", "W", number=True, priority=3),
    Column("energy", "mJ", number=True),
    Column("GFLOP/s/W", number=True, priority=7),
    Column("occupancy", "%", number=True, priority=5),
    Column("shared", "B", number=True, priority=9),
    Column("registers", number=True, priority=8),
    Column("waves", number=True, priority=6),
    Column("speed-up", number=True, priority=1),
    Column("power change", "%", number=True, priority=4),
    Column("energy change", "%", number=True, priority=4),
    Column("best"),
    sparse=True,
)


def _print_problem(study: DeviceTiles, problem: ProblemTiles) -> None:
    rows = [
        (
            p.tile, p.runtime_ms, p.tflops, p.power_w, p.energy_mj, p.gflops_per_w,
            None if p.occupancy is None else 100 * p.occupancy, p.shared_bytes, p.registers, p.waves, problem.speed_up(p),
            _signed(problem.power_change_pct(p)), _signed(problem.energy_change_pct(p)), _best_text(problem, p),
        )
        for p in problem.points
    ]  # fmt: skip
    _PROBLEM.print(rows, title=f"{study.device_type}: {problem.label}, against tile {problem.baseline}")


def _signed(change_pct: float | None) -> str | None:
    return None if change_pct is None else f"{change_pct:+.1f}"


def _best_text(problem: ProblemTiles, point: TilePoint) -> str:
    best = {"time": problem.fastest, "energy": problem.thriftiest}
    return ", ".join(name for name, of in best.items() if of is point)


def _print_trade(problem: ProblemTiles) -> None:
    trade = problem.trade
    if trade is not None:
        console.print(
            f"Tile {trade.thriftiest} takes {-trade.energy_change_pct:.3g}% less energy than tile {trade.fastest}, and "
            f"{trade.time_change_pct:.3g}% more time.\n"
        )


_SUMMARY = Table(
    "tiles",
    Column("tile", number=True),
    Column("problems", number=True, priority=2),
    Column("fastest", number=True),
    Column("speed-up", number=True),
    Column("least energy", number=True, priority=1),
    Column("energy ratio", number=True, priority=1),
    Column("power", "W", number=True, priority=3),
)


def _print_summary(study: DeviceTiles) -> None:
    powered = any(summary.power_min_w is not None for summary in study.summary)
    rows = [(s.tile, s.problems, s.fastest, s.speed_up, s.thriftiest, s.energy_ratio, _watts(s)) for s in study.summary]
    title = f"{study.device_type}: all problems, against tile {study.baseline}"
    _SUMMARY.print(rows, title=title, without=() if powered else ("least energy", "energy ratio", "power"))


def _counted(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def _watts(summary: TileSummary) -> str | None:
    """The lowest and the highest over the problems."""
    if summary.power_min_w is None or summary.power_max_w is None:
        return None
    return f"{summary.power_min_w:.0f}–{summary.power_max_w:.0f}"


_BESIDE_PAPER = Table(
    "tiles compared with the paper",
    Column("tile", number=True),
    *(
        Column(name, number=True, priority=priority)
        for quantity, priority in (
            ("speed-up", 0), ("fastest", 2), ("energy ratio", 1), ("least energy", 3), ("power W", 4),
        )
        for name in (quantity, f"paper's {quantity}")
    ),
)  # fmt: skip


def _print_beside(study: DeviceTiles) -> None:
    beside = compare_with_paper(study.summary, study.baseline)
    if len(beside) < 2:
        return
    rows = [
        (
            b.here.tile, b.here.speed_up, b.paper_speed_up, _share(b.here.fastest, b.here), _share(b.paper.fastest, b.paper),
            b.here.energy_ratio, b.paper_energy_ratio, _share(b.here.thriftiest, b.here),
            _share(b.paper.thriftiest, b.paper), _watts(b.here), _watts(b.paper),
        )
        for b in beside
    ]  # fmt: skip
    _BESIDE_PAPER.print(rows, title=f"{study.device_type} compared with the paper, against tile {study.baseline}")
    console.print(f"Source of the paper's values: {PAPER_SOURCE}. It used another card and other shapes.\n")


def _share(part: int, summary: TileSummary) -> str:
    return f"{part:,} of {summary.problems:,}"
