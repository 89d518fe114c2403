"""Brings the finished campaigns of another farm into this one, as imports. A second pull brings only what is new.

The other farm is asked over its HTTP API, with operations that older versions have too. Its rows go through the importer of
recordings, which checks each of them. An import holds one part of the rows of a campaign on one device type. Its devices keep the
farm, the campaign and the last row's id there, in the transaction that stores the rows. So an interrupted pull continues where it
stopped, and nothing is stored twice.

Rows are taken in the order of their ids, some `PART_ROWS` at a time. The last import of a part says that the part is whole. A pull
continues after the last whole part, and leaves out the rows that it had stored of the next one.

Imported rows belong to no campaign, so a farm passes on only what it measured.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa

import farm
from farm.api import campaigns, imports, results
from farm.api.campaigns import ListedCampaign
from farm.api.connecting import Farm
from farm.api.imports import PulledUpTo
from farm.api.operation import Upload
from farm.api.remote import Remote
from farm.api.results import Identity, Results
from farm.db.states import CampaignState
from farm.errors import (
    ApiMoved,
    ApiRefused,
    ApiUnreachable,
    BadInput,
    BadParameter,
    BadServiceUrl,
    FarmError,
    NotFound,
    OtherApi,
    OtherFarmRefused,
    OtherFarmUnreachable,
    PullTokenInTheClear,
    TokenInTheClear,
    first_line,
)
from farm.exporters.parquet_rows import ParquetRows
from farm.importers.formats import Format
from farm.importers.landing import Outcome, check_name
from farm.settings import settings
from farm.time_parsing import moment

PART_ROWS = 100_000
"""Rows of a campaign that are in memory at a time."""

PAGE_CAMPAIGNS = 500

Rows = Sequence[dict[str, Any]]


@dataclass
class PulledCampaign:
    """A finished campaign of the other farm with new rows. `error`: why not all of them were stored."""

    campaign: str
    digest: str
    owner: str
    finished_at: datetime | None
    rows: int = 0
    device_types: list[str] = field(default_factory=list)
    error: str | None = None


@dataclass
class Pulled:
    """What a pull brought."""

    farm: str
    url: str
    rows: int = 0
    campaigns: list[PulledCampaign] = field(default_factory=list)
    # Campaigns without a new row.
    unchanged: int = 0
    # Campaigns that are this farm's own: the same submission.
    own: int = 0


def other_farm(url: str, token: str | None) -> Remote:
    """The other farm. Raises `BadServiceUrl`, `PullTokenInTheClear`."""
    try:
        return Remote(url, token=token)
    except BadServiceUrl as error:
        why = "write http://host:8000 or https://host, without a password"
        raise BadServiceUrl(variable="URL", url=error.fields["url"], why=why) from None
    except TokenInTheClear as error:
        raise PullTokenInTheClear(**error.fields) from None


def name_of(url: str, given: str | None) -> str:
    """The name under which rows of the other farm are stored: the given one, or the host and port. Raises `BadInput`."""
    try:
        name = urlsplit(url).netloc.rpartition("@")[2] or url if given is None else given
        check_name(name, "a farm")
        if "/" in name:
            raise ValueError(f"{name[:40]!r} has a /, and cannot be the name of a farm")
    except ValueError as error:
        raise BadParameter(parameter="name", why=str(error)) from None
    return name


@contextmanager
def _asking(url: str) -> Iterator[None]:
    """Errors of a request to the other farm name that farm, and not the settings of this one."""
    try:
        yield
    except ApiUnreachable as error:
        raise OtherFarmUnreachable(url=url, why=error.fields["why"]) from None
    except ApiMoved as error:
        why = f"it redirects to {error.fields['location']}, where no token is sent"
        raise OtherFarmUnreachable(url=url, why=why) from None
    except ApiRefused as error:
        raise OtherFarmRefused(url=url, why=error.fields["why"]) from None
    except NotFound as error:
        raise OtherApi(url=url, version=farm.__version__, why=f"it answered: {first_line(error)}") from None
    except (AttributeError, KeyError, TypeError, ValueError, pa.ArrowException) as error:
        raise OtherApi(
            url=url, version=farm.__version__, why=f"its rows cannot be read ({first_line(error)})"
        ) from None


@dataclass
class _Campaign:
    """What is stored of a campaign of the other farm."""

    # The last row by device type.
    last: dict[str, int] = field(default_factory=dict)
    # Up to here, rows of every device type are stored.
    whole: int = 0

    @classmethod
    def of(cls, known: Sequence[PulledUpTo]) -> _Campaign:
        return cls(
            {one.device_type: one.last_row for one in known}, max((one.whole_row or 0 for one in known), default=0)
        )


class Pull:
    """Brings campaigns of `other` into `here`."""

    def __init__(self, other: Remote, here: Farm, name: str) -> None:
        self._other, self._here, self._name = other, here, name
        self._identities = dict[str, Identity]()
        self.done = Pulled(farm=name, url=other.url)

    def campaigns(self, since: datetime | None = None) -> list[ListedCampaign]:
        """The finished campaigns of the other farm that are not this farm's own, the oldest first."""
        with _asking(self._other.url):
            found = _listed(self._other, [CampaignState.DONE])
        own = {(one.digest, one.submitted_at) for one in _listed(self._here, None)}
        recent = [one for one in found if since is None or (one.finished_at is not None and one.finished_at >= since)]
        others = [one for one in recent if (one.digest, one.submitted_at) not in own]
        self.done.own = len(recent) - len(others)
        return others

    def run(self, found: Sequence[ListedCampaign], progress: Callable[[int, str], None]) -> None:
        """Stores the new rows of each campaign. One that cannot be stored is noted, and the others are stored.

        Raises what keeps all of them from being stored.
        """
        known = self._here.ask(imports.pulled, farm=self._name)
        for number, campaign in enumerate(found):
            progress(number, campaign.name)
            before = _Campaign.of([one for one in known if one.campaign == campaign.digest])
            line = PulledCampaign(campaign.name, campaign.digest, campaign.owner, campaign.finished_at)
            try:
                self._campaign(campaign, before, line)
            except FarmError as error:
                if error.exit_code != BadInput.exit_code:
                    raise
                line.error = str(error)
            if line.rows or line.error:
                self.done.campaigns.append(line)
            else:
                self.done.unchanged += 1
            progress(number + 1, campaign.name)

    def _campaign(self, campaign: ListedCampaign, known: _Campaign, line: PulledCampaign) -> None:
        after = known.whole
        while rows := self._rows(campaign.digest, after):
            last = max(int(row["measurement_id"]) for row in rows)
            if last <= after:
                raise OtherApi(url=self._other.url, version=farm.__version__, why="its pages of rows do not end")
            new = _by_type(rows, known.last)
            for number, (kind, of_type) in enumerate(sorted(new.items())):
                self._store(campaign, kind, of_type, known.last.get(kind, 0), last, whole=number == len(new) - 1)
                known.last[kind] = last
                line.rows += len(of_type)
                self.done.rows += len(of_type)
                line.device_types = sorted({*line.device_types, kind})
            after = last

    def _rows(self, digest: str, after: int) -> Rows:
        """The next rows of a campaign, at most `PART_ROWS`."""
        found = list[dict[str, Any]]()
        with _asking(self._other.url):
            while len(found) < PART_ROWS:
                limit = min(self._other.rows_at_once, PART_ROWS - len(found))
                page = self._other.ask(results.rows, campaign=digest, after=after, limit=limit)
                found += page.rows
                if page.next is None or not page.rows or page.next <= after:
                    break
                after = page.next
        return found

    def _identity(self, digest: str, kind: str) -> Identity:
        if kind not in self._identities:
            page = self._other.ask(results.rows, campaign=digest, type=kind, limit=1)
            if page.identity is None:
                raise ValueError(f"no device is of type {kind[:80]}")
            self._identities[kind] = page.identity
        return self._identities[kind]

    def _store(self, campaign: ListedCampaign, kind: str, rows: Rows, after: int, last: int, *, whole: bool) -> None:
        with _asking(self._other.url):
            identity = self._identity(campaign.digest, kind)
            content = ParquetRows().content(Results(rows=list(rows), identity=identity, commands=None, next=None))
        name = f"{self._name} {campaign.name} {kind} to {last}.parquet".replace("/", "_")[-500:]
        with tempfile.TemporaryDirectory(prefix="farm-pull-") as folder:
            path = Path(folder) / "rows.parquet"
            path.write_bytes(content)
            stored = self._here.ask(
                imports.import_, Format.DATASET, Upload(path), name=name, pulled_from=self._name,
                pulled_campaign=campaign.digest, after_row=after, last_row=last, whole=whole,
            )  # fmt: skip
        if stored.outcome is Outcome.KNOWN:
            raise BadInput(
                detail=f"The same rows of {campaign.name} on {kind} are here as another import, {stored.device_uuids[0]}. "
                "Delete that import, or pull under the name that it was pulled under."
            )


def pull(url: str, here: Farm, *, token: str | None, name: str | None, since: str | datetime | None) -> Pulled:
    """Brings the finished campaigns of the farm at `url` into `here`. `Client.pull` has the arguments and the errors."""
    earliest = None if since is None else moment(str(since))
    if token is None and (known := settings().pull_token) is not None:
        token = known.get_secret_value()
    with closing(other_farm(url, token)) as other:
        work = Pull(other, here, name_of(url, name))
        work.run(work.campaigns(earliest), lambda _number, _name: None)
        return work.done


def _listed(of: Farm, states: list[CampaignState] | None) -> list[ListedCampaign]:
    """All campaigns in these states, the oldest first."""
    found, before = list[ListedCampaign](), None
    while True:
        page = of.ask(campaigns.list_, state=states, before=before, limit=PAGE_CAMPAIGNS)
        found += page
        if len(page) < PAGE_CAMPAIGNS or (before is not None and page[-1].id >= before):
            return found[::-1]
        before = page[-1].id


def _by_type(rows: Rows, last: Mapping[str, int]) -> dict[str, Rows]:
    """The rows that are not stored yet, by device type."""
    found = dict[str, list[dict[str, Any]]]()
    for row in rows:
        kind = str(row["device_type"])
        if row["measurement_id"] > last.get(kind, 0):
            found.setdefault(kind, []).append(row)
    return dict(found)
