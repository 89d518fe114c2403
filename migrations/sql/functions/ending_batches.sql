-- How batches and their jobs end. These functions run with the rights of their caller: the coordinator's, or those of the
-- owner where a function of workers calls them. farm.db.batches.ending has the same rules for queries; a test compares them.

CREATE OR REPLACE FUNCTION fail_jobs(
    p_ids bigint[], p_kinds text[], p_messages text[], p_batch_id bigint, p_device_id bigint, p_pause float8,
    OUT invalid bigint, OUT dead bigint
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE v_invalid bigint; v_dead bigint;
BEGIN
    WITH failed AS (
        SELECT * FROM unnest(CAST(p_ids AS bigint[]), CAST(p_kinds AS text[]), CAST(p_messages AS text[]))
            AS f(job_id, kind, message)
    ), others AS MATERIALIZED (
        SELECT d.id, d.type, d.traits, d.backend, d.worker_version_id
        FROM batches b JOIN lanes l ON l.id = b.lane_id JOIN pools p ON p.id = l.pool_id
        JOIN devices d ON d.type = ANY(p.device_types) OR d.uuid = p.device_uuid
        JOIN devices refuser ON refuser.id = p_device_id
        WHERE b.id = p_batch_id AND 'invalid' = ANY(p_kinds) AND
    NOT (d.state = 'quarantined' OR (d.state = 'probation' AND d.failed_trials >= 3)) AND d.vanished_at IS NULL
        AND d.last_seen_at > clock_timestamp() - make_interval(secs => 120)
     AND NOT (refuser.id = d.id OR (refuser.backend = ANY(ARRAY['cpu', 'cuda']) AND refuser.backend = d.backend AND refuser.type = d.type AND refuser.traits = d.traits AND refuser.worker_version_id IS NOT DISTINCT FROM d.worker_version_id))
    ), expected AS MATERIALIZED (
        SELECT d.id, d.type, d.traits, d.backend, d.worker_version_id
        FROM batches b JOIN lanes l ON l.id = b.lane_id JOIN pools p ON p.id = l.pool_id
        JOIN devices d ON d.type = ANY(p.device_types) OR d.uuid = p.device_uuid
        WHERE b.id = p_batch_id AND d.id <> p_device_id AND
    d.state = 'active' AND d.vanished_at IS NULL
        AND greatest(d.last_seen_at, d.left_at) > clock_timestamp() - make_interval(secs => 300)
    ), judged AS (
        SELECT f.*, j.attempts + 1 AS attempts, (coalesce(l.rules, c.rules) ->> 'max_attempts')::int AS max_attempts,
            f.kind = 'unsupported' OR (f.kind = 'invalid' AND NOT NOT EXISTS (
            SELECT 1 FROM others o WHERE NOT EXISTS (
                SELECT 1 FROM failures x JOIN devices r ON r.id = x.device_id
                WHERE x.job_id = f.job_id AND x.kind = 'invalid' AND (r.id = o.id OR (r.backend = ANY(ARRAY['cpu', 'cuda']) AND r.backend = o.backend AND r.type = o.type AND r.traits = o.traits AND r.worker_version_id IS NOT DISTINCT FROM o.worker_version_id))
            )
        )) AS elsewhere
        FROM failed f JOIN jobs j ON j.id = f.job_id JOIN lanes l ON l.id = j.lane_id JOIN campaigns c ON c.id = l.campaign_id
    ), decided AS (
        SELECT u.*, u.kind IN ('failed', 'killed', 'corrupted') AND u.attempts >= u.max_attempts AND NOT EXISTS (
            SELECT 1 FROM failures x
            WHERE x.job_id = u.job_id AND x.kind IN ('failed', 'killed', 'corrupted') AND x.device_id <> p_device_id
        ) AND EXISTS (SELECT 1 FROM expected e WHERE NOT EXISTS (
            SELECT 1 FROM failures x JOIN devices tried ON tried.id = x.device_id
            WHERE x.job_id = u.job_id AND CASE x.kind
                WHEN 'invalid' THEN (tried.id = e.id OR (tried.backend = ANY(ARRAY['cpu', 'cuda']) AND tried.backend = e.backend AND tried.type = e.type AND tried.traits = e.traits AND tried.worker_version_id IS NOT DISTINCT FROM e.worker_version_id))
                WHEN 'unsupported' THEN coalesce(x.worker_version_id = e.worker_version_id, tried.id = e.id)
                ELSE tried.id = e.id
            END
        )) AS exhausted
        FROM judged u
    ), moved AS (
        UPDATE jobs j SET
            attempts = j.attempts + CASE WHEN f.elsewhere THEN 0 ELSE 1 END,
            solo = j.solo OR f.kind = 'killed',
            state = CASE
                WHEN f.elsewhere OR f.exhausted THEN 'open'
                WHEN f.kind = 'invalid' THEN 'invalid'
                WHEN f.attempts >= f.max_attempts THEN 'dead'
                ELSE 'open'
            END
        FROM decided f WHERE j.id = f.job_id AND j.state = 'open'
        RETURNING j.id, j.lane_id, j.state, j.solo, j.attempts, f.kind, f.message, f.exhausted
    ), noted AS (
        INSERT INTO failures (job_id, lane_id, batch_id, device_id, worker_version_id, kind, message)
        SELECT id, lane_id, p_batch_id, p_device_id, (SELECT worker_version_id FROM devices WHERE id = p_device_id), kind, message FROM moved ORDER BY id
    ), again AS (
        INSERT INTO returned_jobs (job_id, lane_id, solo, avoid_device_id, refused_by, exhausted, not_before)
        SELECT m.id, m.lane_id, m.solo, p_device_id, CASE
            WHEN m.solo OR CAST(p_device_id AS bigint) IS NOT NULL
            THEN ARRAY(
            SELECT CASE WHEN r.kind = 'unsupported' THEN coalesce(-r.worker_version_id, r.device_id) ELSE r.device_id END
            FROM failures r
            WHERE r.job_id = m.id AND r.kind IN ('invalid', 'unsupported') AND r.device_id IS NOT NULL
            UNION SELECT a.id FROM (SELECT CAST(CASE
        WHEN m.kind = 'invalid' OR m.exhausted THEN p_device_id
        WHEN m.kind = 'unsupported' THEN coalesce(-(SELECT worker_version_id FROM devices WHERE id = p_device_id), p_device_id)
    END AS bigint)) a(id) WHERE a.id IS NOT NULL
            ORDER BY 1
        ) ELSE '{}'
        END, m.exhausted, CASE
            WHEN m.kind IN ('failed', 'killed', 'corrupted') AND NOT m.exhausted
            THEN clock_timestamp() + make_interval(secs => p_pause * 2 ^ least(m.attempts - 1, 6))
        END
        FROM moved m WHERE m.state = 'open'
    )
    SELECT count(*) FILTER (WHERE state = 'invalid'), count(*) FILTER (WHERE state = 'dead') INTO v_invalid, v_dead FROM moved;
    invalid := v_invalid;
    dead := v_dead;
END
$$;

CREATE OR REPLACE FUNCTION return_rest(p_batch_id bigint) RETURNS void LANGUAGE sql AS $$
    INSERT INTO returned_jobs (job_id, lane_id, solo, refused_by)
    SELECT j.id, j.lane_id, j.solo, CASE WHEN j.solo THEN ARRAY(
            SELECT CASE WHEN r.kind = 'unsupported' THEN coalesce(-r.worker_version_id, r.device_id) ELSE r.device_id END
            FROM failures r
            WHERE r.job_id = j.id AND r.kind IN ('invalid', 'unsupported') AND r.device_id IS NOT NULL
            UNION SELECT a.id FROM (SELECT CAST(NULL AS bigint)) a(id) WHERE a.id IS NOT NULL
            ORDER BY 1
        ) ELSE '{}' END
    FROM batches b CROSS JOIN unnest(b.job_ids) AS u(job_id) JOIN jobs j ON j.id = u.job_id
    WHERE b.id = p_batch_id AND j.state = 'open'
    ON CONFLICT DO NOTHING
$$;

CREATE OR REPLACE FUNCTION end_batch(p_batch_id bigint, p_state text, p_reason text, p_done bigint, p_invalid bigint, p_dead bigint)
RETURNS void LANGUAGE sql AS $$
    UPDATE batches SET state = p_state, finished_at = clock_timestamp(), end_reason = coalesce(end_reason, p_reason),
        lease_token = NULL, lease_expires_at = NULL, busy_until = NULL, current_job_id = NULL,
        done = p_done, invalid = p_invalid, dead = p_dead
    WHERE id = p_batch_id
$$;

CREATE OR REPLACE FUNCTION release_batch(p_batch_id bigint, p_reason text, p_suspect boolean, p_pause float8)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE v_batch record; v_invalid bigint := 0; v_dead bigint := 0;
BEGIN
    SELECT current_job_id, device_id INTO v_batch FROM batches
    WHERE id = p_batch_id AND state IN ('queued', 'leased') FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF p_suspect AND v_batch.current_job_id IS NOT NULL THEN
        SELECT f.invalid, f.dead INTO v_invalid, v_dead FROM fail_jobs(
            ARRAY[v_batch.current_job_id], ARRAY['killed'], ARRAY['it was being measured when ' || p_reason],
            p_batch_id, v_batch.device_id, p_pause
        ) f;
    END IF;
    PERFORM return_rest(p_batch_id);
    PERFORM end_batch(p_batch_id, 'released', p_reason, 0, v_invalid, v_dead);
END
$$;
