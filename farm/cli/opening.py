"""`farm open`: the page of a campaign, or its report, in the browser."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated
from urllib.parse import urlencode

import typer

from farm.api import Direct, Farm, campaigns, farm_of, reports
from farm.api.connecting import remote_of
from farm.atomic_write import writable, write_text
from farm.cli import browser
from farm.cli.output import remarks
from farm.errors import BadInput, FarmError, ServiceUnavailable, TokenInTheClear
from farm.services.home import Home
from farm.services.served import served, served_at
from farm.settings import Settings, settings


class NothingServed(ServiceUnavailable):
    """No page of this farm is served. Start it in another terminal: farm serve. Or name a campaign, to open its report as a file."""


def open_(
    name: Annotated[
        str | None,
        typer.Argument(
            help="A campaign's name, the first six or more digits of its digest, or a report file. The default is the start page.",
            show_default=False,
        ),
    ] = None,
    report: Annotated[
        bool, typer.Option("--report", help="Open the campaign's report instead of its page.", show_default=False)
    ] = False,
    only_print: Annotated[
        bool, typer.Option("--print", help="Print the address or path instead of opening it.", show_default=False)
    ] = False,
) -> None:
    """Open the page of a campaign, or a report, in the browser.

    The page is that of FARM_API_URL, or of the farm serve of this home. If no page is served, the command writes the report
    of the campaign to a file in the farm's home and opens it. Without a browser or a display, it prints the address. It
    signs the browser in with FARM_API_TOKEN, or as the account that runs the farm serve of this home. A printed address
    signs in once, within 10 minutes.

    Examples:
        farm open quickstart
        farm open quickstart --report
        farm open quickstart.html
    """
    current = settings()
    if name is not None and (file := _report_file(name)) is not None:
        browser.show(file.as_uri() if not only_print else str(file), only_print=only_print)
        return
    base = current.api_url
    if base is None and (running := served(current)) is not None:
        base = running.url
        current = current.model_copy(update={"api_token": None})  # which may be another farm's
    if name is None:
        if base is None:
            raise NothingServed
        _show_page(current, base, "/", only_print=only_print)
        return
    with farm_of(current) as farm:
        digest = farm.ask(campaigns.progress, name).digest
        if base is not None:
            path = f"/campaigns/{digest[:12]}" + ("/report" if report else "")
            _show_page(current, base, path, only_print=only_print)
            return
        file = _made(farm, current, name, digest)
    browser.show(file.as_uri() if not only_print else str(file), only_print=only_print)


def _show_page(current: Settings, base: str, path: str, *, only_print: bool) -> None:
    """Shows a page of a server in a browser, signed in if possible."""
    known = served_at(current, base)
    page = (base if known is None else known.page).rstrip("/")
    code = _code(current, base)
    link = page + path if code is None else f"{page}/sign-in?{urlencode({'code': code, 'next': path})}"
    if code is None and (known is None or known.page == known.url):
        browser.show(link, only_print=only_print)
        return
    folder = None if known is None else Home.of(current).run
    browser.show_link(page + path, link, folder=folder, only_print=only_print)


def _code(current: Settings, base: str) -> str | None:
    """A code that signs a browser in. Without one, the page asks for a token."""
    try:
        with remote_of(current, base) as remote:
            return remote.sign_in_code() if remote.has_token else None
    except TokenInTheClear:
        raise
    except FarmError:
        return None


def _report_file(name: str) -> Path | None:
    """The report file of that name; None if it is the name of a campaign. Raises `BadInput` for a path without a file."""
    path = Path(name)
    if os.sep not in name and path.suffix not in (".html", ".htm"):
        return None
    if not path.is_file():
        raise BadInput(detail=f"There is no report file {name}. To make one: farm report CAMPAIGN")
    return path.resolve()


def _made(farm: Farm, current: Settings, name: str, digest: str) -> Path:
    """Writes the report to a file in the home. Returns its path."""
    assert isinstance(farm, Direct)  # a farm behind an API has a page
    remarks.print("No page is served, so the report is written to a file. To serve pages: farm serve", markup=False)
    found, text = reports.rendered(farm.access, name, device_type=None)
    file = Home.open(current).path / "reports" / f"{found.campaign}-{digest[:8]}.html"
    with writable(file):
        file.parent.mkdir(exist_ok=True)
    write_text(file, text)
    return file
