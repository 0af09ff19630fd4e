-- One row per dead letter, with its cause and the time of its redrive.
-- needs: message_rows, ctl_redriven, queues
WITH sent AS (
    -- As the commits of redrives say: retention removes the copies of dead letters, and the record stays.
    SELECT
        shard, topic, broker_name, queue_id, queue_offset,
        min(store_timestamp) AS redriven_at,
        min(to_topic) AS redriven_to
    FROM ctl_redriven
    GROUP BY shard, topic, broker_name, queue_id, queue_offset
)
SELECT
    m.shard,
    substr(m.topic, 6) AS group_name,
    m.topic, m.broker_name, m.queue_id, m.queue_offset,
    m.cause,
    m.reconsume_times AS attempt,
    coalesce(m.properties['RETRY_TOPIC'], m.origin_topic) AS original_topic,
    m.origin_topic, m.origin_broker_name, m.origin_queue_id, m.origin_queue_offset, m.pass,
    m.unique_key, m.keys, m.tags, m.properties, m.body, m.error_type, m.error_text,
    m.offset_msg_id, m.born_timestamp, m.store_timestamp, s.redriven_at, s.redriven_to, m.window_id, m.commit_id
FROM message_rows m
LEFT JOIN sent s
    ON s.shard = m.shard AND s.topic = m.topic AND s.broker_name = m.broker_name AND s.queue_id = m.queue_id
    AND s.queue_offset = m.queue_offset
LEFT JOIN queues q
    ON q.shard = m.shard AND q.topic = m.topic AND q.broker_name = m.broker_name AND q.queue_id = m.queue_id
WHERE substr(m.topic, 1, 5) = '%DLQ%'
    -- What retention has removed is in its file until that is written again.
    AND NOT coalesce(m.queue_offset < q.min_offset, FALSE)
