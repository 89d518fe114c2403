-- Results: v_all_measurements without rows of a short round of a search, and without rows that two workers measured at the
-- same time on one device.

CREATE OR REPLACE VIEW v_measurements AS
SELECT a.*, coalesce(l.round, 0::smallint) AS round
FROM v_all_measurements a LEFT JOIN jobs j ON j.id = a.job_id LEFT JOIN lanes l ON l.id = j.lane_id
WHERE l.rules IS NULL AND NOT EXISTS (
    SELECT FROM device_overlaps o JOIN devices d ON d.id = o.device_id
    WHERE d.uuid = a.device_uuid AND a.measured_at BETWEEN o.since AND o.rows_until
);
