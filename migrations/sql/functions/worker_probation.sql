-- How a device goes on probation, and the trials that end it, with the rights of the owner of the tables.

CREATE OR REPLACE FUNCTION worker_begin_probation(p_device_id bigint, p_reason text, p_tried integer, p_pause float8, p_relapse float8)
RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
    PERFORM require_own_device(p_device_id);
    UPDATE devices SET state = 'probation', state_reason = p_reason, state_changed_at = clock_timestamp(),
        failed_trials = least(1000, p_tried + CASE WHEN state_changed_at > clock_timestamp() - make_interval(secs => p_relapse) THEN failed_trials ELSE 0 END),
        next_trial_at = clock_timestamp() + p_tried * make_interval(secs => p_pause * 2 ^ least(CASE WHEN state_changed_at > clock_timestamp() - make_interval(secs => p_relapse) THEN failed_trials ELSE 0 END, 6))
    WHERE id = p_device_id AND state = 'active';
    RETURN FOUND;
END
$$;

CREATE OR REPLACE FUNCTION worker_fail_trial(p_device_id bigint, p_reason text, p_pause float8) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
    PERFORM require_own_device(p_device_id);
    UPDATE devices SET state_reason = p_reason, failed_trials = least(failed_trials + 1, 1000),
        next_trial_at = clock_timestamp() + make_interval(secs => p_pause * 2 ^ least(failed_trials, 6))
    WHERE id = p_device_id AND state = 'probation';
END
$$;

CREATE OR REPLACE FUNCTION worker_pass_trial(p_device_id bigint) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
    PERFORM require_own_device(p_device_id);
    UPDATE devices SET state = 'active', state_reason = NULL, state_changed_at = clock_timestamp(), next_trial_at = NULL
    WHERE id = p_device_id AND state = 'probation';
    RETURN FOUND;
END
$$;

REVOKE ALL ON FUNCTION worker_begin_probation, worker_fail_trial, worker_pass_trial FROM PUBLIC;
