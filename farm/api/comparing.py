"""Comparisons of groups of measurements on the configurations that they share."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from pydantic import ConfigDict, Field

from farm.api.access import Access
from farm.api.operation import Cli, Document, Download, made_file, operation
from farm.api.submitting import store
from farm.compare.summaries import FillSummary, GroupComparison, GroupSummary, Regression
from farm.db.states import Role
from farm.errors import BadParameter, NothingShared
from farm.protocols import Time

if TYPE_CHECKING:
    from farm.compare.aggregation import CompareQuery
    from farm.compare.comparison import Comparison

SMALLER_IS_A_TIE_PCT = 1.0


Carbon = Annotated[
    float | None,
    Field(ge=0, allow_inf_nan=False, description="Grams of CO2 per kWh of your power."),
    Cli(metavar="G_PER_KWH"),
]


class Comparing(Document):
    """The query of a comparison; see docs/comparing.md."""

    side: Annotated[list[str], Cli(metavar="GROUP", argument=True)] = Field(
        default=[],
        max_length=100,
        description="Two groups or more, the baseline first. A group is a device type, a host, the beginning of a device's "
        "UUID, or conditions with commas: type= host= device= campaign= since= until= clocks= distribution= protocol= source=, or a "
        "key of the environment, as in driver=.",
    )
    by: Annotated[str | None, Cli(metavar="KEY")] = Field(
        default=None,
        description="A group for each type, host, device, day, protocol, or value of a key of the environment, as driver; the one "
        "with most rows is the baseline.",
    )
    campaign: Annotated[str | None, Cli(("--campaign", "-c"))] = Field(
        default=None, description="Only of this campaign, all its repetitions."
    )
    type: Annotated[str | None, Cli(("--type", "-t"))] = Field(default=None, description="Only on this device type.")
    family: Annotated[str | None, Cli(("--family", "-f"))] = Field(
        default=None, description="Only of this kernel family."
    )
    dtype: str | None = Field(default=None, description="Only of this input type, or of these three, as f16:f16:f32.")
    any_source: bool = Field(default=False, description="Recorded and imported rows too, labelled.")
    mixed: bool = Field(
        default=False,
        description="Compare rows at different clock policies, of different operands or protocols all the same, labelled.",
    )
    tie: Annotated[float, Cli(metavar="PCT")] = Field(
        default=SMALLER_IS_A_TIE_PCT, ge=0.01, le=50, description="A smaller difference in time is a tie, in %."
    )
    top: Annotated[int, Cli(("--top", "-n"))] = Field(
        default=0, ge=0, le=10_000, description="List so many configurations of each group that differ most."
    )
    price: Annotated[list[str], Cli(metavar="GROUP=PER_HOUR")] = Field(
        default=[], max_length=100, description="Money per hour of a card of that group; repeat it."
    )
    carbon: Carbon = None
    check: Annotated[float | None, Cli(metavar="PCT")] = Field(
        default=None,
        ge=0,
        le=1000,
        description="Which groups are slower than the baseline by more than that, in %, shown with 95% confidence. The "
        "command ends with exit code 7 where one is.",
    )
    time: Time | None = Field(
        default=None,
        description="Compare this time of rows that have both: the burst time after a rest, or the settled time under load. "
        "Without it, the time of the rows' protocol, which is the settled time for `farm`.",
    )
    predict: bool = Field(
        default=False,
        description="Where a group was not measured, ask the champion of its type; told apart from what was.",
    )
    mix_protocols: bool = Field(
        default=False,
        description="With predict: ask also models whose rows were measured by another protocol, or an unknown one, labelled.",
    )


class Filling(Comparing):
    """The same query as a JSON body, which is validated strictly."""

    model_config = ConfigDict(strict=True)


class Compared(Document):
    """A comparison of groups with a baseline. Ratios are group over baseline."""

    baseline: GroupSummary
    confidence: float
    confidence_of_bounds: float
    tie: float = Field(description="a smaller difference in time is a tie: 0.01 is 1%")
    time: Time | None = Field(description="the time that is compared; null where the rows' protocol measures neither")
    common_time: bool = Field(
        default=False, description="whether protocols differ, and the compared time is one that all rows have"
    )
    predicting: bool
    notes: list[str] = Field(description="differences between the groups' conditions, and what was left out")
    minor_notes: list[str] = Field(
        default=[], description="differences in programs that compute nothing, and unknown versions"
    )
    sides: list[GroupComparison]
    slower: list[Regression] | None = Field(default=None, description="if the query has a check")

    @property
    def time_name(self) -> str:
        """The heading of the ratio of times: which of both times it is, where that is not the settled time of `farm`."""
        return f"{self.time} time" if self.common_time or self.time == "burst" else "time"


class ComparedAndFilled(Document):
    """Submitted campaigns, and the comparison of the present rows; null with an explanation where nothing is shared."""

    fills: list[FillSummary]
    compared: Compared | None
    nothing_shared: str | None


def _document(found: Comparison, slower: list[Regression] | None = None) -> Compared:
    from farm.compare.statistics import BOUNDS_CONFIDENCE, CONFIDENCE

    return Compared(
        baseline=found.baseline,
        confidence=CONFIDENCE,
        confidence_of_bounds=BOUNDS_CONFIDENCE,
        tie=found.query.tie,
        time=found.time.time,
        common_time=found.time.common,
        predicting=found.query.predict_from is not None,
        notes=list(found.notes),
        minor_notes=list(found.minor_notes),
        sides=list(found.groups),
        slower=slower,
    )


@operation("GET", "/compare", seconds=120)
def compare(access: Access, query: Comparing) -> Compared:
    """Compare cards, hosts, types, versions or days on the configurations that they share: time, power, energy, cost."""
    # It loads numpy, which no other operation needs to wait for.
    from farm.compare import comparison
    from farm.compare.regression_check import regressions

    engine = access.session.engine
    found = comparison.compare(engine, _compare_query(access, query))
    return _document(found, None if query.check is None else regressions(engine, found, by=query.check / 100))


@operation("GET", "/compare/pairs", sends="text/csv", seconds=120)
def pairs(access: Access, query: Comparing) -> Download:
    """Every pair of a comparison, as CSV."""
    from farm.compare import comparison

    found = comparison.compare(access.session.engine, _compare_query(access, query))
    with made_file("pairs.csv") as path:
        rows = found.write_csv(access.session.engine, path)
    return Download(path=path, media_type="text/csv", name="pairs.csv", rows=rows)


@operation("POST", "/compare/fill", role=Role.SUBMIT, seconds=280)
def fill(access: Access, query: Filling) -> ComparedAndFilled:
    """Submit what a group lacks and another has, as a campaign for each group; the same again adds nothing."""
    from farm.compare import missing_measurements
    from farm.compare.aggregation import aggregate
    from farm.compare.comparison import compare_groups

    engine = access.session.engine
    data = aggregate(engine, _compare_query(access, query), filling=True)
    fills = []
    for one in missing_measurements.plan_fills(engine, data, owner=access.who):
        summary = one.summary
        if one.plan is not None:
            with access.change(fill) as change:
                stored = store(change, one.plan, access.settings)
            summary = replace(summary, new=stored.new, new_jobs=stored.jobs)
        fills.append(summary)
    try:
        compared = _document(compare_groups(engine, data))
    except NothingShared as error:
        shared = str(error).split(" Run the same", maxsplit=1)[0]
        return ComparedAndFilled(fills=fills, compared=None, nothing_shared=shared)
    return ComparedAndFilled(fills=fills, compared=compared, nothing_shared=None)


def _compare_query(access: Access, query: Comparing) -> CompareQuery:
    from farm.compare.aggregation import CompareQuery

    if query.mix_protocols and not query.predict:
        raise BadParameter(parameter="mix_protocols", why="this goes with predict.")
    return CompareQuery(
        groups=query.side,
        device_type=query.type,
        tie=query.tie / 100,
        prices=query.price,
        grams_per_kwh=query.carbon,
        predict_from=access.settings.tracking_uri if query.predict else None,
        **query.model_dump(
            include={"by", "campaign", "family", "dtype", "any_source", "mixed", "top", "time", "mix_protocols"}
        ),
    )
