-- Ends the sessions of workers whose transaction goes on for too long. A login can change the limits of its own sessions, so the
-- coordinator ends them.
--
-- Workers use no advisory lock, and other programs of the farm wait for theirs: each session that holds one or waits for one ends
-- too. Postgres does not say whether a lock is of a session or of a transaction, nor since when it is held.

CREATE OR REPLACE FUNCTION end_long_worker_transactions(p_seconds float8) RETURNS SETOF text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
    -- Materialized, so that no session is ended before it is known to be one of these.
    RETURN QUERY WITH long AS MATERIALIZED (
        SELECT w.login, a.pid FROM worker_logins w JOIN pg_stat_activity a ON a.usename = w.login
        WHERE a.datname = current_database() AND (a.xact_start < clock_timestamp() - make_interval(secs => p_seconds) OR EXISTS (
              SELECT FROM pg_locks k
              WHERE k.pid = a.pid AND k.locktype = 'advisory'
                AND k.database = (SELECT oid FROM pg_database WHERE datname = current_database())
          ))
          AND pg_has_role(current_user, a.usename, 'USAGE')
    )
    SELECT l.login FROM long l WHERE pg_terminate_backend(l.pid);
END
$$;

REVOKE ALL ON FUNCTION end_long_worker_transactions FROM PUBLIC;
