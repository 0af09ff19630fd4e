-- One row per retry copy: a failed message on its way back to its group, through the schedule topic or, if the group has a
-- retry policy, through the timer.
-- needs: scheduled
SELECT
    shard,
    substr(real_topic, 8) AS group_name,
    state, deliver_at, delay_level,
    reconsume_times AS attempt,
    coalesce(original_topic, origin_topic) AS original_topic,
    origin_topic, origin_broker_name, origin_queue_id, origin_queue_offset, pass,
    unique_key, keys, tags, error_type, error_text,
    topic, broker_name, queue_id, queue_offset,
    store_timestamp, window_id, commit_id
FROM scheduled
WHERE substr(real_topic, 1, 7) = '%RETRY%'
