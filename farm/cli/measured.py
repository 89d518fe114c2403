"""A row of results for people: every field that it has, in groups, each under a name with its unit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich.text import Text

_TIME = {
    "median ms": "runtime_ms",
    "first quartile ms": "runtime_q1_ms",
    "third quartile ms": "runtime_q3_ms",
    "fastest ms": "runtime_min_ms",
    "standard error %": "runtime_rse",
    "samples": "samples",
    "stopped because": "stop_reason",
    "median ms, warm cache": "runtime_warm_ms",
    "TFLOP/s": "tflops",
    "GEMMs per sample": "details.gemms_per_sample",
    "launches per sample": "details.launches_per_sample",
    "graphs replayed in turn": "details.graphs",
    "s that it took in all": "cost_s",
    "s in which the GEMM ran": "window_s",
}
_POWER = {
    "power W": "power_w",
    "power's error %": "power_rse",
    "power from": "power_source",
    "mean ms while it was read": "runtime_sustained_ms",
    "energy mJ per GEMM": "energy_mj",
    "GFLOP/s/W": "gflops_per_w",
    "sources disagree": "power_disagrees",
    "energy counter W": "details.power_counter_w",
    "energy counter's error %": "details.power_counter_rse",
    "sample ring W": "details.power_samples_w",
    "sample ring's error %": "details.power_samples_rse",
    "held at the power limit": "details.power_limited",
    "drawn in the window W": "details.power_window_w",
    "window s": "details.power_window_s",
    "window ended because": "details.power_stop_reason",
    "power limit W": "power_limit_w",
    "idle power W": "idle_power_w",
}
_CLOCKS = {
    "SM clock MHz": "sm_clock_mhz",
    "memory clock MHz": "memory_clock_mhz",
    "clock policy": "clock_policy",
    "temperature before °C": "temperature_before_c",
    "temperature after °C": "temperature_c",
    "throttled by": "throttle_reasons",
}
_OPERANDS = {
    "distribution": "distribution",
    "seed": "seed",
    "cache": "l2",
    "operand sets": "details.operand_sets",
    "footprint bytes": "details.footprint_bytes",
    "FLOP per byte": "intensity",
}
_VERIFICATION = {"largest error, relative": "verify_error", "verified by": "details.verified_by"}
_KERNEL = {
    "registers per thread": "details.registers",
    "shared memory bytes, static": "details.static_shared_bytes",
    "local memory bytes": "details.local_bytes",
    "blocks": "details.blocks",
    "blocks per multiprocessor": "details.blocks_per_multiprocessor",
    "occupancy %": "details.occupancy",
    "waves": "details.waves",
    "tile": "details.tile",
    "stages": "details.stages",
    "cluster": "details.cluster",
    "workspace bytes": "details.workspace_bytes",
    "hash": "kernel_hash",
}
_GROUPS = {
    "time": _TIME,
    "power and energy": _POWER,
    "clocks and temperature": _CLOCKS,
    "operands and cache": _OPERANDS,
    "verification": _VERIFICATION,
    "kernel": _KERNEL,
}
"""What a line is called, and the field that it shows. Details that are named in no group are the kernel's."""

_SHARES = {"runtime_rse", "power_rse", "details.power_counter_rse", "details.power_samples_rse", "details.occupancy"}
"""Fields from 0 to 1 that are shown in percent."""


def lines(device: Mapping[str, Any], row: Mapping[str, Any]) -> list[tuple[str | Text, Any]]:
    """A table's lines: what could not be measured here has none, and neither has a group of which nothing is known."""
    values = {name: value for name, value in row.items() if name not in ("details", "environment")}
    values |= {f"details.{name}": value for name, value in row["details"].items()}
    named = {field for group in _GROUPS.values() for field in group.values()}
    groups = {
        title: [(name, _shown(values, field)) for name, field in group.items()] for title, group in _GROUPS.items()
    }
    rest = [f"details.{name}" for name in row["details"] if f"details.{name}" not in named]
    groups["kernel"] += [(_words(field), values[field]) for field in rest]
    groups["environment"] = [(_words(name), value) for name, value in row["environment"].items()]
    found: list[tuple[str | Text, Any]] = [
        ("device", f"{device['name']} ({device['type']}), {device['uuid']}"),
        ("source", row["source"]),
    ]
    for title, group in groups.items():
        found += _under(title, group)
    return found


def _shown(values: Mapping[str, Any], field: str) -> Any:
    value = values.get(field)
    return 100 * value if field in _SHARES and value is not None else value


def _words(field: str) -> str:
    return field.removeprefix("details.").replace("_", " ")


def _under(title: str, group: Iterable[tuple[str, Any]]) -> list[tuple[str | Text, Any]]:
    known = [(f"  {name}", value) for name, value in group if value is not None]
    return [(Text(title, style="bold"), ""), *known] if known else []
