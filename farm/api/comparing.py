"""Measurements beside each other, on the configurations that all groups have."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import ConfigDict, Field

from farm import registry
from farm.api.access import Access
from farm.api.operation import Cli, Document, Download, made_file, operation
from farm.api.submitting import store
from farm.db.states import Role
from farm.errors import BadInput, NothingShared

if TYPE_CHECKING:
    from farm.compare.aggregation import Question

SMALLER_IS_A_TIE_PCT = 1.0


class Comparing(Document):
    """What is to be compared; see docs/comparing.md."""

    side: Annotated[list[str], Cli(metavar="GROUP", argument=True)] = Field(
        default=[],
        max_length=100,
        description="Two groups or more, the baseline first. A group is a device type, a host, the beginning of a device's "
        "UUID, or conditions with commas: type= host= device= campaign= since= until= clocks= distribution= source=, or a "
        "key of the environment, as in driver=.",
    )
    by: Annotated[str | None, Cli(metavar="KEY")] = Field(
        default=None,
        description="A group for each type, host, device, day, or value of a key of the environment, as driver; the one "
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
        default=False, description="Compare rows at different clock policies, or of different operands, all the same."
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
    carbon: Annotated[float | None, Cli(metavar="G_PER_KWH")] = Field(
        default=None, ge=0, description="Grams of CO2 per kWh of your power."
    )
    check: Annotated[float | None, Cli(metavar="PCT")] = Field(
        default=None,
        ge=0,
        le=1000,
        description="Which groups are slower than the baseline by more than that, in %, shown with 95% confidence. The "
        "command ends with exit code 7 where one is.",
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
    """The same as a body, which has types where a query has words."""

    model_config = ConfigDict(strict=True)


class Ratio(Document):
    """A median over shapes, and where it is with the confidence of the comparison; no interval with few shapes."""

    ratio: float
    low: float | None
    high: float | None
    shapes: int
    pairs: int


class Figures(Document):
    """By what factor the group's figures are the baseline's."""

    configurations: int
    shapes: int
    time: Ratio
    tflops: Ratio
    power: Ratio | None
    energy: Ratio | None
    faster: int
    ties: int
    slower: int
    unsure: int
    baseline_roofline: float | None = Field(description="median share of the roofline that the baseline reaches")
    roofline: float | None


class Cost(Document):
    """What 1e15 operations cost, as a mix of every configuration once."""

    baseline: float | None
    side: float | None
    ratio: float | None
    low: float | None
    high: float | None
    configurations: int


class Found(Document):
    """What pairs say: all of them, and those of each element type, size and bound."""

    overall: Figures | None
    by_type: dict[str, Figures]
    by_size: dict[str, Figures]
    by_bound: dict[str, Figures]
    money_per_pflop: Cost | None
    co2_g_per_pflop: Cost | None
    top: list[dict[str, Any]] = Field(default=[], description="what differs most in time")


class FoundByModel(Found):
    """The same of pairs of which one figure is predicted."""

    baseline_predicted: int = Field(description="pairs whose baseline is a model's")
    side_predicted: int


class ComparedDevice(Document):
    id: int
    uuid: str
    type: str
    host: str


class Forecast(Document):
    """What a champion said of configurations that a group lacks, and what it did not say."""

    model: str
    version: str
    device_type: str
    sources: str | None
    conditions: registry.Conditions | None = Field(
        default=None, description="where the model's rows come from and how they were measured; none: unknown"
    )
    standing: str = Field(description="champion, or challenger where the device type has no champion")
    predicted: int
    not_learned: int
    outside: int
    error_pct: float | None


class Held(Document):
    """Rows, devices and coverage of one comparison group."""

    name: str
    rows: int
    configurations: int
    missing: int = Field(description="configurations that another group has, and this one has not")
    devices: list[ComparedDevice]
    gpu: str | None
    forecast: Forecast | None


class Beside(Held, Found):
    """A group beside the baseline."""

    predicted: FoundByModel | None


class Slower(Document):
    """A group, or what it has of one element type, that is slower by more than it may be."""

    side: str
    of: str = Field(description="all, or an element type")
    time: Ratio
    confidence: float
    text: str


class Compared(Document):
    """What measurements say of groups beside a baseline. Ratios are group over baseline."""

    baseline: Held
    confidence: float
    confidence_of_bounds: float
    tie: float = Field(description="a smaller difference in time is a tie: 0.01 is 1%")
    predicting: bool
    notes: list[str] = Field(description="what is not the same on all groups, and what was left out")
    minor_notes: list[str] = Field(
        default=[], description="versions of programs that compute nothing, and versions that rows do not tell"
    )
    sides: list[Beside]
    slower: list[Slower] | None = Field(default=None, description="where a check was asked for")


class LeftOut(Document):
    reason: str
    count: int
    example: str
    example_reason: str


class Filled(Document):
    """What was submitted for a group, or why nothing was."""

    side: str
    missing: int
    why_not: str | None
    cannot_run: int
    left_out: list[LeftOut]
    underway: dict[str, int]
    campaign: str | None
    digest: str | None
    targets: list[Any]
    configurations: int
    jobs: int
    estimated_seconds: dict[str, float]
    notes: list[str]
    new: bool
    new_jobs: int


class ComparedAndFilled(Document):
    """What was submitted, and the comparison as it is without; none where nothing is shared, with what that is."""

    fills: list[Filled]
    compared: Compared | None
    nothing_shared: str | None


@operation("GET", "/compare", seconds=120)
def compare(access: Access, asked: Comparing) -> Compared:
    """Compare cards, hosts, types, versions or days on the configurations that they share: time, power, energy, cost."""
    # It loads numpy, which no other operation needs to wait for.
    from farm.compare.checking import slower
    from farm.compare.comparing import compare as answer

    engine = access.session.engine
    found = answer(engine, _question(access, asked))
    told = found.to_json()
    if asked.check is not None:
        checked = slower(engine, found, by=asked.check / 100)
        told["slower"] = [{**asdict(one), "text": str(one)} for one in checked]
    return Compared.model_validate(told)


@operation("GET", "/compare/pairs", sends="text/csv", seconds=120)
def pairs(access: Access, asked: Comparing) -> Download:
    """Every pair of a comparison, as CSV."""
    from farm.compare.comparing import compare as answer

    found = answer(access.session.engine, _question(access, asked))
    with made_file("pairs.csv") as path:
        rows = found.write_csv(access.session.engine, path)
    return Download(path=path, media_type="text/csv", name="pairs.csv", rows=rows)


@operation("POST", "/compare/fill", role=Role.SUBMIT, seconds=280)
def fill(access: Access, asked: Filling) -> ComparedAndFilled:
    """Submit what a group lacks and another has, as a campaign for each group; the same again adds nothing."""
    from farm.compare import filling
    from farm.compare.aggregation import gather
    from farm.compare.comparing import compared

    engine = access.session.engine
    gathered = gather(engine, _question(access, asked), filling=True)
    told = []
    for one in filling.fills(engine, gathered, owner=access.who):
        new, new_jobs = False, 0
        if one.plan is not None:
            with access.change(fill) as change:
                stored = store(change, one.plan, access.settings)
            new, new_jobs = stored.new, stored.jobs
        told.append(Filled(**one.to_json(), new=new, new_jobs=new_jobs))
    try:
        found = Compared.model_validate(compared(engine, gathered).to_json())
    except NothingShared as error:
        shared = str(error).split(" Run the same", maxsplit=1)[0]
        return ComparedAndFilled(fills=told, compared=None, nothing_shared=shared)
    return ComparedAndFilled(fills=told, compared=found, nothing_shared=None)


def _question(access: Access, asked: Comparing) -> Question:
    from farm.compare.aggregation import Question

    if asked.mix_protocols and not asked.predict:
        raise BadInput(detail="--mix-protocols needs --predict.")
    return Question(
        sides=asked.side,
        by=asked.by,
        campaign=asked.campaign,
        device_type=asked.type,
        family=asked.family,
        dtype=asked.dtype,
        any_source=asked.any_source,
        mixed=asked.mixed,
        tie=asked.tie / 100,
        prices=asked.price,
        grams_per_kwh=asked.carbon,
        top=asked.top,
        predict_from=access.settings.tracking_uri if asked.predict else None,
        mix_protocols=asked.mix_protocols,
    )
