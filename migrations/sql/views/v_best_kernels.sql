-- The best kernel of each problem on each type of device, under each set of conditions under which times can be compared.
--
-- Kernels, then problems, are grouped by hashing and by several processes, which a view of medians and windows would keep
-- Postgres from: most kernels have one row, which is its own median, and the fastest is found as a pair of its time and the
-- id of a row of it (exact in a double up to 2^53). What it drew is looked up for it alone. A condition on a column of the
-- problem or of the device reaches the tables. The anti-join with short rounds costs nothing where nothing was searched.

CREATE OR REPLACE VIEW v_best_kernels AS
SELECT p.device_type, p.source, p.protocol, p.distribution, p.l2, p.clock_policy,
    p.m, p.n, p.k, p.ab, p.cd, p.acc, p.layout, p.alpha, p.beta, p.batch, p.scale, p.fused, p.groups, p.sparsity,
    c.family, c.parameters, c.id AS configuration_id,
    p.fastest[1] AS runtime_ms,
    2.0::double precision * p.batch * p.m * p.n * p.k / p.fastest[1] / 1e9 AS tflops,
    o.power_w, o.energy_mj, o.rows,
    p.kernels,
    p.cublaslt_ms,
    p.cublaslt_ms / p.fastest[1] AS speed_up
FROM (
    SELECT device_type, source, protocol, distribution, l2, clock_policy, m, n, k, ab, cd, acc, layout, alpha, beta, batch, scale, fused, groups, sparsity,
        count(*) AS kernels, min(ARRAY[runtime_ms, measurement_id]) AS fastest,
        min(runtime_ms) FILTER (WHERE own_choice) AS cublaslt_ms
    FROM (
        SELECT device_type, source, protocol, distribution, l2, clock_policy, m, n, k, ab, cd, acc, layout, alpha, beta, batch, scale, fused, groups, sparsity,
            own_choice, measurement_id,
            CASE
                WHEN cardinality(times) = 1 THEN times[1]
                ELSE (SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY ms) FROM unnest(times) AS t(ms))
            END AS runtime_ms
        FROM (
            SELECT d.type AS device_type, source, protocol, distribution, l2, clock_policy, m, n, k, ab, cd, acc, layout, alpha, beta, batch, scale, fused, groups, sparsity,
                c.family = 'cublaslt' AND c.parameters = '{"algorithm": 0}' AS own_choice,
                min(r.id) AS measurement_id, array_agg(r.runtime_ms) AS times
            FROM measurements r JOIN devices d ON d.id = r.device_id JOIN configurations c ON c.id = r.configuration_id
            WHERE r.source <> 'sentinel'
                AND NOT EXISTS (
                    SELECT 1 FROM jobs j JOIN lanes l ON l.id = j.lane_id WHERE j.id = r.job_id AND l.rules IS NOT NULL
                )
                AND NOT EXISTS (
                    SELECT FROM device_overlaps o
                    WHERE o.device_id = r.device_id AND r.measured_at BETWEEN o.since AND o.rows_until
                )
            GROUP BY c.id, d.type, source, protocol, distribution, l2, clock_policy
        ) kernel
    ) timed
    GROUP BY device_type, source, protocol, distribution, l2, clock_policy, m, n, k, ab, cd, acc, layout, alpha, beta, batch, scale, fused, groups, sparsity
) p
JOIN measurements f ON f.id = p.fastest[2]::bigint
JOIN configurations c ON c.id = f.configuration_id
CROSS JOIN LATERAL (
    SELECT count(*) AS rows,
        percentile_cont(0.5) WITHIN GROUP (ORDER BY r.power_w) AS power_w,
        percentile_cont(0.5) WITHIN GROUP (ORDER BY r.power_w * coalesce(r.runtime_settled_ms, r.runtime_ms)) AS energy_mj
    FROM measurements r JOIN devices d ON d.id = r.device_id
    WHERE r.configuration_id = c.id AND d.type = p.device_type AND r.source = p.source AND r.protocol = p.protocol AND r.distribution = p.distribution
        AND r.l2 = p.l2 AND r.clock_policy IS NOT DISTINCT FROM p.clock_policy
        AND NOT EXISTS (
            SELECT 1 FROM jobs j JOIN lanes l ON l.id = j.lane_id WHERE j.id = r.job_id AND l.rules IS NOT NULL
        )
        AND NOT EXISTS (
            SELECT FROM device_overlaps o
            WHERE o.device_id = r.device_id AND r.measured_at BETWEEN o.since AND o.rows_until
        )
) o;
