-- What workers do with batches. The functions run with the rights of the owner of the tables and refuse devices of other hosts.
--
-- A host chooses for how long it claims a batch, which is dispatched again only after its lease has expired. 7200 s are more than
-- the longest job (MeasuringRules.job_seconds, an hour) and its landing.

CREATE OR REPLACE FUNCTION worker_claim(
    p_batch_id bigint, p_device_id bigint, p_session bigint, p_lease_seconds float8, p_busy_seconds float8
) RETURNS TABLE (token uuid, campaign_id bigint, rules jsonb, job_ids bigint[])
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
#variable_conflict use_column
BEGIN
    PERFORM require_own_device(p_device_id);
    RETURN QUERY UPDATE batches b
    SET state = 'leased', device_id = d.id, claimed_at = clock_timestamp(), lease_token = gen_random_uuid(),
        lease_expires_at = clock_timestamp() + make_interval(secs => least(p_lease_seconds, 7200)),
        busy_until = clock_timestamp() + make_interval(secs => least(p_busy_seconds, 7200))
    FROM lanes l, campaigns c, devices d
    WHERE b.id = p_batch_id AND b.state = 'queued' AND l.id = b.lane_id AND c.id = l.campaign_id AND c.state = 'active'
      AND d.id = p_device_id AND d.state = 'active' AND (p_session IS NULL OR d.session_epoch = p_session)
      AND b.queue IN ('gpu.' || d.type, 'device.' || d.uuid)
    RETURNING b.lease_token, c.id, coalesce(l.rules, c.rules), b.job_ids;
END
$$;

CREATE OR REPLACE FUNCTION worker_mark(
    p_batch_id bigint, p_token uuid, p_job_id bigint, p_lease_seconds float8, p_busy_seconds float8
) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE v_go_on boolean; v_device_id bigint;
BEGIN
    -- A job that is not to start is not the suspect of what happens next. The campaign's state alone may be that of a moment
    -- ago: where a cancel holds the batch, this statement waits for it, and then sees `stopped` as it is.
    UPDATE batches b SET current_job_id = CASE WHEN may.go_on AND NOT b.stopped THEN p_job_id END,
        lease_expires_at = clock_timestamp() + make_interval(secs => least(p_lease_seconds, 7200)),
        busy_until = clock_timestamp() + make_interval(secs => least(p_busy_seconds, 7200))
    FROM (
        SELECT o.id, c.state = 'active' AND d.state <> 'quarantined' AS go_on
        FROM batches o JOIN lanes l ON l.id = o.lane_id JOIN campaigns c ON c.id = l.campaign_id JOIN devices d ON d.id = o.device_id
        WHERE o.id = p_batch_id
    ) may
    WHERE b.id = may.id AND b.state = 'leased' AND b.lease_token = p_token AND b.lease_expires_at > clock_timestamp()
      AND p_job_id = ANY(b.job_ids)
    RETURNING may.go_on AND NOT b.stopped, b.device_id INTO v_go_on, v_device_id;
    IF FOUND THEN
        PERFORM require_own_device(v_device_id);
    END IF;
    RETURN v_go_on;
END
$$;

CREATE OR REPLACE FUNCTION worker_renew(p_batch_id bigint, p_device_id bigint, p_lease_seconds float8) RETURNS float8
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE v_left float8;
BEGIN
    PERFORM require_own_device(p_device_id);
    UPDATE batches b
    SET lease_expires_at = least(clock_timestamp() + make_interval(secs => p_lease_seconds), b.busy_until)
    WHERE b.id = p_batch_id AND b.device_id = p_device_id AND b.state = 'leased' AND b.lease_expires_at > clock_timestamp()
    RETURNING extract(epoch FROM b.busy_until - clock_timestamp())::float8 INTO v_left;
    RETURN v_left;
END
$$;

CREATE OR REPLACE FUNCTION worker_abandon(p_batch_id bigint, p_device_id bigint, p_reason text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
    PERFORM require_own_device(p_device_id);
    UPDATE batches SET abandoned = true, lease_expires_at = clock_timestamp(), current_job_id = NULL, end_reason = p_reason
    WHERE id = p_batch_id AND device_id = p_device_id AND state = 'leased' AND NOT abandoned;
    RETURN FOUND;
END
$$;

CREATE OR REPLACE FUNCTION worker_release(p_batch_id bigint, p_device_id bigint, p_reason text, p_suspect boolean, p_pause float8)
RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
    PERFORM require_own_device(p_device_id);
    PERFORM FROM batches WHERE id = p_batch_id AND state = 'leased' AND device_id = p_device_id FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM release_batch(p_batch_id, p_reason, p_suspect, least(p_pause, 3600));
    RETURN true;
END
$$;

CREATE OR REPLACE FUNCTION worker_release_all(p_device_id bigint, p_reason text, p_pause float8) RETURNS SETOF bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE v_batch_id bigint;
BEGIN
    PERFORM require_own_device(p_device_id);
    FOR v_batch_id IN
        SELECT id FROM batches WHERE NOT folded AND device_id = p_device_id AND state = 'leased' ORDER BY id FOR NO KEY UPDATE
    LOOP
        PERFORM release_batch(v_batch_id, p_reason, true, least(p_pause, 3600));
        RETURN NEXT v_batch_id;
    END LOOP;
END
$$;

REVOKE ALL ON FUNCTION worker_claim, worker_mark, worker_renew, worker_abandon, worker_release, worker_release_all FROM PUBLIC;
