"""Both times of a row, its protocol, the digest of its result; and failures by corrupted results.

`runtime_sustained_ms` becomes `runtime_settled_ms`, so workers before this revision cannot land their rows.

Revises: 0026
"""

from __future__ import annotations

from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None
workers_from = "0027"
sql = (
    "sql/functions/ending_batches.sql",
    "sql/functions/worker_landing.sql",
    "sql/views/v_all_measurements.sql",
    "sql/views/v_best_kernels.sql",
    "sql/views/v_device_health.sql",
    "sql/views/v_measurements.sql",
)

_ADDED = {
    "protocol": "text NOT NULL DEFAULT 'farm'",
    "runtime_burst_ms": "float8 CONSTRAINT ck_measurements_runtime_burst_positive CHECK (runtime_burst_ms > 0)",
    "runtime_burst_rse": "float8",
    "burst_samples": "bigint",
    "runtime_settled_rse": "float8",
    "settled_samples": "bigint",
    "power_limited": "boolean",
    "result_digest": "text",
    "deterministic": "boolean",
    "batch_invariant": "boolean",
}


def upgrade() -> None:
    op.execute("DROP VIEW IF EXISTS v_measurements, v_sentinels, v_all_measurements, v_best_kernels")
    _rename("sustained", "settled")
    added = ", ".join(f"ADD COLUMN {name} {kind}" for name, kind in _ADDED.items())
    op.execute(f"ALTER TABLE measurements {added}")
    op.execute("ALTER TABLE trainings ADD COLUMN protocol text")
    op.execute("SET LOCAL farm.deleting = 'on'")  # rows may change, see append_only.sql
    op.execute(
        "UPDATE measurements SET protocol = 'unknown' "
        "WHERE source = 'imported' AND (stop_reason = 'recorded' OR distribution = 'unknown')"
    )
    op.execute("SET LOCAL farm.deleting = 'off'")
    _allow("invalid", "unsupported", "failed", "killed", "corrupted")


def downgrade() -> None:
    """Results that were corrupted become failures, which older versions know."""
    op.execute("DROP VIEW IF EXISTS v_measurements, v_sentinels, v_all_measurements, v_best_kernels, v_device_health")
    op.execute("UPDATE failures SET kind = 'failed' WHERE kind = 'corrupted'")
    _allow("invalid", "unsupported", "failed", "killed")
    dropped = ", ".join(f"DROP COLUMN {name}" for name in _ADDED)
    op.execute(f"ALTER TABLE measurements {dropped}")
    op.execute("ALTER TABLE trainings DROP COLUMN protocol")
    _rename("settled", "sustained")


def _rename(old: str, new: str) -> None:
    op.execute(f"ALTER TABLE measurements RENAME COLUMN runtime_{old}_ms TO runtime_{new}_ms")
    op.execute(
        f"ALTER TABLE measurements RENAME CONSTRAINT ck_measurements_runtime_{old}_positive "
        f"TO ck_measurements_runtime_{new}_positive"
    )


def _allow(*kinds: str) -> None:
    known = ", ".join(f"'{kind}'" for kind in kinds)
    op.execute(
        "ALTER TABLE failures DROP CONSTRAINT ck_failures_kind_known, "
        f"ADD CONSTRAINT ck_failures_kind_known CHECK (kind IN ({known}))"
    )
