"""A device holds one lease at a time, and one `farm-worker` serves it: its session has an epoch.

Rows that two measured at the same time are no results: `v_measurements` and `v_best_kernels` leave them out, and
`v_all_measurements` has them. Workers of the version before stay: they announce no session, and the claim of a second batch
fails, which is sent again.

Revises: 0016
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

# What a device held beside its newest batch goes back as the coordinator takes back a lease that has passed, without a suspect.
_RETURN_OLDER = """
WITH older AS (
    SELECT id, job_ids FROM (
        SELECT id, job_ids, row_number() OVER (PARTITION BY device_id ORDER BY claimed_at DESC, id DESC) AS place
        FROM batches WHERE state = 'leased'
    ) leased WHERE place > 1
), again AS (
    INSERT INTO returned_jobs (job_id, lane_id, solo, refused_by)
    SELECT j.id, j.lane_id, j.solo, CASE WHEN j.solo THEN ARRAY(
        SELECT CASE WHEN f.kind = 'unsupported' THEN coalesce(-f.worker_version_id, f.device_id) ELSE f.device_id END
        FROM failures f
        WHERE f.job_id = j.id AND f.kind IN ('invalid', 'unsupported') AND f.device_id IS NOT NULL
        GROUP BY 1 ORDER BY 1
    ) ELSE '{}' END
    FROM older o CROSS JOIN unnest(o.job_ids) AS u(job_id) JOIN jobs j ON j.id = u.job_id
    WHERE j.state = 'open'
    ON CONFLICT DO NOTHING
)
UPDATE batches b SET state = 'released', finished_at = clock_timestamp(), lease_token = NULL, lease_expires_at = NULL,
    busy_until = NULL, current_job_id = NULL, end_reason = 'its device held another batch as well'
FROM older o WHERE b.id = o.id
"""

# As in 0008, but for what two workers measured at the same time.
_CONDITIONS = "source, distribution, l2, clock_policy"
_KEY = f"device_type, {_CONDITIONS}, m, n, k, ab, cd, acc, layout, alpha, beta"

_NOT_OF_A_SHORT_ROUND = """NOT EXISTS (
            SELECT 1 FROM jobs j JOIN lanes l ON l.id = j.lane_id WHERE j.id = r.job_id AND l.rules IS NOT NULL
        )"""

_V_BEST_KERNELS = f"""
CREATE OR REPLACE VIEW v_best_kernels AS
SELECT p.device_type, p.source, p.distribution, p.l2, p.clock_policy,
    p.m, p.n, p.k, p.ab, p.cd, p.acc, p.layout, p.alpha, p.beta,
    c.family, c.parameters, c.id AS configuration_id,
    p.fastest[1] AS runtime_ms,
    2.0::double precision * p.m * p.n * p.k / p.fastest[1] / 1e9 AS tflops,
    o.power_w, o.energy_mj, o.rows,
    p.kernels,
    p.cublaslt_ms,
    p.cublaslt_ms / p.fastest[1] AS speed_up
FROM (
    SELECT {_KEY}, count(*) AS kernels, min(ARRAY[runtime_ms, measurement_id]) AS fastest,
        min(runtime_ms) FILTER (WHERE own_choice) AS cublaslt_ms
    FROM (
        SELECT {_KEY}, own_choice, measurement_id,
            CASE
                WHEN cardinality(times) = 1 THEN times[1]
                ELSE (SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY ms) FROM unnest(times) AS t(ms))
            END AS runtime_ms
        FROM (
            SELECT {_KEY.replace("device_type", "d.type AS device_type")},
                c.family = 'cublaslt' AND c.parameters = '{{"algorithm": 0}}' AS own_choice,
                min(r.id) AS measurement_id, array_agg(r.runtime_ms) AS times
            FROM measurements r JOIN devices d ON d.id = r.device_id JOIN configurations c ON c.id = r.configuration_id
            WHERE r.source <> 'sentinel' AND {_NOT_OF_A_SHORT_ROUND} [and not overlapped]
            GROUP BY c.id, d.type, {_CONDITIONS}
        ) kernel
    ) timed
    GROUP BY {_KEY}
) p
JOIN measurements f ON f.id = p.fastest[2]::bigint
JOIN configurations c ON c.id = f.configuration_id
CROSS JOIN LATERAL (
    SELECT count(*) AS rows,
        percentile_cont(0.5) WITHIN GROUP (ORDER BY r.power_w) AS power_w,
        percentile_cont(0.5) WITHIN GROUP (ORDER BY r.power_w * coalesce(r.runtime_sustained_ms, r.runtime_ms)) AS energy_mj
    FROM measurements r JOIN devices d ON d.id = r.device_id
    WHERE r.configuration_id = c.id AND d.type = p.device_type AND r.source = p.source AND r.distribution = p.distribution
        AND r.l2 = p.l2 AND r.clock_policy IS NOT DISTINCT FROM p.clock_policy AND {_NOT_OF_A_SHORT_ROUND} [and not overlapped]
) o
"""

_V_MEASUREMENTS = """
CREATE OR REPLACE VIEW v_measurements AS
SELECT a.*, coalesce(l.round, 0::smallint) AS round
FROM v_all_measurements a LEFT JOIN jobs j ON j.id = a.job_id LEFT JOIN lanes l ON l.id = j.lane_id
WHERE l.rules IS NULL [and not overlapped]
"""
_OVERLAPPED = """AND NOT EXISTS (
    SELECT FROM device_overlaps o WHERE o.device_id = r.device_id AND r.measured_at BETWEEN o.since AND o.rows_until
)"""
_OVERLAPPED_BY_UUID = """AND NOT EXISTS (
    SELECT FROM device_overlaps o JOIN devices d ON d.id = o.device_id
    WHERE d.uuid = a.device_uuid AND a.measured_at BETWEEN o.since AND o.rows_until
)"""
_SESSION: dict[str, Callable[[], Any]] = {
    "session_host": sa.Text,
    "session_pid": sa.BigInteger,
    "session_lock": sa.Text,
    "session_began_at": lambda: sa.TIMESTAMP(timezone=True),
    "contended_at": lambda: sa.TIMESTAMP(timezone=True),
    "contended_by": sa.Text,
}


def upgrade() -> None:
    op.execute("LOCK TABLE batches IN SHARE ROW EXCLUSIVE MODE")  # nobody claims between the two
    op.execute(_RETURN_OLDER)
    op.add_column("batches", sa.Column("abandoned", sa.Boolean(), nullable=False, server_default="false"))
    op.create_index(
        "uq_batches_device_id",
        "batches",
        ["device_id"],
        unique=True,
        postgresql_where=sa.text("state = 'leased' AND NOT abandoned"),
    )
    op.add_column("devices", sa.Column("session_epoch", sa.BigInteger(), nullable=False, server_default="0"))
    for name, kind in _SESSION.items():
        op.add_column("devices", sa.Column(name, kind()))
    op.create_table(
        "device_overlaps",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("device_id", sa.BigInteger(), nullable=False),
        sa.Column("since", sa.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("until", sa.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("rows_until", sa.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_device_overlaps")),
        sa.ForeignKeyConstraint(["device_id"], ["devices.id"], name=op.f("fk_device_overlaps_device_id")),
    )
    op.create_index(op.f("ix_device_overlaps_device_id"), "device_overlaps", ["device_id"])
    _create_views(_OVERLAPPED, _OVERLAPPED_BY_UUID)


def downgrade() -> None:
    _create_views("", "")
    op.drop_table("device_overlaps")
    for name in ("session_epoch", *_SESSION):
        op.drop_column("devices", name)
    op.drop_index("uq_batches_device_id", "batches")
    op.drop_column("batches", "abandoned")


def _create_views(best: str, measurements: str) -> None:
    op.execute(_V_BEST_KERNELS.replace("[and not overlapped]", best))
    op.execute(_V_MEASUREMENTS.replace("[and not overlapped]", measurements))
