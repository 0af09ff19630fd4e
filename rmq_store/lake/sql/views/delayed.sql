-- One row per message that waits in SCHEDULE_TOPIC_XXXX or in the lake's timer.
-- needs: scheduled
SELECT
    shard, topic, broker_name, queue_id, queue_offset, delay_level, deliver_at, real_topic, real_queue_id,
    unique_key, keys, tags, reconsume_times, store_timestamp
FROM scheduled
WHERE state = 'waiting'
