-- One row per message of SCHEDULE_TOPIC_XXXX and of the lake's own timer queues (rules 11.2, 11.4). Each queue is in order of
-- due time, and messages before the system group's offset have left it. A message of a timer queue from 512 to 1535 has a
-- due time of its own (rmq_store/consumer/timer.py) and may have moved on to the queue of its second.
-- needs: message_rows, stored_offsets, msg
SELECT
    m.shard, m.topic, m.broker_name, m.queue_id, m.queue_offset,
    CASE WHEN m.topic = 'SCHEDULE_TOPIC_XXXX' THEN m.queue_id + 1 END AS delay_level,
    CASE
        WHEN m.topic = 'rmq_sys_wheel_timer' AND m.queue_id < 1536
        THEN coalesce(TRY_CAST(m.properties['TIMER_OUT_MS'] AS BIGINT) + 1000, m.deliver_at)
        ELSE m.deliver_at
    END AS deliver_at,
    CASE
        WHEN m.queue_offset >= coalesce(o.next_offset, CAST(0 AS BIGINT)) THEN 'waiting'
        WHEN r.shard IS NOT NULL THEN 'moved on'
        ELSE 'delivered'
    END AS state,
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
LEFT JOIN (
    SELECT shard, origin_broker_name, origin_queue_id, origin_queue_offset
    FROM msg
    WHERE topic = 'rmq_sys_wheel_timer' AND cause = 'deliver'
) r
    ON r.shard = m.shard AND m.topic = 'rmq_sys_wheel_timer' AND r.origin_broker_name = m.broker_name
    AND r.origin_queue_id = m.queue_id AND r.origin_queue_offset = m.queue_offset
WHERE m.topic = 'SCHEDULE_TOPIC_XXXX'
    OR (m.topic = 'rmq_sys_wheel_timer' AND substr(m.broker_name, 1, 6 + length(m.shard)) = 'lake-' || m.shard || '~')
