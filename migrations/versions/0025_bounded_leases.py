"""A worker host holds a lease for two hours at a time at most, and no advisory lock.

A host chooses for how long it claims a batch, and a batch is dispatched again only after its lease has expired.

Every login of Postgres may take advisory locks. A lock of a session outlives its transactions, and the farm's own trainings,
submissions and migrations wait for it. Workers use no advisory lock, so the coordinator ends each of their sessions that holds one or
waits for one: whoever waits makes others wait as well.

A host that wants to serve a device of another host, which serves it, is refused as before. It leaves no note on that device any more,
and does not lock it: heartbeats would not count while a transaction of the refused host goes on.

A transaction of REPEATABLE READ or SERIALIZABLE sees which login and device a host had when it began. The functions refuse both, so that
a host does not act for what it has lost since.

The functions keep their arguments and results. Workers of revision 0024 go on.

Revises: 0024
"""

from __future__ import annotations

from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None

_MAX_LEASE_SECONDS = 7200
"""More than the longest job (`MeasuringRules.job_seconds`, an hour) and its landing."""

_WORKER = "LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$"


_NO_PAST = """
    IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
        RAISE EXCEPTION 'permission denied: functions of workers need the isolation level READ COMMITTED, not %',
            upper(current_setting('transaction_isolation')) USING ERRCODE = 'insufficient_privilege';
    END IF;"""


def _host(check: str) -> str:
    return f"""
CREATE OR REPLACE FUNCTION worker_host(p_host text) RETURNS text LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE v_host text;
BEGIN
    IF pg_has_role(session_user, current_user, 'MEMBER') THEN
        RETURN p_host;
    END IF;{check}
    SELECT coalesce(w.host, p_host) INTO v_host FROM worker_logins w WHERE w.login = session_user;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'permission denied: the login % belongs to no worker host', session_user
            USING ERRCODE = 'insufficient_privilege', HINT = 'farm hosts add NAME makes a login for a host.';
    END IF;
    RETURN v_host;
END
$$
"""


def _claim(lease: str, busy: str) -> str:
    return f"""
CREATE OR REPLACE FUNCTION worker_claim(
    p_batch_id bigint, p_device_id bigint, p_session bigint, p_lease_seconds float8, p_busy_seconds float8
) RETURNS TABLE (token uuid, campaign_id bigint, rules jsonb, job_ids bigint[]) {_WORKER}
#variable_conflict use_column
BEGIN
    PERFORM require_own_device(p_device_id);
    RETURN QUERY UPDATE batches b
    SET state = 'leased', device_id = d.id, claimed_at = clock_timestamp(), lease_token = gen_random_uuid(),
        lease_expires_at = clock_timestamp() + make_interval(secs => {lease}),
        busy_until = clock_timestamp() + make_interval(secs => {busy})
    FROM lanes l, campaigns c, devices d
    WHERE b.id = p_batch_id AND b.state = 'queued' AND l.id = b.lane_id AND c.id = l.campaign_id AND c.state = 'active'
      AND d.id = p_device_id AND d.state = 'active' AND (p_session IS NULL OR d.session_epoch = p_session)
      AND b.queue IN ('gpu.' || d.type, 'device.' || d.uuid)
    RETURNING b.lease_token, c.id, coalesce(l.rules, c.rules), b.job_ids;
END
$$
"""


def _mark(lease: str, busy: str) -> str:
    return f"""
CREATE OR REPLACE FUNCTION worker_mark(
    p_batch_id bigint, p_token uuid, p_job_id bigint, p_lease_seconds float8, p_busy_seconds float8
) RETURNS boolean {_WORKER}
DECLARE v_go_on boolean; v_device_id bigint;
BEGIN
    -- A job that is not to start is not the suspect of what happens next. The campaign's state alone may be that of a moment
    -- ago: where a cancel holds the batch, this statement waits for it, and then sees `stopped` as it is.
    UPDATE batches b SET current_job_id = CASE WHEN may.go_on AND NOT b.stopped THEN p_job_id END,
        lease_expires_at = clock_timestamp() + make_interval(secs => {lease}),
        busy_until = clock_timestamp() + make_interval(secs => {busy})
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
$$
"""


def _begin_session(find: str, note: str) -> str:
    return f"""
CREATE OR REPLACE FUNCTION worker_begin_session(
    p_host text, p_host_facts jsonb, p_uuid text, p_type text, p_name text, p_backend text, p_traits jsonb, p_facts jsonb,
    p_pid bigint, p_lock text, p_silent_after float8,
    OUT device_id bigint, OUT epoch bigint, OUT holder_host text, OUT holder_pid bigint, OUT silent_s float8
) {_WORKER}
#variable_conflict use_column
DECLARE v_host text := worker_host(p_host); v_now record; v_device_id bigint;
BEGIN
    {find};
    IF v_now.session_lock <> p_lock AND v_now.silent_s < p_silent_after THEN
        {note};
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
$$
"""


_FIND = """SELECT d.id, d.session_host, d.session_pid, d.session_lock,
        extract(epoch FROM clock_timestamp() - nullif(d.last_seen_at, '-infinity'))::float8 AS silent_s
    INTO v_now FROM devices d WHERE d.uuid = p_uuid"""
_FIND_AND_LOCK = f"{_FIND} FOR NO KEY UPDATE"
# Heartbeats leave out a row that is locked: the device would count as gone.
_LOCK_OWN_AND_FIND = f"""PERFORM FROM devices d JOIN hosts h ON h.id = d.host_id
    WHERE d.uuid = p_uuid AND (h.name = worker_host(h.name) OR d.vanished_at IS NOT NULL) FOR NO KEY UPDATE OF d;
    {_FIND}"""
_NOTE = "UPDATE devices SET contended_at = clock_timestamp(), contended_by = format('process %s on %s', p_pid, v_host)"
_NOTE_ON_ANY = f"{_NOTE}\n        WHERE id = v_now.id"
_NOTE_ON_OWN = f"""{_NOTE}
        FROM hosts h WHERE devices.id = v_now.id AND h.id = devices.host_id AND h.name = worker_host(h.name)"""


# Postgres does not say whether a lock is of a session or of a transaction, nor since when it is held.
_HAS_ADVISORY_LOCK = """EXISTS (
              SELECT FROM pg_locks k
              WHERE k.pid = a.pid AND k.locktype = 'advisory'
                AND k.database = (SELECT oid FROM pg_database WHERE datname = current_database())
          )"""


def _end_long(condition: str) -> str:
    return f"""
CREATE OR REPLACE FUNCTION end_long_worker_transactions(p_seconds float8) RETURNS SETOF text {_WORKER}
BEGIN
    -- Materialized, so that no session is ended before it is known to be one of these.
    RETURN QUERY WITH long AS MATERIALIZED (
        SELECT w.login, a.pid FROM worker_logins w JOIN pg_stat_activity a ON a.usename = w.login
        WHERE a.datname = current_database() AND {condition}
          AND pg_has_role(current_user, a.usename, 'USAGE')
    )
    SELECT l.login FROM long l WHERE pg_terminate_backend(l.pid);
END
$$
"""


_LONG = "a.xact_start < clock_timestamp() - make_interval(secs => p_seconds)"


def upgrade() -> None:
    lease, busy = (f"least(p_{one}_seconds, {_MAX_LEASE_SECONDS})" for one in ("lease", "busy"))
    op.execute(_host(_NO_PAST))
    op.execute(_claim(lease, busy))
    op.execute(_mark(lease, busy))
    op.execute(_begin_session(_LOCK_OWN_AND_FIND, _NOTE_ON_OWN))
    op.execute(_end_long(f"({_LONG} OR {_HAS_ADVISORY_LOCK})"))


def downgrade() -> None:
    op.execute(_host(""))
    op.execute(_claim("p_lease_seconds", "p_busy_seconds"))
    op.execute(_mark("p_lease_seconds", "p_busy_seconds"))
    op.execute(_begin_session(_FIND_AND_LOCK, _NOTE_ON_ANY))
    op.execute(_end_long(_LONG))
