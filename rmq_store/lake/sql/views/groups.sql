-- One row per consumer group of a shard.
-- needs: positions, stored_offsets, lag, queues
WITH named AS (
    SELECT shard, group_name FROM stored_offsets
    UNION
    SELECT shard, group_name FROM positions WHERE kind = 'grp'
),
held AS (
    SELECT
        shard, group_name,
        count(*) AS queues,
        max(CASE WHEN held_by = 'lake' THEN 1 ELSE 0 END) AS in_lake,
        max(updated_at) AS updated_at
    FROM stored_offsets
    GROUP BY shard, group_name
),
waiting AS (
    SELECT
        shard, group_name,
        CAST(sum(lag) AS BIGINT) AS lag,
        CAST(sum(readable_lag) AS BIGINT) AS readable_lag
    FROM lag
    GROUP BY shard, group_name
),
buried AS (
    SELECT
        shard,
        substr(topic, 6) AS group_name,
        CAST(sum(max_offset - min_offset) AS BIGINT) AS dead_letters
    FROM queues
    WHERE substr(topic, 1, 5) = '%DLQ%'
    GROUP BY shard, substr(topic, 6)
),
owned AS (
    SELECT
        shard, group_name,
        max(CASE WHEN kind = 'grp' THEN value END) AS epoch,
        max(CASE WHEN kind = 'del' THEN updated_ms END) AS deleted_at,
        max(CASE WHEN kind = 'own' THEN value % 17179869184 END) AS lease_end_s
    FROM positions
    WHERE kind IN ('grp', 'own', 'del')
    GROUP BY shard, group_name
)
SELECT
    n.shard, n.group_name,
    CASE WHEN h.in_lake = 0 THEN 'broker' ELSE 'lake' END AS held_by,
    coalesce(o.epoch, CAST(0 AS BIGINT)) AS epoch,
    coalesce(h.queues, CAST(0 AS BIGINT)) AS queues,
    coalesce(w.lag, CAST(0 AS BIGINT)) AS lag,
    coalesce(w.readable_lag, CAST(0 AS BIGINT)) AS readable_lag,
    coalesce(b.dead_letters, CAST(0 AS BIGINT)) AS dead_letters,
    h.updated_at,
    CASE WHEN o.lease_end_s > 0 THEN o.lease_end_s * 1000 END AS claimed_until,
    o.deleted_at
FROM named n
LEFT JOIN held h ON h.shard = n.shard AND h.group_name = n.group_name
LEFT JOIN waiting w ON w.shard = n.shard AND w.group_name = n.group_name
LEFT JOIN buried b ON b.shard = n.shard AND b.group_name = n.group_name
LEFT JOIN owned o ON o.shard = n.shard AND o.group_name = n.group_name
