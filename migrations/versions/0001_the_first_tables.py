"""The first tables, and the view that people and the trainer read.

Revises: nothing
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

V_MEASUREMENTS = """
CREATE VIEW v_measurements AS
SELECT
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
    e.content AS environment
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
CREATE FUNCTION element_bytes(element_type text) RETURNS integer LANGUAGE sql IMMUTABLE STRICT AS $$
    SELECT CASE element_type
        WHEN 'f64' THEN 8
        WHEN 'f32' THEN 4 WHEN 'tf32' THEN 4 WHEN 'i32' THEN 4
        WHEN 'f16' THEN 2 WHEN 'bf16' THEN 2
        WHEN 'f8e4m3' THEN 1 WHEN 'f8e5m2' THEN 1 WHEN 'i8' THEN 1
    END
$$
"""

APPEND_ONLY = """
CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the table % is append-only', TG_TABLE_NAME;
END
$$;
CREATE TRIGGER measurements_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON measurements
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
"""


def upgrade() -> None:
    op.create_table(
        "campaigns",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("priority", sa.SmallInteger(), server_default="0", nullable=False),
        sa.Column("state", sa.Text(), server_default="active", nullable=False),
        sa.Column("document", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("rules", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column(
            "submitted_at",
            postgresql.TIMESTAMP(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.Column("finished_at", postgresql.TIMESTAMP(timezone=True), nullable=True),
        sa.CheckConstraint("state IN ('active', 'done', 'cancelled')", name=op.f("ck_campaigns_state_known")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_campaigns")),
        sa.UniqueConstraint("digest", name=op.f("uq_campaigns_digest")),
    )
    op.create_index(op.f("ix_campaigns_name"), "campaigns", ["name"], unique=False)
    op.create_table(
        "configurations",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("m", sa.BigInteger(), nullable=False),
        sa.Column("n", sa.BigInteger(), nullable=False),
        sa.Column("k", sa.BigInteger(), nullable=False),
        sa.Column("ab", sa.Text(), nullable=False),
        sa.Column("cd", sa.Text(), nullable=False),
        sa.Column("acc", sa.Text(), nullable=False),
        sa.Column("layout", sa.Text(), nullable=False),
        sa.Column("alpha", sa.DOUBLE_PRECISION(), nullable=False),
        sa.Column("beta", sa.DOUBLE_PRECISION(), nullable=False),
        sa.Column("family", sa.Text(), nullable=False),
        sa.Column("parameters", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_configurations")),
    )
    op.create_table(
        "environments",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("content", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_environments")),
    )
    op.create_table(
        "hosts",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("facts", postgresql.JSONB(astext_type=sa.Text()), server_default=sa.text("'{}'"), nullable=False),
        sa.Column(
            "first_seen_at",
            postgresql.TIMESTAMP(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.Column(
            "last_seen_at",
            postgresql.TIMESTAMP(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_hosts")),
        sa.UniqueConstraint("name", name=op.f("uq_hosts_name")),
    )
    op.create_table(
        "pools",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("device_types", postgresql.ARRAY(sa.Text()), nullable=True),
        sa.Column("device_uuid", sa.Text(), nullable=True),
        sa.CheckConstraint("(device_uuid IS NULL) <> (device_types IS NULL)", name=op.f("ck_pools_device_or_types")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_pools")),
        sa.UniqueConstraint("name", name=op.f("uq_pools_name")),
    )
    op.create_index("ix_pools_device_types", "pools", ["device_types"], unique=False, postgresql_using="gin")
    op.create_table(
        "trainings",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("device_type", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), server_default="requested", nullable=False),
        sa.Column("any_source", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column(
            "requested_at",
            postgresql.TIMESTAMP(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.Column("started_at", postgresql.TIMESTAMP(timezone=True), nullable=True),
        sa.Column("finished_at", postgresql.TIMESTAMP(timezone=True), nullable=True),
        sa.Column("outcome", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.CheckConstraint(
            "state IN ('requested', 'running', 'done', 'failed')", name=op.f("ck_trainings_state_known")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_trainings")),
    )
    op.create_index(op.f("ix_trainings_device_type"), "trainings", ["device_type"], unique=False)
    op.create_table(
        "devices",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("uuid", sa.Text(), nullable=False),
        sa.Column("host_id", sa.BigInteger(), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("backend", sa.Text(), nullable=False),
        sa.Column("traits", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("facts", postgresql.JSONB(astext_type=sa.Text()), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("state", sa.Text(), server_default="active", nullable=False),
        sa.Column("state_reason", sa.Text(), nullable=True),
        sa.Column("unopened", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column(
            "first_seen_at",
            postgresql.TIMESTAMP(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.Column(
            "last_seen_at",
            postgresql.TIMESTAMP(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.CheckConstraint("state IN ('active', 'drained', 'quarantined')", name=op.f("ck_devices_state_known")),
        sa.ForeignKeyConstraint(["host_id"], ["hosts.id"], name=op.f("fk_devices_host_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_devices")),
        sa.UniqueConstraint("uuid", name=op.f("uq_devices_uuid")),
    )
    op.create_index(op.f("ix_devices_host_id"), "devices", ["host_id"], unique=False)
    op.create_index(op.f("ix_devices_type"), "devices", ["type"], unique=False)
    op.create_table(
        "batches",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("campaign_id", sa.BigInteger(), nullable=False),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), server_default="queued", nullable=False),
        sa.Column("jobs", sa.BigInteger(), nullable=False),
        sa.Column(
            "created_at",
            postgresql.TIMESTAMP(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.Column("sent_at", postgresql.TIMESTAMP(timezone=True), nullable=True),
        sa.Column("sends", sa.SmallInteger(), server_default="0", nullable=False),
        sa.Column("device_id", sa.BigInteger(), nullable=True),
        sa.Column("claimed_at", postgresql.TIMESTAMP(timezone=True), nullable=True),
        sa.Column("lease_token", sa.Uuid(), nullable=True),
        sa.Column("lease_expires_at", postgresql.TIMESTAMP(timezone=True), nullable=True),
        sa.Column("current_job_id", sa.BigInteger(), nullable=True),
        sa.Column("finished_at", postgresql.TIMESTAMP(timezone=True), nullable=True),
        sa.Column("end_reason", sa.Text(), nullable=True),
        sa.CheckConstraint(
            "(state = 'leased') = (lease_token IS NOT NULL AND lease_expires_at IS NOT NULL)",
            name=op.f("ck_batches_lease_held"),
        ),
        sa.CheckConstraint("state IN ('queued', 'leased', 'done', 'released')", name=op.f("ck_batches_state_known")),
        sa.ForeignKeyConstraint(["campaign_id"], ["campaigns.id"], name=op.f("fk_batches_campaign_id")),
        sa.ForeignKeyConstraint(["device_id"], ["devices.id"], name=op.f("fk_batches_device_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_batches")),
    )
    op.create_index("ix_batches_campaign_id_id", "batches", ["campaign_id", "id"])
    op.create_index("ix_batches_campaign_id_finished_at", "batches", ["campaign_id", "finished_at"], unique=False)
    op.create_index(
        "ix_batches_open",
        "batches",
        ["queue", "state"],
        unique=False,
        postgresql_where=sa.text("state IN ('queued', 'leased')"),
    )
    op.create_table(
        "jobs",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("campaign_id", sa.BigInteger(), nullable=False),
        sa.Column("configuration_id", sa.Uuid(), nullable=False),
        sa.Column("pool_id", sa.BigInteger(), nullable=False),
        sa.Column("any_device", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("state", sa.Text(), server_default="pending", nullable=False),
        sa.Column("batch_id", sa.BigInteger(), nullable=True),
        sa.Column("attempts", sa.SmallInteger(), server_default="0", nullable=False),
        sa.Column("solo", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("error_class", sa.Text(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.CheckConstraint(
            "state IN ('pending', 'queued', 'running', 'done', 'invalid', 'dead', 'cancelled')",
            name=op.f("ck_jobs_state_known"),
        ),
        sa.ForeignKeyConstraint(["batch_id"], ["batches.id"], name=op.f("fk_jobs_batch_id")),
        sa.ForeignKeyConstraint(["campaign_id"], ["campaigns.id"], name=op.f("fk_jobs_campaign_id")),
        sa.ForeignKeyConstraint(["configuration_id"], ["configurations.id"], name=op.f("fk_jobs_configuration_id")),
        sa.ForeignKeyConstraint(["pool_id"], ["pools.id"], name=op.f("fk_jobs_pool_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
        sa.UniqueConstraint(
            "campaign_id", "configuration_id", "pool_id", name=op.f("uq_jobs_campaign_id_configuration_id_pool_id")
        ),
    )
    op.create_index(
        "uq_jobs_any_device",
        "jobs",
        ["campaign_id", "configuration_id"],
        unique=True,
        postgresql_where=sa.text("any_device"),
    )
    op.create_index(
        "ix_jobs_batch_id", "jobs", ["batch_id"], unique=False, postgresql_where=sa.text("batch_id IS NOT NULL")
    )
    op.create_index("ix_jobs_campaign_id_state", "jobs", ["campaign_id", "state"], unique=False)
    op.create_index(
        "ix_jobs_pending",
        "jobs",
        ["campaign_id", "pool_id", "solo", "configuration_id"],
        unique=False,
        postgresql_where=sa.text("state = 'pending'"),
    )
    op.create_table(
        "measurements",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=True),
        sa.Column("campaign_id", sa.BigInteger(), nullable=True),
        sa.Column("configuration_id", sa.Uuid(), nullable=False),
        sa.Column("device_id", sa.BigInteger(), nullable=False),
        sa.Column("environment_id", sa.Uuid(), nullable=False),
        sa.Column(
            "measured_at",
            postgresql.TIMESTAMP(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("runtime_ms", sa.DOUBLE_PRECISION(), nullable=False),
        sa.Column("runtime_q1_ms", sa.DOUBLE_PRECISION(), nullable=False),
        sa.Column("runtime_q3_ms", sa.DOUBLE_PRECISION(), nullable=False),
        sa.Column("runtime_min_ms", sa.DOUBLE_PRECISION(), nullable=False),
        sa.Column("runtime_rse", sa.DOUBLE_PRECISION(), nullable=False),
        sa.Column("samples", sa.BigInteger(), nullable=False),
        sa.Column("stop_reason", sa.Text(), nullable=False),
        sa.Column("l2", sa.Text(), nullable=False),
        sa.Column("power_w", sa.DOUBLE_PRECISION(), nullable=True),
        sa.Column("power_source", sa.Text(), nullable=True),
        sa.Column("idle_power_w", sa.DOUBLE_PRECISION(), nullable=True),
        sa.Column("power_limit_w", sa.DOUBLE_PRECISION(), nullable=True),
        sa.Column("sm_clock_mhz", sa.BigInteger(), nullable=True),
        sa.Column("memory_clock_mhz", sa.BigInteger(), nullable=True),
        sa.Column("temperature_c", sa.BigInteger(), nullable=True),
        sa.Column("throttle_reasons", sa.Text(), nullable=True),
        sa.Column("verify_error", sa.DOUBLE_PRECISION(), nullable=True),
        sa.Column("distribution", sa.Text(), nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("clock_policy", sa.Text(), nullable=True),
        sa.Column("kernel_hash", sa.Text(), nullable=True),
        sa.Column("cost_s", sa.DOUBLE_PRECISION(), nullable=False),
        sa.Column("details", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.CheckConstraint("source IN ('measured', 'recorded', 'imported')", name=op.f("ck_measurements_source_known")),
        sa.CheckConstraint("power_w > 0", name=op.f("ck_measurements_power_positive")),
        sa.CheckConstraint("runtime_ms > 0", name=op.f("ck_measurements_runtime_positive")),
        sa.CheckConstraint("samples > 0", name=op.f("ck_measurements_samples_positive")),
        sa.ForeignKeyConstraint(["campaign_id"], ["campaigns.id"], name=op.f("fk_measurements_campaign_id")),
        sa.ForeignKeyConstraint(
            ["configuration_id"], ["configurations.id"], name=op.f("fk_measurements_configuration_id")
        ),
        sa.ForeignKeyConstraint(["device_id"], ["devices.id"], name=op.f("fk_measurements_device_id")),
        sa.ForeignKeyConstraint(["environment_id"], ["environments.id"], name=op.f("fk_measurements_environment_id")),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_measurements_job_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_measurements")),
    )
    op.create_index("ix_measurements_campaign_id", "measurements", ["campaign_id"], unique=False)
    op.create_index("ix_measurements_configuration_id", "measurements", ["configuration_id"], unique=False)
    op.create_index("ix_measurements_device_id", "measurements", ["device_id"], unique=False)
    op.create_index(
        "uq_measurements_job_id",
        "measurements",
        ["job_id"],
        unique=True,
        postgresql_where=sa.text("job_id IS NOT NULL"),
    )
    op.execute(ELEMENT_BYTES)
    op.execute(V_MEASUREMENTS)
    op.execute(APPEND_ONLY)


def downgrade() -> None:
    op.execute("DROP VIEW v_measurements")
    op.execute("DROP FUNCTION element_bytes")
    op.drop_index("uq_measurements_job_id", table_name="measurements", postgresql_where=sa.text("job_id IS NOT NULL"))
    op.drop_index("ix_measurements_device_id", table_name="measurements")
    op.drop_index("ix_measurements_configuration_id", table_name="measurements")
    op.drop_index("ix_measurements_campaign_id", table_name="measurements")
    op.drop_table("measurements")
    op.execute("DROP FUNCTION refuse_change()")
    op.drop_index("uq_jobs_any_device", table_name="jobs", postgresql_where=sa.text("any_device"))
    op.drop_index("ix_jobs_pending", table_name="jobs", postgresql_where=sa.text("state = 'pending'"))
    op.drop_index("ix_jobs_campaign_id_state", table_name="jobs")
    op.drop_index("ix_jobs_batch_id", table_name="jobs", postgresql_where=sa.text("batch_id IS NOT NULL"))
    op.drop_table("jobs")
    op.drop_index("ix_batches_open", table_name="batches", postgresql_where=sa.text("state IN ('queued', 'leased')"))
    op.drop_index("ix_batches_campaign_id_id", table_name="batches")
    op.drop_index("ix_batches_campaign_id_finished_at", table_name="batches")
    op.drop_table("batches")
    op.drop_index(op.f("ix_devices_type"), table_name="devices")
    op.drop_index(op.f("ix_devices_host_id"), table_name="devices")
    op.drop_table("devices")
    op.drop_index(op.f("ix_trainings_device_type"), table_name="trainings")
    op.drop_table("trainings")
    op.drop_index("ix_pools_device_types", table_name="pools", postgresql_using="gin")
    op.drop_table("pools")
    op.drop_table("hosts")
    op.drop_table("environments")
    op.drop_table("configurations")
    op.drop_index(op.f("ix_campaigns_name"), table_name="campaigns")
    op.drop_table("campaigns")
