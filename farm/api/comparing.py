"""Measurements beside each other, on the configurations that all sides have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field
from sqlalchemy import Connection

from farm.api.access import Access
from farm.api.operation import Document, operation

if TYPE_CHECKING:
    from farm.compare.comparing import Beside, Comparison


class Compared(Document):
    """What measurements say of sides beside a baseline; see docs/comparing.md."""

    baseline: dict[str, Any]
    confidence: float
    tie: float = Field(description="a smaller difference in time is a tie: 0.01 is 1%")
    notes: list[str]
    sides: list[dict[str, Any]]


@operation("GET", "/compare")
def compare(
    access: Access,
    *,
    side: Annotated[list[str] | None, Field(description="two or more, the baseline first")] = None,
    by: Annotated[str | None, Field(description="or a side for each type, host, device, day, driver …")] = None,
    campaign: Annotated[str | None, Field(description="only of this campaign")] = None,
    type: Annotated[str | None, Field(description="only on this device type")] = None,  # noqa: A002
    family: Annotated[str | None, Field(description="only of this kernel family")] = None,
    dtype: Annotated[str | None, Field(description="only of this input type, or of these three: f16:f16:f32")] = None,
    any_source: Annotated[bool, Field(description="recorded and imported rows too, labelled")] = False,
    mixed: Annotated[bool, Field(description="though clock policies or operands differ")] = False,
    tie: Annotated[
        float | None, Field(ge=0.01, le=50, description="a smaller difference in % is a tie; 1 if none")
    ] = None,
    top: Annotated[int, Field(ge=0, le=1000, description="so many that differ most, of each side")] = 0,
    price: Annotated[list[str] | None, Field(description="SIDE=PER_HOUR: money for an hour of a card")] = None,
    carbon: Annotated[float | None, Field(ge=0, description="grams of CO2 per kWh")] = None,
) -> Compared:
    """Compare cards, hosts, types, versions or days on the configurations that they share: time, power, energy, cost."""
    # It loads numpy, which no other operation needs to wait for.
    from farm.compare.comparing import Question
    from farm.compare.comparing import compare as answer

    question = Question(
        sides=side or (),
        by=by,
        campaign=campaign,
        device_type=type,
        family=family,
        dtype=dtype,
        any_source=any_source,
        mixed=mixed,
        **({} if tie is None else {"tie": tie / 100}),
        prices=price or (),
        grams_per_kwh=carbon,
    )
    found = answer(access.session.engine, question)
    tops = dict[str, list[dict[str, Any]]]()
    if top:
        with access.connect() as connection:
            tops = {one.held.name: _most_different(connection, one, top) for one in found.sides}
    return _document(found, tops)


def _document(found: Comparison, tops: Mapping[str, Sequence[Mapping[str, Any]]]) -> Compared:
    from farm.compare.statistics import CONFIDENCE

    return Compared(
        baseline=asdict(found.baseline),
        confidence=CONFIDENCE,
        tie=found.tie,
        notes=list(found.notes),
        sides=[
            {
                **asdict(side.held),
                "overall": asdict(side.overall),
                **{
                    name: {label: asdict(figures) for label, figures in getattr(side, name).items()}
                    for name in ("by_type", "by_size", "by_bound")
                },
                "money_per_pflop": None if side.money is None else asdict(side.money),
                "co2_g_per_pflop": None if side.carbon is None else asdict(side.carbon),
                **({"top": tops[side.held.name]} if tops else {}),
            }
            for side in found.sides
        ],
    )


def _most_different(connection: Connection, side: Beside, count: int) -> list[dict[str, Any]]:
    """The configurations that differ most in time, with both sides' times."""
    from farm.compare import reading
    from farm.compare.statistics import Verdict

    words = {Verdict.LESS: "faster", Verdict.TIE: "tie", Verdict.MORE: "slower", Verdict.UNSURE: "unsure"}
    which = side.pairs.most_different(count)
    described = reading.described(connection, side.pairs.ids[which])
    columns = zip(
        described,
        side.pairs.baseline.runtime_ms[which].tolist(),
        side.pairs.side.runtime_ms[which].tolist(),
        side.pairs.verdict[which].tolist(),
        strict=True,
    )
    return [
        {
            **configuration,
            "baseline_runtime_ms": baseline_ms,
            "runtime_ms": runtime_ms,
            "time_ratio": runtime_ms / baseline_ms,
            "verdict": words[Verdict(verdict)],
        }
        for configuration, baseline_ms, runtime_ms, verdict in columns
    ]
