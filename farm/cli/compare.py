"""`farm compare`: compare cards, hosts, types, versions or days on the configurations that they share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from farm.api import Download, comparing, farm_of
from farm.api.comparing import ComparedAndFilled, Comparing, Filling
from farm.atomic_write import require_new
from farm.cli.files import ForceOption
from farm.cli.options import takes
from farm.cli.output import JsonOption, emit_json, remarks
from farm.errors import FarmError
from farm.settings import settings


@takes(Comparing)
def compare(
    query: Comparing,
    *,
    fill: Annotated[
        bool,
        typer.Option(
            "--fill", help="Submit the configurations that a group lacks and another has.", show_default=False
        ),
    ] = False,
    notes: Annotated[
        bool,
        typer.Option(
            "--notes",
            help="Show minor notes too, on versions of programs that do not compute.",
            show_default=False,
        ),
    ] = False,
    against: Annotated[
        str | None,
        typer.Option(
            "--against",
            metavar="FOLDER_OR_URL",
            help="Hold this farm's cards against a published folder instead. Ends with exit code 7 if one is slower, or computes other bits.",
            show_default=False,
        ),
    ] = None,
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
        farm compare --against public/ --type nvidia-h200
    """
    if against is not None:
        from farm.cli import against as published  # it loads what reads publications

        published.compare(query, against, others=fill or output is not None, as_json=as_json)
        return
    from farm.cli import compare_view  # it loads numpy, which no other command needs to wait for

    if output is not None:
        require_new(output, force=force)
    filled: ComparedAndFilled | None = None
    written: Download | None = None
    with farm_of(settings()) as farm:
        if fill:
            filled = farm.ask(comparing.fill, Filling(**query.model_dump()))
        found = farm.ask(comparing.compare, query) if filled is None else filled.compared
        if output is not None and found is not None:
            written = farm.ask(comparing.pairs, query)
            written.move_to(output, force=force)
    if as_json:
        document: dict[str, Any] = {"baseline": None, "sides": []} if found is None else found.model_dump()
        emit_json(document if filled is None else {**document, "fills": filled.model_dump()["fills"]})
    else:
        if filled is not None:
            compare_view.show_fills(filled.fills)
            if filled.nothing_shared is not None:
                remarks.print(filled.nothing_shared, markup=False)
        if found is not None:
            compare_view.show(found, filled=fill, every_note=notes)
        if written is not None:
            remarks.print(f"{written.rows:,} pairs in {output}", markup=False)
    if found is not None and found.slower:
        which = "; ".join(one.text for one in found.slower)
        raise GroupSlower(baseline=found.baseline.name, pct=f"{query.check:g}", which=which)


class GroupSlower(FarmError):
    """Slower than {baseline} by more than {pct}%: {which}."""

    exit_code = 7
