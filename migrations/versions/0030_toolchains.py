"""Toolchains of kernels: the columns `cutlass` and `cuda` become one, and builders have several toolchains.

`worker_land` takes the toolchain of each kernel, so workers before this revision cannot land their rows. Builders before it
cannot announce themselves.

Revises: 0029
"""

from __future__ import annotations

from alembic import op

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None
workers_from = "0030"
sql = ("sql/functions/worker_landing.sql",)

_VERSIONS = "'cutlass ' || cutlass || ', cuda ' || cuda"

# The function with other arguments has the grants of the one before. The file of `sql` then replaces it.
_OTHER_ARGUMENTS = """
DO $$
DECLARE
    v_old regprocedure := to_regproc('worker_land');
    v_new text := 'worker_land(bigint, uuid, bigint[], jsonb, text[], bigint[], text[], text[], float8, bigint[], text[], jsonb[], text[])';
    v_grantee text;
BEGIN
    IF v_old IS NULL OR to_regprocedure(v_new) IS NOT NULL THEN
        RETURN;
    END IF;
    EXECUTE format('CREATE FUNCTION %s RETURNS boolean LANGUAGE sql AS %L', v_new, 'SELECT false');
    FOR v_grantee IN
        SELECT acl.grantee::regrole::text FROM pg_proc p CROSS JOIN aclexplode(p.proacl) acl
        WHERE p.oid = v_old AND acl.grantee <> 0
    LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %s', v_new, v_grantee);
    END LOOP;
    EXECUTE format('DROP FUNCTION %s', v_old);
END
$$
"""


def upgrade() -> None:
    op.get_bind().exec_driver_sql(_OTHER_ARGUMENTS, execution_options={"no_parameters": True})
    op.execute("ALTER TABLE kernels ADD COLUMN toolchain text")
    op.execute(f"UPDATE kernels SET toolchain = {_VERSIONS}")
    op.execute("ALTER TABLE kernels ALTER COLUMN toolchain SET NOT NULL, DROP COLUMN cutlass, DROP COLUMN cuda")
    op.execute("DELETE FROM builders")  # they announce themselves again
    op.execute("ALTER TABLE builders ADD COLUMN toolchains text[] NOT NULL, DROP COLUMN cutlass, DROP COLUMN cuda")


def downgrade() -> None:
    """Kernels of other toolchains than nvcc stay, with versions that no older builder has."""
    op.execute("DROP FUNCTION IF EXISTS worker_land")
    op.execute("ALTER TABLE kernels ADD COLUMN cutlass text, ADD COLUMN cuda text")
    op.execute(f"UPDATE kernels SET cutlass = {_part(1)}, cuda = {_part(2)}")
    op.execute(
        "ALTER TABLE kernels ALTER COLUMN cutlass SET NOT NULL, ALTER COLUMN cuda SET NOT NULL, DROP COLUMN toolchain"
    )
    op.execute("DELETE FROM builders")
    op.execute(
        "ALTER TABLE builders ADD COLUMN cutlass text NOT NULL, ADD COLUMN cuda text NOT NULL, DROP COLUMN toolchains"
    )


def _part(number: int) -> str:
    return f"split_part(split_part(toolchain, ', ', {number}), ' ', 2)"
