"""The time of a GEMM while its power was read, by which its energy is derived.

Revises: 0003
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_UNTIL_POWER = """
    r.id AS measurement_id,
    r.job_id,
    r.campaign_id,
    g.name AS campaign,
    r.configuration_id,
    d.type AS device_type,
    d.uuid AS device_uuid,
    d.name AS device_name,
    d.backend,
    h.name AS host,
    r.measured_at,
    r.source,
    c.m, c.n, c.k, c.ab, c.cd, c.acc, c.layout, c.alpha, c.beta, c.family, c.parameters,
    f.flops,
    f.bytes,
    f.flops / f.bytes AS intensity,
    r.runtime_ms,
    r.runtime_q1_ms,
    r.runtime_q3_ms,
    r.runtime_min_ms,
    r.runtime_rse,
    r.samples,
    r.stop_reason,
    r.l2,
    r.power_w,"""
_AFTER_POWER = """
    r.power_source,
    r.idle_power_w,
    r.power_limit_w,
    r.sm_clock_mhz,
    r.memory_clock_mhz,
    r.temperature_c,
    r.throttle_reasons,
    r.verify_error,
    r.distribution,
    r.seed,
    r.clock_policy,
    r.kernel_hash,
    r.cost_s,
    r.details,
    e.content AS environment,
    r.runtime_warm_ms,
    r.power_rse,
    r.power_disagrees,
    r.temperature_before_c,
    r.window_s"""
_FROM = """
FROM measurements r
JOIN configurations c ON c.id = r.configuration_id
JOIN devices d ON d.id = r.device_id
JOIN hosts h ON h.id = d.host_id
JOIN environments e ON e.id = r.environment_id
LEFT JOIN campaigns g ON g.id = r.campaign_id
CROSS JOIN LATERAL (
    SELECT
        2.0::double precision * c.m * c.n * c.k AS flops,
        (c.m::double precision * c.k + c.k::double precision * c.n) * element_bytes(c.ab)
        + c.m::double precision * c.n * element_bytes(c.cd) * CASE WHEN c.beta = 0 THEN 1 ELSE 2 END AS bytes
) f
"""
_DERIVED_BEFORE = """
    r.power_w * r.runtime_ms AS energy_mj,
    f.flops / r.runtime_ms / 1e9 AS tflops,
    f.flops / r.runtime_ms / 1e6 / r.power_w AS gflops_per_w,"""
_DERIVED = """
    r.power_w * coalesce(r.runtime_sustained_ms, r.runtime_ms) AS energy_mj,
    f.flops / r.runtime_ms / 1e9 AS tflops,
    f.flops / coalesce(r.runtime_sustained_ms, r.runtime_ms) / 1e6 / r.power_w AS gflops_per_w,"""


def upgrade() -> None:
    _drop_views()
    op.add_column("measurements", sa.Column("runtime_sustained_ms", sa.Double()))
    op.create_check_constraint(
        op.f("ck_measurements_runtime_sustained_positive"), "measurements", "runtime_sustained_ms > 0"
    )
    _create_views(_DERIVED, ",\n    r.runtime_sustained_ms")


def downgrade() -> None:
    _drop_views()
    op.drop_column("measurements", "runtime_sustained_ms")  # and its constraint
    _create_views(_DERIVED_BEFORE)


def _drop_views() -> None:
    op.execute("DROP VIEW v_sentinels")
    op.execute("DROP VIEW v_measurements")


def _create_views(derived: str, new: str = "") -> None:
    for name, compared in (("v_measurements", "<>"), ("v_sentinels", "=")):
        columns = f"{_UNTIL_POWER} {derived} {_AFTER_POWER} {new}"
        op.execute(f"CREATE VIEW {name} AS SELECT {columns} {_FROM} WHERE r.source {compared} 'sentinel'")
