-- The current offsets of a group, without their history: the lake's own, else the one that the newest import of its broker
-- observed. A group that was deleted in the lake has none until it is created again: its broker's offsets do not count any
-- more, and in its retry queues it will continue where they ended.
-- needs: positions, ctl_observed
WITH deleted AS (
    SELECT shard, group_name FROM positions WHERE kind = 'del'
),
gone AS (
    SELECT d.shard, d.group_name
    FROM deleted d
    LEFT JOIN positions p
        ON p.shard = d.shard AND p.group_name = d.group_name AND p.kind = 'off' AND p.topic <> '%RETRY%' || p.group_name
    WHERE p.group_name IS NULL
),
own AS (
    SELECT p.*
    FROM positions p
    LEFT JOIN gone g ON g.shard = p.shard AND g.group_name = p.group_name
    WHERE p.kind = 'off' AND g.group_name IS NULL
),
seen AS (
    SELECT
        o.shard, o.group_name, o.topic, o.broker_name, o.queue_id, o.observed_offset, o.store_timestamp,
        rank() OVER (
            PARTITION BY o.shard, o.broker_name
            ORDER BY o.read_version DESC, o.commit_id DESC
        ) AS newness
    FROM ctl_observed o
    LEFT JOIN deleted d ON d.shard = o.shard AND d.group_name = o.group_name
    WHERE d.group_name IS NULL
)
SELECT
    coalesce(p.shard, s.shard) AS shard,
    coalesce(p.group_name, s.group_name) AS group_name,
    coalesce(p.topic, s.topic) AS topic,
    coalesce(p.broker_name, s.broker_name) AS broker_name,
    coalesce(p.queue_id, s.queue_id) AS queue_id,
    coalesce(p.value, s.observed_offset) AS next_offset,
    CASE WHEN p.value IS NULL THEN s.store_timestamp ELSE p.updated_ms END AS updated_at,
    CASE WHEN p.value IS NULL THEN 'broker' ELSE 'lake' END AS held_by
FROM own p
FULL OUTER JOIN (SELECT * FROM seen WHERE newness = 1) s
    ON s.shard = p.shard AND s.group_name = p.group_name AND s.topic = p.topic
    AND s.broker_name = p.broker_name AND s.queue_id = p.queue_id
