"""Versions of the farm that workers run, and what these can read.

A worker refuses jobs that its version cannot read. The refusal holds for every worker of the same version, and for none
of another one. The package, its database revision and its *vocabulary* identify a version: two checkouts may have the same
number and different kernel families.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from sqlalchemy import Connection, text

import farm
from farm.db import migrate
from farm.devices import IMPORTED_PREFIX
from farm.gemm import ElementType, Layout
from farm.measurement import MeasuringRules

UNANNOUNCED = "an unannounced version"
"""Text for workers that do not announce their version."""


@dataclass(frozen=True, slots=True)
class WorkerVersion:
    """The version of the farm that a worker runs."""

    version: str
    revision: str

    def __str__(self) -> str:
        return f"gemm-farm {self.version} (revision {self.revision})"


@cache
def own() -> WorkerVersion:
    """The version of this process."""
    return WorkerVersion(farm.__version__, migrate.head())


def vocabulary() -> str:
    """Digest of what this version can read in a job: kernel families, element types, layouts and measuring rules."""
    from farm.kernels import FAMILIES  # all of them: those who ask only who runs what need none

    readable = {
        "families": {
            family.name: {parameter.name: repr(parameter.values) for parameter in family.parameters}
            for family in FAMILIES.values()
        },
        "types": [one.value for one in ElementType],
        "layouts": [one.value for one in Layout],
        "rules": MeasuringRules.model_json_schema(),
    }
    return hashlib.sha256(json.dumps(readable, sort_keys=True).encode()).hexdigest()[:16]


_ANNOUNCE = text("SELECT worker_announce_version(:device_id, :version, :revision, :vocabulary)")


def announce(connection: Connection, device_id: int) -> None:
    """Records that the worker of the device runs the version of this process."""
    known = {"version": own().version, "revision": own().revision, "vocabulary": vocabulary()}
    connection.execute(_ANNOUNCE, {**known, "device_id": device_id})


_OF_DEVICES = text("SELECT id, worker_version_id FROM devices WHERE worker_version_id IS NOT NULL")


def of_devices(connection: Connection) -> Mapping[int, int]:
    """Ids of announced versions, by device id."""
    return {row.id: row.worker_version_id for row in connection.execute(_OF_DEVICES)}


@dataclass(frozen=True, slots=True)
class VersionInUse:
    """A version, and the hosts with live workers of it. None: not announced."""

    version: WorkerVersion | None
    hosts: tuple[str, ...]
    devices: int


_OF_LIVE = text("""
SELECT v.version, v.revision, array_agg(DISTINCT h.name ORDER BY h.name) AS hosts, count(*) AS devices
FROM devices d JOIN hosts h ON h.id = d.host_id LEFT JOIN worker_versions v ON v.id = d.worker_version_id
WHERE d.vanished_at IS NULL AND d.last_seen_at > clock_timestamp() - make_interval(secs => :silent_after)
  AND NOT starts_with(d.uuid, :imported)
GROUP BY v.version, v.revision ORDER BY v.revision, v.version
""")


def of_live(connection: Connection, *, silent_after: float) -> list[VersionInUse]:
    """Versions of live workers, the oldest first."""
    rows = connection.execute(_OF_LIVE, {"silent_after": silent_after, "imported": IMPORTED_PREFIX})
    return [
        VersionInUse(
            None if row.version is None else WorkerVersion(row.version, row.revision), tuple(row.hosts), row.devices
        )
        for row in rows
    ]


_WAITING = text("SELECT count(*) FROM returned_jobs WHERE refused_by[1] < 0")


def waiting(connection: Connection) -> int:
    """Number of jobs that wait because a version of the workers cannot read them."""
    found: int = connection.execute(_WAITING).scalar_one()
    return found
