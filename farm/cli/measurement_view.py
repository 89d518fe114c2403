"""The presenter of one row of results: every field in groups, with names and units."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich.text import Text

from farm.both_times import protocol_text
from farm.protocols import ProtocolName
from farm.schema.column import Group
from farm.schema.results import COLUMNS

_DETAILS: Mapping[Group, Mapping[str, str]] = {
    Group.TIME: {
        "gemms_per_sample": "GEMMs per sample",
        "launches_per_sample": "launches per sample",
        "graphs": "graphs replayed in turn",
    },
    Group.POWER: {
        "power_counter_w": "energy counter W",
        "power_counter_rse": "energy counter's error %",
        "power_samples_w": "sample ring W",
        "power_samples_rse": "sample ring's error %",
        "power_limited": "held at the power limit",
        "power_window_w": "drawn in the window W",
        "power_window_s": "window s",
        "power_stop_reason": "window ended because",
    },
    Group.OPERANDS: {
        "operand_sets": "operand sets",
        "footprint_bytes": "footprint bytes",
    },
    Group.VERIFICATION: {
        "verified_by": "verified by",
    },
    Group.KERNEL: {
        "registers": "registers per thread",
        "static_shared_bytes": "shared memory bytes, static",
        "local_bytes": "local memory bytes",
        "blocks": "blocks",
        "blocks_per_multiprocessor": "blocks per multiprocessor",
        "occupancy": "occupancy %",
        "waves": "waves",
        "tile": "tile",
        "stages": "stages",
        "cluster": "cluster",
        "workspace_bytes": "workspace bytes",
    },
}
"""The names of common details. The others belong to the kernel."""

_PERCENT = {"power_counter_rse", "power_samples_rse", "occupancy"}
"""Details from 0 to 1 that are shown in percent."""


def lines(device: Mapping[str, Any], row: Mapping[str, Any]) -> list[tuple[str | Text, Any]]:
    """The lines of the table. Fields without a value and empty groups are left out."""
    details = row["details"]
    if row.get("power_limited") is not None:  # the column is told from more than the power window
        details = {name: value for name, value in details.items() if name != "power_limited"}
    groups: dict[str, list[tuple[str, Any]]] = {}
    for group in Group:
        columns = [
            (c.label, _protocol_text(row) if c.name == _PROTOCOL else _shown(row.get(c.name), c.percent))
            for c in sorted(COLUMNS.values(), key=lambda c: c.name != _PROTOCOL)
            if c.group is group
        ]
        named = [(name, _shown(details.get(key), key in _PERCENT)) for key, name in _DETAILS.get(group, {}).items()]
        groups[group] = columns + named
    known = {key for named in _DETAILS.values() for key in named}
    groups[Group.KERNEL] += [(_words(key), value) for key, value in details.items() if key not in known]
    groups["environment"] = [(_words(name), value) for name, value in row["environment"].items()]
    found: list[tuple[str | Text, Any]] = [
        ("device", f"{device['name']} ({device['type']}), {device['uuid']}"),
        ("source", row["source"]),
    ]
    for title, named_values in groups.items():
        found += _under(title, named_values)
    return found


_PROTOCOL = "protocol"
"""The first line of the times, because it says which time the median is."""


def _protocol_text(row: Mapping[str, Any]) -> str | None:
    """`do-bench: the mean of single launches …`. Rows of `farm` that are older than both times have its name alone."""
    name: str | None = row.get(_PROTOCOL)
    older = name == ProtocolName.FARM and row.get("runtime_burst_ms") is None
    return name if name is None or older else protocol_text(name)


def _shown(value: Any, percent: bool) -> Any:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return 100 * value if percent and value is not None else value


def _words(key: str) -> str:
    return key.replace("_", " ")


def _under(title: str, group: Iterable[tuple[str, Any]]) -> list[tuple[str | Text, Any]]:
    known = [(f"  {name}", value) for name, value in group if value is not None]
    return [(Text(title, style="bold"), ""), *known] if known else []
