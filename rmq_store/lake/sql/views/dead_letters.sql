-- One row per dead letter, with its cause and the time of its redrive.
-- needs: message_rows
WITH sent AS (
    SELECT
        shard, origin_topic, origin_broker_name, origin_queue_id, origin_queue_offset,
        min(store_timestamp) AS redriven_at,
        min(topic) AS redriven_to
    FROM message_rows
    WHERE group_name IS NOT NULL AND cause = 'redrive'
    GROUP BY shard, origin_topic, origin_broker_name, origin_queue_id, origin_queue_offset
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
    ON s.shard = m.shard AND s.origin_topic = m.topic AND s.origin_broker_name = m.broker_name
    AND s.origin_queue_id = m.queue_id AND s.origin_queue_offset = m.queue_offset
WHERE substr(m.topic, 1, 5) = '%DLQ%'
