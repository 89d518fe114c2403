"""What was measured: rooflines, sizes, parameters, fronts, the best kernels, tiles and occupancy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from farm.analysis.tiles import DeviceTiles
from farm.both_times import APART
from farm.formatting import counted, problem_text
from farm.kernels import problem_columns
from farm.report.best import BestKernel, summary
from farm.report.document import Cell, Section, Table
from farm.report.figures.fronts import front_sizes, fronts, of_choice
from farm.report.figures.occupancy import occupancies, tile_charts
from farm.report.figures.parameter_maps import heat_maps
from farm.report.figures.points import percent
from farm.report.figures.rooflines import rooflines
from farm.report.figures.sizes import sizes
from farm.report.report_data import CampaignData
from farm.report.result_points import Results, varying_parameters

NO_ROW = "Nothing of this campaign was measured under its own rules yet."
MAX_TILE_TABLES = 8


def no_power(results: Results) -> str:
    return (
        f"No row of this campaign has power ({counted(len(results), 'configuration')} have a time): ask for it with measure: "
        "{power: all} on devices that report it."
    )


def roofline(data: CampaignData) -> Section:
    results = data.results
    cards = [card for kind, card in enumerate(results.cards) if card is not None and (results.type == kind).any()]
    sources = "; ".join(sorted({f"{card.name}: {card.source}" for card in cards}))
    charts = rooflines(results)
    return Section(
        name="roofline",
        title="Roofline",
        about=(
            "Speed against arithmetic intensity: the operations of a problem for each byte that a kernel must at least move. Below "
            "the sloping roof the memory is the limit, below the level one the arithmetic units are. Speed is 2·batch·m·n·k divided by "
            "the median time. The model has no cache that serves operands again, so points may lie above the memory roof."
        ),
        sentences=[f"The makers state the roofs, dense and at the boost clock (farm/gpus.yaml): {sources}."]
        if sources
        else [],
        charts=charts,
        why_empty=None if charts else NO_ROW,
    )


def size(data: CampaignData) -> Section:
    charts = sizes(data.results)
    powered = bool(np.isfinite(data.results.energy_mj).any())
    return Section(
        name="sizes",
        title="Time and energy against size",
        about=(
            "The median time of one GEMM, and its energy: the mean power while it ran alone, times its time during that. Both axes "
            "are logarithmic: a line of slope 1 is a constant speed."
        ),
        sentences=[no_power(data.results)] if charts and not powered else [],
        charts=charts,
        why_empty=None if charts else NO_ROW,
    )


def parameters(data: CampaignData) -> Section:
    maps = heat_maps(data.results)
    unvaried = "No parameter of a kernel family takes two values in what was measured."
    return Section(
        name="parameters",
        title="Kernel parameters",
        about=(
            "The speed of each configuration as a share of the speed of the best kernel of its problem on that device type: the "
            "median for each pair of values. The pairs are those whose values differ most. Kernels in one cell may differ in their "
            "other parameters. On the screen, a cell shows how many configurations it has."
        ),
        charts=maps,
        why_empty=None if maps else unvaried if len(data.results) else NO_ROW,
        data=[
            {
                "name": one.name,
                one.y.label: list(one.y.names),
                one.x.label: list(one.x.names),
                "share_of_best_pct": [[v if np.isfinite(v) else None for v in row] for row in one.values.tolist()],
                "configurations": None if one.counts is None else one.counts.tolist(),
            }
            for one in maps
        ]
        or None,
    )


def pareto(data: CampaignData) -> Section:
    results = data.results
    charts = fronts(results)
    choice = of_choice(results)
    by_type = {
        kind: front_sizes(results.taken(choice & (results.type == number)))
        for number, kind in enumerate(results.types)
        if (choice & (results.type == number)).any()
    }
    columns = ["kernels on the front", "problems"]
    left_out = int((~choice).sum())
    why_empty = None
    if not charts:
        why_empty = no_power(results) if len(results) else NO_ROW
        if np.isfinite(results.energy_mj).any():
            why_empty = "No problem has two kernels with an energy, so there is nothing to choose between."
    return Section(
        name="pareto",
        title="Time and energy at once",
        about=(
            "Times and energies divided by the least ones of their problem, so that all problems share the corner at (1, 1). A "
            "kernel is on the front if no other one of its problem is as good in both and better in one."
        ),
        sentences=[
            f"{counted(left_out, 'configuration')} without energy, or with the only energy of their problem, are left out: the "
            "fastest here is the fastest of those that have an energy."
        ]
        if charts and left_out
        else [],
        charts=charts,
        tables=[
            Table(
                caption=f"How many kernels are on the front of a problem, {kind}",
                columns=columns,
                rows=sorted(front.items()),
            )
            for kind, front in by_type.items()
        ],
        why_empty=why_empty,
        data={kind: {str(size): count for size, count in front.items()} for kind, front in by_type.items()} or None,
    )


def best(data: CampaignData) -> Section:
    """The table of the best kernels: with power and cuBLASLt's time where any problem has them."""
    found, results = data.found, data.results
    if not found:
        return Section(name="best", title="Best kernels", why_empty=NO_ROW)
    energies = _least_energy(results)
    roofs = {
        (results.types[results.type[p]], results.problems[results.problem[p]]): float(results.roof_tflops[p])
        for p in np.flatnonzero(results.fastest)
    }
    short = dict(zip(map(str, results.kernels), results.kernel_names, strict=True))
    rows = [_best_row(one, short, roofs, energies) for one in found]
    several = len(results.types) > 1
    shown = [
        name
        for name in rows[0]
        if (several or name != "device type") and any(Cell.of(row[name]).text != "–" for row in rows)
    ]
    total = summary(found)
    return Section(
        name="best",
        title="Best kernels",
        about=(
            "The kernel of the campaign with the least median time for each problem. If a search measured cuBLASLt's own choice as "
            "its baseline, that is in a column of its own and is not among the kernels. The share of the roof is that at the "
            "problem's own intensity. The interval of a speed-up has the standard errors of both times. The energy is that of the "
            "kernel with the least energy, and what it saves is compared with the fastest one. The burst time is shown where it "
            f"differs from the time by more than {APART:.0%}."
        ),
        sentences=[*_best_sentences(total), *(one.sentence for one in data.workloads), *_constant_parameters(results)],
        tables=[
            Table(
                caption="The best kernel of each problem",
                columns=shown,
                rows=[[row[name] for name in shown] for row in rows],
            )
        ],
        data={
            "summary": total,
            "workloads": [asdict(one) for one in data.workloads],
            "found": [one.to_json() for one in found],
        },
    )


def _best_sentences(total: Mapping[str, Any]) -> Iterator[str]:
    problems = counted(total["problems"], "problem")
    yield f"{problems}: {total['kernels_tried']:,} of {total['kernels_of_the_grid']:,} kernels tried."
    if total["median_speed_up"] is None:
        yield "cuBLASLt was not measured for comparison."
    else:
        yield (
            f"Compared with cuBLASLt's own choice ({counted(total['with_baseline'], 'problem')}) the best kernel is "
            f"{total['median_speed_up']:.3f} times as fast in the median, {total['max_speed_up']:.3f} at most. That choice is the "
            f"fastest of {counted(total['baseline_fastest'], 'problem')}."
        )
    if total["median_share_of_best"] is not None:
        yield (
            f"They reach {percent(total['median_share_of_best'])} of the speed of the full grid's best in the median "
            f"({counted(total['with_share_of_best'], 'problem')}), and {percent(total['worst_share_of_best'])} at worst."
        )


def _constant_parameters(results: Results) -> list[str]:
    varying = varying_parameters(results.kernels)
    constant = sorted(
        {f"{name}={value}" for k in results.kernels for name, value in k.parameters if name not in varying[k.family]}
    )
    text = f"Names of kernels leave out parameters that all kernels of a family share: {', '.join(constant)}."
    return [text] if constant else []


def _best_row(
    one: BestKernel, short: dict[str, str], roofs: dict[Any, float], energies: dict[Any, tuple[float, float, str]]
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
        "problem": Cell(problem_text(problem_columns(one.problem)), float(one.problem.flops)),
        "device type": one.device_type,
        "best kernel": Cell(short.get(one.best.kernel, one.best.kernel), title=one.best.kernel),
        "time ms": one.best.runtime_ms,
        "burst ms": one.best.burst_apart,
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


def tiles(data: CampaignData) -> Section:
    charts = [*tile_charts(data.tiles), *occupancies(data.results)]
    tables = [_tile_table(study) for study in data.tiles[:MAX_TILE_TABLES]]
    unknown = "No kernel of the family tiled was measured, and no row says the occupancy of its kernel in two different values."
    return Section(
        name="tiles",
        title="Tiles and occupancy",
        about=(
            "Theoretical occupancy is the number of resident warps that the compiled kernel allows on a multiprocessor, divided by "
            "the maximum. farm analyze tiles has the study of each problem."
        ),
        charts=charts,
        tables=tables,
        why_empty=None if charts or tables else unknown if len(data.results) else NO_ROW,
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
    )
