-- One row per message of SCHEDULE_TOPIC_XXXX, waiting or delivered. A level queue is in due order, and what lies before
-- the system group's offset has been delivered (S11.2).
-- needs: message_rows, stored_offsets
SELECT
    m.shard, m.broker_name, m.queue_id, m.queue_offset,
    m.queue_id + 1 AS delay_level,
    m.deliver_at,
    CASE WHEN m.queue_offset < coalesce(o.next_offset, CAST(0 AS BIGINT)) THEN 'delivered' ELSE 'waiting' END AS state,
    m.properties['REAL_TOPIC'] AS real_topic,
    TRY_CAST(m.properties['REAL_QID'] AS INT) AS real_queue_id,
    m.properties['RETRY_TOPIC'] AS original_topic,
    m.group_name, m.pass, m.origin_topic, m.origin_broker_name, m.origin_queue_id, m.origin_queue_offset,
    m.reconsume_times, m.unique_key, m.keys, m.tags, m.error_type, m.error_text, m.window_id, m.store_timestamp,
    m.commit_id
FROM message_rows m
LEFT JOIN stored_offsets o
    ON o.shard = m.shard AND o.group_name = 'CID_RMQ_SYS_SCHEDULE' AND o.topic = m.topic
    AND o.broker_name = m.broker_name AND o.queue_id = m.queue_id
WHERE m.topic = 'SCHEDULE_TOPIC_XXXX'
