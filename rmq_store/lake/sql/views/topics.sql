-- One row per topic of a shard.
-- needs: queues
SELECT
    shard, topic,
    CASE
        WHEN substr(topic, 1, 7) = '%RETRY%' THEN 'retry'
        WHEN substr(topic, 1, 5) = '%DLQ%' THEN 'dead letters'
        WHEN topic = 'SCHEDULE_TOPIC_XXXX' THEN 'delay'
        WHEN topic = 'rmq_sys_wheel_timer' THEN 'timer'
        WHEN lower(substr(topic, 1, 8)) = 'rmq_sys_' THEN 'system'
        ELSE 'normal'
    END AS type,
    count(*) AS queues,
    CAST(sum(max_offset - min_offset) AS BIGINT) AS messages,
    max(newest_store_timestamp) AS newest_store_timestamp
FROM queues
GROUP BY shard, topic
