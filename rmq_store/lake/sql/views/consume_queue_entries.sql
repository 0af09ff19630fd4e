-- RocketMQ's 20-byte entries: where a message stands in the log, its size, and its tag's hash or its due time.
-- needs: message_rows
SELECT shard, topic, broker_name, queue_id, queue_offset, commit_log_offset, store_size AS size, tags_code
FROM message_rows
