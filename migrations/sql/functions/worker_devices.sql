-- How workers announce devices, open sessions on them, send heartbeats and leave, with the rights of the owner of the tables.
--
-- A host that wants to serve a device of another host, which serves it, is refused. It neither locks the row, because heartbeats
-- leave out a locked row and the device would count as gone, nor leaves a note on it.

CREATE OR REPLACE FUNCTION worker_register(
    p_host text, p_host_facts jsonb, p_uuid text, p_type text, p_name text, p_backend text, p_traits jsonb, p_facts jsonb
) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE v_host text := worker_host(p_host); v_host_id bigint; v_device_id bigint; v_other record;
BEGIN
    SELECT h.name, d.vanished_at INTO v_other FROM devices d JOIN hosts h ON h.id = d.host_id WHERE d.uuid = p_uuid FOR NO KEY UPDATE OF d;
    IF FOUND AND v_other.name <> worker_host(v_other.name) AND v_other.vanished_at IS NULL THEN
        RAISE EXCEPTION 'permission denied: the device % is registered on the host %', p_uuid, v_other.name
            USING ERRCODE = 'insufficient_privilege', HINT = 'Stop farm-worker there while the device is not in it, or run farm hosts revoke.';
    END IF;
    INSERT INTO hosts (name, facts) VALUES (v_host, p_host_facts)
    ON CONFLICT (name) DO UPDATE SET facts = excluded.facts, last_seen_at = clock_timestamp()
    RETURNING id INTO v_host_id;
    INSERT INTO devices (uuid, host_id, type, name, backend, traits, facts)
    VALUES (p_uuid, v_host_id, p_type, p_name, p_backend, p_traits, p_facts)
    ON CONFLICT (uuid) DO UPDATE SET host_id = excluded.host_id, type = excluded.type, name = excluded.name,
        backend = excluded.backend, traits = excluded.traits, facts = excluded.facts, last_seen_at = clock_timestamp(),
        state = CASE WHEN devices.unopened THEN 'active' ELSE devices.state END,
        state_reason = CASE WHEN devices.unopened THEN NULL ELSE devices.state_reason END,
        state_changed_at = CASE WHEN devices.unopened THEN clock_timestamp() ELSE devices.state_changed_at END,
        next_trial_at = CASE WHEN devices.state = 'probation' THEN clock_timestamp() END,
        unopened = false, vanished_at = NULL
    RETURNING id INTO v_device_id;
    RETURN v_device_id;
END
$$;

CREATE OR REPLACE FUNCTION worker_begin_session(
    p_host text, p_host_facts jsonb, p_uuid text, p_type text, p_name text, p_backend text, p_traits jsonb, p_facts jsonb,
    p_pid bigint, p_lock text, p_silent_after float8,
    OUT device_id bigint, OUT epoch bigint, OUT holder_host text, OUT holder_pid bigint, OUT silent_s float8
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
#variable_conflict use_column
DECLARE v_host text := worker_host(p_host); v_now record; v_device_id bigint;
BEGIN
    PERFORM FROM devices d JOIN hosts h ON h.id = d.host_id
    WHERE d.uuid = p_uuid AND (h.name = worker_host(h.name) OR d.vanished_at IS NOT NULL) FOR NO KEY UPDATE OF d;
    SELECT d.id, d.session_host, d.session_pid, d.session_lock,
        extract(epoch FROM clock_timestamp() - nullif(d.last_seen_at, '-infinity'))::float8 AS silent_s
    INTO v_now FROM devices d WHERE d.uuid = p_uuid;
    IF v_now.session_lock <> p_lock AND v_now.silent_s < p_silent_after THEN
        UPDATE devices SET contended_at = clock_timestamp(), contended_by = format('process %s on %s', p_pid, v_host)
        FROM hosts h WHERE devices.id = v_now.id AND h.id = devices.host_id AND h.name = worker_host(h.name);
        device_id := v_now.id;
        holder_host := v_now.session_host;
        holder_pid := v_now.session_pid;
        silent_s := v_now.silent_s;
        RETURN;
    END IF;
    v_device_id := worker_register(p_host, p_host_facts, p_uuid, p_type, p_name, p_backend, p_traits, p_facts);
    UPDATE devices SET session_epoch = session_epoch + 1, session_host = v_host, session_pid = p_pid, session_lock = p_lock,
        session_began_at = clock_timestamp(), contended_at = NULL, contended_by = NULL
    WHERE id = v_device_id RETURNING session_epoch INTO epoch;
    device_id := v_device_id;
END
$$;

CREATE OR REPLACE FUNCTION worker_announce_version(p_device_id bigint, p_version text, p_revision text, p_vocabulary text)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
    PERFORM require_own_device(p_device_id);
    INSERT INTO worker_versions (version, revision, vocabulary) VALUES (p_version, p_revision, p_vocabulary)
    ON CONFLICT (version, revision, vocabulary) DO NOTHING;
    UPDATE devices d SET worker_version_id = v.id
    FROM worker_versions v
    WHERE d.id = p_device_id AND (v.version, v.revision, v.vocabulary) = (p_version, p_revision, p_vocabulary)
      AND d.worker_version_id IS DISTINCT FROM v.id;
END
$$;

CREATE OR REPLACE FUNCTION worker_heartbeat(p_device_id bigint, p_session bigint, p_unfit float8)
RETURNS TABLE (state text, session_epoch bigint, session_host text, session_pid bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
#variable_conflict use_column
BEGIN
    PERFORM require_own_device(p_device_id);
    RETURN QUERY WITH now AS MATERIALIZED (
        SELECT id, unopened AND state_changed_at < clock_timestamp() - make_interval(secs => p_unfit) AS again
        FROM devices WHERE id = p_device_id AND (p_session IS NULL OR session_epoch = p_session)
        FOR NO KEY UPDATE SKIP LOCKED
    ), d AS (
        UPDATE devices SET last_seen_at = clock_timestamp(),
            state = CASE WHEN again THEN 'active' ELSE state END,
            state_reason = CASE WHEN again THEN NULL ELSE state_reason END,
            state_changed_at = CASE WHEN again THEN clock_timestamp() ELSE state_changed_at END,
            unopened = unopened AND NOT again
        FROM now WHERE devices.id = now.id RETURNING devices.host_id, devices.state
    ), h AS MATERIALIZED (
        SELECT id FROM hosts WHERE id IN (SELECT host_id FROM d) FOR NO KEY UPDATE SKIP LOCKED
    ), heard AS (
        UPDATE hosts SET last_seen_at = clock_timestamp() FROM h WHERE hosts.id = h.id
    )
    SELECT coalesce((SELECT d.state FROM d), devices.state), devices.session_epoch, devices.session_host, devices.session_pid
    FROM devices WHERE devices.id = p_device_id;
END
$$;

CREATE OR REPLACE FUNCTION worker_leave(p_device_id bigint, p_session bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
    PERFORM require_own_device(p_device_id);
    UPDATE devices SET last_seen_at = '-infinity', left_at = clock_timestamp()
    WHERE id = p_device_id AND (p_session IS NULL OR session_epoch = p_session);
END
$$;

CREATE OR REPLACE FUNCTION worker_unfit(p_device_id bigint, p_reason text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
    PERFORM require_own_device(p_device_id);
    UPDATE devices SET state = 'quarantined', state_reason = p_reason, state_changed_at = clock_timestamp(), unopened = true
    WHERE id = p_device_id AND state = 'active';
END
$$;

CREATE OR REPLACE FUNCTION worker_note_claim_error(p_device_id bigint, p_error text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
    PERFORM require_own_device(p_device_id);
    UPDATE devices SET claim_error = p_error, claim_error_at = clock_timestamp() WHERE id = p_device_id;
END
$$;

CREATE OR REPLACE FUNCTION worker_vanish(p_host text, p_uuids text[]) RETURNS SETOF text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
    RETURN QUERY WITH these AS MATERIALIZED (
        SELECT d.id FROM devices d JOIN hosts h ON h.id = d.host_id
        WHERE h.name = worker_host(p_host) AND d.uuid = ANY(p_uuids) AND d.vanished_at IS NULL
        ORDER BY d.id FOR NO KEY UPDATE OF d
    )
    UPDATE devices d SET vanished_at = clock_timestamp(), last_seen_at = '-infinity'
    FROM these WHERE d.id = these.id
    RETURNING d.uuid;
END
$$;

CREATE OR REPLACE FUNCTION worker_note_overlap(p_device_id bigint, p_epoch bigint, p_began float8, p_ended float8) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
    PERFORM require_own_device(p_device_id);
    INSERT INTO device_overlaps (device_id, since, until, rows_until, epoch)
    SELECT id, w.since, w.until, w.until, p_epoch
    FROM devices d CROSS JOIN LATERAL (
        SELECT greatest(d.session_began_at, clock_timestamp() - make_interval(secs => p_began)) AS since,
            clock_timestamp() - make_interval(secs => p_ended) AS until
    ) w
    WHERE d.id = p_device_id AND d.session_epoch > p_epoch AND w.until > w.since;
    RETURN FOUND;
END
$$;

REVOKE ALL ON FUNCTION worker_register, worker_begin_session, worker_announce_version, worker_heartbeat, worker_leave,
    worker_unfit, worker_note_claim_error, worker_vanish, worker_note_overlap FROM PUBLIC;
