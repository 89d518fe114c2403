-- A problem of a campaign's test set must not be measured to learn from. Jobs come by the thousand: checked by statement.

CREATE OR REPLACE FUNCTION keep_test_sets_apart() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    problem text;
BEGIN
    SELECT format('%sx%sx%s %s %s batch=%s scale=%s fused=%s groups=%s sparsity=%s',
        c.m, c.n, c.k, c.ab, c.layout, c.batch, c.scale, c.fused, c.groups, c.sparsity) INTO problem
    FROM (SELECT DISTINCT lane_id FROM new_jobs) n
    JOIN lanes l ON l.id = n.lane_id AND l.purpose = 'learn'
    JOIN lanes t ON t.campaign_id = l.campaign_id AND t.pool_id = l.pool_id AND t.purpose = 'test'
    JOIN new_jobs j ON j.lane_id = l.id
    JOIN configurations c ON c.id = j.configuration_id
    WHERE EXISTS (
        SELECT FROM jobs o JOIN configurations d ON d.id = o.configuration_id
        WHERE o.lane_id = t.id AND (d.m, d.n, d.k, d.ab, d.layout, d.batch, d.scale, d.fused, d.groups, d.sparsity) =
            (c.m, c.n, c.k, c.ab, c.layout, c.batch, c.scale, c.fused, c.groups, c.sparsity)
    )
    LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'the problem % is in the test set of its campaign and cannot be learned from', problem
            USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END
$$;

CREATE OR REPLACE TRIGGER keep_test_sets_apart AFTER INSERT ON jobs REFERENCING NEW TABLE AS new_jobs
    FOR EACH STATEMENT EXECUTE FUNCTION keep_test_sets_apart();
