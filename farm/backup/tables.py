"""Which tables a backup has, and why it leaves out the others. Each table of the farm is in one of these three.

`tests/unit/test_backup_tables.py` fails for a new table that is in none of them.
"""

from __future__ import annotations

from collections.abc import Mapping

KEPT = frozenset({
    "audit", "batches", "campaigns", "configurations", "deleted_rows", "deletions", "device_overlaps", "devices",
    "environments", "failures", "fair_shares", "hosts", "jobs", "kernel_definitions", "kernels", "lanes", "measurements",
    "model_signatures", "oidc_users", "pools", "quotas", "returned_jobs", "tokens", "trainings", "waiting_jobs", "worker_versions",
})  # fmt: skip
"""Tables whose rows a backup has."""

AS_FILES: Mapping[str, str] = {
    "kernel_code": "each built kernel is a file, wherever FARM_KERNEL_STORE keeps it",
}
"""Tables whose content a backup has in another form."""

LEFT_OUT: Mapping[str, str] = {
    "builders": "live processes; each announces itself again",
    "compatible_revisions": "farm db upgrade writes it",
    "leadership": "the live term of a coordinator; the next one begins a new term",
    "programs": "live processes; each announces itself again",
    "web_sessions": "browsers that are signed in; they sign in again",
    "worker_logins": "roles of the server, which no backup of a database has; farm hosts add makes them again",
}
"""Tables without rows in a backup, with the reason."""
