"""`farm compare`: cards, hosts, types, versions or days beside each other, on the configurations that they share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from farm.campaign.loading import login_name
from farm.cli.files import writable
from farm.cli.output import JsonOption, emit_json, remarks
from farm.errors import NothingShared
from farm.services.session import Session, session

if TYPE_CHECKING:
    from farm.compare.comparing import Comparison
    from farm.compare.gathering import Question


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
    campaign: Annotated[str | None, typer.Option("--campaign", "-c", help="Only of this campaign.")] = None,
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
    fill: Annotated[
        bool,
        typer.Option(
            "--fill", help="Submit what another side has and a side has not, to be measured.", show_default=False
        ),
    ] = False,
    predict: Annotated[
        bool,
        typer.Option(
            "--predict",
            help="Where a side was not measured, ask the champion of its type; told apart from what was.",
            show_default=False,
        ),
    ] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write every pair to this CSV file.", show_default=False)
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Compare cards, hosts, types, versions or days on the configurations that they share: time, power, energy, cost."""
    # These load numpy, which no other command needs to wait for.
    from farm.cli import compared
    from farm.compare.comparing import compare as answer
    from farm.compare.gathering import Question
    from farm.compare.statistics import TIE

    with session() as opened:
        question = Question(
            sides=sides or (),
            by=by,
            campaign=campaign,
            device_type=device_type,
            family=family,
            dtype=dtype,
            any_source=any_source,
            mixed=mixed,
            tie=TIE if tie is None else tie / 100,
            prices=price or (),
            grams_per_kwh=carbon,
            top=top,
            predict_from=opened.urls.tracking_uri if predict else None,
        )
        filled: list[dict[str, Any]] | None = None
        if fill:
            filled, found = _filled(opened, question)
        else:
            found = answer(opened.engine, question)
        written = 0
        if output is not None and found is not None:
            with writable(output):
                written = found.write_csv(opened.engine, output)
    if as_json:
        told: dict[str, Any] = {"baseline": None, "sides": []} if found is None else found.to_json()
        emit_json(told if filled is None else {**told, "fills": filled})
        return
    if filled is not None:
        compared.show_fills(filled)
    if found is not None:
        compared.show(found, filled=fill)
    if found is not None and output is not None:
        remarks.print(f"{written:,} pairs in {output}", markup=False)


def _filled(opened: Session, question: Question) -> tuple[list[dict[str, Any]], Comparison | None]:
    """Submits what sides lack. Returns what became of it, and the comparison as it is without: None where nothing is shared."""
    from farm.builds import versions_of
    from farm.compare import filling
    from farm.compare.comparing import compared
    from farm.compare.gathering import gather

    gathered = gather(opened.engine, question, filling=True)
    told = []
    for one in filling.fills(opened.engine, gathered, owner=login_name()):
        stored = filling.submit(opened.engine, one, versions_of(opened.settings))
        told.append(
            {**one.to_json(), "new": stored is not None and stored.new, "new_jobs": stored.jobs if stored else 0}
        )
    try:
        return told, compared(opened.engine, gathered)
    except NothingShared as error:
        remarks.print(str(error).split(" Run the same", maxsplit=1)[0], markup=False)
        return told, None
