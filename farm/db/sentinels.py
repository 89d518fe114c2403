"""Sentinels: rows of a fixed GEMM that each device measures regularly, to detect drift and slow hosts."""

from __future__ import annotations

import json
import logging
import statistics
import uuid
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import groupby, pairwise
from typing import TYPE_CHECKING

from sqlalchemy import Connection, text
from sqlalchemy.exc import OperationalError

# What only workers need is imported there: farm status reads sentinels too.
if TYPE_CHECKING:
    from farm.db.batches import Lease
    from farm.kernels import Configuration
    from farm.measurement import Measurement

log = logging.getLogger(__name__)

# --- landing -----------------------------------------------------------------------------------------

_LAND = text("""
SELECT worker_land_sentinel(
    :batch_id, :token, CAST(:rows AS jsonb), CAST(:contents AS text[]),
    :id, :m, :n, :k, :ab, :cd, :acc, :layout, :alpha, :beta, :family, CAST(:parameters AS jsonb)
)
""")


def land(connection: Connection, lease: Lease, configuration: Configuration, row: Measurement) -> None:
    """Stores a sentinel's row, in the transaction of `batches.land` and after it.

    A row that cannot be stored is logged and left out. The batch lands without it.
    """
    from farm.db import measurements
    from farm.db.engine import Fault, fault_of

    columns = configuration.columns()
    values = {**columns, "id": configuration.id, "parameters": json.dumps(columns["parameters"])}
    attempt = connection.begin_nested()
    try:
        rows = measurements.parameters_of([(None, lease.campaign_id, configuration.id, lease.device_id, row)])
        connection.execute(_LAND, {**values, **rows, "batch_id": lease.batch_id, "token": lease.token})
    except (*measurements.UNSTORABLE, OperationalError) as error:
        if isinstance(error, OperationalError) and fault_of(error) is not Fault.HELD:
            raise
        attempt.rollback()
        log.warning("the sentinel's row cannot be stored: %s", error, extra={"batch_id": lease.batch_id})
    else:
        attempt.commit()


# --- drift -------------------------------------------------------------------------------------------

AT_EITHER_END = 3
"""Number of sentinels whose median is the base, and of those whose median is the latest time."""

MIN_DRIFT = 0.02
"""Minimum share that counts as drift. Clocks and temperature change times by one or two percent."""

SPREADS = 3.0
"""Minimum drift in spreads of one time. The difference of two medians of three has about this spread, so three are rare by chance."""


@dataclass(frozen=True, slots=True)
class Drift:
    """Drift of a series of times. Shares: 0.04 is 4%; positive is slower."""

    base_ms: float
    latest_ms: float
    deviation: float
    spread: float  # of one time, relative to the base
    # The first time beyond the limit since when the median of no three in a row was within it; None: it does not drift.
    since: int | None

    @property
    def flagged(self) -> bool:
        return self.since is not None


def drift_of(times_ms: Sequence[float]) -> Drift | None:
    """Compares the latest three of a series of times with its first three; None for fewer than four.

    It drifts where the medians differ by more than `MIN_DRIFT` and by more than `SPREADS` times the spread of one time.
    The spread is the larger of two estimates: the range of the first three over 1.693, its mean for three normal values
    (the constant d2 of control charts), which three times can show far too small by chance; and the median of the
    differences of neighbours, times 1.4826 / sqrt 2 (as from the median absolute deviation), which neither a step nor a
    slow rise makes larger.
    """
    if len(times_ms) <= AT_EITHER_END:
        return None
    first = times_ms[:AT_EITHER_END]
    base, latest = statistics.median(first), statistics.median(times_ms[-AT_EITHER_END:])
    apart = statistics.median(abs(later - earlier) for earlier, later in pairwise(times_ms))
    spread = max((max(first) - min(first)) / 1.693, apart * 1.4826 / 2**0.5) / base
    limit = max(MIN_DRIFT, SPREADS * spread)
    deviation = latest / base - 1
    since = None
    if abs(deviation) > limit:
        sign = 1 if deviation > 0 else -1
        beyond = [sign * (time_ms / base - 1) > limit for time_ms in times_ms]
        calm = max(n for n in range(len(beyond) - 2) if sum(beyond[n : n + 3]) < 2)  # the first three are
        since = beyond.index(True, calm + 1)
    return Drift(base, latest, deviation, spread, since)


# --- reading -----------------------------------------------------------------------------------------

MAX_LATEST = 100
"""Maximum number of the latest sentinels of a device to read, besides its first three."""

CAMPAIGNS = 50
"""Without a campaign, the newest campaign of each device is searched among this number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SentinelRow:
    """One sentinel. `measured_at` is when it landed, with its batch."""

    measured_at: datetime
    configuration_id: uuid.UUID
    runtime_ms: float
    sm_clock_mhz: int | None
    temperature_c: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SentinelSeries:
    """Sentinels of one device in one campaign, of the latest configuration."""

    device_uuid: str
    device_type: str
    host: str
    campaign: str
    n: int  # all of them
    rows: tuple[SentinelRow, ...]  # the first three and the latest, in the order of time
    drift: Drift | None
    # Latest time over the median of all devices of the type with the same configuration; None for a single device.
    ratio: float | None

    @property
    def flagged(self) -> bool:
        return self.drift is not None and self.drift.flagged

    @property
    def drifts_since(self) -> datetime | None:
        """When the first sentinel beyond the limit landed."""
        return None if self.drift is None or self.drift.since is None else self.rows[self.drift.since].measured_at

    @property
    def latest_ms(self) -> float:
        return statistics.median(row.runtime_ms for row in self.rows[-AT_EITHER_END:])


_OF_CAMPAIGN = "SELECT c.id, c.name, d.id AS device_id FROM campaigns c CROSS JOIN devices d WHERE c.id = :campaign_id"
_NEWEST = f"""
SELECT c.id, c.name, d.id AS device_id FROM devices d CROSS JOIN LATERAL (
    SELECT id, name FROM (SELECT id, name FROM campaigns ORDER BY id DESC LIMIT {CAMPAIGNS}) c
    WHERE EXISTS (SELECT 1 FROM measurements WHERE source = 'sentinel' AND campaign_id = c.id AND device_id = d.id)
    ORDER BY id DESC LIMIT 1
) c
"""
_COLUMNS = "id, measured_at, configuration_id, runtime_ms, sm_clock_mhz, temperature_c"
_SERIES = f"""
SELECT d.uuid AS device_uuid, d.type AS device_type, h.name AS host, p.name AS campaign, t.n, s.*
FROM ({{pairs}}) p JOIN devices d ON d.id = p.device_id JOIN hosts h ON h.id = d.host_id
CROSS JOIN LATERAL (
    SELECT count(*) AS n FROM measurements
    WHERE source = 'sentinel' AND campaign_id = p.id AND device_id = p.device_id
) t CROSS JOIN LATERAL (
    (
        SELECT {_COLUMNS} FROM measurements
        WHERE source = 'sentinel' AND campaign_id = p.id AND device_id = p.device_id
        ORDER BY measured_at LIMIT {AT_EITHER_END}
    ) UNION (
        SELECT {_COLUMNS} FROM measurements
        WHERE source = 'sentinel' AND campaign_id = p.id AND device_id = p.device_id
        ORDER BY measured_at DESC LIMIT {MAX_LATEST}
    )
) s
ORDER BY h.name, d.uuid, s.measured_at, s.id
"""
_SERIES_OF_CAMPAIGN = text(_SERIES.format(pairs=_OF_CAMPAIGN))
_SERIES_NEWEST = text(_SERIES.format(pairs=_NEWEST))


def series_of_devices(connection: Connection, *, campaign_id: int | None = None) -> list[SentinelSeries]:
    """Sentinels of each device for the campaign; without one, for its newest campaign with sentinels."""
    if campaign_id is None:
        found = connection.execute(_SERIES_NEWEST)
    else:
        found = connection.execute(_SERIES_OF_CAMPAIGN, {"campaign_id": campaign_id})
    seen = list[SentinelSeries]()
    for _, group in groupby(found, key=lambda row: row.device_uuid):
        listed = list(group)
        rows = tuple(
            SentinelRow(**{name: getattr(row, name) for name in SentinelRow.__dataclass_fields__})
            for row in listed
            if row.configuration_id == listed[-1].configuration_id  # another version of the farm may measure another
        )
        head = {name: getattr(listed[0], name) for name in ("device_uuid", "device_type", "host", "campaign", "n")}
        seen.append(SentinelSeries(**head, rows=rows, drift=drift_of([row.runtime_ms for row in rows]), ratio=None))
    return with_ratios(seen)


def with_ratios(seen: Sequence[SentinelSeries]) -> list[SentinelSeries]:
    """Fills `ratio` where another device of the type measures the same configuration."""
    alike = defaultdict[tuple[str, uuid.UUID], list[float]](list)
    for one in seen:
        alike[one.device_type, one.rows[-1].configuration_id].append(one.latest_ms)
    return [
        replace(one, ratio=one.latest_ms / statistics.median(times)) if len(times) > 1 else one
        for one in seen
        for times in [alike[one.device_type, one.rows[-1].configuration_id]]
    ]
