-- Rows of results and of the audit stay as they are. Results may go with a deletion, and come back, in a transaction that sets
-- farm.deleting (farm.db.deletions).

CREATE OR REPLACE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'TRUNCATE' AND current_setting('farm.deleting', true) = 'on' THEN
        RETURN NULL;
    END IF;
    RAISE EXCEPTION 'the table % is append-only', TG_TABLE_NAME;
END
$$;

CREATE OR REPLACE TRIGGER measurements_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON measurements
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

CREATE OR REPLACE FUNCTION refuse_audit_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'rows of audit stay as they are (%)', TG_OP
        USING ERRCODE = 'insufficient_privilege', HINT = 'farm audit trim removes old ones.';
END
$$;

CREATE OR REPLACE TRIGGER audit_stays BEFORE UPDATE OR DELETE OR TRUNCATE ON audit
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_audit_change();
-- Also in sessions that set session_replication_role, which turns other triggers off.
ALTER TABLE audit ENABLE ALWAYS TRIGGER audit_stays;
