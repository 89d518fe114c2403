"""The results of a campaign for autotuners: the T4 format, version 1.0.0, as Kernel Tuner writes it.

The format is one JSON object, described by `results-schema.json` in Kernel Tuner (`kernel_tuner/schema/T4/1.0.0`). Its
`metadata` hold to `metadata-schema.json` there too. Everything here is pure.
"""

from __future__ import annotations

import inspect
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from farm import __version__
from farm.db.states import FailureKind
from farm.errors import BadBinary, BuildFailed, DoesNotCompile, ElementNotWritten, FarmError, WrongResult
from farm.measurement import MeasuringRules
from farm.schema.results import COLUMNS, CONFIGURATION, DERIVED, RESULTS

SCHEMA_VERSION = "1.0.0"

OBJECTIVE = "time"
"""What is minimised, under Kernel Tuner's name: the median time of one GEMM, in ms."""

PROBLEM = tuple(name for name in CONFIGURATION if name not in ("family", "parameters"))

_ELSEWHERE = ("runtime_ms", "cost_s", "window_s", "environment", "details")
UNITS = {
    c.name: c.unit for c in (*RESULTS.values(), *DERIVED, COLUMNS["round"]) if c.exported and c.name not in _ELSEWHERE
}
"""Columns that are measurements of their own in addition to the objective, and their units."""

Invalidity = Literal["correct", "constraints", "compile", "runtime", "correctness", "timeout"]

_KERNEL_TUNER_ERROR: dict[Invalidity, str] = {"constraints": "InvalidConfig", "compile": "CompilationFailedConfig"}
"""What Kernel Tuner has in the place of the objective; for everything else `RuntimeFailedConfig`."""

OUTLIVED = "(job_seconds)"
"""Part of a worker's message about a job that it ended because it hung."""


@dataclass(frozen=True, slots=True)
class Space:
    """The search space of one T4 file: one kernel on one device type, or on the one device that a target named."""

    family: str
    device_type: str
    device_uuid: str | None

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Space:
        return cls(row["family"], row["device_type"], row["only_device"])

    def __str__(self) -> str:
        return " ".join(filter(None, (self.family, "on", self.device_type, self.device_uuid)))

    @property
    def file_name(self) -> str:
        """`tiled-nvidia-h200.json`; a device's UUID follows its type."""
        parts = filter(None, (self.family, self.device_type, self.device_uuid))
        return re.sub(r"[^\w.-]", "_", "-".join(parts)) + ".json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The campaign and the devices of the results."""

    campaign: str
    digest: str
    rules: MeasuringRules
    # As `farm.db.devices.overview` has them, by UUID.
    devices: Mapping[str, Mapping[str, Any]]


def documents(
    measured: Iterable[Mapping[str, Any]], without_result: Iterable[Mapping[str, Any]], origin: Origin
) -> dict[Space, dict[str, Any]]:
    """A T4 document for each search space, of the rows that `farm.db.outcomes` reads."""
    spaces: dict[Space, tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]] = defaultdict(lambda: ([], []))
    for row in measured:
        spaces[Space.of(row)][0].append(row)
    for row in without_result:
        spaces[Space.of(row)][1].append(row)
    return {space: _document(space, *spaces[space], origin) for space in sorted(spaces, key=str)}


def _document(
    space: Space, measured: Sequence[Mapping[str, Any]], without: Sequence[Mapping[str, Any]], origin: Origin
) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "metadata": _metadata(space, measured, without, origin),
        "results": [*map(_measured, measured), *map(_without_result, without)],
    }


def _metadata(
    space: Space, measured: Sequence[Mapping[str, Any]], without: Sequence[Mapping[str, Any]], origin: Origin
) -> dict[str, Any]:
    versions = {str(sorted(row["environment"].items())): row["environment"] for row in measured}
    systems = {str(content["os"]) for content in versions.values() if "os" in content}
    uuids = {row["device_uuid"] for row in (*measured, *without)} & origin.devices.keys()
    described = ("uuid", "type", "name", "backend", "host", "traits")
    hardware: dict[str, Any] = {
        "hardware_description": [{name: origin.devices[uuid][name] for name in described} for uuid in sorted(uuids)]
    }
    if systems:
        hardware["operating_system"] = ", ".join(sorted(systems))
    return {
        "timeunit": "milliseconds",
        "generator": f"gemm-farm {__version__}",
        "campaign": origin.campaign,
        "campaign_digest": origin.digest,
        "kernel": space.family,
        "device_type": space.device_type,
        "device_uuid": space.device_uuid,
        "measuring_rules": origin.rules.model_dump(mode="json"),
        "hardware": hardware,
        "environment": {"versions": list(versions.values())},
    }


def _configuration(row: Mapping[str, Any]) -> dict[str, Any]:
    return {**{name: row[name] for name in PROBLEM}, **row["parameters"]}


def _timestamp(moment: datetime) -> str:
    return str(moment.astimezone(UTC))


def _value(name: str, value: Any, unit: str) -> dict[str, Any]:
    """A measurement. The schema has no booleans: 1 is yes."""
    return {"name": name, "value": int(value) if isinstance(value, bool) else value, "unit": unit}


def _times(runtimes: list[float], *, benchmark_s: float = 0.0, rest_s: float = 0.0) -> dict[str, Any]:
    """In ms. As in Kernel Tuner, every phase is named, and a phase without a time is 0: readers add them up.

    Only the whole cost of a row is known, so compiling and verifying are in `framework`. A failed attempt has no times.
    """
    return {
        "compilation": 0.0,
        "benchmark": 1000 * benchmark_s,
        "framework": max(0.0, 1000 * rest_s),
        "search_algorithm": 0.0,
        "validation": 0.0,
        "runtimes": runtimes,
    }


def _measured(row: Mapping[str, Any]) -> dict[str, Any]:
    known = [_value(name, row[name], unit) for name, unit in UNITS.items() if row[name] is not None]
    return {
        "timestamp": _timestamp(row["measured_at"]),
        "configuration": _configuration(row),
        "times": _times([row["runtime_ms"]], benchmark_s=row["window_s"], rest_s=row["cost_s"] - row["window_s"]),
        "invalidity": "correct",
        "correctness": 1,
        "measurements": [_value(OBJECTIVE, row["runtime_ms"], "ms"), *known],
        "objectives": [OBJECTIVE],
    }


def _without_result(row: Mapping[str, Any]) -> dict[str, Any]:
    why = invalidity(FailureKind(row["error_class"]), row["error"])
    error = _KERNEL_TUNER_ERROR.get(why, "RuntimeFailedConfig")
    values = {OBJECTIVE: error, "__error__": error, "error": row["error"], "error_class": row["error_class"]}
    return {
        "timestamp": _timestamp(row["failed_at"]),
        "configuration": _configuration(row),
        "times": _times([]),
        "invalidity": why,
        "correctness": 0,
        "measurements": [_value(name, value, "ms" if name == OBJECTIVE else "") for name, value in values.items()],
        "objectives": [OBJECTIVE],
    }


def invalidity(kind: FailureKind, message: str) -> Invalidity:
    """T4's term for a job's last failure. Failures store messages, so the start of the message identifies the error."""
    if _is_one_of(message, BuildFailed, DoesNotCompile, BadBinary):
        return "compile"
    if kind is FailureKind.INVALID:
        return "constraints"
    if kind in (FailureKind.CORRUPTED, FailureKind.REFUSED) or _is_one_of(message, WrongResult, ElementNotWritten):
        return "correctness"
    return "timeout" if kind is FailureKind.KILLED and OUTLIVED in message else "runtime"


def _is_one_of(message: str, *errors: type[FarmError]) -> bool:
    """Whether it is the message of one of these errors: it begins as their docstrings do, up to the first field."""
    return message.startswith(tuple(inspect.cleandoc(error.__doc__ or "").partition("{")[0] for error in errors))
