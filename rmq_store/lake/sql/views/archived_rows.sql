-- One row per message that retention has removed from its queue and that is in the archive, with the columns of message_rows.
-- needs: archived
SELECT
    shard, topic, broker_name, queue_id, queue_offset, commit_log_offset, offset_msg_id, unique_key, keys, tags,
    CASE WHEN topic = 'SCHEDULE_TOPIC_XXXX' THEN coalesce(deliver_at, tags_code) ELSE tags_code END AS tags_code,
    properties, body, body_crc, flag, sys_flag, born_timestamp, store_timestamp, born_host, store_host,
    reconsume_times, prepared_transaction_offset, magic, store_size, stored_body_size,
    deliver_at, group_name, pass, origin_topic, origin_broker_name, origin_queue_id, origin_queue_offset,
    cause, attempt, error_type, error_text, window_id, commit_id, part, rel
FROM archived
