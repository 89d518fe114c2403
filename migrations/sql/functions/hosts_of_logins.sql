-- Which worker host a login acts for. `farm hosts add` notes the login in worker_logins.
-- The owner of the tables, and a login without a host, act for every host.
--
-- A transaction of REPEATABLE READ or SERIALIZABLE sees which login and device a host had when it began, so that the host would
-- act for what it has lost since. worker_host refuses both.

CREATE OR REPLACE FUNCTION worker_host(p_host text) RETURNS text
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE v_host text;
BEGIN
    IF pg_has_role(session_user, current_user, 'MEMBER') THEN
        RETURN p_host;
    END IF;
    IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
        RAISE EXCEPTION 'permission denied: functions of workers need the isolation level READ COMMITTED, not %',
            upper(current_setting('transaction_isolation')) USING ERRCODE = 'insufficient_privilege';
    END IF;
    SELECT coalesce(w.host, p_host) INTO v_host FROM worker_logins w WHERE w.login = session_user;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'permission denied: the login % belongs to no worker host', session_user
            USING ERRCODE = 'insufficient_privilege', HINT = 'farm hosts add NAME makes a login for a host.';
    END IF;
    RETURN v_host;
END
$$;

CREATE OR REPLACE FUNCTION require_own_device(p_device_id bigint) RETURNS void LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF pg_has_role(session_user, current_user, 'MEMBER') THEN
        RETURN;
    END IF;
    PERFORM FROM devices d JOIN hosts h ON h.id = d.host_id WHERE d.id = p_device_id AND h.name = worker_host(h.name);
    IF NOT FOUND THEN
        RAISE EXCEPTION 'permission denied: the device % is not registered on the host of the login %', p_device_id, session_user
            USING ERRCODE = 'insufficient_privilege';
    END IF;
END
$$;

REVOKE ALL ON FUNCTION worker_host FROM PUBLIC;
