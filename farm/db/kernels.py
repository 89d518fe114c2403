"""Kernels that are built ahead of time: requests, builders and results.

Writes of a builder are fenced: see `farm.db.task_rows`. `farm.db.batches.waiting` handles the jobs that wait for a kernel.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, text

from farm.db.states import KernelState
from farm.db.task_rows import MAX_ATTEMPTS, TaskTable
from farm.kernels.binary import Binary
from farm.kernels.toolchains import Versions

_KERNELS = TaskTable(
    "kernels",
    waiting=KernelState.WANTED,
    running=KernelState.BUILDING,
    failed=KernelState.FAILED,
    given_up="The kernel could not be built: its builder died or fell silent, %s times in a row; see the log of the builder",
    # A kernel that one host could not build goes to another host if there is one with its toolchain.
    suits="""toolchain = ANY(:toolchains) AND (builder IS DISTINCT FROM :builder OR NOT EXISTS (
        SELECT 1 FROM builders WHERE split_part(name, ':', 1) <> :builder AND toolchain = ANY(toolchains)
          AND last_seen_at > clock_timestamp() - interval '20 s'
    ))""",
)


@dataclass(frozen=True, slots=True)
class BuildAttempt:
    """The right of a builder to build a kernel, until it is taken back."""

    kernel_id: int
    number: int  # of the attempt, from 1
    hash: str
    description: dict[str, Any]  # of a farm.kernels.binary.Binary
    queued_s: float = 0.0  # from the request to this attempt


_WANT = text("""
INSERT INTO kernels (hash, description, toolchain)
SELECT * FROM unnest(CAST(:hashes AS text[]), CAST(:descriptions AS jsonb[]), CAST(:toolchains AS text[]))
ON CONFLICT DO NOTHING
""")
_IDS = text("SELECT hash, id FROM kernels WHERE hash = ANY(:hashes)")


def want(connection: Connection, binaries: Iterable[Binary], versions: Versions) -> dict[str, int]:
    """Requests kernels. Known kernels stay unchanged. Returns ids by hash."""
    by_hash = {binary.hash(versions): binary for binary in binaries}
    hashes = sorted(by_hash)  # two at once never wait for each other
    connection.execute(
        _WANT,
        {
            "hashes": hashes,
            "descriptions": [json.dumps(by_hash[h].to_json()) for h in hashes],
            "toolchains": [by_hash[h].toolchain(versions) for h in hashes],
        },
    )
    return {row.hash: row.id for row in connection.execute(_IDS, {"hashes": hashes})}


_WANT_AGAIN = text("""
WITH these AS MATERIALIZED (
    SELECT id FROM kernels
    WHERE id = ANY(:ids) AND NOT final AND (state = 'failed' OR (:lost AND state = 'built'))
    ORDER BY id FOR NO KEY UPDATE
)
UPDATE kernels k SET state = 'wanted', starts = 0, sent_at = NULL, finished_at = NULL, wanted_at = clock_timestamp()
FROM these WHERE k.id = these.id
""")


def want_again(connection: Connection, ids: Sequence[int], *, lost: bool = False) -> int:
    """failed → wanted, except for kernels that do not compile. With `lost`, built → wanted too: the store has lost them.

    Returns the number of changed rows.
    """
    return connection.execute(_WANT_AGAIN, {"ids": list(ids), "lost": lost}).rowcount


WAITED_FOR = """waited_for AS (
    (SELECT lane_id, kernel_id FROM waiting_jobs ORDER BY lane_id, kernel_id LIMIT 1)
    UNION ALL
    SELECT w.lane_id, w.kernel_id FROM waited_for f CROSS JOIN LATERAL (
        SELECT lane_id, kernel_id FROM waiting_jobs WHERE (lane_id, kernel_id) > (f.lane_id, f.kernel_id)
        ORDER BY lane_id, kernel_id LIMIT 1
    ) w
)"""
"""For WITH RECURSIVE: which job groups wait for which kernels, one after the other in an index, however many jobs wait."""

# Kernels of the most urgent campaigns first; none that only paused or cancelled campaigns need. The pause before a message is sent
# again grows, so that a farm without builders does not fill its broker.
_UNSENT = text(f"""
WITH RECURSIVE {WAITED_FOR}
SELECT k.id
FROM kernels k JOIN (
    SELECT w.kernel_id, max(c.priority) AS priority
    FROM waited_for w JOIN lanes l ON l.id = w.lane_id JOIN campaigns c ON c.id = l.campaign_id
    WHERE c.state = 'active' GROUP BY w.kernel_id
) u ON u.kernel_id = k.id
WHERE k.state = 'wanted'
  AND (k.sent_at IS NULL OR k.sent_at < clock_timestamp()
    - greatest(make_interval(secs => :resend_after), 0.5 * (k.sent_at - k.wanted_at)))
ORDER BY u.priority DESC, k.id LIMIT :limit FOR NO KEY UPDATE OF k SKIP LOCKED
""")


def unsent(connection: Connection, *, resend_after: float, limit: int = 200) -> list[int]:
    """Wanted kernels whose message was never sent, or may be lost."""
    parameters = {"resend_after": resend_after, "limit": limit}
    return list(connection.execute(_UNSENT, parameters).scalars())


def mark_sent(connection: Connection, ids: Sequence[int]) -> None:
    """Records that the broker has the messages of these kernels."""
    _KERNELS.mark_sent(connection, ids)


# Its message is sent again at once where another builder has its toolchain.
_PASS_ON = text("""
UPDATE kernels SET sent_at = NULL
WHERE id = :id AND state = 'wanted' AND toolchain <> ALL(:toolchains) AND EXISTS (
    SELECT 1 FROM builders WHERE toolchain = ANY(toolchains) AND last_seen_at > clock_timestamp() - interval '20 s'
)
""")


def start(connection: Connection, kernel_id: int, toolchains: Sequence[str], *, builder: str) -> BuildAttempt | None:
    """wanted → building, on the host of that name, which has toolchains of these versions.

    Returns None if another builder has it, it is finished, it needs another toolchain, or this host failed to build it and
    another host can try.
    """
    row = _KERNELS.start(connection, kernel_id, toolchains=list(toolchains), builder=builder)
    if row is None:
        connection.execute(_PASS_ON, {"id": kernel_id, "toolchains": list(toolchains)})
        return None
    queued_s = (row.started_at - row.wanted_at).total_seconds()
    return BuildAttempt(row.id, row.starts, row.hash, row.description, queued_s)


def beat(connection: Connection, started: BuildAttempt) -> bool:
    """Records a heartbeat. Returns whether the builder still has the kernel."""
    return _KERNELS.beat(connection, started.kernel_id, started.number)


_BUILT = text(f"""
UPDATE kernels SET state = 'built', finished_at = clock_timestamp(), record = CAST(:record AS jsonb),
    signature = :signature, builder = :builder, error = NULL
WHERE {_KERNELS.fence}
""")
_FAILED = text(f"""
UPDATE kernels SET sent_at = NULL, builder = :builder, error = :error, final = :final,
    state = CASE WHEN :final OR starts >= :max_attempts THEN 'failed' ELSE 'wanted' END,
    finished_at = CASE WHEN :final OR starts >= :max_attempts THEN clock_timestamp() END
WHERE {_KERNELS.fence}
""")


def built(
    connection: Connection, started: BuildAttempt, *, record: Mapping[str, Any], signature: str, builder: str
) -> bool:
    """building → built. The store already has the code. Returns whether the builder still had the kernel."""
    parameters = {
        "id": started.kernel_id,
        "number": started.number,
        "builder": builder,
        "record": json.dumps(record),
        "signature": signature,
    }
    return bool(connection.execute(_BUILT, parameters).rowcount)


def failed(connection: Connection, started: BuildAttempt, *, error: str, final: bool, builder: str) -> bool:
    """building → failed if the error is final or this was the last attempt, else → wanted for another builder.

    Returns whether the builder still had the kernel.
    """
    parameters = {
        "id": started.kernel_id,
        "number": started.number,
        "builder": builder,
        "error": error,
        "final": final,
        "max_attempts": MAX_ATTEMPTS,
    }
    return bool(connection.execute(_FAILED, parameters).rowcount)


def take_back(connection: Connection, *, silent_after: float, max_attempts: int) -> dict[int, KernelState]:
    """building → wanted, if the builder sent no heartbeat for `silent_after` seconds; → failed after `max_attempts`.

    Returns the new state by id.
    """
    taken = _KERNELS.take_back(connection, silent_after=silent_after, max_attempts=max_attempts)
    return {kernel_id: KernelState(state) for kernel_id, state in taken.items()}


_ADD = text("""
INSERT INTO kernels (hash, description, toolchain, state, finished_at, builder, record, signature)
VALUES (:hash, CAST(:description AS jsonb), :toolchain, 'built', clock_timestamp(), :builder, CAST(:record AS jsonb),
    :signature)
ON CONFLICT (hash) DO UPDATE SET state = 'built', finished_at = excluded.finished_at, builder = excluded.builder,
    record = excluded.record, signature = excluded.signature, error = NULL, final = false
WHERE kernels.state <> 'built'
""")


def add(
    connection: Connection,
    binary: Binary,
    versions: Versions,
    *,
    record: Mapping[str, Any],
    signature: str,
    builder: str,
) -> bool:
    """Adds a kernel that was built elsewhere and is in the store. Returns whether it was missing."""
    parameters = {
        "hash": binary.hash(versions),
        "description": json.dumps(binary.to_json()),
        "toolchain": binary.toolchain(versions),
        "builder": builder,
        "record": json.dumps(record),
        "signature": signature,
    }
    return bool(connection.execute(_ADD, parameters).rowcount)


@dataclass(frozen=True, slots=True)
class KnownKernel:
    """State and record of a kernel."""

    id: int
    state: KernelState
    record: dict[str, Any] | None
    signature: str | None
    error: str | None
    final: bool


_FIND = text("SELECT id, state, record, signature, error, final FROM kernels WHERE hash = :hash")


def find(connection: Connection, hash_: str) -> KnownKernel | None:
    """The kernel of that hash; None if it was never requested."""
    row = connection.execute(_FIND, {"hash": hash_}).one_or_none()
    return (
        None
        if row is None
        else KnownKernel(row.id, KernelState(row.state), row.record, row.signature, row.error, row.final)
    )


_LIST = text("""
SELECT k.id AS kernel_id, k.hash, k.description ->> 'arch' AS arch, k.description ->> 'label' AS label, k.toolchain, k.state,
    k.wanted_at, k.started_at, k.finished_at, k.builder, k.record, k.error, w.jobs AS waiting_jobs
FROM kernels k CROSS JOIN LATERAL (
    SELECT CASE WHEN CAST(:campaign_id AS bigint) IS NULL
        THEN (SELECT count(*) FROM waiting_jobs WHERE kernel_id = k.id)
        ELSE (
            SELECT count(*) FROM lanes l JOIN waiting_jobs w ON w.lane_id = l.id AND w.kernel_id = k.id
            WHERE l.campaign_id = :campaign_id
        ) END AS jobs
) w
WHERE (CAST(:states AS text[]) IS NULL OR k.state = ANY(:states))
  AND (CAST(:campaign_id AS bigint) IS NULL OR w.jobs > 0)
ORDER BY array_position(ARRAY['failed', 'building', 'wanted', 'built'], k.state), k.id
""")


def listed(
    connection: Connection, *, states: Sequence[KernelState] | None = None, campaign_id: int | None = None
) -> list[dict[str, Any]]:
    """Kernels with their record and the number of waiting jobs. With `campaign_id`, only kernels that the campaign waits for."""
    chosen = None if states is None else [state.value for state in states]
    rows = connection.execute(_LIST, {"states": chosen, "campaign_id": campaign_id})
    return [dict(row) for row in rows.mappings()]


_NO_BUILDER = """NOT EXISTS (
        SELECT 1 FROM builders b
        WHERE k.toolchain = ANY(b.toolchains) AND b.last_seen_at > clock_timestamp() - make_interval(secs => :silent_after)
    )"""
"""Whether no live builder has the toolchain of the kernel k."""


@dataclass(frozen=True, slots=True)
class AwaitedKernels:
    """Kernels that a campaign waits for, how many of them are being built, and the number of waiting jobs."""

    kernels: int
    building: int
    jobs: int
    # Toolchains of these kernels that no live builder has.
    without_builder: list[str] = field(default_factory=list)


# As `WAITED_FOR`, in each job group of the campaign; the jobs are then read of the index alone, without their order on the disk.
_AWAITED = text(f"""
WITH RECURSIVE waited_for AS (
    SELECT l.id AS lane_id, (SELECT min(kernel_id) FROM waiting_jobs WHERE lane_id = l.id) AS kernel_id
    FROM lanes l WHERE l.campaign_id = :campaign_id
    UNION ALL
    SELECT f.lane_id, (SELECT min(kernel_id) FROM waiting_jobs WHERE lane_id = f.lane_id AND kernel_id > f.kernel_id)
    FROM waited_for f WHERE f.kernel_id IS NOT NULL
), awaited AS MATERIALIZED (
    SELECT f.lane_id, f.kernel_id, k.state, k.toolchain FROM waited_for f JOIN kernels k ON k.id = f.kernel_id
    WHERE k.state IN ('wanted', 'building')
)
SELECT count(DISTINCT kernel_id) AS kernels, count(DISTINCT kernel_id) FILTER (WHERE state = 'building') AS building,
    (SELECT count(DISTINCT w.job_id) FROM awaited JOIN waiting_jobs w USING (lane_id, kernel_id)) AS jobs,
    ARRAY(SELECT DISTINCT k.toolchain FROM awaited k WHERE {_NO_BUILDER} ORDER BY k.toolchain) AS without_builder
FROM awaited
""")


def awaited(connection: Connection, campaign_id: int, *, silent_after: float) -> AwaitedKernels:
    """The kernels that a campaign waits for."""
    row = connection.execute(_AWAITED, {"campaign_id": campaign_id, "silent_after": silent_after}).one()
    return AwaitedKernels(row.kernels, row.building, row.jobs, row.without_builder)


@dataclass(frozen=True, slots=True)
class WithoutBuilder:
    """Jobs of a group that wait for kernels of toolchains which no live builder has."""

    jobs: int
    toolchains: list[str]


_WITHOUT_BUILDER = text(f"""
WITH RECURSIVE {WAITED_FOR}, lacking AS MATERIALIZED (
    SELECT f.lane_id, f.kernel_id, k.toolchain FROM waited_for f JOIN kernels k ON k.id = f.kernel_id
    WHERE k.state IN ('wanted', 'building') AND {_NO_BUILDER}
)
SELECT l.lane_id, array_agg(DISTINCT l.toolchain ORDER BY l.toolchain) AS toolchains, (
    SELECT count(DISTINCT w.job_id) FROM lacking o JOIN waiting_jobs w USING (lane_id, kernel_id) WHERE o.lane_id = l.lane_id
) AS jobs
FROM lacking l GROUP BY l.lane_id
""")


def without_builder(connection: Connection, *, silent_after: float) -> dict[int, WithoutBuilder]:
    """By job group, the jobs that wait for such kernels."""
    rows = connection.execute(_WITHOUT_BUILDER, {"silent_after": silent_after})
    return {row.lane_id: WithoutBuilder(row.jobs, row.toolchains) for row in rows}


_ANNOUNCE = text("""
INSERT INTO builders (name, toolchains, slots) VALUES (:name, :toolchains, :slots)
ON CONFLICT (name) DO UPDATE SET last_seen_at = clock_timestamp(), toolchains = excluded.toolchains, slots = excluded.slots
""")
_LEAVE = text("DELETE FROM builders WHERE name = :name OR last_seen_at < clock_timestamp() - interval '1 day'")


def announce(connection: Connection, name: str, *, toolchains: Sequence[str], slots: int) -> None:
    """Records a heartbeat of a builder, which has toolchains of these versions."""
    connection.execute(_ANNOUNCE, {"name": name, "toolchains": list(toolchains), "slots": slots})


_BUILDERS = text("""
SELECT name, toolchains, slots FROM builders
WHERE last_seen_at > clock_timestamp() - make_interval(secs => :silent_after) ORDER BY name
""")


def builders(connection: Connection, *, silent_after: float) -> list[dict[str, Any]]:
    """Live builders: name, toolchains, slots."""
    return [dict(row) for row in connection.execute(_BUILDERS, {"silent_after": silent_after}).mappings()]


def leave(connection: Connection, name: str) -> None:
    """Removes a builder that has ended, and builders without a heartbeat for a day."""
    connection.execute(_LEAVE, {"name": name})
