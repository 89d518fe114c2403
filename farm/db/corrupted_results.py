"""Finds corrupted results: failures of that kind, and rows whose digest differs from that of the same work elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection, text

from farm.corruption import CHANGING, ChangedResults, Corruption, DigestRows, corruptions
from farm.db.states import FailureKind
from farm.measurement import Source

WINDOW = timedelta(days=7)
"""How long a corrupted result counts against its device."""

DECIDING_VERSIONS = ("operands", "nvrtc", "cupy", "blas", "numpy")
"""Keys of an environment that decide the bits of a result, in addition to the kernel's hash: of what makes operands, of what compiles
kernels at run time, and of what runs kernels without a hash. The hash of a CUTLASS kernel covers its compiler, that of a cuBLASLt
kernel the library.
"""

_START = f"clock_timestamp() - make_interval(secs => {WINDOW.total_seconds()})"
_SOURCES = f"source IN ('{Source.MEASURED}', '{Source.SENTINEL}')"


def _digest(row: str) -> str:
    """SQL of a row's digest; NULL if its bits are not known."""
    return f"coalesce({row}.result_digest, CASE WHEN NOT {row}.deterministic THEN '{CHANGING}' END)"


_CHANGED = text(f"""
SELECT f.device_id, j.configuration_id, count(DISTINCT f.job_id) AS jobs,
    (array_agg(f.message ORDER BY f.id DESC))[1] AS last_message, min(f.at) AS first_at, max(f.at) AS last_at
FROM devices d JOIN failures f ON f.device_id = d.id AND f.at >= :since AND f.kind = '{FailureKind.CORRUPTED}'
JOIN jobs j ON j.id = f.job_id
GROUP BY f.device_id, j.configuration_id ORDER BY f.device_id, min(f.id)
""")

# First the work with more than one digest, which is little of it; then its rows.
_WORK = ("type", "configuration_id", "kernel_hash", "distribution", "seed", "versions")
_DIGESTS = text(f"""
WITH seen AS NOT MATERIALIZED (
    SELECT r.device_id, r.configuration_id, r.kernel_hash, r.distribution, r.seed, {_digest("r")} AS digest, r.measured_at, d.type, v.versions
    FROM measurements r JOIN devices d ON d.id = r.device_id
    JOIN (
        SELECT id, CAST(ARRAY[{", ".join(f"content ->> '{key}'" for key in DECIDING_VERSIONS)}] AS text) AS versions
        FROM environments
    ) v ON v.id = r.environment_id
    WHERE r.measured_at >= :since AND {_digest("r")} IS NOT NULL AND (:any_source OR r.{_SOURCES})
), apart AS (
    SELECT {", ".join(_WORK)} FROM seen GROUP BY {", ".join(_WORK)} HAVING min(digest) <> max(digest)
)
SELECT s.device_id, {", ".join(f"s.{name}" for name in _WORK)}, s.digest, count(*) AS rows,
    min(s.measured_at) AS first_at, max(s.measured_at) AS last_at
FROM apart a JOIN seen s ON s.configuration_id = a.configuration_id
    AND {" AND ".join(f"s.{name} IS NOT DISTINCT FROM a.{name}" for name in _WORK)}
GROUP BY s.device_id, {", ".join(f"s.{name}" for name in _WORK)}, s.digest
ORDER BY min(s.measured_at), s.device_id
""")


def corrupting(connection: Connection, *, since: datetime, any_source: bool = False) -> dict[int, Corruption]:
    """The devices that corrupted results since that time, or disagree about one, by id.

    Args:
        any_source: compare recorded and imported rows too, instead of those alone that were measured here.
    """
    changed = [ChangedResults(**row) for row in connection.execute(_CHANGED, {"since": since}).mappings()]
    digests = [
        DigestRows(
            device_id=row.device_id,
            configuration_id=row.configuration_id,
            work=tuple(getattr(row, name) for name in _WORK),
            digest=row.digest,
            rows=row.rows,
            first_at=row.first_at,
            last_at=row.last_at,
        )
        for row in connection.execute(_DIGESTS, {"since": since, "any_source": any_source})
    ]
    return corruptions(changed, digests)


_ACTIVE = text(f"SELECT id, state_changed_at, {_START} AS since FROM devices WHERE state = 'active'")


def active_corrupting(connection: Connection) -> dict[int, Corruption]:
    """As `corrupting`, for active devices in the last `WINDOW`, without results from before their state was changed."""
    active = connection.execute(_ACTIVE).all()
    if not active:
        return {}
    found = corrupting(connection, since=active[0].since)
    return {row.id: found[row.id].after(row.state_changed_at) for row in active if row.id in found}


@dataclass(frozen=True, slots=True)
class Newest:
    """Ids of the newest row and the newest failure."""

    row: int = 0
    failure: int = 0


_NEWEST = text("""
SELECT coalesce((SELECT max(id) FROM measurements), 0) AS row, coalesce((SELECT max(id) FROM failures), 0) AS failure
""")


def newest(connection: Connection) -> Newest:
    row = connection.execute(_NEWEST).one()
    return Newest(row=row.row, failure=row.failure)


# OFFSET 0: one look into an index for each new row, where a join would read all rows.
_NEWS = text(f"""
SELECT EXISTS (SELECT FROM failures WHERE id > :failure AND kind = '{FailureKind.CORRUPTED}') OR EXISTS (
    SELECT FROM measurements n JOIN devices d ON d.id = n.device_id
    WHERE n.id > :row AND {_digest("n")} IS NOT NULL AND n.{_SOURCES} AND EXISTS (
        SELECT FROM measurements o JOIN devices p ON p.id = o.device_id
        WHERE o.configuration_id = n.configuration_id AND {_digest("o")} <> {_digest("n")} AND p.type = d.type
            AND o.kernel_hash IS NOT DISTINCT FROM n.kernel_hash AND o.distribution = n.distribution AND o.seed = n.seed
            AND o.measured_at >= {_START} AND o.{_SOURCES}
        OFFSET 0
    )
)
""")


def news(connection: Connection, after: Newest) -> bool:
    """Whether there may be corrupted results among the rows and failures after these.

    It looks at new rows only, and costs little. `corrupting` tells which devices are at fault.
    """
    found: bool = connection.execute(_NEWS, {"row": after.row, "failure": after.failure}).scalar_one()
    return found
