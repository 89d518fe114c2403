"""What was measured: rooflines, sizes, parameters, fronts, the best kernels, tiles and occupancy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from farm.analysis.tiles import DeviceTiles
from farm.report.best import Found, summary
from farm.report.document import Cell, Section, Table
from farm.report.figures.fronts import front_sizes, fronts, of_choice
from farm.report.figures.labelled import LabelledResults, counted, percent
from farm.report.figures.occupancy import occupancies, tile_charts
from farm.report.figures.parameters import heat_maps
from farm.report.figures.rooflines import rooflines
from farm.report.figures.sizes import sizes
from farm.report.loading import CampaignData
from farm.report.results import Results, problem_text, short_names

NO_ROW = "Nothing of this campaign was measured under its own rules yet."
MAX_TILE_TABLES = 8


def no_power(results: Results) -> str:
    return (
        f"No row of this campaign has power ({counted(len(results), 'configuration')} have a time): ask for it with measure: "
        "{power: all} on devices that report it."
    )


def roofline(labelled: LabelledResults) -> Section:
    charts = rooflines(labelled)
    sources = sorted(
        {
            f"{card.name}: {card.source}"
            for kind, card in enumerate(labelled.results.cards)
            if card is not None and (labelled.results.type == kind).any()
        }
    )
    return Section(
        name="roofline",
        title="Roofline",
        about=(
            "Every configuration by the operations of its problem per byte that must move at least, and by the speed it reached. "
            "Below the sloping roof the memory is the limit, below the level one the arithmetic units are. Speed is 2·m·n·k over "
            "the median time; a cache that serves operands again is not in the model, so points may lie above the memory roof."
        ),
        says=[f"The roofs are what makers state, dense and at the boost clock (farm/gpus.yaml): {'; '.join(sources)}."]
        if sources
        else [],
        charts=charts,
        nothing=None if charts else NO_ROW,
    )


def size(labelled: LabelledResults) -> Section:
    charts = sizes(labelled)
    powered = bool(np.isfinite(labelled.results.energy_mj).any())
    return Section(
        name="sizes",
        title="Time and energy against size",
        about=(
            "The median time of one GEMM, and its energy: mean power while it ran alone, times what it took then. Both axes are "
            "logarithmic: a line of slope 1 is a constant speed."
        ),
        says=[no_power(labelled.results)] if charts and not powered else [],
        charts=charts,
        nothing=None if charts else NO_ROW,
    )


def parameters(labelled: LabelledResults) -> Section:
    maps = heat_maps(labelled)
    return Section(
        name="parameters",
        title="Kernel parameters",
        about=(
            "Each configuration's share of the speed of the best kernel of its problem on that device type, and the median of "
            "these for each pair of values. The pairs are those whose values are furthest apart; kernels of one cell may differ in "
            "their other parameters. On the screen, a cell tells of how many configurations it is."
        ),
        charts=maps,
        nothing=None
        if maps
        else NO_ROW
        if not len(labelled.results)
        else "No parameter of a kernel family takes two values in what was measured.",
        figures=[
            {
                "name": one.name,
                one.y.label: list(one.y.names),
                one.x.label: list(one.x.names),
                "share_of_best_pct": [
                    [value if np.isfinite(value) else None for value in row] for row in one.values.tolist()
                ],
                "configurations": None if one.counts is None else one.counts.tolist(),
            }
            for one in maps
        ]
        or None,
    )


def pareto(labelled: LabelledResults) -> Section:
    charts = fronts(labelled)
    results = labelled.results
    choice = of_choice(results)
    by_type = [
        (kind, front_sizes(results.taken(choice & (results.type == number))))
        for number, kind in enumerate(results.types)
        if (choice & (results.type == number)).any()
    ]
    tables = [
        Table(
            caption=f"How many kernels are on the front of a problem, {kind}",
            columns=["kernels on the front", "problems"],
            rows=sorted(found.items()),
            numbers=frozenset({"kernels on the front", "problems"}),
        )
        for kind, found in by_type
    ]
    left_out = int((~choice).sum())
    says = []
    if charts and left_out:
        says.append(
            f"{counted(left_out, 'configuration')} without energy, or alone with one on their problem, are left out: the fastest "
            "here is the fastest of those that have an energy."
        )
    nothing = None
    if not charts:
        nothing = NO_ROW if not len(results) else no_power(results)
        if np.isfinite(results.energy_mj).any():
            nothing = "No problem has two kernels with an energy, so there is nothing to choose between."
    return Section(
        name="pareto",
        title="Time and energy at once",
        about=(
            "Times and energies over the least of their problem, so that all problems share the corner at (1, 1). A kernel is on "
            "the front where no other one of its problem is as good in both and better in one."
        ),
        says=says,
        charts=charts,
        tables=tables,
        nothing=nothing,
        figures={kind: {str(size): count for size, count in found.items()} for kind, found in by_type} or None,
    )


def best(data: CampaignData, labelled: LabelledResults) -> Section:
    """The table of the best kernels: with power and cuBLASLt's time where any problem has them."""
    found, results = data.found, data.results
    if not found:
        return Section(name="best", title="Best kernels", nothing=NO_ROW)
    energies = _least_energy(results)
    roofs = {
        (results.types[results.type[p]], results.problems[results.problem[p]]): float(results.roof_tflops[p])
        for p in np.flatnonzero(results.fastest)
    }
    short = dict(zip(map(str, results.kernels), short_names(results.kernels), strict=True))
    rows = [_best_row(one, short, roofs, energies) for one in found]
    columns = {
        "problem": False,
        **({"device type": False} if len(results.types) > 1 else {}),
        "best kernel": False,
        "time ms": True,
        "quartiles ms": False,
        "TFLOP/s": True,
        "% of roof": True,
        "cuBLASLt ms": True,
        "times faster (95%)": True,
        "energy mJ": True,
        "least energy": False,
        "saves %": True,
        "% of grid's best": True,
    }
    always = ("problem", "device type", "best kernel", "time ms")
    shown = [name for name in columns if name in always or any(Cell.of(row[name]).text != "–" for row in rows)]
    total = summary(found)
    says = [
        f"{counted(total['problems'], 'problem')}: {total['kernels_tried']:,} of {total['kernels_of_the_grid']:,} kernels tried."
    ]
    if total["median_speed_up"] is not None:
        says.append(
            f"Beside cuBLASLt's own choice ({counted(total['with_baseline'], 'problem')}) the best kernel is "
            f"{total['median_speed_up']:.3f} times as fast in the median."
        )
    else:
        says.append("cuBLASLt was not measured beside them.")
    if total["median_share_of_best"] is not None:
        says.append(
            f"Of the full grid's best ({counted(total['with_share_of_best'], 'problem')}) they reach "
            f"{percent(total['median_share_of_best'])} in the median, {percent(total['worst_share_of_best'])} at worst."
        )
    constant = sorted({f"{name}={value}" for kernel in results.kernels for name, value in kernel.parameters}
                      - {word for name in short.values() for word in name.partition("(")[2].rstrip(")").split(",")})  # fmt: skip
    if constant:
        says.append(
            f"Parameters that all kernels of a family share are left out of their names: {', '.join(constant)}."
        )
    return Section(
        name="best",
        title="Best kernels",
        about=(
            "Of each problem the kernel of the campaign with the least median time; cuBLASLt's own choice, where a search measured it "
            "as its baseline, stands beside it and is not among them. The share of the roof is that of the problem's own "
            "intensity; the interval of a speed-up is of the standard errors of both times. The energy is of the kernel of the "
            "least energy among those that have one, and what that saves against the fastest."
        ),
        says=says,
        tables=[
            Table(
                caption="The best kernel of each problem",
                columns=shown,
                rows=[[row[name] for name in shown] for row in rows],
                numbers=frozenset(name for name in shown if columns[name]),
            )
        ],
        figures={"summary": total, "found": [one.to_json() for one in found]},
    )


def _best_row(
    one: Found, short: dict[str, str], roofs: dict[Any, float], energies: dict[Any, tuple[float, float, str]]
) -> dict[str, Any]:
    where = one.device_type, one.problem
    tflops = one.problem.flops / one.best.runtime_ms / 1e9
    speed_up = None
    if one.speed_up is not None and one.speed_up_95 is not None:
        low, high = one.speed_up_95
        speed_up = Cell(f"{one.speed_up:.3f} ({low:.3f} – {high:.3f})", one.speed_up)
    fast_energy, energy, kernel = energies.get(where, (np.nan, np.nan, ""))
    saves = 100 * (1 - energy / fast_energy)
    return {
        "problem": Cell(problem_text(one.problem), float(one.problem.flops)),
        "device type": one.device_type,
        "best kernel": Cell(short.get(one.best.kernel, one.best.kernel), title=one.best.kernel),
        "time ms": one.best.runtime_ms,
        "quartiles ms": f"{one.best.runtime_q1_ms:.4g} – {one.best.runtime_q3_ms:.4g}",
        "TFLOP/s": tflops,
        "% of roof": 100 * tflops / roofs.get(where, np.nan),
        "cuBLASLt ms": None if one.baseline is None else one.baseline.runtime_ms,
        "times faster (95%)": speed_up,
        "energy mJ": float(energy),
        "least energy": Cell(short.get(kernel, kernel), title=kernel) if kernel else None,
        "saves %": float(saves) if np.isfinite(saves) else None,
        "% of grid's best": None if one.share_of_best is None else 100 * one.share_of_best,
    }


def _least_energy(results: Results) -> dict[Any, tuple[float, float, str]]:
    """By device type and problem the energy of the fastest kernel (NaN where it has none), the least, and whose that is."""
    of_fastest = np.full(len(results.types) * len(results.problems), np.nan)
    fastest = np.flatnonzero(results.fastest)
    of_fastest[results.place[fastest]] = results.energy_mj[fastest]
    return {
        (results.types[results.type[point]], results.problems[results.problem[point]]): (
            float(of_fastest[results.place[point]]),
            float(results.energy_mj[point]),
            str(results.kernels[results.kernel[point]]),
        )
        for point in np.flatnonzero(results.thriftiest)
    }


def tiles(data: CampaignData, labelled: LabelledResults) -> Section:
    charts = [*tile_charts(list(data.tiles)), *occupancies(labelled)]
    tables = [_tile_table(study) for study in data.tiles[:MAX_TILE_TABLES]]
    nothing = None
    if not charts and not tables:
        nothing = NO_ROW if not len(labelled.results) else (
            "No kernel of the family tiled was measured, and no row says the occupancy of its kernel in two different values."
        )  # fmt: skip
    return Section(
        name="tiles",
        title="Tiles and occupancy",
        about=(
            "Theoretical occupancy is the resident warps of a multiprocessor over the most there can be, as the compiled kernel "
            "allows; farm analyze tiles has the study of each problem."
        ),
        charts=charts,
        tables=tables,
        nothing=nothing,
    )


def _tile_table(study: DeviceTiles) -> Table:
    occupancy = {
        one.tile: [
            p.occupancy
            for problem in study.problems
            for p in problem.points
            if p.tile == one.tile and p.occupancy is not None
        ]
        for one in study.summary
    }
    columns = ["tile", "problems", "fastest", "speed-up", "least energy", "energy ratio", "power W", "occupancy %"]
    rows: Sequence[Sequence[Any]] = [
        (
            one.tile, one.problems, one.fastest, one.speed_up, one.thriftiest if one.power_min_w is not None else None,
            one.energy_ratio,
            None if one.power_min_w is None or one.power_max_w is None
            else Cell(f"{one.power_min_w:.0f}–{one.power_max_w:.0f}", one.power_min_w),
            float(100 * np.median(occupancy[one.tile])) if occupancy[one.tile] else None,
        )
        for one in study.summary
    ]  # fmt: skip
    shown = [at for at in range(len(columns)) if any(row[at] is not None for row in rows)]
    return Table(
        caption=f"tiled on {study.device_type}: all problems, against tile {study.baseline} (geometric means)",
        columns=[columns[at] for at in shown],
        rows=[[row[at] for at in shown] for row in rows],
        numbers=frozenset(columns),
    )
