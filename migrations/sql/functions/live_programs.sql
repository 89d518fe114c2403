-- How running programs of the farm announce themselves, with the rights of the owner of the tables.
--
-- A login of a worker host announces `farm-worker` on its own host and nothing else. All other logins that may call these functions
-- belong to services.

CREATE OR REPLACE FUNCTION program_announce(
    p_id uuid, p_host text, p_program text, p_pid bigint, p_version text, p_revision text, p_build text
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE v_host text := p_host;
BEGIN
    IF EXISTS (SELECT FROM worker_logins WHERE login = session_user) THEN
        v_host := worker_host(p_host);
        IF p_program <> 'farm-worker' THEN
            RAISE EXCEPTION 'permission denied: the login % announces no %', session_user, p_program
                USING ERRCODE = 'insufficient_privilege';
        END IF;
    END IF;
    UPDATE programs SET last_heartbeat_at = clock_timestamp() WHERE id = p_id AND host = v_host;
    IF FOUND THEN
        RETURN;
    END IF;
    -- Programs that were killed leave their rows.
    DELETE FROM programs WHERE last_heartbeat_at < clock_timestamp() - interval '1 day';
    IF (SELECT count(*) FROM programs WHERE host = v_host) >= 1000 THEN
        RAISE EXCEPTION 'the host % announced 1000 programs within a day', v_host USING ERRCODE = 'program_limit_exceeded';
    END IF;
    INSERT INTO programs (id, host, program, pid, version, revision, build)
    VALUES (p_id, v_host, p_program, p_pid, p_version, p_revision, p_build);
END
$$;

CREATE OR REPLACE FUNCTION program_leave(p_id uuid) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
    IF EXISTS (SELECT FROM worker_logins WHERE login = session_user) THEN
        DELETE FROM programs WHERE id = p_id AND host = worker_host(host);
    ELSE
        DELETE FROM programs WHERE id = p_id;
    END IF;
END
$$;

REVOKE ALL ON FUNCTION program_announce, program_leave FROM PUBLIC;
