-- How each device is now: state, heartbeats, the latest 200 rows against those of its type, and its sentinels, which are those of
-- `farm sentinels`: of the newest campaign that has any, of fifty, and of its latest configuration.
--
-- It looks at the latest rows of a device, which the index on devices has in order, and at the batches of the last day.

CREATE OR REPLACE VIEW v_device_health AS
WITH latest AS (
    SELECT d.id AS device_id, d.type, r.*
    FROM devices d CROSS JOIN LATERAL (
        SELECT configuration_id, source, distribution, clock_policy, protocol, power_w, sm_clock_mhz, temperature_c,
            string_to_array(throttle_reasons, ',') AS reasons, power_limited
        FROM measurements WHERE device_id = d.id ORDER BY id DESC LIMIT 200
    ) r
), powers AS (
    SELECT type, device_id, configuration_id, source, distribution, clock_policy, protocol, avg(power_w) AS power_w
    FROM latest WHERE power_w IS NOT NULL AND source <> 'sentinel'
    GROUP BY type, configuration_id, source, distribution, clock_policy, protocol, device_id
), shared AS (
    SELECT type, configuration_id, source, distribution, clock_policy, protocol,
        percentile_cont(0.5) WITHIN GROUP (ORDER BY power_w) AS power_w
    FROM powers GROUP BY type, configuration_id, source, distribution, clock_policy, protocol HAVING count(*) > 1
), compared AS (
    SELECT p.device_id, count(*) AS power_configurations,
        percentile_cont(0.5) WITHIN GROUP (ORDER BY p.power_w / s.power_w) AS power_ratio
    FROM powers p JOIN shared s USING (type, configuration_id, source, distribution, protocol)
    WHERE p.clock_policy IS NOT DISTINCT FROM s.clock_policy
    GROUP BY p.device_id
), now AS (
    SELECT device_id,
        percentile_cont(0.5) WITHIN GROUP (ORDER BY sm_clock_mhz) AS sm_clock_mhz,
        percentile_cont(0.5) WITHIN GROUP (ORDER BY temperature_c) AS temperature_c,
        percentile_cont(0.5) WITHIN GROUP (ORDER BY power_w) AS power_w,
        -- The power limiter by power_limited: its clock event is also set for short kernels that it does not slow down.
        avg((coalesce(power_limited, 'sw_power_cap' = ANY (reasons))
            OR coalesce(array_remove(array_remove(reasons, 'sw_power_cap'), 'none') <> '{}', false))::int)::double precision
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
) s ON true;
