"""Where the rows come from: devices, versions, rules, sources, drift, and the commands that repeat them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import farm
from farm.db.sentinels import SentinelSeries
from farm.formatting import counted
from farm.measurement import Source
from farm.report.document import Cell, Listing, Section, Table
from farm.report.report_data import CampaignData, Origin

_UNKNOWN = "unknown"


def warnings(data: CampaignData) -> list[str]:
    """Warnings at the top of the report."""
    found = list[str]()
    rows = defaultdict[str, int](int)
    for origin in data.origins:
        rows[origin.source] += origin.rows
    for source, event in (
        (Source.RECORDED, "were replayed from a recording and not measured by this farm"),
        (Source.IMPORTED, "were measured elsewhere and imported"),
    ):
        if rows[source]:
            found.append(f"{source.upper()}: {rows[source]:,} of {sum(rows.values()):,} rows {event}.")
    if data.open_jobs:
        found.append(
            f"SO FAR: {counted(data.open_jobs, 'job')} of this campaign are open; their results are not in this report."
        )
    if data.stored["state"] == "cancelled":
        found.append("CANCELLED: this report has what was measured before.")
    for name, label in (
        ("clock_policy", "clock policies"),
        ("distribution", "operand distributions"),
        ("l2", "states of the L2"),
        ("protocol", "protocols"),
    ):
        values = sorted({getattr(origin, name) or _UNKNOWN for origin in data.origins})
        if len(values) > 1:
            found.append(f"MIXED: rows of several {label} are together in this report: {', '.join(values)}.")
    drifting = [one for one in data.watched if one.flagged]
    if drifting:
        found.append(f"DRIFT: {', '.join(one.device_uuid for one in drifting)}: see Provenance.")
    return found


def provenance(data: CampaignData) -> Section:
    return Section(
        name="provenance",
        title="Provenance",
        about="Which devices measured what, with which versions and rules, and the commands that repeat the report.",
        sentences=[
            f"This report is of {data.read_at:%Y-%m-%d %H:%M} UTC, by gemm-farm {farm.__version__}. It shows one "
            "snapshot of the database. The comparison of devices has another snapshot, and the model comes from the registry.",
        ],
        tables=[
            *_devices(data.origins),
            *_environments(data.origins),
            *_rules(data),
            *_drift(data.watched),
        ],
        listings=[Listing(caption="Commands that repeat it", text=_commands(data))],
        data={
            "farm_version": farm.__version__,
            "read_at": data.read_at,
            "rules": data.stored["rules"],
            "devices": [{**asdict(origin), "facts": dict(origin.facts)} for origin in data.origins],
            "sentinels": [
                {
                    "device_uuid": one.device_uuid,
                    "sentinels": one.n,
                    "drift_percent": None if one.drift is None else 100 * one.drift.deviation,
                    "flagged": one.flagged,
                }
                for one in data.watched
            ],
        },
    )


def _devices(origins: Sequence[Origin]) -> list[Table]:
    if not origins:
        return []
    devices = [
        (o.device_type, o.device_uuid, o.device_name, o.host, _loud(o.source), o.rows, o.first_at, o.last_at)
        for o in origins
    ]
    rows = [
        (
            o.device_uuid, o.rows_with_power, o.device_s, o.protocol, o.clock_policy or _UNKNOWN, o.l2, o.distribution, 100 * o.median_rse,
            o.largest_verify_error,
        )
        for o in origins
    ]  # fmt: skip
    return [
        Table(
            caption="Devices",
            columns=["device type", "device", "name", "host", "source", "rows", "from", "to"],
            rows=devices,
        ),
        Table(
            caption="How their rows were taken",
            columns=[
                "device",
                "with power",
                "device time s",
                "protocol",
                "clocks",
                "L2",
                "operands",
                "median ±%",
                "largest error",
            ],
            rows=rows,
        ),
    ]


def _loud(source: str) -> Cell:
    return Cell(source if source == Source.MEASURED else source.upper(), source)


def _environments(origins: Sequence[Origin]) -> list[Table]:
    """Each key with its values, and the number of rows with each."""
    rows_of = defaultdict[tuple[str, str], int](int)
    for origin in origins:
        for key, value in origin.environment.items():
            rows_of[key, str(value)] += origin.rows
    if not rows_of:
        return []
    return [
        Table(
            caption="Versions: operating system, driver, CUDA, libraries",
            columns=["what", "version", "rows"],
            rows=[(*key, rows) for key, rows in sorted(rows_of.items())],
        )
    ]


def _rules(data: CampaignData) -> list[Table]:
    rows = [(name, _text(value)) for name, value in _flat(data.stored["rules"])]
    return [Table(caption="Measuring rules", columns=["rule", "value"], rows=rows)]


def _flat(rules: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    found = list[tuple[str, Any]]()
    for name, value in rules.items():
        found += _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else [(f"{prefix}{name}", value)]
    return found


def _text(value: Any) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def _drift(watched: Sequence[SentinelSeries]) -> list[Table]:
    if not watched:
        return []
    return [
        Table(
            caption="Sentinels: a fixed GEMM now and then, the latest three against the first three",
            columns=["device", "host", "sentinels", "latest ms", "drift %", "drifts since"],
            rows=[
                (
                    one.device_uuid, one.host, one.n, one.latest_ms,
                    None if one.drift is None else Cell(f"{100 * one.drift.deviation:+.1f}", one.drift.deviation), one.drifts_since,
                )
                for one in watched
            ],
        )
    ]  # fmt: skip


def _commands(data: CampaignData) -> str:
    stored = data.stored
    name, digest = stored["name"], stored["digest"]
    return "\n".join(
        [
            data.made_by,
            f"farm results --campaign {name} --output {name}.parquet",
            f"farm best {name} --json",
            f"farm compare --by device --campaign {name} --any-source",
            "",
            "-- and in SQL:",
            "SELECT * FROM v_measurements",
            f"WHERE campaign_id = (SELECT id FROM campaigns WHERE digest = '{digest}');",
        ]
    )
