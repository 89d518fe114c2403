-- How rows of workers land, with the rights of the owner of the tables: results of a batch, and sentinels.

CREATE OR REPLACE FUNCTION worker_land(
    p_batch_id bigint, p_token uuid, p_ids bigint[], p_rows jsonb, p_contents text[],
    p_failed bigint[], p_kinds text[], p_messages text[], p_pause float8,
    p_missing bigint[], p_hashes text[], p_descriptions jsonb[], p_toolchains text[]
) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE v_batch record; v_ids bigint[]; v_environments uuid[]; v_done bigint := 0; v_landed bigint; v_invalid bigint := 0;
    v_dead bigint := 0;
BEGIN
    SELECT b.device_id, b.claimed_at, b.job_ids, l.campaign_id INTO v_batch FROM batches b JOIN lanes l ON l.id = b.lane_id
    WHERE b.id = p_batch_id AND b.state = 'leased' AND b.lease_token = p_token AND b.lease_expires_at > clock_timestamp()
    FOR NO KEY UPDATE OF b;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM require_own_device(v_batch.device_id);
    PERFORM set_config('synchronous_commit', 'on', true);  -- whatever the connection does otherwise
    IF cardinality(p_ids) > 0 THEN
        v_environments := environment_ids(p_contents);
        INSERT INTO environments (id, content)
        SELECT e.id, e.content::jsonb FROM unnest(v_environments, p_contents) AS e(id, content) ORDER BY e.id
        ON CONFLICT DO NOTHING;
        v_ids := ARRAY(SELECT unnest(p_ids) INTERSECT SELECT unnest(v_batch.job_ids));
        WITH open_jobs AS (
            UPDATE jobs SET state = 'done' WHERE id = ANY(v_ids) AND state = 'open' RETURNING id, configuration_id
        ), landed AS (
            INSERT INTO measurements (job_id, campaign_id, configuration_id, device_id, environment_id, source, runtime_ms, runtime_q1_ms, runtime_q3_ms, runtime_min_ms, runtime_rse, samples, stop_reason, l2, runtime_warm_ms, runtime_burst_ms, runtime_burst_rse, burst_samples, runtime_settled_ms, runtime_settled_rse, settled_samples, power_w, power_source, power_rse, power_disagrees, idle_power_w, power_limit_w, sm_clock_mhz, memory_clock_mhz, temperature_before_c, temperature_c, throttle_reasons, power_limited, verify_error, result_digest, deterministic, batch_invariant, distribution, seed, protocol, clock_policy, kernel_hash, cost_s, window_s, details)
            SELECT r.job_id, v_batch.campaign_id, r.configuration_id, v_batch.device_id, r.environment_id, r.source, r.runtime_ms, r.runtime_q1_ms, r.runtime_q3_ms, r.runtime_min_ms, r.runtime_rse, r.samples, r.stop_reason, r.l2, r.runtime_warm_ms, r.runtime_burst_ms, r.runtime_burst_rse, r.burst_samples, r.runtime_settled_ms, r.runtime_settled_rse, r.settled_samples, r.power_w, r.power_source, r.power_rse, r.power_disagrees, r.idle_power_w, r.power_limit_w, r.sm_clock_mhz, r.memory_clock_mhz, r.temperature_before_c, r.temperature_c, r.throttle_reasons, r.power_limited, r.verify_error, r.result_digest, r.deterministic, r.batch_invariant, r.distribution, r.seed, r.protocol, r.clock_policy, r.kernel_hash, r.cost_s, r.window_s, r.details
            FROM jsonb_populate_recordset(CAST(NULL AS measurements), p_rows) WITH ORDINALITY r
            -- IS TRUE: hashed, whatever the planner thinks of how many they are.
            WHERE ((r.job_id, r.configuration_id) IN (SELECT id, configuration_id FROM open_jobs)) IS TRUE
              AND r.environment_id = ANY(v_environments) AND r.source IN ('measured', 'recorded')
            ORDER BY r.ordinality RETURNING id
        )
        SELECT (SELECT count(*) FROM open_jobs), (SELECT count(*) FROM landed) INTO v_done, v_landed;
        IF v_landed <> v_done OR cardinality(v_ids) <> cardinality(p_ids) THEN
            RAISE EXCEPTION 'permission denied: % of % rows are not results of jobs of the batch %',
                cardinality(p_ids) - v_landed, cardinality(p_ids), p_batch_id USING ERRCODE = 'insufficient_privilege';
        END IF;
        -- This batch was in hand when a session that was lost measured as well: its rows are no results.
        UPDATE device_overlaps o SET rows_until = clock_timestamp() + interval '1 s'
        WHERE o.device_id = v_batch.device_id AND o.until >= v_batch.claimed_at;
    END IF;
    IF cardinality(p_failed) > 0 THEN
        SELECT f.invalid, f.dead INTO v_invalid, v_dead
        FROM (
            SELECT array_agg(u.job_id) AS ids, array_agg(u.kind) AS kinds, array_agg(u.message) AS messages
            FROM unnest(p_failed, p_kinds, p_messages) AS u(job_id, kind, message) WHERE u.job_id = ANY(v_batch.job_ids)
        ) own CROSS JOIN LATERAL fail_jobs(
            own.ids, own.kinds, own.messages, p_batch_id, v_batch.device_id, least(p_pause, 3600)
        ) f;
    END IF;
    IF cardinality(p_missing) > 0 THEN
        INSERT INTO kernels (hash, description, toolchain)
        SELECT DISTINCT ON (k.hash) k.hash, k.description, k.toolchain
        FROM unnest(p_missing, p_hashes, p_descriptions, p_toolchains) AS k(job_id, hash, description, toolchain)
        WHERE k.job_id = ANY(v_batch.job_ids) ORDER BY k.hash
        ON CONFLICT DO NOTHING;
        WITH these AS MATERIALIZED (
            SELECT k.id FROM kernels k
            WHERE NOT k.final AND k.state IN ('failed', 'built') AND k.hash IN (
                SELECT m.hash FROM unnest(p_missing, p_hashes) AS m(job_id, hash) WHERE m.job_id = ANY(v_batch.job_ids)
            )
            ORDER BY k.id FOR NO KEY UPDATE
        )
        UPDATE kernels k SET state = 'wanted', starts = 0, sent_at = NULL, finished_at = NULL, wanted_at = clock_timestamp()
        FROM these WHERE k.id = these.id;
        WITH these AS MATERIALIZED (
            SELECT j.id, j.lane_id, k.id AS kernel_id
            FROM unnest(p_missing, p_hashes) AS m(job_id, hash) JOIN kernels k ON k.hash = m.hash JOIN jobs j ON j.id = m.job_id
            WHERE j.state = 'open' AND j.id = ANY(v_batch.job_ids) ORDER BY j.id FOR NO KEY UPDATE OF j
        ), moved AS (
            UPDATE jobs j SET state = 'waiting' FROM these t WHERE j.id = t.id
        )
        INSERT INTO waiting_jobs (kernel_id, job_id, lane_id) SELECT kernel_id, id, lane_id FROM these ON CONFLICT DO NOTHING;
    END IF;
    IF v_done + v_invalid + v_dead < cardinality(v_batch.job_ids) THEN
        PERFORM return_rest(p_batch_id);
    END IF;
    PERFORM end_batch(p_batch_id, 'done', NULL, v_done, v_invalid, v_dead);
    RETURN true;
END
$$;

CREATE OR REPLACE FUNCTION worker_land_sentinel(
    p_batch_id bigint, p_token uuid, p_rows jsonb, p_contents text[], p_id uuid, p_m bigint, p_n bigint, p_k bigint, p_ab text, p_cd text,
    p_acc text, p_layout text, p_alpha float8, p_beta float8, p_family text, p_parameters jsonb
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE v_batch record; v_environments uuid[];
BEGIN
    SELECT b.device_id, l.campaign_id INTO v_batch FROM batches b JOIN lanes l ON l.id = b.lane_id
    WHERE b.id = p_batch_id AND CASE b.state
        WHEN 'leased' THEN b.lease_token = p_token AND b.lease_expires_at > clock_timestamp()
        WHEN 'done' THEN b.xmin = pg_current_xact_id_if_assigned()::xid
    END;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'permission denied: the batch % is not held, and did not land in this transaction', p_batch_id
            USING ERRCODE = 'insufficient_privilege';
    END IF;
    PERFORM require_own_device(v_batch.device_id);
    IF p_id IS DISTINCT FROM configuration_id(
        p_m, p_n, p_k, p_ab, p_cd, p_acc, p_layout, p_alpha, p_beta, p_family, p_parameters
    ) THEN
        RAISE EXCEPTION 'permission denied: % is not the id of the configuration %x%x% of %', p_id, p_m, p_n, p_k, p_family
            USING ERRCODE = 'insufficient_privilege';
    END IF;
    INSERT INTO configurations (id, m, n, k, ab, cd, acc, layout, alpha, beta, family, parameters)
    VALUES (p_id, p_m, p_n, p_k, p_ab, p_cd, p_acc, p_layout, p_alpha, p_beta, p_family, p_parameters)
    ON CONFLICT DO NOTHING;
    v_environments := environment_ids(p_contents);
    INSERT INTO environments (id, content)
    SELECT e.id, e.content::jsonb FROM unnest(v_environments, p_contents) AS e(id, content) ORDER BY e.id
    ON CONFLICT DO NOTHING;
    INSERT INTO measurements (campaign_id, configuration_id, device_id, environment_id, source, runtime_ms, runtime_q1_ms, runtime_q3_ms, runtime_min_ms, runtime_rse, samples, stop_reason, l2, runtime_warm_ms, runtime_burst_ms, runtime_burst_rse, burst_samples, runtime_settled_ms, runtime_settled_rse, settled_samples, power_w, power_source, power_rse, power_disagrees, idle_power_w, power_limit_w, sm_clock_mhz, memory_clock_mhz, temperature_before_c, temperature_c, throttle_reasons, power_limited, verify_error, result_digest, deterministic, batch_invariant, distribution, seed, protocol, clock_policy, kernel_hash, cost_s, window_s, details)
    SELECT v_batch.campaign_id, p_id, v_batch.device_id, r.environment_id, r.source, r.runtime_ms, r.runtime_q1_ms, r.runtime_q3_ms, r.runtime_min_ms, r.runtime_rse, r.samples, r.stop_reason, r.l2, r.runtime_warm_ms, r.runtime_burst_ms, r.runtime_burst_rse, r.burst_samples, r.runtime_settled_ms, r.runtime_settled_rse, r.settled_samples, r.power_w, r.power_source, r.power_rse, r.power_disagrees, r.idle_power_w, r.power_limit_w, r.sm_clock_mhz, r.memory_clock_mhz, r.temperature_before_c, r.temperature_c, r.throttle_reasons, r.power_limited, r.verify_error, r.result_digest, r.deterministic, r.batch_invariant, r.distribution, r.seed, r.protocol, r.clock_policy, r.kernel_hash, r.cost_s, r.window_s, r.details
    FROM jsonb_populate_recordset(CAST(NULL AS measurements), p_rows) r
    WHERE r.environment_id = ANY(v_environments) AND r.source = 'sentinel' LIMIT 1;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'permission denied: this is no row of a sentinel' USING ERRCODE = 'insufficient_privilege';
    END IF;
END
$$;

REVOKE ALL ON FUNCTION worker_land, worker_land_sentinel FROM PUBLIC;
