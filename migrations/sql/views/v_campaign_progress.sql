-- How far each campaign is: counted as `farm status` does, and its rate over the last five minutes.

CREATE OR REPLACE VIEW v_campaign_progress AS
SELECT c.id AS campaign_id, c.name AS campaign, c.owner, c.priority, c.state, c.submitted_at, c.finished_at,
    t.jobs,
    CASE WHEN c.state = 'cancelled' THEN 0 ELSE t.waiting END AS pending,
    t.queued, t.running,
    CASE WHEN c.state = 'cancelled' THEN 0 ELSE t.later END AS later,
    t.done, t.invalid, t.dead,
    CASE WHEN c.state = 'cancelled' THEN t.waiting ELSE 0 END AS cancelled,
    (t.done + t.invalid + t.dead)::double precision / nullif(t.jobs + t.later, 0) AS ended_share,
    p.jobs_per_minute,
    60 * (t.waiting + t.queued + t.running + t.later) / p.jobs_per_minute AS left_s
FROM campaigns c
CROSS JOIN LATERAL (
    SELECT coalesce(sum(l.jobs), 0)::bigint AS jobs, coalesce(sum(b.queued), 0)::bigint AS queued,
        coalesce(sum(b.running), 0)::bigint AS running, coalesce(sum(l.done + b.done), 0)::bigint AS done,
        coalesce(sum(l.invalid + b.invalid), 0)::bigint AS invalid, coalesce(sum(l.dead + b.dead), 0)::bigint AS dead,
        coalesce(sum(CASE
            WHEN l.rules IS NULL OR l.decided = l.done + b.done THEN 0
            WHEN l.decided IS NULL THEN greatest(l.later, 1)
            ELSE 1
        END), 0)::bigint AS later,
        coalesce(sum(
            l.jobs - l.done - l.invalid - l.dead - b.done - b.invalid - b.dead - b.queued - b.running
        ), 0)::bigint AS waiting
    FROM lanes l CROSS JOIN LATERAL (
        SELECT coalesce(sum(jobs) FILTER (WHERE state = 'queued'), 0)::bigint AS queued,
            coalesce(sum(jobs) FILTER (WHERE state = 'leased'), 0)::bigint AS running,
            coalesce(sum(done), 0)::bigint AS done, coalesce(sum(invalid), 0)::bigint AS invalid,
            coalesce(sum(dead), 0)::bigint AS dead
        FROM batches WHERE lane_id = l.id AND NOT folded
    ) b
    WHERE l.campaign_id = c.id
) t
CROSS JOIN LATERAL (
    SELECT 60 * nullif(sum(b.done + b.invalid + b.dead), 0)::double precision / greatest(
        1, least(300, extract(epoch FROM statement_timestamp() - min(b.claimed_at)))
    )::double precision AS jobs_per_minute
    FROM lanes l JOIN batches b ON b.lane_id = l.id
    WHERE l.campaign_id = c.id AND c.state IN ('active', 'paused') AND b.claimed_at IS NOT NULL
        AND b.finished_at > statement_timestamp() - interval '5 minutes'
) p;
