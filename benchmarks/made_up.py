"""Made-up load: campaigns, recordings, devices and rows for farms in which only the farm itself is timed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, text

from farm.campaign import Campaign, load
from farm.db import devices
from farm.devices import Backend, DeviceIdentity, DeviceKind, DeviceTraits, traits_of_capability
from farm.kernels import Configuration
from farm.measurement import Measurement, Source
from farm.provenance import Provenance
from farm.settings import settings
from workers.devices import discover
from workers.devices.recording import write_recording

TRAITS = DeviceTraits(kind=DeviceKind.CUDA, memory_bytes=2**36)

RESULT = Measurement(
    source=Source.RECORDED,
    runtime_ms=1.0,
    runtime_q1_ms=0.9,
    runtime_q3_ms=1.1,
    runtime_min_ms=0.8,
    runtime_rse=0.01,
    samples=10,
    stop_reason="recorded",
    l2="cold",
    environment={"recording": "made up for load"},
)


def campaign_text(jobs: int) -> str:
    """A campaign of exactly that many configurations: shapes times 10 tiles."""
    return (
        f"name: overhead-{jobs}\ntargets: any\n"
        f"problems: {{m: 1..{jobs // 1000}, n: 1..100, k: 64, types: f32}}\n"
        "kernels: [{family: tiled, tile: 4..13}]\n"
    )


def campaign_of(name: str, owner: str, jobs: int, *, priority: int = 0) -> Campaign:
    """A campaign of that many jobs, a multiple of 10."""
    tens = jobs // 10
    m = min(tens, 1000)
    return Campaign.from_document(
        {
            "name": name, "owner": owner, "priority": priority, "targets": "any",
            "problems": {"m": f"1..{m}", "n": f"1..{tens // m}", "k": 64, "types": "f32"},
            "kernels": [{"family": "tiled", "tile": "4..13"}],
        }
    )  # fmt: skip


def job_cost_s(number: int, job_seconds: float) -> float:
    """Device seconds of a made-up job: `job_seconds`, give or take half."""
    return job_seconds * (0.5 + (number * 7919 % 1000) / 1000)


def record(campaign_file: Path, recording: Path, *, job_seconds: float | None = None) -> None:
    """Writes a recording that answers the whole campaign. Its times are made up, and its provenance says so.

    Args:
        job_seconds: Mean device time of a job; without it, a recording has no costs.
    """

    def rows() -> Iterator[dict[str, Any]]:
        for number, configuration in enumerate(load(campaign_file, limit=10**7).expand()):
            cost = {} if job_seconds is None else {"cost_s": job_cost_s(number, job_seconds)}
            yield {"configuration": configuration, "runtime_ms": made_up_ms(configuration), **cost}

    provenance = Provenance(
        device_type="overhead", device_name="Overhead", traits=TRAITS, provenance="made up for load"
    )
    write_recording(recording, rows(), provenance)


def made_up_ms(configuration: Configuration) -> float:
    return 1e-3 + configuration.problem.flops * 1e-9


def register_devices(engine: Engine, count: int, name: str) -> tuple[str, list[int]]:
    """Registers copies of the first device of the settings, eight to a host. Returns their type and ids."""
    (first,) = discover(settings().devices)
    with engine.begin() as connection:
        return first.type, [
            devices.register(
                connection,
                host=f"host-{n // 8:04}",
                host_facts={},
                device=replace(first, uuid=f"{first.uuid}-{n:05}", name=f"{name} {n}"),
            )
            for n in range(count)
        ]


_COPY_HOSTS = text("""
INSERT INTO hosts (name) SELECT 'host-' || lpad(CAST(n AS text), 6, '0') FROM generate_series(:first / 8, (:count - 1) / 8) n
ON CONFLICT (name) DO NOTHING
""")
_COPY_DEVICES = text("""
INSERT INTO devices (uuid, host_id, type, name, backend, traits, facts, last_seen_at)
SELECT d.uuid || '-' || n, h.id, d.type, :name || ' ' || n, d.backend, d.traits, d.facts, clock_timestamp()
FROM devices d CROSS JOIN generate_series(:first, :count - 1) n
JOIN hosts h ON h.name = 'host-' || lpad(CAST(n / 8 AS text), 6, '0')
WHERE d.id = :pattern ORDER BY n
""")
_DEVICES = text("SELECT id FROM devices ORDER BY id")


def copy_devices(engine: Engine, count: int, name: str, pattern: int, first: int) -> list[int]:
    """Copies a registered device until there are `count`, eight to a host, in one statement. Returns the ids of all devices.

    Args:
        pattern: id of the device that is copied.
        first: how many there are.
    """
    with engine.begin() as connection:
        parameters = {"first": first, "count": count}
        connection.execute(_COPY_HOSTS, parameters)
        connection.execute(_COPY_DEVICES, parameters | {"name": name, "pattern": pattern})
        return list(connection.execute(_DEVICES).scalars())


def card(number: int, device_type: str) -> DeviceIdentity:
    return DeviceIdentity(
        uuid=f"GPU-{number}",
        type=device_type,
        name=device_type,
        backend=Backend.CUDA,
        traits=traits_of_capability((9, 0)),
    )


def vacuum(engine: Engine) -> None:
    with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        connection.execute(text("VACUUM ANALYZE"))


CONFIGURATIONS = text("""
INSERT INTO configurations (id, m, n, k, ab, cd, acc, layout, alpha, beta, family, parameters)
SELECT gen_random_uuid(), 64 * (1 + shape % 25), 64 * (1 + shape / 25 % 25), 64 * (1 + shape / 625), t, t, t, 'nn', 1, 0,
    'tiled', jsonb_build_object('tile', tile)
FROM generate_series(0, :shapes - 1) shape, unnest(ARRAY['f32', 'f64']) t, generate_series(1, 16) tile
""")
"""`shapes` shapes in two types, with sixteen kernels each."""

ENVIRONMENT = text("""
INSERT INTO environments (id, content) VALUES (gen_random_uuid(), '{"driver": "made up"}') RETURNING id
""")


_KERNELS = 100
_TYPES = 2
BATCH = 100
"""Rows of a made-up batch; each has a sentinel as well."""

_FILL = (
    "INSERT INTO hosts (name) VALUES ('gpu01'), ('gpu02')",
    """
    INSERT INTO devices (uuid, host_id, type, name, backend, traits)
    SELECT 'GPU-' || i, 1 + i % 2, CASE WHEN i < 4 THEN 'nvidia-h200' ELSE 'nvidia-a100' END, 'Made up', 'cuda', '{}'
    FROM generate_series(0, 7) i
    """,
    "INSERT INTO environments VALUES (gen_random_uuid(), '{}')",
    "INSERT INTO pools (name, device_types) VALUES ('type:nvidia-h200', '{nvidia-h200}'), ('type:nvidia-a100', '{nvidia-a100}')",
    """
    INSERT INTO campaigns (name, digest, owner, document, rules, state)
    VALUES ('made-up', 'd', 'bench', '{}', '{}', 'active')
    """,
    "INSERT INTO lanes (campaign_id, pool_id, jobs, done) VALUES (1, 1, :each, :each), (1, 2, :each, :each)",
    """
    INSERT INTO configurations
    SELECT gen_random_uuid(), 64 * (1 + p % 20), 64 * (1 + p / 20 % 20), 64 * (1 + p / 400), 'f16', 'f16', 'f32', 'nn', 1, 0,
        CASE q WHEN 0 THEN 'cublaslt' ELSE 'cutlass' END,
        CASE q WHEN 0 THEN jsonb_build_object('algorithm', 0) ELSE jsonb_build_object('stages', q) END
    FROM generate_series(0, :problems - 1) p CROSS JOIN generate_series(0, :kernels - 1) q
    """,
    """
    INSERT INTO jobs (lane_id, configuration_id, state)
    SELECT l, id, 'done' FROM generate_series(1, 2) l CROSS JOIN configurations ORDER BY l, id
    """,
    """
    INSERT INTO batches (lane_id, queue, state, job_ids, jobs, done, device_id, claimed_at, finished_at, folded)
    SELECT 1 + b / :batches, 'gpu', 'done', '{}', :batch, :batch, 1 + b / :batches * 4 + b % 4, at - interval '4 s', at, true
    FROM generate_series(0, 2 * :batches - 1) b
    CROSS JOIN LATERAL (SELECT now() - interval '3 days' * (1 - (b % :batches + 1.0) / :batches) AS at) t
    """,
    """
    INSERT INTO measurements (job_id, campaign_id, configuration_id, device_id, environment_id, measured_at, source,
        runtime_ms, runtime_q1_ms, runtime_q3_ms, runtime_min_ms, runtime_rse, samples, stop_reason, l2, power_w,
        sm_clock_mhz, temperature_c, throttle_reasons, distribution, seed, clock_policy, cost_s, window_s, details)
    SELECT j.id, 1, j.configuration_id, b.device_id, (SELECT id FROM environments), b.finished_at, 'measured', f.t, f.t,
        f.t, f.t, 0.003, 10, 'converged', 'cold', 300 + 100 * random(), 1500 + j.id % 400, 50 + j.id % 20,
        CASE WHEN j.id % 10 = 0 THEN 'sw_power_cap' ELSE 'none' END, 'uniform', 0, 'default', 0.1, 0.05, '{}'
    FROM (SELECT jobs.*, row_number() OVER (PARTITION BY lane_id ORDER BY id) - 1 AS n FROM jobs) j
    JOIN (
        SELECT batches.*, row_number() OVER (PARTITION BY lane_id ORDER BY id) - 1 AS n FROM batches
    ) b ON b.lane_id = j.lane_id AND b.n = j.n / :batch
    CROSS JOIN LATERAL (SELECT exp(random()) AS t WHERE j.id IS NOT NULL) f
    ORDER BY b.finished_at, j.id
    """,
    """
    INSERT INTO measurements (campaign_id, configuration_id, device_id, environment_id, measured_at, source, runtime_ms,
        runtime_q1_ms, runtime_q3_ms, runtime_min_ms, runtime_rse, samples, stop_reason, l2, distribution, seed, cost_s, details)
    SELECT 1, (SELECT id FROM configurations LIMIT 1), device_id, (SELECT id FROM environments), finished_at, 'sentinel',
        1, 1, 1, 1, 0.003, 10, 'converged', 'cold', 'uniform', 0, 0.1, '{}'
    FROM batches ORDER BY finished_at
    """,
    "UPDATE devices SET measured = :each / 4",
)


def fill(engine: Engine, rows: int) -> None:
    """Stores a campaign `made-up` with a job and a row for each configuration, and a sentinel for each batch.

    Args:
        rows: Number of rows, a multiple of 1000.
    """
    each = rows // _TYPES
    numbers = {
        "each": each,
        "problems": each // _KERNELS,
        "kernels": _KERNELS,
        "batches": each // BATCH,
        "batch": BATCH,
    }
    with engine.begin() as connection:
        for statement in _FILL:
            connection.execute(text(statement), numbers)
