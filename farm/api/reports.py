"""The report of a campaign."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Hashable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from farm import registry
from farm.api.access import Access
from farm.api.campaigns import Name
from farm.api.operation import Cli, Download, made_file, operation
from farm.db import campaigns
from farm.db import reports as versions
from farm.errors import FarmError

if TYPE_CHECKING:
    from farm.report.document import Report


def _quiet(_: str) -> None:
    pass


@operation("GET", "/campaigns/{campaign}/report", sends="text/html", seconds=280)
def page(
    access: Access,
    campaign: Name,
    *,
    type: Annotated[str | None, Field(description="Only of this device type."), Cli(("--type", "-t"))] = None,  # noqa: A002
) -> Download:
    """The report of a campaign: one HTML file that works without a network, to be read, printed and sent."""
    with access.connect() as connection:
        stored = campaigns.find(connection, campaign)
    text = cached_page(access, campaign, device_type=type)
    with made_file("report.html") as path:
        path.write_text(text, encoding="utf-8")
    return Download(path=path, media_type="text/html", name=f"{stored['name']}.html")


def cached_page(
    access: Access, campaign: str, *, device_type: str | None, links: Mapping[str, str] = MappingProxyType({})
) -> str:
    """The page of a report, rendered again only if its data changed. Raises as `rendered` does."""
    key = _version(access, campaign)

    def draw() -> str:
        return rendered(access, campaign, device_type=device_type, links=links)[1]

    return draw() if key is None else access.reports.page((key, campaign, device_type, tuple(links.items())), draw)


def _version(access: Access, campaign: str) -> Hashable | None:
    """A version of a report's data: the campaign's jobs and rows, and the champions. None where it is unknown."""
    with access.connect() as connection:
        of_rows = versions.version(connection, campaigns.find(connection, campaign))
    try:
        models = registry.list_models(access.settings.tracking_uri)
    except FarmError:
        return None
    champions = tuple((model.name, model.version) for model in models if registry.CHAMPION in model.aliases)
    return None if of_rows is None else (of_rows, champions)


def rendered(
    access: Access,
    campaign: str,
    *,
    device_type: str | None,
    links: Mapping[str, str] = MappingProxyType({}),
    progress: Callable[[str], None] = _quiet,
) -> tuple[Report, str]:
    """The report, and its page. Raises `WebMissing`, `NoSuchCampaign`.

    Args:
        links: Addresses by their text, for the top of a page that a server sends. A file has none.
        progress: Is called with what is done next.
    """
    from farm.report import page as pages
    from farm.report import reporting

    pages.need_web()
    found = reporting.report(
        access.session.engine,
        campaign,
        device_type=device_type,
        tracking_uri=access.settings.tracking_uri,
        made_by=shlex.join(["farm", "report", campaign, *([] if device_type is None else ["--type", device_type])]),
        progress=progress,
    )
    return found, pages.html(found, links=links, progress=lambda done, all_: progress(f"drawing {done + 1} of {all_}"))
