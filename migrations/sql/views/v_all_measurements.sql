-- v_all_measurements: every row but sentinels. v_sentinels: the sentinels, with the same columns.

DO $both$
DECLARE
    v_name text;
    v_is text;
BEGIN
    FOR v_name, v_is IN VALUES ('v_all_measurements', '<>'), ('v_sentinels', '=') LOOP
        EXECUTE format($view$
CREATE OR REPLACE VIEW %I AS
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
    c.m, c.n, c.k, c.ab, c.cd, c.acc, c.layout, c.alpha, c.beta, c.batch, c.scale, c.fused, c.groups, c.sparsity, c.family, c.parameters,
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
    r.power_w * coalesce(r.runtime_settled_ms, r.runtime_ms) AS energy_mj,
    f.flops / r.runtime_ms / 1e9 AS tflops,
    f.flops / coalesce(r.runtime_settled_ms, r.runtime_ms) / 1e6 / r.power_w AS gflops_per_w,
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
    r.window_s,
    r.runtime_settled_ms,
    r.protocol,
    r.runtime_burst_ms,
    r.runtime_burst_rse,
    r.burst_samples,
    r.runtime_settled_rse,
    r.settled_samples,
    r.power_limited,
    r.result_digest,
    r.deterministic,
    r.batch_invariant
FROM measurements r
JOIN configurations c ON c.id = r.configuration_id
JOIN devices d ON d.id = r.device_id
JOIN hosts h ON h.id = d.host_id
JOIN environments e ON e.id = r.environment_id
LEFT JOIN campaigns g ON g.id = r.campaign_id
CROSS JOIN LATERAL (
    SELECT
        2.0::double precision * c.batch * c.m * c.n * c.k AS flops,
        gemm_bytes(c.m, c.n, c.k, c.ab, c.cd, c.beta, c.batch, c.scale, c.fused, c.groups, c.sparsity) AS bytes
) f
WHERE r.source %s 'sentinel'
$view$, v_name, v_is);
    END LOOP;
END
$both$;
