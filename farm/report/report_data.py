"""Loads the data of a report from the database in one snapshot."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Engine, text

from farm.analysis import tiles
from farm.analysis.tiles import DeviceTiles, TiledRow
from farm.campaign import Campaign
from farm.compare.comparison import Comparison
from farm.db import arrow_columns, campaigns, learning, sentinels
from farm.db.sentinels import SentinelSeries
from farm.gemm import PROBLEM_COLUMNS
from farm.report.accuracy import Accuracy
from farm.report.best import BestKernel, best
from farm.report.operand_effects import OperandEffect, operand_effects
from farm.report.result_points import Results, reduced
from farm.report.workload import Workload, workloads


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Rows that have all of this in common, and their number."""

    device_type: str
    device_uuid: str
    device_name: str
    host: str
    facts: Mapping[str, Any]
    source: str
    clock_policy: str | None
    distribution: str
    protocol: str
    l2: str
    environment: Mapping[str, Any]
    rows: int
    rows_with_power: int
    rows_power_disagrees: int
    device_s: float
    largest_verify_error: float | None
    median_rse: float
    first_at: datetime
    last_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """Why jobs ended without a row. Numbers in the reason are `…`; the example has those of one job."""

    state: str  # invalid or dead
    kind: str
    reason: str
    example: str
    jobs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignData:
    stored: Mapping[str, Any]  # the campaign's row
    counts: Mapping[str, int]
    rounds: int
    read_at: datetime
    results: Results
    origins: Sequence[Origin]
    failed: Sequence[Failed]
    found: Sequence[BestKernel]
    # Of all GEMMs, by device type; empty without counts.
    workloads: Sequence[Workload]
    tiles: Sequence[DeviceTiles]
    watched: Sequence[SentinelSeries]
    # Points of the learning curve, by pool and round.
    learning: Sequence[Mapping[str, Any]]
    # By device type and operands; empty where all rows have the same.
    operand_effects: Sequence[OperandEffect] = ()
    # Comparisons of devices, and why others are not there.
    comparisons: Sequence[Comparison] = ()
    not_compared: Sequence[str] = ()
    accuracies: Sequence[Accuracy] = ()
    # The command that makes the report again.
    made_by: str = ""

    @property
    def rows(self) -> int:
        return sum(origin.rows for origin in self.origins)

    @property
    def open_jobs(self) -> int:
        return campaigns.open_jobs(self.counts)


@contextmanager
def one_snapshot(engine: Engine) -> Iterator[Connection]:
    """A read-only connection that sees the database at this moment, even if rows land later."""
    options = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
    with engine.connect().execution_options(**options) as connection:
        yield connection


def gather(engine: Engine, name: str, *, device_type: str | None = None) -> CampaignData:
    """The data of a campaign, or of one device type of it. Raises `NoSuchCampaign`."""
    with one_snapshot(engine) as connection:
        stored = campaigns.find(connection, name)
        campaign_id = stored["id"]
        campaign = Campaign.from_document(stored["document"])
        only = {"campaign_id": campaign_id, "device_type": device_type}
        origins = _origins(connection, only)
        found = [one for one in best(connection, campaign_id, campaign) if device_type in (None, one.device_type)]
        return CampaignData(
            stored=stored,
            counts=campaigns.counts(connection, campaign_id),
            rounds=connection.execute(_ROUNDS, only).scalar_one(),
            read_at=connection.execute(_NOW).scalar_one(),
            results=_results(engine, arrow_columns.snapshot_of(connection), campaign_id, device_type),
            origins=origins,
            failed=_failed(connection, only),
            found=found,
            workloads=workloads(found, campaign.counts),
            tiles=_tiles(connection, only),
            watched=[
                one
                for one in sentinels.series_of_devices(connection, campaign_id=campaign_id)
                if device_type in (None, one.device_type)
            ],
            learning=learning.curve(connection, campaign_id, device_type=device_type),
            operand_effects=operand_effects(connection, campaign_id, device_type),
        )


_NOW = text("SELECT clock_timestamp()")
_ROUNDS = text("SELECT count(DISTINCT round) FROM lanes WHERE campaign_id = :campaign_id")
_OF_TYPE = "(CAST(:device_type AS text) IS NULL OR v.device_type = :device_type)"
# Rows are aggregated by short columns first, and joined with devices and environments afterwards.
_ORIGINS = text(f"""
SELECT d.type AS device_type, d.uuid AS device_uuid, d.name AS device_name, h.name AS host, d.facts, e.content AS environment, o.*
FROM (
    SELECT r.device_id, r.environment_id, v.source, v.clock_policy, v.distribution, v.l2, v.protocol, count(*) AS rows,
        count(v.power_w) AS rows_with_power, count(*) FILTER (WHERE v.power_disagrees) AS rows_power_disagrees,
        sum(v.cost_s) AS device_s, max(v.verify_error) AS largest_verify_error,
        percentile_cont(0.5) WITHIN GROUP (ORDER BY v.runtime_rse) AS median_rse,
        min(v.measured_at) AS first_at, max(v.measured_at) AS last_at
    FROM v_measurements v JOIN measurements r ON r.id = v.measurement_id
    WHERE v.campaign_id = :campaign_id AND {_OF_TYPE}
    GROUP BY 1, 2, 3, 4, 5, 6, 7
) o
JOIN devices d ON d.id = o.device_id JOIN hosts h ON h.id = d.host_id JOIN environments e ON e.id = o.environment_id
ORDER BY d.type, h.name, d.uuid, o.first_at
""")


def _origins(connection: Connection, only: Mapping[str, Any]) -> list[Origin]:
    names = Origin.__dataclass_fields__
    return [
        Origin(**{name: row[name] for name in names}) for row in connection.execute(_ORIGINS, dict(only)).mappings()
    ]


_TEXTS = ("device_type", "ab", "cd", "acc", "layout", "scale", "fused", "groups", "sparsity", "family", "parameters")
_NUMBERS = ("runtime_ms", "runtime_burst_ms", "power_w", "energy_mj")


def _results(engine: Engine, snapshot: str, campaign_id: int, device_type: str | None) -> Results:
    selected = [
        *(name for name in PROBLEM_COLUMNS if name not in _TEXTS),
        *(name if name != "parameters" else "parameters::text AS parameters" for name in _TEXTS),
        *_NUMBERS,
        "power_limited::int::float8 AS power_limited",
        # A recording may have a value of another type under that name.
        "CASE WHEN jsonb_typeof(details->'occupancy') = 'number' THEN (details->>'occupancy')::float8 END AS occupancy",
    ]
    table = arrow_columns.read(
        engine,
        f"SELECT {', '.join(selected)} FROM v_measurements WHERE campaign_id = {campaign_id:d}"
        + ("" if device_type is None else f" AND device_type = {_literal(device_type)}"),
        snapshot=snapshot,
    )
    found: dict[str, Any] = {name: arrow_columns.codes(table[name]) for name in _TEXTS}
    found |= {name: arrow_columns.numbers(table[name]) for name in table.column_names if name not in _TEXTS}
    return reduced(found, table.num_rows)


def _literal(value: str) -> str:
    """A text as an SQL literal, because COPY takes no parameters."""
    escaped = value.replace("'", "''").replace("\\", "\\\\")
    return f"E'{escaped}'"


# --- what failed -----------------------------------------------------------------------------------------

MAX_REASONS = 12
_STANDALONE_NUMBER = re.compile(r"(?<![\w.])\d[\d,.]*\d|(?<![\w.])\d")
_FAILED = text("""
SELECT j.state, f.kind, f.message, count(*) AS jobs
FROM (
    SELECT DISTINCT ON (f.job_id) f.job_id, f.kind, f.message, f.device_id FROM lanes l JOIN failures f ON f.lane_id = l.id
    WHERE l.campaign_id = :campaign_id ORDER BY f.job_id, f.id DESC
) f
JOIN jobs j ON j.id = f.job_id AND j.state IN ('invalid', 'dead')
LEFT JOIN devices d ON d.id = f.device_id
WHERE CAST(:device_type AS text) IS NULL OR d.type IS NULL OR d.type = :device_type
GROUP BY j.state, f.kind, f.message ORDER BY count(*) DESC, f.message
""")


def _failed(connection: Connection, only: Mapping[str, Any]) -> list[Failed]:
    """The most frequent reasons first. Reasons that differ only in numbers are one."""
    merged = dict[tuple[str, str, str], Failed]()
    for row in connection.execute(_FAILED, dict(only)):
        reason = _STANDALONE_NUMBER.sub("…", row.message.strip().split("\n", 1)[0])
        key = (row.state, row.kind, reason)
        so_far = merged[key].jobs if key in merged else 0
        example = merged[key].example if key in merged else row.message.strip()
        merged[key] = Failed(state=row.state, kind=row.kind, reason=reason, example=example, jobs=so_far + row.jobs)
    return sorted(merged.values(), key=lambda failed: -failed.jobs)


# --- tiles -------------------------------------------------------------------------------------------------

_TILED = text(f"""
SELECT v.device_type, v.device_uuid, {", ".join(f"v.{name}" for name in PROBLEM_COLUMNS)}, v.family, v.parameters,
    v.distribution, v.runtime_ms, v.power_w, v.runtime_settled_ms, v.details
FROM v_measurements v WHERE v.campaign_id = :campaign_id AND v.family = :family AND {_OF_TYPE}
""")


def _tiles(connection: Connection, only: Mapping[str, Any]) -> list[DeviceTiles]:
    return tiles.analyze(
        TiledRow.from_columns(dict(row))
        for row in connection.execute(_TILED, {**only, "family": tiles.FAMILY}).mappings()
    )
