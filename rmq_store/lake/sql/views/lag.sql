-- One row per group and queue that it reads: all queues of the topics in which it has an offset, and its retry queues.
-- As ``ConsumerProgressSubCommand`` counts (rules 13.3): a queue without an offset counts from 0.
-- needs: queues, stored_offsets
WITH reads AS (
    SELECT shard, group_name, topic FROM stored_offsets
    UNION
    SELECT shard, group_name, '%RETRY%' || group_name AS topic FROM stored_offsets
),
places AS (
    SELECT r.shard, r.group_name, r.topic, q.broker_name, q.queue_id
    FROM reads r
    JOIN queues q ON q.shard = r.shard AND q.topic = r.topic
    UNION
    SELECT shard, group_name, topic, broker_name, queue_id FROM stored_offsets
),
measured AS (
    SELECT
        p.shard, p.group_name, p.topic, p.broker_name, p.queue_id,
        coalesce(q.min_offset, CAST(0 AS BIGINT)) AS min_offset,
        coalesce(q.max_offset, CAST(0 AS BIGINT)) AS max_offset,
        coalesce(o.next_offset, CAST(0 AS BIGINT)) AS next_offset,
        o.next_offset IS NOT NULL AS has_offset
    FROM places p
    LEFT JOIN queues q
        ON q.shard = p.shard AND q.topic = p.topic AND q.broker_name = p.broker_name AND q.queue_id = p.queue_id
    LEFT JOIN stored_offsets o
        ON o.shard = p.shard AND o.group_name = p.group_name AND o.topic = p.topic
        AND o.broker_name = p.broker_name AND o.queue_id = p.queue_id
)
SELECT
    shard, group_name, topic, broker_name, queue_id, min_offset, max_offset, next_offset, has_offset,
    max_offset - next_offset AS lag,
    max_offset - greatest(next_offset, min_offset) AS readable_lag
FROM measured
