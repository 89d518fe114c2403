"""`farm compare`: cards, hosts, types, versions or days beside each other, on the configurations that they share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from farm.api import Download, comparing, farm_of
from farm.api.comparing import SMALLER_IS_A_TIE_PCT, ComparedAndFilled, Comparing, Filling
from farm.atomic_write import require_new
from farm.cli.files import ForceOption
from farm.cli.output import JsonOption, emit_json, remarks
from farm.errors import FarmError
from farm.settings import settings


def compare(
    sides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="GROUP",
            help="A device type, a host, the beginning of a device's UUID, or conditions with commas: type= host= device= "
            "campaign= since= until= clocks= distribution= source=, or a key of the environment, as in driver=. "
            "The first group is the baseline.",
            show_default=False,
        ),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            "--by",
            metavar="KEY",
            help="A group for each type, host, device, day, or value of a key of the environment, as driver; "
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
        int, typer.Option("--top", "-n", min=0, help="List so many configurations of each group that differ most.")
    ] = 0,
    price: Annotated[
        list[str] | None,
        typer.Option("--price", metavar="GROUP=PER_HOUR", help="Money per hour of a card of that group; repeat it."),
    ] = None,
    carbon: Annotated[
        float | None, typer.Option("--carbon", metavar="G_PER_KWH", min=0, help="Grams of CO2 per kWh of your power.")
    ] = None,
    fill: Annotated[
        bool,
        typer.Option(
            "--fill", help="Submit what another group has and a group has not, to be measured.", show_default=False
        ),
    ] = False,
    predict: Annotated[
        bool,
        typer.Option(
            "--predict",
            help="Where a group was not measured, ask the champion of its type; told apart from what was.",
            show_default=False,
        ),
    ] = False,
    mix_protocols: Annotated[
        bool,
        typer.Option(
            "--mix-protocols",
            help="With --predict: ask also models whose rows were measured by another protocol, or an unknown one, labelled.",
            show_default=False,
        ),
    ] = False,
    check: Annotated[
        float | None,
        typer.Option(
            "--check",
            metavar="PCT",
            min=0,
            max=1000,
            help="End with exit code 7 where a group is slower than the baseline by more than that, shown with 95% confidence.",
        ),
    ] = None,
    notes: Annotated[
        bool,
        typer.Option(
            "--notes",
            help="Show every note, also on versions of programs that compute nothing.",
            show_default=False,
        ),
    ] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write every pair to this CSV file.", show_default=False)
    ] = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Compare cards, hosts, types, versions or days on the configurations that they share: time, power, energy, cost.

    Examples:
        farm compare nvidia-h200 nvidia-h100-80gb-hbm3
        farm compare --by driver --type nvidia-h200
        farm compare host=a host=b --check 2
    """
    from farm.cli import compared  # it loads numpy, which no other command needs to wait for

    if output is not None:
        require_new(output, force=force)
    asked = Comparing(
        side=sides or [],
        by=by,
        campaign=campaign,
        type=device_type,
        family=family,
        dtype=dtype,
        any_source=any_source,
        mixed=mixed,
        tie=SMALLER_IS_A_TIE_PCT if tie is None else tie,
        top=top,
        price=price or [],
        carbon=carbon,
        predict=predict,
        mix_protocols=mix_protocols,
        check=check,
    )
    filled: ComparedAndFilled | None = None
    written: Download | None = None
    with farm_of(settings()) as farm:
        if fill:
            filled = farm.ask(comparing.fill, Filling(**asked.model_dump()))
        found = farm.ask(comparing.compare, asked) if filled is None else filled.compared
        if output is not None and found is not None:
            written = farm.ask(comparing.pairs, asked)
            written.move_to(output, force=force)
    if as_json:
        told: dict[str, Any] = {"baseline": None, "sides": []} if found is None else found.model_dump()
        emit_json(told if filled is None else {**told, "fills": [one.model_dump() for one in filled.fills]})
    else:
        if filled is not None:
            compared.show_fills(filled.fills)
            if filled.nothing_shared is not None:
                remarks.print(filled.nothing_shared, markup=False)
        if found is not None:
            compared.show(found, filled=fill, every_note=notes)
        if written is not None:
            remarks.print(f"{written.rows:,} pairs in {output}", markup=False)
    if found is not None and found.slower:
        which = "; ".join(one.text for one in found.slower)
        raise SideSlower(baseline=found.baseline.name, pct=f"{check:g}", which=which)


class SideSlower(FarmError):
    """Slower than {baseline} by more than {pct}%: {which}."""

    exit_code = 7
