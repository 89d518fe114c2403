"""Measurements, and the best of a campaign."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

from pydantic import Field, field_validator
from sqlalchemy import Connection

from farm.api.access import Access
from farm.api.campaigns import CampaignOutcome, Name
from farm.api.device_states import HOST, select
from farm.api.operation import MAX_ID, Cli, Document, operation
from farm.campaign import Campaign
from farm.db import campaigns, devices, filters, liveness, measurements
from farm.db import measuring_rules as measuring
from farm.devices import DeviceIdentity, DeviceTraits
from farm.errors import BadInput, BadParameter
from farm.formatting import scalars_text, types_of_text
from farm.fusion import Fusion
from farm.gemm import MAX_EXTENT, Problem, added_columns
from farm.groups import NONE, Groups
from farm.kernels import Configuration
from farm.measurement import MeasuringRules, Source
from farm.report.best import TimedKernel, summary
from farm.report.best import best as best_of
from farm.report.workload import Workload, workloads
from farm.repro import repro_command
from farm.scale import Scale
from farm.schema.column import Column, ColumnType
from farm.schema.results import COLUMNS, EXPORTED
from farm.sparsity import Sparsity
from farm.time_parsing import moment

if TYPE_CHECKING:
    from farm.api.connecting import Farm

MAX_ROWS = 20_000
"""Rows of one answer of the API."""

PAGE_ROWS = 5_000
"""Rows that are read at once where all are needed. As Python objects, 1,000 rows take about 10 MB."""


class OfRow(StrEnum):
    """The sources of results; sentinels are none."""

    MEASURED = Source.MEASURED
    RECORDED = Source.RECORDED
    IMPORTED = Source.IMPORTED


class Identity(Document):
    """A device type as one of its devices announced it."""

    uuid: str
    type: str
    name: str
    backend: str
    traits: dict[str, Any]


_JSON_TYPES: Mapping[ColumnType, Mapping[str, Any]] = {
    ColumnType.BIGINT: {"type": "integer"},
    ColumnType.SMALLINT: {"type": "integer"},
    ColumnType.DOUBLE: {"type": "number"},
    ColumnType.TEXT: {"type": "string"},
    ColumnType.BOOLEAN: {"type": "boolean"},
    ColumnType.TIMESTAMPTZ: {"type": "string", "format": "date-time"},
    ColumnType.UUID: {"type": "string", "format": "uuid"},
    ColumnType.JSONB: {"type": "object"},
}


def _schema_of(column: Column) -> dict[str, Any]:
    described = {"description": f"{column.meaning}, {column.unit}" if column.unit else column.meaning}
    schema = dict(_JSON_TYPES[column.type])
    return {"anyOf": [schema, {"type": "null"}], **described} if column.nullable else {**schema, **described}


_ROW_SCHEMA: Any = {
    "type": "object",
    "properties": {name: _schema_of(COLUMNS[name]) for name in EXPORTED},
    "required": list(EXPORTED),
}


class Results(Document):
    """Rows, and what makes an export of them a recording."""

    rows: list[dict[str, Any]] = Field(
        description="columns as in v_measurements, see docs/sql.md", json_schema_extra={"items": _ROW_SCHEMA}
    )
    identity: Identity | None = Field(description="of their device type, where all rows are of one")
    commands: list[str] | None = Field(default=None, description="for each row a line that measures it again, alone")
    next: int | None = Field(description="ask again with this as after: there are more rows")

    @field_validator("rows")
    @classmethod
    def _typed(cls, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Times and ids as such, which come as text through the API."""
        return [
            {
                **row,
                "measured_at": datetime.fromisoformat(row["measured_at"]),
                "configuration_id": UUID(row["configuration_id"]),
            }
            if isinstance(row["measured_at"], str)
            else row
            for row in rows
        ]


class BestOf(Document):
    """The best kernel of one problem on one device type, and what finding it cost."""

    m: int
    n: int
    k: int
    types: str
    layout: str
    alpha: float
    beta: float
    batch: int = 1
    scale: Scale = Scale.NONE
    fused: Fusion = Fusion.NONE
    groups: str = NONE
    sparsity: Sparsity = Sparsity.NONE
    device_type: str
    best: TimedKernel
    baseline: TimedKernel | None = Field(description="cuBLASLt with the algorithm that its heuristic puts first")
    tried: int
    grid: int
    device_s: float
    baseline_device_s: float
    grid_best_ms: float | None
    grid_found_ms: float | None
    speed_up: float | None
    speed_up_95: tuple[float, float] | None
    share_of_best: float | None

    @property
    def problem(self) -> str:
        """`512x512x512 f32 nn`, and what is not as usual."""
        scalars = scalars_text(self.alpha, self.beta, **added_columns(self))
        return f"{self.m}x{self.n}x{self.k} {types_of_text(self.types)} {self.layout}{scalars}"


class Best(CampaignOutcome):
    """The best kernel of each problem that a campaign found."""

    campaign: str
    digest: str
    search: dict[str, Any] | None
    waiting: int
    summary: dict[str, Any]
    workloads: list[Workload] = Field(
        description="the time of all GEMMs, each as often as the campaign's trace or language model computes it, by device type"
    )
    found: list[BestOf]


OnType = Annotated[str | None, Field(description="Only on this device type."), Cli(("--type", "-t"))]
OfFamily = Annotated[str | None, Field(description="Only of this kernel family."), Cli(("--family", "-f"))]
OfBatch = Annotated[
    int | None, Field(ge=1, le=MAX_EXTENT, description="Only problems with this number of products in a batch.")
]
OfScale = Annotated[Scale | None, Field(description="Only problems with these scale factors of A and B.")]
OfFusion = Annotated[Fusion | None, Field(description="Only problems with these fused operations.")]
OfGroups = Annotated[
    str | None,
    Field(description="Only problems with these rows of each group, as in 16*8,3,0; none for those without groups."),
]
OfSparsity = Annotated[Sparsity | None, Field(description="Only problems with this sparsity of B.")]
Where = Annotated[
    list[str] | None,
    Field(
        description='Only rows for which this is true, as in "m >= 512 and tile in (16, 32) and has(power_w)". Repeat it: '
        "all must be true."
    ),
    Cli(("--where", "-w"), metavar="CONDITION"),
]
OnHosts = Annotated[list[str] | None, Field(description="Only devices of this host.")]
OnDevices = Annotated[
    list[str] | None,
    Field(description="Only of this device: its UUID or a beginning of it."),
    Cli(("--device", "-d")),
]
OfSources = Annotated[list[OfRow] | None, Field(description="Only rows of this source.")]
Since = Annotated[
    str | None, Field(description="Only from this day or time on, or this long ago: 2h, 7d."), Cli(metavar="TIME")
]
Until = Annotated[str | None, Field(description="Only before this day or time."), Cli(metavar="TIME")]


@operation("GET", "/results")
def rows(
    access: Access,
    *,
    campaign: Annotated[
        str | None, Field(description="Only of this campaign, all its repetitions."), Cli(("--campaign", "-c"))
    ] = None,
    type: OnType = None,  # noqa: A002
    family: OfFamily = None,
    where: Where = None,
    host: OnHosts = None,
    device: OnDevices = None,
    source: OfSources = None,
    since: Since = None,
    until: Until = None,
    sort: Annotated[
        str, Field(description="A column; -column for largest first."), Cli(("--sort", "-s"))
    ] = "measurement_id",
    short_rounds: Annotated[
        bool, Field(description="Include the short rounds of searches, which are measured less precisely.")
    ] = False,
    commands: Annotated[bool, Field(description="Include a command for each row that measures it again.")] = False,
    after: Annotated[
        int | None,
        Field(description="Only rows with a higher id: the next page, in the order of ids.", ge=0, le=MAX_ID),
    ] = None,
    limit: Annotated[int, Field(ge=1, le=MAX_ROWS, description="Maximum number of rows.")] = 1000,
) -> Results:
    """Measurements: every column of those that match."""
    if sort.removeprefix("-") not in EXPORTED:
        raise BadParameter(parameter="sort", value=sort, why=f"no such column. Columns: {', '.join(EXPORTED)}")
    if after is not None and sort != "measurement_id":
        raise BadInput(detail="after goes with rows in the order of their ids: leave out sort")
    asked = conditions(where=where, source=source, since=since, until=until)
    with access.connect() as connection:
        found = measurements.read(
            connection,
            campaign_id=None if campaign is None else campaigns.find(connection, campaign)["id"],
            device_type=type,
            family=family,
            order_by=sort,
            limit=limit,
            after=after,
            short_rounds=short_rounds,
            only=filters.chosen(**asked, device_uuids=uuids_of(access, connection, host, device)),
        )
        rules = measuring.of_rows(connection, [row["measurement_id"] for row in found]) if commands else {}
        kinds = {row["device_type"] for row in found}
        # What was measured under several rules is no recording.
        identity = devices.of_type(connection, kinds.pop()) if len(kinds) == 1 and not short_rounds else None
    return Results(
        rows=found,
        identity=None if identity is None else _identity(identity),
        commands=[_command(row, rules) for row in found] if commands else None,
        next=found[-1]["measurement_id"] if len(found) == limit and sort == "measurement_id" else None,
    )


def pages(farm: Farm, limit: int | None, *, sort: str = "measurement_id", **query: Any) -> Iterator[Results]:
    """All rows that match, or `limit` of them, in pages of at most `PAGE_ROWS`. There is at least one page; no later one is empty.

    Sorted rows come in one page, as large as the farm allows.

    Raises:
        BadParameter: pages are needed, and the rows are not in the order of their ids. No page has been returned then.
    """
    at_once = min(farm.rows_at_once, PAGE_ROWS) if sort == "measurement_id" else farm.rows_at_once
    after, count = None, 0
    while True:
        size = at_once if limit is None else min(at_once, limit - count)
        page = farm.ask(rows, **query, sort=sort, after=after, limit=size)
        is_last = len(page.rows) < size or count + size == limit
        after = page.next
        if after is None and not is_last:
            raise BadParameter(
                parameter="sort",
                value=sort,
                why=f"the API returns at most {size:,} sorted rows. Give a limit, or leave this out.",
            )
        if page.rows or not count:
            yield page
        count += len(page.rows)
        if is_last:
            return


def all_rows(farm: Farm, limit: int | None, **query: Any) -> Results:
    """The pages of `pages` as one. Takes about 10 kB of memory for each row. Raises as `pages`."""
    found, commands, types, after = list[dict[str, Any]](), list[str](), TypesOfPages(), None
    for page in pages(farm, limit, **query):
        found += page.rows
        commands += page.commands or ()
        types.add(page)
        after = page.next
    return Results.model_construct(rows=found, identity=types.identity, commands=commands, next=after)


class TypesOfPages:
    """The device types of pages, and the identity of their device type, where all rows are of one."""

    def __init__(self) -> None:
        self._identities = dict[str | None, Identity | None]()

    def add(self, page: Results) -> None:
        self._identities.setdefault(None if page.identity is None else page.identity.type, page.identity)

    def rows(self, pages: Iterable[Results]) -> Iterator[dict[str, Any]]:
        """The rows of the pages, which it adds."""
        for page in pages:
            self.add(page)
            yield from page.rows

    @property
    def identity(self) -> Identity | None:
        return next(iter(self._identities.values())) if len(self._identities) == 1 else None


def conditions(
    *,
    where: Sequence[str] | None,
    source: Sequence[OfRow] | None,
    since: str | None,
    until: str | None,
) -> dict[str, Any]:
    """What `filters.chosen` takes, for all but devices. Raises `BadFilter` and `BadMoment` before anything is read."""
    asked: dict[str, Any] = {
        "where": where or (),
        "sources": [Source(one) for one in source or ()],
        "since": None if since is None else moment(since),
        "until": None if until is None else moment(until),
    }
    filters.chosen(**asked)
    return asked


def uuids_of(
    access: Access, connection: Connection, hosts: Sequence[str] | None, given: Sequence[str] | None
) -> list[str] | None:
    """The devices that the names of hosts and devices mean. Raises as `select` does."""
    if not hosts and not given:
        return None
    known = liveness.devices(connection, silent_after=access.silent_after)
    of_hosts = {found.uuid for found in select(known, [f"{HOST}{name}" for name in hosts or ()])}
    named = {found.uuid for found in select(known, given or ())}
    return sorted(of_hosts & named if hosts and given else of_hosts | named)


def _identity(identity: DeviceIdentity) -> Identity:
    return Identity(
        uuid=identity.uuid,
        type=identity.type,
        name=identity.name,
        backend=identity.backend.value,
        traits=identity.traits.to_json(),
    )


def traits_of(identity: Identity) -> DeviceTraits:
    """The traits as the farm computes with them."""
    return DeviceTraits.from_json(identity.traits)


def _command(row: dict[str, Any], rules: Mapping[int, MeasuringRules]) -> str:
    return repro_command(
        Configuration.from_columns(row), row["device_uuid"], rules.get(row["measurement_id"], MeasuringRules())
    )


@operation("GET", "/campaigns/{campaign}/best")
def best(
    access: Access,
    campaign: Name,
    *,
    type: OnType = None,  # noqa: A002
    batch: OfBatch = None,
    scale: OfScale = None,
    fused: OfFusion = None,
    groups: OfGroups = None,
    sparsity: OfSparsity = None,
) -> Best:
    """The best kernel of each problem that a campaign found: its time, cuBLASLt's time, and the cost of finding it."""
    in_groups = None if groups is None else str(Groups.parse(groups) or NONE)
    given = {"batch": batch, "scale": scale, "fused": fused, "groups": in_groups, "sparsity": sparsity}
    wanted = {name: value for name, value in given.items() if value is not None}

    def is_wanted(problem: Problem) -> bool:
        return wanted.items() <= added_columns(problem).items()

    with access.connect() as connection:
        stored = campaigns.find(connection, campaign)
        asked = Campaign.from_document(stored["document"])
        counts = campaigns.counts(connection, stored["id"])
        found = [
            one
            for one in best_of(connection, stored["id"], asked)
            if type in (None, one.device_type) and is_wanted(one.problem)
        ]
    counted = {problem: count for problem, count in asked.counts.items() if is_wanted(problem)}
    return Best(
        campaign=stored["name"],
        digest=stored["digest"],
        state=stored["state"],
        search=None if asked.search is None else asked.search.to_document(),
        counts=counts,
        waiting=campaigns.open_jobs(counts),
        summary=summary(found),
        workloads=workloads(found, counted),
        found=[BestOf(**one.to_json()) for one in found],
    )
