-- One row per message, as RocketMQ knows it: one per consume queue entry, and those of the archive.
-- needs: message_rows, archived_rows
SELECT
    shard, topic, broker_name, queue_id, queue_offset, commit_log_offset, offset_msg_id, unique_key, keys, tags,
    tags_code, properties, body, body_crc, flag, sys_flag, born_timestamp, store_timestamp, born_host, store_host,
    reconsume_times, prepared_transaction_offset, magic, store_size, stored_body_size
FROM message_rows

UNION ALL

SELECT
    shard, topic, broker_name, queue_id, queue_offset, commit_log_offset, offset_msg_id, unique_key, keys, tags,
    tags_code, properties, body, body_crc, flag, sys_flag, born_timestamp, store_timestamp, born_host, store_host,
    reconsume_times, prepared_transaction_offset, magic, store_size, stored_body_size
FROM archived_rows
