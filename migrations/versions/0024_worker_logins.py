"""Workers act through functions that know which host a login belongs to, and have no table that they may change.

`farm hosts add` gives a host a login of its own. A function of workers (`worker_...`) runs with the rights of the tables' owner,
and refuses devices that are registered on another host than that of the login. The owner, and a login without a host, act for
all of them.

Workers of the version before changed tables themselves. On a farm where workers have a role of their own, they must be stopped
once for this upgrade.

Revises: 0023
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None
workers_from = "0024"

# --- which host a login belongs to -----------------------------------------------------------------------

_HOST = """
CREATE FUNCTION worker_host(p_host text) RETURNS text LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE v_host text;
BEGIN
    IF pg_has_role(session_user, current_user, 'MEMBER') THEN
        RETURN p_host;
    END IF;
    SELECT coalesce(w.host, p_host) INTO v_host FROM worker_logins w WHERE w.login = session_user;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'permission denied: the login % belongs to no worker host', session_user
            USING ERRCODE = 'insufficient_privilege', HINT = 'farm hosts add NAME makes a login for a host.';
    END IF;
    RETURN v_host;
END
$$
"""
_OWN_DEVICE = """
CREATE FUNCTION require_own_device(p_device_id bigint) RETURNS void LANGUAGE plpgsql STABLE AS $$
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
$$
"""
_CONFIGURATION_ID = """
CREATE FUNCTION configuration_id(
    p_m bigint, p_n bigint, p_k bigint, p_ab text, p_cd text, p_acc text, p_layout text, p_alpha float8, p_beta float8,
    p_family text, p_parameters jsonb
) RETURNS uuid LANGUAGE sql STABLE SET extra_float_digits = 1 AS $$
    WITH number AS (
        SELECT of, CASE WHEN abs(value) >= 1e15 AND abs(value) < 1e16 THEN value::text::numeric::text ELSE value::text END AS line
        FROM (VALUES ('alpha', p_alpha), ('beta', p_beta)) AS given(of, value)
    )
    SELECT encode(substring(sha256(convert_to(format(
        '%s(%s) %sx%sx%s %s:%s:%s %s alpha=%s beta=%s', p_family,
        (SELECT string_agg(key || '=' || value, ',' ORDER BY key COLLATE "C") FROM jsonb_each_text(p_parameters)),
        p_m, p_n, p_k, p_ab, p_cd, p_acc, p_layout,
        (SELECT line FROM number WHERE of = 'alpha'), (SELECT line FROM number WHERE of = 'beta')
    ), 'UTF8')) FOR 16), 'hex')::uuid
$$
"""
_ENVIRONMENT_IDS = """
CREATE FUNCTION environment_ids(p_contents text[]) RETURNS uuid[] LANGUAGE sql IMMUTABLE AS $$
    SELECT ARRAY(
        SELECT encode(substring(sha256(convert_to(content, 'UTF8')) FOR 16), 'hex')::uuid
        FROM unnest(p_contents) WITH ORDINALITY AS c(content, place) ORDER BY place
    )
$$
"""

# --- how batches end: for the coordinator too, with its own rights ---------------------------------------

_FAIL_JOBS = """
CREATE FUNCTION fail_jobs(
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
        SELECT u.*, u.kind IN ('failed', 'killed') AND u.attempts >= u.max_attempts AND NOT EXISTS (
            SELECT 1 FROM failures x
            WHERE x.job_id = u.job_id AND x.kind IN ('failed', 'killed') AND x.device_id <> p_device_id
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
            WHEN m.kind IN ('failed', 'killed') AND NOT m.exhausted
            THEN clock_timestamp() + make_interval(secs => p_pause * 2 ^ least(m.attempts - 1, 6))
        END
        FROM moved m WHERE m.state = 'open'
    )
    SELECT count(*) FILTER (WHERE state = 'invalid'), count(*) FILTER (WHERE state = 'dead') INTO v_invalid, v_dead FROM moved;
    invalid := v_invalid;
    dead := v_dead;
END
$$
"""
_RETURN_REST = """
CREATE FUNCTION return_rest(p_batch_id bigint) RETURNS void LANGUAGE sql AS $$
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
$$
"""
_END_BATCH = """
CREATE FUNCTION end_batch(p_batch_id bigint, p_state text, p_reason text, p_done bigint, p_invalid bigint, p_dead bigint)
RETURNS void LANGUAGE sql AS $$
    UPDATE batches SET state = p_state, finished_at = clock_timestamp(), end_reason = coalesce(end_reason, p_reason),
        lease_token = NULL, lease_expires_at = NULL, busy_until = NULL, current_job_id = NULL,
        done = p_done, invalid = p_invalid, dead = p_dead
    WHERE id = p_batch_id
$$
"""
_RELEASE_BATCH = """
CREATE FUNCTION release_batch(p_batch_id bigint, p_reason text, p_suspect boolean, p_pause float8)
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
$$
"""

# --- what workers do with batches ------------------------------------------------------------------------

_WORKER = "LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$"
_CLAIM = f"""
CREATE FUNCTION worker_claim(p_batch_id bigint, p_device_id bigint, p_session bigint, p_lease_seconds float8, p_busy_seconds float8)
RETURNS TABLE (token uuid, campaign_id bigint, rules jsonb, job_ids bigint[]) {_WORKER}
#variable_conflict use_column
BEGIN
    PERFORM require_own_device(p_device_id);
    RETURN QUERY UPDATE batches b
    SET state = 'leased', device_id = d.id, claimed_at = clock_timestamp(), lease_token = gen_random_uuid(),
        lease_expires_at = clock_timestamp() + make_interval(secs => p_lease_seconds),
        busy_until = clock_timestamp() + make_interval(secs => p_busy_seconds)
    FROM lanes l, campaigns c, devices d
    WHERE b.id = p_batch_id AND b.state = 'queued' AND l.id = b.lane_id AND c.id = l.campaign_id AND c.state = 'active'
      AND d.id = p_device_id AND d.state = 'active' AND (p_session IS NULL OR d.session_epoch = p_session)
      AND b.queue IN ('gpu.' || d.type, 'device.' || d.uuid)
    RETURNING b.lease_token, c.id, coalesce(l.rules, c.rules), b.job_ids;
END
$$
"""
_MARK = f"""
CREATE FUNCTION worker_mark(p_batch_id bigint, p_token uuid, p_job_id bigint, p_lease_seconds float8, p_busy_seconds float8)
RETURNS boolean {_WORKER}
DECLARE v_go_on boolean; v_device_id bigint;
BEGIN
    -- A job that is not to start is not the suspect of what happens next. The campaign's state alone may be that of a moment
    -- ago: where a cancel holds the batch, this statement waits for it, and then sees `stopped` as it is.
    UPDATE batches b SET current_job_id = CASE WHEN may.go_on AND NOT b.stopped THEN p_job_id END,
        lease_expires_at = clock_timestamp() + make_interval(secs => p_lease_seconds),
        busy_until = clock_timestamp() + make_interval(secs => p_busy_seconds)
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
_RENEW = f"""
CREATE FUNCTION worker_renew(p_batch_id bigint, p_device_id bigint, p_lease_seconds float8) RETURNS float8 {_WORKER}
DECLARE v_left float8;
BEGIN
    PERFORM require_own_device(p_device_id);
    UPDATE batches b
    SET lease_expires_at = least(clock_timestamp() + make_interval(secs => p_lease_seconds), b.busy_until)
    WHERE b.id = p_batch_id AND b.device_id = p_device_id AND b.state = 'leased' AND b.lease_expires_at > clock_timestamp()
    RETURNING extract(epoch FROM b.busy_until - clock_timestamp())::float8 INTO v_left;
    RETURN v_left;
END
$$
"""
_ABANDON = f"""
CREATE FUNCTION worker_abandon(p_batch_id bigint, p_device_id bigint, p_reason text) RETURNS boolean {_WORKER}
BEGIN
    PERFORM require_own_device(p_device_id);
    UPDATE batches SET abandoned = true, lease_expires_at = clock_timestamp(), current_job_id = NULL, end_reason = p_reason
    WHERE id = p_batch_id AND device_id = p_device_id AND state = 'leased' AND NOT abandoned;
    RETURN FOUND;
END
$$
"""
_RELEASE = f"""
CREATE FUNCTION worker_release(p_batch_id bigint, p_device_id bigint, p_reason text, p_suspect boolean, p_pause float8)
RETURNS boolean {_WORKER}
BEGIN
    PERFORM require_own_device(p_device_id);
    PERFORM FROM batches WHERE id = p_batch_id AND state = 'leased' AND device_id = p_device_id FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM release_batch(p_batch_id, p_reason, p_suspect, least(p_pause, 3600));
    RETURN true;
END
$$
"""
_RELEASE_ALL = f"""
CREATE FUNCTION worker_release_all(p_device_id bigint, p_reason text, p_pause float8) RETURNS SETOF bigint {_WORKER}
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
$$
"""
_COLUMNS = (
    "source, runtime_ms, runtime_q1_ms, runtime_q3_ms, runtime_min_ms, runtime_rse, samples, stop_reason, l2, runtime_warm_ms, "
    "runtime_sustained_ms, power_w, power_source, power_rse, power_disagrees, idle_power_w, power_limit_w, sm_clock_mhz, "
    "memory_clock_mhz, temperature_before_c, temperature_c, throttle_reasons, verify_error, distribution, seed, clock_policy, "
    "kernel_hash, cost_s, window_s, details"
)
_OF_ROW = ", ".join(f"r.{name}" for name in _COLUMNS.split(", "))
# Campaign, configuration and device of a row are those of its job and batch, and an environment's id is that of its content.
# Failures count, and jobs end, of the batch alone. Rows that do not fit are no fault of their own: nothing is stored.
_LAND = f"""
CREATE FUNCTION worker_land(
    p_batch_id bigint, p_token uuid, p_ids bigint[], p_rows jsonb, p_contents text[],
    p_failed bigint[], p_kinds text[], p_messages text[], p_pause float8,
    p_missing bigint[], p_hashes text[], p_descriptions jsonb[], p_cutlass text, p_cuda text
) RETURNS boolean {_WORKER}
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
            INSERT INTO measurements (job_id, campaign_id, configuration_id, device_id, environment_id, {_COLUMNS})
            SELECT r.job_id, v_batch.campaign_id, r.configuration_id, v_batch.device_id, r.environment_id, {_OF_ROW}
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
        INSERT INTO kernels (hash, description, cutlass, cuda)
        SELECT DISTINCT ON (k.hash) k.hash, k.description, p_cutlass, p_cuda
        FROM unnest(p_missing, p_hashes, p_descriptions) AS k(job_id, hash, description)
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
$$
"""
# Under the lease, or in the transaction in which the batch landed: nothing else says that this device measured for it.
_LAND_SENTINEL = f"""
CREATE FUNCTION worker_land_sentinel(
    p_batch_id bigint, p_token uuid, p_rows jsonb, p_contents text[], p_id uuid, p_m bigint, p_n bigint, p_k bigint, p_ab text, p_cd text,
    p_acc text, p_layout text, p_alpha float8, p_beta float8, p_family text, p_parameters jsonb
) RETURNS void {_WORKER}
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
    INSERT INTO measurements (campaign_id, configuration_id, device_id, environment_id, {_COLUMNS})
    SELECT v_batch.campaign_id, p_id, v_batch.device_id, r.environment_id, {_OF_ROW}
    FROM jsonb_populate_recordset(CAST(NULL AS measurements), p_rows) r
    WHERE r.environment_id = ANY(v_environments) AND r.source = 'sentinel' LIMIT 1;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'permission denied: this is no row of a sentinel' USING ERRCODE = 'insufficient_privilege';
    END IF;
END
$$
"""

# --- what workers say of devices -------------------------------------------------------------------------

# A device goes to another host once its former host no longer shows it, or was revoked.
_REGISTER = f"""
CREATE FUNCTION worker_register(
    p_host text, p_host_facts jsonb, p_uuid text, p_type text, p_name text, p_backend text, p_traits jsonb, p_facts jsonb
) RETURNS bigint {_WORKER}
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
$$
"""
_BEGIN_SESSION = f"""
CREATE FUNCTION worker_begin_session(
    p_host text, p_host_facts jsonb, p_uuid text, p_type text, p_name text, p_backend text, p_traits jsonb, p_facts jsonb,
    p_pid bigint, p_lock text, p_silent_after float8,
    OUT device_id bigint, OUT epoch bigint, OUT holder_host text, OUT holder_pid bigint, OUT silent_s float8
) {_WORKER}
#variable_conflict use_column
DECLARE v_host text := worker_host(p_host); v_now record; v_device_id bigint;
BEGIN
    SELECT d.id, d.session_host, d.session_pid, d.session_lock,
        extract(epoch FROM clock_timestamp() - nullif(d.last_seen_at, '-infinity'))::float8 AS silent_s
    INTO v_now FROM devices d WHERE d.uuid = p_uuid FOR NO KEY UPDATE;
    IF v_now.session_lock <> p_lock AND v_now.silent_s < p_silent_after THEN
        UPDATE devices SET contended_at = clock_timestamp(), contended_by = format('process %s on %s', p_pid, v_host)
        WHERE id = v_now.id;
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
_ANNOUNCE_VERSION = f"""
CREATE FUNCTION worker_announce_version(p_device_id bigint, p_version text, p_revision text, p_vocabulary text)
RETURNS void {_WORKER}
BEGIN
    PERFORM require_own_device(p_device_id);
    INSERT INTO worker_versions (version, revision, vocabulary) VALUES (p_version, p_revision, p_vocabulary)
    ON CONFLICT (version, revision, vocabulary) DO NOTHING;
    UPDATE devices d SET worker_version_id = v.id
    FROM worker_versions v
    WHERE d.id = p_device_id AND (v.version, v.revision, v.vocabulary) = (p_version, p_revision, p_vocabulary)
      AND d.worker_version_id IS DISTINCT FROM v.id;
END
$$
"""
# A heartbeat waits for no lock. It leaves out rows that another session has locked; the next heartbeat comes within seconds.
_HEARTBEAT = f"""
CREATE FUNCTION worker_heartbeat(p_device_id bigint, p_session bigint, p_unfit float8)
RETURNS TABLE (state text, session_epoch bigint, session_host text, session_pid bigint) {_WORKER}
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
$$
"""
_LEAVE = f"""
CREATE FUNCTION worker_leave(p_device_id bigint, p_session bigint) RETURNS void {_WORKER}
BEGIN
    PERFORM require_own_device(p_device_id);
    UPDATE devices SET last_seen_at = '-infinity', left_at = clock_timestamp()
    WHERE id = p_device_id AND (p_session IS NULL OR session_epoch = p_session);
END
$$
"""
_UNFIT = f"""
CREATE FUNCTION worker_unfit(p_device_id bigint, p_reason text) RETURNS void {_WORKER}
BEGIN
    PERFORM require_own_device(p_device_id);
    UPDATE devices SET state = 'quarantined', state_reason = p_reason, state_changed_at = clock_timestamp(), unopened = true
    WHERE id = p_device_id AND state = 'active';
END
$$
"""
_CLAIM_ERROR = f"""
CREATE FUNCTION worker_note_claim_error(p_device_id bigint, p_error text) RETURNS void {_WORKER}
BEGIN
    PERFORM require_own_device(p_device_id);
    UPDATE devices SET claim_error = p_error, claim_error_at = clock_timestamp() WHERE id = p_device_id;
END
$$
"""
_VANISH = f"""
CREATE FUNCTION worker_vanish(p_host text, p_uuids text[]) RETURNS SETOF text {_WORKER}
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
$$
"""
_OVERLAP = f"""
CREATE FUNCTION worker_note_overlap(p_device_id bigint, p_epoch bigint, p_began float8, p_ended float8) RETURNS boolean {_WORKER}
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
$$
"""
_LATELY = (
    "CASE WHEN state_changed_at > clock_timestamp() - make_interval(secs => p_relapse) THEN failed_trials ELSE 0 END"
)
_BEGIN_PROBATION = f"""
CREATE FUNCTION worker_begin_probation(p_device_id bigint, p_reason text, p_tried integer, p_pause float8, p_relapse float8)
RETURNS boolean {_WORKER}
BEGIN
    PERFORM require_own_device(p_device_id);
    UPDATE devices SET state = 'probation', state_reason = p_reason, state_changed_at = clock_timestamp(),
        failed_trials = least(1000, p_tried + {_LATELY}),
        next_trial_at = clock_timestamp() + p_tried * make_interval(secs => p_pause * 2 ^ least({_LATELY}, 6))
    WHERE id = p_device_id AND state = 'active';
    RETURN FOUND;
END
$$
"""
_FAIL_TRIAL = f"""
CREATE FUNCTION worker_fail_trial(p_device_id bigint, p_reason text, p_pause float8) RETURNS void {_WORKER}
BEGIN
    PERFORM require_own_device(p_device_id);
    UPDATE devices SET state_reason = p_reason, failed_trials = least(failed_trials + 1, 1000),
        next_trial_at = clock_timestamp() + make_interval(secs => p_pause * 2 ^ least(failed_trials, 6))
    WHERE id = p_device_id AND state = 'probation';
END
$$
"""
_PASS_TRIAL = f"""
CREATE FUNCTION worker_pass_trial(p_device_id bigint) RETURNS boolean {_WORKER}
BEGIN
    PERFORM require_own_device(p_device_id);
    UPDATE devices SET state = 'active', state_reason = NULL, state_changed_at = clock_timestamp(), next_trial_at = NULL
    WHERE id = p_device_id AND state = 'probation';
    RETURN FOUND;
END
$$
"""

# A login can change the limits of its own sessions, so somebody else has to end what goes on for too long.
_END_LONG = f"""
CREATE FUNCTION end_long_worker_transactions(p_seconds float8) RETURNS SETOF text {_WORKER}
BEGIN
    -- Materialized, so that no session is ended before it is known to be one of these.
    RETURN QUERY WITH long AS MATERIALIZED (
        SELECT w.login, a.pid FROM worker_logins w JOIN pg_stat_activity a ON a.usename = w.login
        WHERE a.datname = current_database() AND a.xact_start < clock_timestamp() - make_interval(secs => p_seconds)
          AND pg_has_role(current_user, a.usename, 'USAGE')
    )
    SELECT l.login FROM long l WHERE pg_terminate_backend(l.pid);
END
$$
"""

_SHARED = {
    "require_own_device": _OWN_DEVICE,
    "configuration_id": _CONFIGURATION_ID,
    "environment_ids": _ENVIRONMENT_IDS,
    "fail_jobs": _FAIL_JOBS,
    "return_rest": _RETURN_REST,
    "end_batch": _END_BATCH,
    "release_batch": _RELEASE_BATCH,
}
"""By name. They run with the rights of who calls them."""
_OF_WORKERS = {
    "worker_host": _HOST,
    "worker_claim": _CLAIM,
    "worker_mark": _MARK,
    "worker_renew": _RENEW,
    "worker_abandon": _ABANDON,
    "worker_release": _RELEASE,
    "worker_release_all": _RELEASE_ALL,
    "worker_land": _LAND,
    "worker_land_sentinel": _LAND_SENTINEL,
    "worker_register": _REGISTER,
    "worker_begin_session": _BEGIN_SESSION,
    "worker_announce_version": _ANNOUNCE_VERSION,
    "worker_heartbeat": _HEARTBEAT,
    "worker_leave": _LEAVE,
    "worker_unfit": _UNFIT,
    "worker_note_claim_error": _CLAIM_ERROR,
    "worker_vanish": _VANISH,
    "worker_note_overlap": _OVERLAP,
    "worker_begin_probation": _BEGIN_PROBATION,
    "worker_fail_trial": _FAIL_TRIAL,
    "worker_pass_trial": _PASS_TRIAL,
}
"""By name. They run with the rights of the owner."""
_FOR_COORDINATOR = {"end_long_worker_transactions": _END_LONG}


def upgrade() -> None:
    op.create_table(
        "worker_logins",
        sa.Column("login", sa.Text(), primary_key=True),
        sa.Column("host", sa.Text()),
        sa.Column(
            "created_at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
    )
    for function in (*_SHARED.values(), *_OF_WORKERS.values(), *_FOR_COORDINATOR.values()):
        op.execute(function)
    for name in (*_OF_WORKERS, *_FOR_COORDINATOR):
        op.execute(f"REVOKE ALL ON FUNCTION {name} FROM PUBLIC")


def downgrade() -> None:
    for name in (*_FOR_COORDINATOR, *_OF_WORKERS, *_SHARED):
        op.execute(f"DROP FUNCTION {name}")
    op.drop_table("worker_logins")
