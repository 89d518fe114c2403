"""`farm report`: a campaign as one HTML file, and its charts as PNGs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from farm.api import Direct, farm_of, reports
from farm.api.access import Access
from farm.atomic_write import own_name, require_new, writable, write_text
from farm.cli import browser
from farm.cli.files import ForceOption
from farm.cli.options import takes
from farm.cli.output import JsonOption, console, emit_json, remarks
from farm.errors import BadInput
from farm.settings import settings


@takes(reports.page)
def report(
    query: dict[str, Any],
    *,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Write the page to this file. The default is NAME.html.", show_default=False
        ),
    ] = None,
    png: Annotated[
        Path | None, typer.Option("--png", metavar="FOLDER", help="Write each chart as a PNG into this folder too.")
    ] = None,
    open_: Annotated[
        bool, typer.Option("--open", help="Open the page in a browser afterwards.", show_default=False)
    ] = False,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write the report of a campaign: one HTML file that works without a network.

    It has rooflines, time and energy against size, heat maps of kernel parameters, and the Pareto front of time and energy. It has
    the best kernel of each problem, tiles and occupancy, a comparison of devices, the accuracy of the model, and the provenance.
    The report of a running campaign has the rows that landed so far.

    Examples:
        farm report quickstart --open
        farm report quickstart --output quickstart.html --png charts
    """
    campaign = query["campaign"]
    if output is not None and output.is_dir():
        raise BadInput(detail=f"{output} is a folder. Name a file, as in {output}/report.html")
    if output is not None and not output.absolute().parent.is_dir():
        raise BadInput(detail=f"{output} cannot be written: there is no folder {output.parent}")
    require_new(output or Path(f"{campaign}.html"), force=force)  # before it is drawn
    with _steps() as step, farm_of(settings()) as farm:
        if isinstance(farm, Direct):
            file = _made_here(farm.access, campaign, query.get("type"), output, png, as_json, step, force=force)
        elif png is not None or as_json:
            raise BadInput(detail="Through the API a report is its page alone: leave out --png and --json.")
        else:
            step("waiting for the page")
            sent = farm.ask(reports.page, **query)
            file = output or Path(own_name(sent.name, suffix=".html", option="--output"))
            sent.move_to(file, force=force)
            console.print(str(file), markup=False, soft_wrap=True)
    if open_:
        browser.open_address(file.resolve().as_uri())


def _made_here(
    access: Access,
    campaign: str,
    device_type: str | None,
    output: Path | None,
    png: Path | None,
    as_json: bool,
    step: Callable[[str], None],
    *,
    force: bool,
) -> Path:
    """Writes the page, and PNGs if there is a folder for them, and prints their paths. Returns the page's path."""
    from farm.charts import matplotlib_renderer  # it loads numpy, which no other command needs to wait for

    began = time.monotonic()
    found, text = reports.rendered(access, campaign, device_type=device_type, progress=step)
    file = output or Path(f"{found.campaign}.html")
    pngs = list[Path]()
    if png is not None:
        step(f"drawing {len(found.charts)} PNGs")
        with writable(png):
            pngs = matplotlib_renderer.write_pngs(found.charts, png, force=force)
    write_text(file, text, force=force)
    if as_json:
        emit_json({**found.to_json(), "file": str(file), "pngs": [str(path) for path in pngs]})
        return file
    for path in (file, *pngs):
        console.print(str(path), markup=False, soft_wrap=True)
    remarks.print(
        f"{found.campaign}: {len(found.charts)} charts, {len(text.encode()) / 1e6:.1f} MB, {time.monotonic() - began:.1f} s"
    )
    if not found.charts:
        remarks.print("It has no measurements under its own rules yet, so the page has no chart.")
    for warning in found.warnings:
        remarks.print(warning, markup=False)
    return file


@contextmanager
def _steps() -> Iterator[Callable[[str], None]]:
    """Shows the current step in a temporary line on stderr, on a terminal."""
    with remarks.status("starting", spinner="dots") as status:
        yield status.update
