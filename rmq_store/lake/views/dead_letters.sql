-- One row per dead letter, with the reason.
-- needs: message_rows
SELECT
    shard,
    substr(topic, 6) AS group_name,
    topic, broker_name, queue_id, queue_offset,
    cause,
    reconsume_times AS attempt,
    coalesce(properties['RETRY_TOPIC'], origin_topic) AS original_topic,
    origin_topic, origin_broker_name, origin_queue_id, origin_queue_offset, pass,
    unique_key, keys, tags, properties, body, error_type, error_text,
    offset_msg_id, born_timestamp, store_timestamp, window_id, commit_id
FROM message_rows
WHERE substr(topic, 1, 5) = '%DLQ%'
