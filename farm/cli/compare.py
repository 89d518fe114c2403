"""`farm compare`: cards, hosts, types, versions or days beside each other, on the configurations that they share."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from farm.cli.files import writable
from farm.cli.output import JsonOption, emit_json, remarks
from farm.cli.session import session
from farm.errors import FarmError

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from farm.compare.comparing import Beside, Comparison


def compare(
    sides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SIDE",
            help="A device type, a host, the beginning of a device's UUID, or conditions with commas: type= host= device= "
            "campaign= since= until= clocks= distribution= source=, or a key of the environment, as in driver=. "
            "The first side is the baseline.",
            show_default=False,
        ),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            "--by",
            metavar="KEY",
            help="A side for each type, host, device, day, or value of a key of the environment, as driver; "
            "the one with most rows is the baseline.",
        ),
    ] = None,
    campaign: Annotated[
        str | None, typer.Option("--campaign", "-c", help="Only of this campaign, all its repetitions.")
    ] = None,
    device_type: Annotated[str | None, typer.Option("--type", "-t", help="Only on this device type.")] = None,
    family: Annotated[str | None, typer.Option("--family", "-f", help="Only of this kernel family.")] = None,
    dtype: Annotated[
        str | None, typer.Option("--dtype", help="Only of this input type, or of these three, as f16:f16:f32.")
    ] = None,
    any_source: Annotated[
        bool,
        typer.Option("--any-source", help="Recorded and imported rows too, labelled.", show_default=False),
    ] = False,
    mixed: Annotated[
        bool,
        typer.Option(
            "--mixed",
            help="Compare rows at different clock policies, or of different operands, all the same.",
            show_default=False,
        ),
    ] = False,
    tie: Annotated[
        float | None,
        typer.Option(
            "--tie",
            metavar="PCT",
            min=0.01,
            max=50,
            help="A smaller difference in time is a tie: 1, in %, unless given.",
        ),
    ] = None,
    top: Annotated[
        int, typer.Option("--top", "-n", min=0, help="List so many configurations of each side that differ most.")
    ] = 0,
    price: Annotated[
        list[str] | None,
        typer.Option("--price", metavar="SIDE=PER_HOUR", help="Money per hour of a card of that side; repeat it."),
    ] = None,
    carbon: Annotated[
        float | None, typer.Option("--carbon", metavar="G_PER_KWH", min=0, help="Grams of CO2 per kWh of your power.")
    ] = None,
    check: Annotated[
        float | None,
        typer.Option(
            "--check",
            metavar="PCT",
            min=0,
            max=1000,
            help="End with exit code 7 where a side is slower than the baseline by more than that, shown with 95% confidence.",
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write every pair to this CSV file.", show_default=False)
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Compare cards, hosts, types, versions or days on the configurations that they share: time, power, energy, cost."""
    # These load numpy, which no other command needs to wait for.
    from farm.cli import compared
    from farm.compare.checking import slower as checked
    from farm.compare.comparing import Question
    from farm.compare.comparing import compare as answer

    question = Question(
        sides=sides or (),
        by=by,
        campaign=campaign,
        device_type=device_type,
        family=family,
        dtype=dtype,
        any_source=any_source,
        mixed=mixed,
        **({} if tie is None else {"tie": tie / 100}),
        prices=price or (),
        grams_per_kwh=carbon,
    )
    with session() as opened:
        found = answer(opened.engine, question)
        with opened.engine.connect() as connection:
            tops = {side.held.name: _top(connection, side, top) for side in found.sides} if top else {}
            if output is not None:
                _export(connection, found, output)
        slower = None if check is None else checked(opened.engine, found, by=check / 100)
    if as_json:
        emit_json({**_to_json(found, tops), **({} if slower is None else {"slower": [asdict(one) for one in slower]})})
    else:
        compared.show(found, tops)
    if output is not None and not as_json:
        remarks.print(f"{sum(side.overall.configurations for side in found.sides):,} pairs in {output}", markup=False)

    if slower:
        raise SideSlower(baseline=found.baseline.name, pct=f"{check:g}", which="; ".join(map(str, slower)))


class SideSlower(FarmError):
    """Slower than {baseline} by more than {pct}%: {which}."""

    exit_code = 7


_FIGURES = ("runtime_ms", "power_w", "energy_mj")


def _to_json(found: Comparison, tops: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    from farm.compare.statistics import CONFIDENCE

    return {
        "baseline": asdict(found.baseline),
        "confidence": CONFIDENCE,
        "tie": found.tie,
        "notes": list(found.notes),
        "sides": [
            {
                **asdict(side.held),
                "overall": asdict(side.overall),
                **{
                    name: {label: asdict(figures) for label, figures in getattr(side, name).items()}
                    for name in ("by_type", "by_size", "by_bound")
                },
                "money_per_pflop": None if side.money is None else asdict(side.money),
                "co2_g_per_pflop": None if side.carbon is None else asdict(side.carbon),
                **({"top": tops[side.held.name]} if tops else {}),
            }
            for side in found.sides
        ],
    }


def _top(connection: Connection, side: Beside, count: int) -> list[dict[str, Any]]:
    """The configurations that differ most in time, with both sides' figures."""
    return _described(connection, side, side.pairs.most_different(count))


def _described(connection: Connection, side: Beside, which: Any) -> list[dict[str, Any]]:
    from farm.compare import reading
    from farm.compare.statistics import Verdict

    words = {Verdict.LESS: "faster", Verdict.TIE: "tie", Verdict.MORE: "slower", Verdict.UNSURE: "unsure"}
    pairs = side.pairs
    columns = {
        f"{of}{name}": getattr(one, name)[which].tolist()
        for name in _FIGURES
        for of, one in (("baseline_", pairs.baseline), ("", pairs.side))
    }
    return [
        {
            **configuration,
            **{name: None if values[n] != values[n] else values[n] for name, values in columns.items()},
            "time_ratio": columns["runtime_ms"][n] / columns["baseline_runtime_ms"][n],
            "verdict": words[Verdict(verdict)],
        }
        for n, (configuration, verdict) in enumerate(
            zip(reading.described(connection, pairs.ids[which]), pairs.verdict[which].tolist(), strict=True)
        )
    ]


def _export(connection: Connection, found: Comparison, output: Path) -> None:
    """Every pair of every side, as CSV: empty where a side has no such figure, JSON where a column holds an object."""
    import csv

    import numpy as np

    with writable(output), output.open("w", encoding="utf-8", newline="") as file:
        writer = None
        for side in found.sides:
            for start in range(0, side.overall.configurations, _AT_ONCE):
                which = np.arange(start, min(start + _AT_ONCE, side.overall.configurations))
                for row in _described(connection, side, which):
                    line = {"baseline": found.baseline.name, "side": side.held.name, **row}
                    line["parameters"] = json.dumps(line["parameters"])
                    if writer is None:
                        writer = csv.DictWriter(file, fieldnames=list(line), lineterminator="\n")
                        writer.writeheader()
                    writer.writerow(line)


_AT_ONCE = 20_000
