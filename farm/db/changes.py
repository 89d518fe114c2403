"""What changed lately: a fingerprint of each thing that pages show, to compare with an earlier one. Read-only.

The fingerprints come from counters, open batches and rows of devices, so the cost does not depend on the size of a campaign.
"""

from __future__ import annotations

from sqlalchemy import Connection, text

from farm.db.campaigns import TALLY

DEVICES, CAMPAIGNS = "devices", "campaigns"

RECENT_SECONDS = 120.0
"""A campaign that ended has a fingerprint for so long."""

_CAMPAIGNS = text(f"""
SELECT c.digest, concat_ws(' ', c.state, sum(t.jobs), sum(t.done), sum(t.invalid), sum(t.dead), sum(t.queued), sum(t.running)) AS seen
FROM campaigns c LEFT JOIN LATERAL ({TALLY} WHERE l.campaign_id = c.id) t ON true
WHERE c.state IN ('active', 'paused') OR c.finished_at > clock_timestamp() - make_interval(secs => :recent)
GROUP BY c.id, c.digest, c.state
""")
_DEVICES = text("""
SELECT md5(coalesce(string_agg(concat_ws(' ', d.id, d.state, d.state_reason, d.vanished_at IS NULL, d.measured,
    d.last_seen_at > clock_timestamp() - make_interval(secs => :silent_after), d.last_seen_at = '-infinity', b.id), ',' ORDER BY d.id), ''))
FROM devices d LEFT JOIN batches b ON b.device_id = d.id AND b.state = 'leased' AND NOT b.abandoned
""")


def campaign_topic(digest: str) -> str:
    """The topic of one campaign."""
    return f"campaign:{digest[:12]}"


def fingerprints(connection: Connection, *, silent_after: float) -> dict[str, str]:
    """The fingerprint of each topic: `devices`, `campaigns`, and one for each open campaign."""
    rows = connection.execute(_CAMPAIGNS, {"recent": RECENT_SECONDS})
    seen = {campaign_topic(row.digest): str(row.seen) for row in rows}
    devices = connection.execute(_DEVICES, {"silent_after": silent_after}).scalar_one()
    return {**seen, CAMPAIGNS: repr(sorted(seen.items())), DEVICES: str(devices)}
