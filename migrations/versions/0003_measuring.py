"""What a measurement says of its power, its windows and a warm cache; sentinels, apart from results.

Revises: 0002
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_ALWAYS = """
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
    r.power_w,
    r.power_w * r.runtime_ms AS energy_mj,
    f.flops / r.runtime_ms / 1e9 AS tflops,
    f.flops / r.runtime_ms / 1e6 / r.power_w AS gflops_per_w,
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
    e.content AS environment"""
_NEW = """,
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

ELEMENT_BYTES = """
CREATE OR REPLACE FUNCTION element_bytes(element_type text) RETURNS integer LANGUAGE sql IMMUTABLE STRICT AS $$
    SELECT CASE element_type
        WHEN 'f64' THEN 8
        WHEN 'f32' THEN 4 WHEN 'tf32' THEN 4 WHEN 'i32' THEN 4
        WHEN 'f16' THEN 2 WHEN 'bf16' THEN 2
        WHEN 'f8e4m3' THEN 1 WHEN 'f8e5m2' THEN 1 WHEN 'f8e4m3e5m2' THEN 1 WHEN 'f8e5m2e4m3' THEN 1 WHEN 'i8' THEN 1
    END
$$
"""

V_MEASUREMENTS_BEFORE = f"CREATE VIEW v_measurements AS SELECT {_ALWAYS} {_FROM}"
V_MEASUREMENTS = f"CREATE VIEW v_measurements AS SELECT {_ALWAYS} {_NEW} {_FROM} WHERE r.source <> 'sentinel'"
V_SENTINELS = f"CREATE VIEW v_sentinels AS SELECT {_ALWAYS} {_NEW} {_FROM} WHERE r.source = 'sentinel'"


def upgrade() -> None:
    op.execute("DROP VIEW v_measurements")
    op.add_column("measurements", sa.Column("runtime_warm_ms", sa.Double()))
    op.add_column("measurements", sa.Column("power_rse", sa.Double()))
    op.add_column("measurements", sa.Column("power_disagrees", sa.Boolean()))
    op.add_column("measurements", sa.Column("temperature_before_c", sa.BigInteger()))
    op.add_column("measurements", sa.Column("window_s", sa.Double(), server_default=sa.text("0"), nullable=False))
    _allow_sources("measured", "recorded", "imported", "sentinel")
    op.create_index(
        "ix_measurements_sentinels",
        "measurements",
        ["campaign_id", "device_id", "measured_at"],
        postgresql_where=sa.text("source = 'sentinel'"),
    )
    op.execute(ELEMENT_BYTES)
    op.execute(V_MEASUREMENTS)
    op.execute(V_SENTINELS)


def downgrade() -> None:
    op.execute("DROP VIEW v_sentinels")
    op.execute("DROP VIEW v_measurements")
    op.execute("ALTER TABLE measurements DISABLE TRIGGER USER")  # it is append-only
    op.execute("DELETE FROM measurements WHERE source = 'sentinel'")
    op.execute("ALTER TABLE measurements ENABLE TRIGGER USER")
    op.drop_index("ix_measurements_sentinels", "measurements")
    _allow_sources("measured", "recorded", "imported")
    for name in ("window_s", "temperature_before_c", "power_disagrees", "power_rse", "runtime_warm_ms"):
        op.drop_column("measurements", name)
    op.execute(V_MEASUREMENTS_BEFORE)


def _allow_sources(*sources: str) -> None:
    op.drop_constraint(op.f("ck_measurements_source_known"), "measurements")
    listed = ", ".join(f"'{source}'" for source in sources)
    op.create_check_constraint(op.f("ck_measurements_source_known"), "measurements", f"source IN ({listed})")
