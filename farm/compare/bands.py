"""Bands: what cards of a type take for the same GEMM, as percentiles over cards, and where a card lies in them (pure).

A band is of one configuration on one type of device, measured by one protocol with one distribution of operands at one clock
policy. Each card counts once, with the median of its rows.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from farm.kernels import Configuration
from farm.kernels.source import SOURCE

FORMAT = 1
"""The format of published bands. A reader refuses another one."""

PERCENTILES = (5, 50, 95)

MARGIN = 0.01
"""A card whose times exceed the 95th percentile by less than this share is within the band."""

Value = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Values = tuple[Value, Value, Value]
"""The percentiles `PERCENTILES`."""


class _Document(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class BandDigest(_Document):
    """The digest of D that most cards computed with the same built kernel and operands."""

    kernel_hash: str
    seed: int
    digest: str
    cards: int = Field(ge=1, description="cards that computed it")
    of: int = Field(ge=1, description="cards with any digest")


class Band(_Document):
    """One GEMM on the cards of a type."""

    device_type: str
    configuration: str = Field(description="canonical line")
    protocol: str
    distribution: str
    clock_policy: str | None
    cards: int = Field(ge=1)
    rows: int = Field(ge=1)
    runtime_ms: Values
    runtime_burst_ms: Values | None
    power_w: Values | None
    digests: list[BandDigest]

    @property
    def key(self) -> Key:
        """What rows must have in common with it."""
        return self.device_type, self.configuration, self.protocol, self.distribution, self.clock_policy


class Bands(_Document):
    """What a farm publishes."""

    format: int
    made_at: datetime
    made_by: str = Field(description="the version of the farm")
    percentiles: tuple[int, int, int] = PERCENTILES
    bands: list[Band]


Key = tuple[str, str, str, str, str | None]
Row = Mapping[str, Any]
"""A row of results: the columns of an export."""


def percentiles(values: Sequence[float]) -> Values:
    """`PERCENTILES` of at least one value, interpolated between neighbours. Of less than twenty cards, the outer ones are near the extremes."""
    ordered = sorted(values)

    def at(percent: float) -> float:
        place = percent / 100 * (len(ordered) - 1)
        low = math.floor(place)
        high = min(low + 1, len(ordered) - 1)
        return ordered[low] + (place - low) * (ordered[high] - ordered[low])

    low, middle, high = map(at, PERCENTILES)
    return low, middle, high


def bands_of(rows: Iterable[Row], *, min_cards: int = 1) -> list[Band]:
    """The bands of measured rows with at least so many cards, in the order of their keys."""
    found = []
    by_key = _by_key(rows)
    for key in sorted(by_key, key=str):
        by_card = by_key[key]
        if len(by_card) >= min_cards:
            device_type, configuration, protocol, distribution, clock_policy = key
            times = _over_cards(by_card, "runtime_ms")
            assert times is not None, "every row has a time"
            found.append(
                Band(
                    device_type=device_type,
                    configuration=configuration,
                    protocol=protocol,
                    distribution=distribution,
                    clock_policy=clock_policy,
                    cards=len(by_card),
                    rows=sum(map(len, by_card.values())),
                    runtime_ms=times,
                    runtime_burst_ms=_over_cards(by_card, "runtime_burst_ms"),
                    power_w=_over_cards(by_card, "power_w"),
                    digests=_digests(by_card),
                )
            )
    return found


_ByCard = Mapping[str, Sequence[Row]]


_READ = ("runtime_ms", "runtime_burst_ms", "power_w", "kernel_hash", "result_digest", "family", "seed", "host")
"""What is kept of each row."""


def _by_key(rows: Iterable[Row]) -> dict[Key, dict[str, list[Row]]]:
    found: dict[Key, dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        configuration = Configuration.from_columns(row).canonical
        key = (row["device_type"], configuration, row["protocol"], row["distribution"], row["clock_policy"])
        found[key][row["device_uuid"]].append({name: row[name] for name in _READ})
    return found


def _of_card(rows: Sequence[Row], name: str) -> float | None:
    """The median of a column; None where no row has a value. A power of 0 W is that of a device that cannot tell it."""
    values = [row[name] for row in rows if row[name]]
    return statistics.median(values) if values else None


def _over_cards(by_card: _ByCard, name: str) -> Values | None:
    values = [value for rows in by_card.values() if (value := _of_card(rows, name)) is not None]
    return percentiles(values) if values else None


def _digests(by_card: _ByCard) -> list[BandDigest]:
    """For each built kernel and seed the digest of most cards. No digest where two have equally many."""
    votes: dict[tuple[str, int], Counter[str]] = defaultdict(Counter)
    for rows in by_card.values():
        for kernel_hash, seed, digest in {_computed(row) for row in rows} - {None}:  # type: ignore[misc]
            votes[kernel_hash, seed][digest] += 1
    found = []
    for (kernel_hash, seed), counts in sorted(votes.items()):
        (digest, cards), *others = counts.most_common(2)
        if not others or others[0][1] < cards:
            found.append(BandDigest(kernel_hash=kernel_hash, seed=seed, digest=digest, cards=cards, of=counts.total()))
    return found


def _computed(row: Row) -> tuple[str, int, str] | None:
    """Kernel, seed and digest of a row that has all of them. Each row of an own kernel has another seed, so no two can be compared."""
    if row["kernel_hash"] is None or row["result_digest"] is None or row["family"] == SOURCE.name:
        return None
    return row["kernel_hash"], row["seed"], row["result_digest"]


# --- a card against bands ----------------------------------------------------------------------------


class Standing(StrEnum):
    """Where a card lies."""

    WITHIN = "within"
    SLOWER = "slower"  # than 95% of the published cards, for most GEMMs
    OTHER_BITS = "other bits"  # results differ from those of the published cards


class CardStanding(BaseModel):
    """One card of this farm against published bands."""

    model_config = ConfigDict(frozen=True)

    device_uuid: str
    device_type: str
    host: str
    gemms: int = Field(description="GEMMs that were measured here and are published")
    published_cards: int = Field(description="the most cards of a band among them")
    time_change_pct: float = Field(description="times against the published medians, geometric mean")
    slower_gemms: int = Field(description="GEMMs that are slower than 95% of the published cards")
    power_change_pct: float | None = Field(description="power against the published medians, geometric mean")
    digests: int = Field(description="results whose bits were compared")
    other_digests: int = Field(description="of these, results with other bits")
    standing: Standing


def standings(bands: Sequence[Band], rows: Iterable[Row]) -> list[CardStanding]:
    """Where each card with rows of published GEMMs lies, in the order of types and UUIDs."""
    known = {band.key: band for band in bands}
    of_cards: dict[tuple[str, str], list[tuple[Band, Sequence[Row]]]] = defaultdict(list)
    for key, by_card in _by_key(rows).items():
        if (band := known.get(key)) is not None:
            for uuid, own in by_card.items():
                of_cards[band.device_type, uuid].append((band, own))
    return [_standing(uuid, pairs) for (_, uuid), pairs in sorted(of_cards.items())]


def _standing(uuid: str, pairs: Sequence[tuple[Band, Sequence[Row]]]) -> CardStanding:
    times = [(statistics.median(row["runtime_ms"] for row in own), band.runtime_ms) for band, own in pairs]
    powers = [
        (value, band.power_w)
        for band, own in pairs
        if band.power_w is not None and (value := _of_card(own, "power_w")) is not None
    ]
    compared, differing = _digests_against(pairs)
    beyond = [time / highest - 1 for time, (_, _, highest) in times]
    standing = Standing.SLOWER if statistics.median(beyond) > MARGIN else Standing.WITHIN
    return CardStanding(
        device_uuid=uuid,
        device_type=pairs[0][0].device_type,
        host=pairs[0][1][-1]["host"],
        gemms=len(pairs),
        published_cards=max(band.cards for band, _ in pairs),
        time_change_pct=_change_pct(times),
        slower_gemms=sum(share > MARGIN for share in beyond),
        power_change_pct=_change_pct(powers) if powers else None,
        digests=compared,
        other_digests=differing,
        standing=Standing.OTHER_BITS if differing else standing,
    )


def _change_pct(values: Sequence[tuple[float, Values]]) -> float:
    return 100 * (statistics.geometric_mean(value / middle for value, (_, middle, _) in values) - 1)


def _digests_against(pairs: Sequence[tuple[Band, Sequence[Row]]]) -> tuple[int, int]:
    """How many results of the card have a published digest, and how many of these have other bits."""
    compared = differing = 0
    for band, own in pairs:
        published = {(one.kernel_hash, one.seed): one.digest for one in band.digests}
        for kernel_hash, seed, digest in {_computed(row) for row in own} - {None}:  # type: ignore[misc]
            if (expected := published.get((kernel_hash, seed))) is not None:
                compared += 1
                differing += digest != expected
    return compared, differing
