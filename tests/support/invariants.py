"""What must hold of the farm's tables between any two transactions, as one query that finds what does not."""

from __future__ import annotations

from sqlalchemy import Connection, text

_FAULTS = text("""
WITH in_batch AS (
    SELECT u.job_id, count(*) AS n, max(b.jobs) AS largest, bool_and(b.lane_id = j.lane_id) AS own_lane
    FROM batches b CROSS JOIN unnest(b.job_ids) AS u(job_id) JOIN jobs j ON j.id = u.job_id
    WHERE b.state IN ('queued', 'leased') GROUP BY u.job_id
), seen AS (
    SELECT j.*, (c.rules ->> 'max_attempts')::int AS max_attempts,
        l.fresh AND (l.cursor IS NULL OR j.configuration_id > l.cursor) AS ahead,
        r.job_id IS NOT NULL AS returned, r.solo AS returned_solo, r.lane_id AS returned_lane,
        coalesce(b.n, 0) AS batched, b.largest, b.own_lane,
        (SELECT count(*) FROM measurements m WHERE m.job_id = j.id) AS measured,
        (SELECT count(*) FROM failures f WHERE f.job_id = j.id) AS failed,
        EXISTS (SELECT 1 FROM failures f WHERE f.job_id = j.id AND f.kind = 'failed' AND f.batch_id IS NULL) AS unbuilt,
        (
            SELECT count(DISTINCT f.device_id) FROM failures f
            WHERE f.job_id = j.id AND f.kind IN ('failed', 'killed', 'corrupted')
        ) AS failed_on
    FROM jobs j JOIN lanes l ON l.id = j.lane_id JOIN campaigns c ON c.id = l.campaign_id
    LEFT JOIN returned_jobs r ON r.job_id = j.id LEFT JOIN in_batch b ON b.job_id = j.id
), of_lane AS (
    SELECT lane_id, count(*) AS jobs, count(*) FILTER (WHERE state = 'done') AS done,
        count(*) FILTER (WHERE state = 'invalid') AS invalid, count(*) FILTER (WHERE state = 'dead') AS dead
    FROM jobs GROUP BY lane_id
), not_folded AS (
    SELECT lane_id, sum(done) AS done, sum(invalid) AS invalid, sum(dead) AS dead
    FROM batches WHERE NOT folded GROUP BY lane_id
)
SELECT 'job ' || id || ': open, but in ' || ahead::int + returned::int + batched || ' places' FROM seen
WHERE state = 'open' AND ahead::int + returned::int + batched <> 1
UNION ALL
SELECT 'job ' || id || ': ' || state || ', but it waits or is in a batch' FROM seen
WHERE state <> 'open' AND (returned OR batched > 0)
UNION ALL
SELECT 'job ' || s.id || ': ' || s.state || ', but it waits for ' || count(w.kernel_id) || ' kernels'
FROM seen s LEFT JOIN waiting_jobs w ON w.job_id = s.id GROUP BY s.id, s.state
HAVING (s.state = 'waiting') <> (count(w.kernel_id) > 0)
UNION ALL
SELECT 'job ' || w.job_id || ': waits in another lane' FROM waiting_jobs w JOIN jobs j ON j.id = w.job_id
WHERE j.lane_id <> w.lane_id
UNION ALL
SELECT 'kernel ' || id || ': ' || state || ', but its record says otherwise' FROM kernels
WHERE (state = 'built' AND record IS NULL) OR (state = 'failed' AND error IS NULL)
    OR (state IN ('built', 'failed')) <> (finished_at IS NOT NULL) OR (final AND state <> 'failed')
UNION ALL
SELECT 'job ' || id || ': ' || state || ', but measured ' || measured || ' times' FROM seen
WHERE measured <> (state = 'done')::int
UNION ALL
SELECT 'job ' || id || ': ' || state || ' after ' || attempts || ' of ' || max_attempts || ' attempts' FROM seen
WHERE (state IN ('open', 'waiting') AND attempts >= max_attempts AND failed_on > 1)
    OR (state = 'dead' AND attempts < max_attempts AND NOT unbuilt) OR attempts > failed
UNION ALL
SELECT 'job ' || id || ': solo, but in a batch with others' FROM seen WHERE solo AND largest > 1
UNION ALL
SELECT 'job ' || id || ': in a batch of another lane' FROM seen WHERE NOT own_lane
UNION ALL
SELECT 'job ' || id || ': it waits as something else' FROM seen WHERE returned_solo <> solo OR returned_lane <> lane_id
UNION ALL
SELECT 'batch ' || id || ': it says ' || jobs || ' jobs' FROM batches
WHERE state IN ('queued', 'leased') AND jobs <> cardinality(job_ids)
UNION ALL
SELECT 'batch ' || id || ': ' || state || ', but the lease says otherwise' FROM batches
WHERE (state = 'leased') <> (lease_token IS NOT NULL) OR (state = 'leased') <> (lease_expires_at IS NOT NULL)
    OR (state = 'leased') <> (busy_until IS NOT NULL) OR (state = 'leased' AND device_id IS NULL)
    OR (state = 'queued' AND device_id IS NOT NULL) OR (state = 'done' AND device_id IS NULL)
UNION ALL
SELECT 'batch ' || id || ': it measures a job that is not in it' FROM batches
WHERE current_job_id IS NOT NULL AND (state <> 'leased' OR current_job_id <> ALL (job_ids))
UNION ALL
SELECT 'batch ' || id || ': ' || state || ', but its end says otherwise' FROM batches
WHERE (state IN ('done', 'released')) <> (finished_at IS NOT NULL) OR (folded AND state IN ('queued', 'leased'))
    OR (folded AND job_ids <> '{}') OR done + invalid + dead > jobs
UNION ALL
SELECT 'batch ' || b.id || ': queued, but its campaign is ' || c.state
FROM batches b JOIN lanes l ON l.id = b.lane_id JOIN campaigns c ON c.id = l.campaign_id
WHERE b.state = 'queued' AND c.state <> 'active'
UNION ALL
SELECT 'batch ' || b.id || ': held by a device that does not serve ' || b.queue
FROM batches b JOIN devices d ON d.id = b.device_id WHERE b.queue NOT IN ('gpu.' || d.type, 'device.' || d.uuid)
UNION ALL
SELECT 'lane ' || l.id || ': its counters are not what its jobs say'
FROM lanes l LEFT JOIN of_lane j ON j.lane_id = l.id LEFT JOIN not_folded b ON b.lane_id = l.id
WHERE (l.jobs, l.done + coalesce(b.done, 0), l.invalid + coalesce(b.invalid, 0), l.dead + coalesce(b.dead, 0))
    <> (coalesce(j.jobs, 0), coalesce(j.done, 0), coalesce(j.invalid, 0), coalesce(j.dead, 0))
UNION ALL
SELECT 'device ' || d.id || ': it did not measure ' || d.measured || ' jobs' FROM devices d
WHERE d.measured + (SELECT coalesce(sum(b.done), 0) FROM batches b WHERE b.device_id = d.id AND NOT b.folded)
    <> (SELECT count(*) FROM measurements m WHERE m.device_id = d.id AND m.job_id IS NOT NULL)
UNION ALL
SELECT 'campaign ' || c.id || ': ' || c.state || ', but its end says otherwise' FROM campaigns c
WHERE (c.state IN ('done', 'cancelled')) <> (c.finished_at IS NOT NULL)
UNION ALL
SELECT 'campaign ' || c.id || ': done, but job ' || s.id || ' is open' FROM campaigns c
JOIN lanes l ON l.campaign_id = c.id JOIN seen s ON s.lane_id = l.id WHERE c.state = 'done' AND s.state IN ('open', 'waiting')
UNION ALL
SELECT 'campaign ' || c.id || ': done, but nothing is decided of round ' || l.round FROM campaigns c
JOIN lanes l ON l.campaign_id = c.id WHERE c.state = 'done' AND l.rules IS NOT NULL AND l.decided IS DISTINCT FROM l.done
UNION ALL
SELECT 'lane ' || l.id || ': a round without the one before it' FROM lanes l
WHERE l.round > 0 AND NOT EXISTS (
    SELECT 1 FROM lanes b
    WHERE b.campaign_id = l.campaign_id AND b.pool_id = l.pool_id AND b.round = l.round - 1 AND b.rules IS NOT NULL
)
""")


def faults(connection: Connection) -> list[str]:
    """Every promise that the tables break now, in words."""
    return list(connection.execute(_FAULTS).scalars())


_UNFINISHED = text("""
SELECT 'job ' || id || ' is ' || state FROM jobs WHERE state IN ('open', 'waiting')
UNION ALL SELECT 'job ' || job_id || ' waits' FROM returned_jobs
UNION ALL SELECT 'batch ' || id || ' is ' || state FROM batches WHERE state IN ('queued', 'leased')
UNION ALL SELECT 'campaign ' || id || ' is ' || state FROM campaigns WHERE state NOT IN ('done', 'cancelled')
""")


def unfinished(connection: Connection) -> list[str]:
    """Everything that is not at its end, in words: nothing once all work is done."""
    return list(connection.execute(_UNFINISHED).scalars())
