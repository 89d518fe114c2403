"""Rows that stay where campaigns are deleted."""

from __future__ import annotations

import uuid

from sqlalchemy import Engine, text

from farm.db import batches
from farm.db.batches import Lease
from support.samples import row


def land(engine: Engine, lease: Lease, *, leave: int = 0) -> None:
    with engine.begin() as connection:
        batches.land(connection, lease, [(job, row()) for job in lease.jobs[leave:]], {})


CONTENT = "3fa94c0e11d2ab47" + "0" * 48


def imported(engine: Engine, content: str = CONTENT, file: str = "h200.parquet") -> int:
    """An import of one device and twelve rows, as `farm import` leaves it."""
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO hosts (name) VALUES ('imported:x') ON CONFLICT DO NOTHING"))
        device_id: int = connection.execute(
            text("""
INSERT INTO devices (uuid, host_id, type, name, backend, traits, facts, state, last_seen_at, measured)
SELECT :uuid, id, 'cpu-test', 'There', 'cpu', '{}', jsonb_build_object('imported_from', CAST(:file AS text)), 'drained',
    '-infinity', 12 FROM hosts WHERE name = 'imported:x' RETURNING id
"""),
            {"uuid": f"IMP-{content[:16]}-GPU-1", "file": file},
        ).scalar_one()
        connection.execute(
            text("""
INSERT INTO environments VALUES ('00000000-0000-0000-0000-000000000001', '{}') ON CONFLICT DO NOTHING
""")
        )
        for m in range(1, 13):
            configuration = uuid.uuid5(uuid.NAMESPACE_OID, str(m))
            connection.execute(
                text("""
INSERT INTO configurations VALUES (:id, :m, 1, 1, 'f32', 'f32', 'f32', 'nn', 1, 0, 'blas', '{}') ON CONFLICT DO NOTHING
"""),
                {"id": configuration, "m": m},
            )
            connection.execute(
                text("""
INSERT INTO measurements (configuration_id, device_id, environment_id, source, runtime_ms, runtime_q1_ms, runtime_q3_ms,
    runtime_min_ms, runtime_rse, samples, stop_reason, l2, distribution, seed, cost_s, details)
VALUES (:id, :device, '00000000-0000-0000-0000-000000000001', 'imported', 1, 1, 1, 1, 0, 1, 'recorded', 'cold',
    'unknown', 0, 1, '{}')
"""),
                {"id": configuration, "device": device_id},
            )
    return device_id
