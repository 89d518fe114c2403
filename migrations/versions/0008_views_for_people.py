"""Views that answer what people ask of a farm without code of it: docs/sql.md has them.

Each is by what the database can find quickly: `v_device_health` looks at the latest rows of a device, which the index on
devices now has in order, and at the batches of the last day; `v_campaign_progress` at counters. `v_best_kernels` reads the
rows it is asked about. Times are looked up in a block range index, which costs next to nothing where rows land.

Revises: 0007
"""

from __future__ import annotations

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

# Under these conditions times can be compared, so a problem has a best kernel for each of them.
_CONDITIONS = "source, distribution, l2, clock_policy"
_KEY = f"device_type, {_CONDITIONS}, m, n, k, ab, cd, acc, layout, alpha, beta"

# An anti-join, which costs nothing where nothing was searched.
_NOT_OF_A_SHORT_ROUND = """NOT EXISTS (
            SELECT 1 FROM jobs j JOIN lanes l ON l.id = j.lane_id WHERE j.id = r.job_id AND l.rules IS NOT NULL
        )"""

# Kernels, then problems, are grouped by hashing and by several processes, which a view of medians and windows would keep
# Postgres from: most kernels have one row, which is its own median, and the fastest is found as a pair of its time and the
# id of a row of it (exact in a double up to 2^53). What it drew is looked up for it alone. A condition on a column of the
# problem or of the device reaches the tables.
V_BEST_KERNELS = f"""
CREATE VIEW v_best_kernels AS
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
            WHERE r.source <> 'sentinel' AND {_NOT_OF_A_SHORT_ROUND}
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
        AND r.l2 = p.l2 AND r.clock_policy IS NOT DISTINCT FROM p.clock_policy AND {_NOT_OF_A_SHORT_ROUND}
) o
"""

LATEST_ROWS = 200
"""Rows of a device that tell how it is now."""

# The sentinels are those of `farm sentinels`: of the newest campaign that has any, of fifty, and of its latest configuration.
V_DEVICE_HEALTH = f"""
CREATE VIEW v_device_health AS
WITH latest AS (
    SELECT d.id AS device_id, d.type, r.*
    FROM devices d CROSS JOIN LATERAL (
        SELECT configuration_id, source, distribution, clock_policy, power_w, sm_clock_mhz, temperature_c, throttle_reasons
        FROM measurements WHERE device_id = d.id ORDER BY id DESC LIMIT {LATEST_ROWS}
    ) r
), powers AS (
    SELECT type, device_id, configuration_id, source, distribution, clock_policy, avg(power_w) AS power_w
    FROM latest WHERE power_w IS NOT NULL AND source <> 'sentinel'
    GROUP BY type, configuration_id, source, distribution, clock_policy, device_id
), shared AS (
    SELECT type, configuration_id, source, distribution, clock_policy,
        percentile_cont(0.5) WITHIN GROUP (ORDER BY power_w) AS power_w
    FROM powers GROUP BY type, configuration_id, source, distribution, clock_policy HAVING count(*) > 1
), compared AS (
    SELECT p.device_id, count(*) AS power_configurations,
        percentile_cont(0.5) WITHIN GROUP (ORDER BY p.power_w / s.power_w) AS power_ratio
    FROM powers p JOIN shared s USING (type, configuration_id, source, distribution)
    WHERE p.clock_policy IS NOT DISTINCT FROM s.clock_policy
    GROUP BY p.device_id
), now AS (
    SELECT device_id,
        percentile_cont(0.5) WITHIN GROUP (ORDER BY sm_clock_mhz) AS sm_clock_mhz,
        percentile_cont(0.5) WITHIN GROUP (ORDER BY temperature_c) AS temperature_c,
        percentile_cont(0.5) WITHIN GROUP (ORDER BY power_w) AS power_w,
        avg(CASE WHEN throttle_reasons = 'none' THEN 0.0 WHEN throttle_reasons IS NOT NULL THEN 1.0 END)::double precision
            AS throttled_share
    FROM latest GROUP BY device_id
), ended AS (
    SELECT b.device_id, sum(b.done)::bigint AS rows_last_day,
        coalesce(sum(b.done) FILTER (WHERE b.finished_at > statement_timestamp() - interval '1 hour'), 0)::bigint
            AS rows_last_hour
    FROM lanes l JOIN batches b ON b.lane_id = l.id AND b.finished_at > statement_timestamp() - interval '1 day'
    GROUP BY b.device_id
), unfolded AS (
    SELECT device_id, sum(done)::bigint AS done FROM batches WHERE NOT folded GROUP BY device_id
)
SELECT d.uuid AS device_uuid, d.type AS device_type, d.name AS device_name, h.name AS host, d.backend,
    d.state, d.state_reason, d.state_changed_at,
    nullif(d.last_seen_at, '-infinity') AS last_seen_at,
    extract(epoch FROM statement_timestamp() - nullif(d.last_seen_at, '-infinity'))::double precision AS silent_s,
    d.vanished_at,
    d.measured + coalesce(u.done, 0) AS rows,
    coalesce(e.rows_last_hour, 0) AS rows_last_hour,
    coalesce(e.rows_last_day, 0) AS rows_last_day,
    n.sm_clock_mhz, n.temperature_c, n.power_w, n.throttled_share,
    c.power_ratio, coalesce(c.power_configurations, 0) AS power_configurations,
    s.campaign AS sentinel_campaign,
    s.first_ms AS sentinel_first_ms,
    s.last_ms AS sentinel_last_ms,
    s.last_ms / s.first_ms AS sentinel_ratio,
    s.last_at AS sentinel_last_at
FROM devices d
JOIN hosts h ON h.id = d.host_id
LEFT JOIN unfolded u ON u.device_id = d.id
LEFT JOIN ended e ON e.device_id = d.id
LEFT JOIN now n ON n.device_id = d.id
LEFT JOIN compared c ON c.device_id = d.id
LEFT JOIN LATERAL (
    SELECT g.name AS campaign, x.measured_at AS last_at,
        (
            SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY runtime_ms) FROM (
                SELECT runtime_ms FROM measurements
                WHERE source = 'sentinel' AND campaign_id = g.id AND device_id = d.id AND configuration_id = x.configuration_id
                ORDER BY measured_at LIMIT 3
            ) o
        ) AS first_ms,
        (
            SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY runtime_ms) FROM (
                SELECT runtime_ms FROM measurements
                WHERE source = 'sentinel' AND campaign_id = g.id AND device_id = d.id AND configuration_id = x.configuration_id
                ORDER BY measured_at DESC LIMIT 3
            ) o
        ) AS last_ms
    FROM (SELECT id, name FROM campaigns ORDER BY id DESC LIMIT 50) g
    CROSS JOIN LATERAL (
        SELECT measured_at, configuration_id FROM measurements
        WHERE source = 'sentinel' AND campaign_id = g.id AND device_id = d.id ORDER BY measured_at DESC LIMIT 1
    ) x
    ORDER BY g.id DESC LIMIT 1
) s ON true
"""

# As `farm status` counts them, and its pace over the last five minutes.
V_CAMPAIGN_PROGRESS = """
CREATE VIEW v_campaign_progress AS
SELECT c.id AS campaign_id, c.name AS campaign, c.owner, c.priority, c.state, c.submitted_at, c.finished_at,
    t.jobs,
    CASE WHEN c.state = 'cancelled' THEN 0 ELSE t.waiting END AS pending,
    t.queued, t.running,
    CASE WHEN c.state = 'cancelled' THEN 0 ELSE t.later END AS later,
    t.done, t.invalid, t.dead,
    CASE WHEN c.state = 'cancelled' THEN t.waiting ELSE 0 END AS cancelled,
    (t.done + t.invalid + t.dead)::double precision / nullif(t.jobs + t.later, 0) AS ended_share,
    p.jobs_per_minute,
    60 * (t.waiting + t.queued + t.running + t.later) / p.jobs_per_minute AS left_s
FROM campaigns c
CROSS JOIN LATERAL (
    SELECT coalesce(sum(l.jobs), 0)::bigint AS jobs, coalesce(sum(b.queued), 0)::bigint AS queued,
        coalesce(sum(b.running), 0)::bigint AS running, coalesce(sum(l.done + b.done), 0)::bigint AS done,
        coalesce(sum(l.invalid + b.invalid), 0)::bigint AS invalid, coalesce(sum(l.dead + b.dead), 0)::bigint AS dead,
        coalesce(sum(CASE
            WHEN l.rules IS NULL OR l.decided = l.done + b.done THEN 0
            WHEN l.decided IS NULL THEN greatest(l.later, 1)
            ELSE 1
        END), 0)::bigint AS later,
        coalesce(sum(
            l.jobs - l.done - l.invalid - l.dead - b.done - b.invalid - b.dead - b.queued - b.running
        ), 0)::bigint AS waiting
    FROM lanes l CROSS JOIN LATERAL (
        SELECT coalesce(sum(jobs) FILTER (WHERE state = 'queued'), 0)::bigint AS queued,
            coalesce(sum(jobs) FILTER (WHERE state = 'leased'), 0)::bigint AS running,
            coalesce(sum(done), 0)::bigint AS done, coalesce(sum(invalid), 0)::bigint AS invalid,
            coalesce(sum(dead), 0)::bigint AS dead
        FROM batches WHERE lane_id = l.id AND NOT folded
    ) b
    WHERE l.campaign_id = c.id
) t
CROSS JOIN LATERAL (
    SELECT 60 * nullif(sum(b.done + b.invalid + b.dead), 0)::double precision / greatest(
        1, least(300, extract(epoch FROM statement_timestamp() - min(b.claimed_at)))
    )::double precision AS jobs_per_minute
    FROM lanes l JOIN batches b ON b.lane_id = l.id
    WHERE l.campaign_id = c.id AND c.state IN ('active', 'paused') AND b.claimed_at IS NOT NULL
        AND b.finished_at > statement_timestamp() - interval '5 minutes'
) p
"""


def upgrade() -> None:
    op.create_index("ix_measurements_device_id_id", "measurements", ["device_id", "id"])
    op.drop_index("ix_measurements_device_id", "measurements")
    op.create_index(
        "ix_measurements_measured_at",
        "measurements",
        ["measured_at"],
        postgresql_using="brin",
        postgresql_with={"autosummarize": True},
    )
    for view in (V_BEST_KERNELS, V_DEVICE_HEALTH, V_CAMPAIGN_PROGRESS):
        op.execute(view)


def downgrade() -> None:
    for name in ("v_campaign_progress", "v_device_health", "v_best_kernels"):
        op.execute(f"DROP VIEW {name}")
    op.drop_index("ix_measurements_measured_at", "measurements")
    op.create_index("ix_measurements_device_id", "measurements", ["device_id"])
    op.drop_index("ix_measurements_device_id_id", "measurements")
