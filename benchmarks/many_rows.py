"""A farm that has measured for a year: campaigns of the same size, months after each other, filled in with SQL.

Each campaign has `EACH` jobs, one batch for 100 of them, and `EACH` rows of one device type. Ten campaigns share their
configurations, so a configuration has ten rows. Secondary indexes are built after the rows, and foreign keys are declared without
a check of the stored rows.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, text

EACH = 10_000
"""Jobs and rows of a campaign."""

TYPES = ("nvidia-h200", "nvidia-h100", "nvidia-a100", "nvidia-l40s")
_PER_TYPE = 4

DETAILS = (
    '{"nvcc": "13.0.88", "waves": 0.16161616161616163, "blocks": 128, "cutlass": "4.2.0", "timed_by": "graph", '
    '"occupancy": 0.1875, "registers": 168, "local_bytes": 0, "spill_bytes": 0, "verified_by": "groups", "late_samples": 0, '
    '"operand_sets": 9, "power_limited": false, "power_window_s": 0.36852571300005366, "power_window_w": 398.25025, '
    '"footprint_bytes": 132120576, "power_counter_w": 397.81266545888593, "power_samples_w": 398.25025, '
    '"power_counter_rse": 0.017242399866997316, "power_samples_rse": 0.012008780165400178, "power_stop_reason": "converged", '
    '"launches_per_sample": 9, "static_shared_bytes": 0, "dynamic_shared_bytes": 16384, "blocks_per_multiprocessor": 6}'
)
"""Details of a row of examples/datasets/nvidia-h200-paper-cutlass.parquet."""

_ONCE = (
    "INSERT INTO hosts (name) SELECT 'gpu' || i FROM generate_series(1, 2) i",
    f"""
    INSERT INTO devices (uuid, host_id, type, name, backend, traits)
    SELECT 'GPU-' || i, (SELECT min(id) FROM hosts) + i % 2, (CAST(:types AS text[]))[1 + i / {_PER_TYPE}], 'Made up', 'cuda', t.traits
    FROM generate_series(0, :devices - 1) i, (SELECT traits FROM devices LIMIT 1) t
    """,
    'INSERT INTO environments VALUES (gen_random_uuid(), \'{"driver": "made up"}\')',
    "INSERT INTO pools (name, device_types) SELECT 'type:' || t, ARRAY[t] FROM unnest(CAST(:types AS text[])) t",
)

_CAMPAIGNS = (
    """
    INSERT INTO campaigns (name, digest, owner, document, rules, state, submitted_at, finished_at)
    SELECT 'made-up-' || c, 'made-up-' || c, 'bench', t.document, t.rules, 'done', at, at + interval '8 hours'
    FROM generate_series(CAST(:first AS int), :last) c, (SELECT document, rules FROM campaigns WHERE name = 'template') t,
        LATERAL (SELECT now() - interval '361 days' + c * make_interval(secs => :apart_s) AS at WHERE c >= 0) a
    """,
    """
    INSERT INTO lanes (campaign_id, pool_id, jobs, done, fresh)
    SELECT c.id, p.id, :each, :each, false FROM generate_series(CAST(:first AS int), :last) n
    JOIN campaigns c ON c.name = 'made-up-' || n
    JOIN pools p ON p.name = 'type:' || (CAST(:types AS text[]))[1 + n % cardinality(CAST(:types AS text[]))]
    """,
    """
    INSERT INTO configurations (id, m, n, k, ab, cd, acc, layout, alpha, beta, family, parameters)
    SELECT md5(s || '/' || p || '/' || t)::uuid, 64 * (1 + p % 25), 64 * (1 + p / 25), 64 * (1 + s), 'f32', 'f32', 'f32', 'nn',
        1, 0, 'tiled', jsonb_build_object('tile', t)
    FROM generate_series(CAST(:first AS int) / 10, :last / 10) s, generate_series(0, :each / 16 - 1) p, generate_series(1, 16) t
    """,
    """
    INSERT INTO jobs (lane_id, configuration_id, state)
    SELECT l.id, md5(n / 10 || '/' || p || '/' || t)::uuid, 'done' FROM generate_series(CAST(:first AS int), :last) n
    JOIN campaigns c ON c.name = 'made-up-' || n JOIN lanes l ON l.campaign_id = c.id
    CROSS JOIN generate_series(0, :each / 16 - 1) p CROSS JOIN generate_series(1, 16) t
    """,
    f"""
    INSERT INTO batches (lane_id, queue, state, job_ids, jobs, done, device_id, claimed_at, finished_at, folded)
    SELECT l.id, 'gpu', 'done', '{{}}', 100, 100, d.first + b % {_PER_TYPE}, at - interval '4 minutes', at, true
    FROM generate_series(CAST(:first AS int), :last) n
    JOIN campaigns c ON c.name = 'made-up-' || n JOIN lanes l ON l.campaign_id = c.id
    CROSS JOIN generate_series(0, :each / 100 - 1) b
    CROSS JOIN LATERAL (SELECT c.submitted_at + b * interval '8 hours' / (:each / 100) AS at) t
    CROSS JOIN LATERAL (SELECT min(id) AS first FROM devices WHERE type = (CAST(:types AS text[]))[1 + n % cardinality(CAST(:types AS text[]))]) d
    """,
    f"""
    INSERT INTO measurements (job_id, campaign_id, configuration_id, device_id, environment_id, measured_at, source,
        runtime_ms, runtime_q1_ms, runtime_q3_ms, runtime_min_ms, runtime_rse, samples, stop_reason, l2, power_w,
        sm_clock_mhz, temperature_c, throttle_reasons, distribution, seed, clock_policy, cost_s, window_s, details)
    SELECT j.id, l.campaign_id, j.configuration_id, d.first + j.id / 100 % {_PER_TYPE},
        (SELECT id FROM environments LIMIT 1), c.submitted_at + j.number * interval '8 hours' / :each, 'measured',
        f.t, f.t, f.t, f.t, 0.003, 10, 'converged', 'cold', 300 + 100 * random(), 1500 + j.id % 400, 50 + j.id % 20, 'none',
        'uniform', 0, 'default', 0.1, 0.05, CAST(:details AS jsonb)
    FROM campaigns c JOIN lanes l ON l.campaign_id = c.id JOIN pools p ON p.id = l.pool_id
    JOIN (SELECT type, min(id) AS first FROM devices GROUP BY type) d ON ARRAY[d.type] = p.device_types
    JOIN (SELECT id, lane_id, configuration_id, row_number() OVER (PARTITION BY lane_id ORDER BY id) AS number FROM jobs) j
        ON j.lane_id = l.id
    CROSS JOIN LATERAL (SELECT exp(random()) AS t WHERE j.id IS NOT NULL) f
    WHERE c.name LIKE 'made-up-%' AND substr(c.name, 9)::int BETWEEN :first AND :last
    """,
)

_INDEXES = text("""
SELECT c.relname AS name, pg_get_indexdef(i.indexrelid) AS definition
FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
WHERE i.indrelid = CAST(:name AS regclass) AND NOT EXISTS (SELECT FROM pg_constraint WHERE conindid = i.indexrelid)
""")
FOREIGN_KEYS = text("""
SELECT conname AS name, pg_get_constraintdef(oid) AS definition FROM pg_constraint
WHERE conrelid = CAST(:name AS regclass) AND contype = 'f' ORDER BY conname
""")


_CAMPAIGN = """name: {name}
targets: {{type: recorded-overhead}}
problems: {{m: 1..{thousands}, n: 1..100, k: 64, types: f32}}
kernels: [{{family: tiled, tile: 4..13}}]
"""


def template(folder: Path, name: str, jobs: int) -> Path:
    """Writes a campaign for the recorded device, with a number of jobs that is a multiple of 1000."""
    path = folder / f"{name}.yaml"
    path.write_text(_CAMPAIGN.format(name=name, thousands=jobs // 1000))
    return path


def begin(engine: Engine, types: Sequence[str] = TYPES) -> None:
    """Stores hosts, devices, pools and an environment. A device and a campaign `template` must be stored already.

    Args:
        types: the device types, which campaigns measure in turn.
    """
    with engine.begin() as connection:
        for statement in _ONCE:
            connection.execute(text(statement), _used(statement, types=list(types), devices=_PER_TYPE * len(types)))


def fill(engine: Engine, first: int, last: int, *, apart_days: float = 0.36, types: Sequence[str] = TYPES) -> float:
    """Stores the campaigns `made-up-FIRST` to `made-up-LAST`. Returns the seconds that it took. `types` are those of `begin`.

    With 0.36 days between the begins of two campaigns, a thousand of them take a year.
    """
    began = time.perf_counter()
    numbers = {
        "first": first,
        "last": last,
        "each": EACH,
        "types": list(types),
        "details": DETAILS,
        "apart_s": apart_days * 86_400,
    }
    with engine.begin() as connection:
        dropped = _drop(connection)
        for statement in _CAMPAIGNS:
            connection.execute(text(statement), _used(statement, **numbers))
        for statement in dropped:
            connection.execute(text(statement))
    return time.perf_counter() - began


def _drop(connection: Connection) -> list[str]:
    """Drops indexes and foreign keys of jobs and measurements. Returns the statements that make them again."""
    made = list[str]()
    for table in ("jobs", "measurements"):
        for row in connection.execute(FOREIGN_KEYS, {"name": table}).all():
            connection.execute(text(f"ALTER TABLE {table} DROP CONSTRAINT {row.name}"))
            # Stored already as NOT VALID after the first size.
            definition = row.definition.removesuffix(" NOT VALID")
            made.append(f"ALTER TABLE {table} ADD CONSTRAINT {row.name} {definition} NOT VALID")
        for row in connection.execute(_INDEXES, {"name": table}).all():
            connection.execute(text(f"DROP INDEX {row.name}"))
            made.append(row.definition)
    return made


def _used(statement: str, **values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if f":{name}" in statement}
