"""Running programs of the farm with their versions: the table `programs`.

Programs of the revision before go on: the table is new.

Revises: 0035
"""

from __future__ import annotations

from alembic import op

revision = "0036"
down_revision = "0035"
branch_labels = None
depends_on = None
services_from = "0035"
sql = ("sql/functions/live_programs.sql",)


def upgrade() -> None:
    op.execute("""
        CREATE TABLE programs (
            id uuid NOT NULL,
            host text NOT NULL,
            program text NOT NULL,
            pid bigint NOT NULL,
            version text NOT NULL,
            revision text NOT NULL,
            build text,
            started_at timestamptz DEFAULT clock_timestamp() NOT NULL,
            last_heartbeat_at timestamptz DEFAULT clock_timestamp() NOT NULL,
            CONSTRAINT pk_programs PRIMARY KEY (id),
            CONSTRAINT ck_programs_program_known
                CHECK (program IN ('coordinator', 'farm-worker', 'builder', 'farm-trainer', 'farm serve')),
            CONSTRAINT ck_programs_version_readable CHECK (version ~ '^[A-Za-z0-9.+!_-]{1,64}$'),
            CONSTRAINT ck_programs_revision_readable CHECK (revision ~ '^[0-9]{4}$'),
            CONSTRAINT ck_programs_build_readable CHECK (build ~ '^[A-Za-z0-9./+_-]{1,128}$')
        )
    """)


def downgrade() -> None:
    op.execute("DELETE FROM compatible_revisions WHERE program = 'services'")
    op.execute("DROP FUNCTION IF EXISTS program_announce, program_leave")
    op.execute("DROP TABLE programs")
