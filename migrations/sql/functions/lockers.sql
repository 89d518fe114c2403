-- The transactions that hold a row. Where several do, the row's xmax is the number of their group. Where one does, it is no such
-- number, which raises.

CREATE OR REPLACE FUNCTION lockers(row_xmax xid) RETURNS SETOF xid LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN NEXT row_xmax;
    BEGIN
        RETURN QUERY SELECT m.xid FROM pg_get_multixact_members(row_xmax) m;
    EXCEPTION WHEN OTHERS THEN
        NULL;
    END;
END $$;
