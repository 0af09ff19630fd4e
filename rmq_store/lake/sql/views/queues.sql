-- One row per queue: its readable range, from the positions alone.
-- needs: positions
SELECT
    shard,
    topic,
    broker_name,
    queue_id,
    CAST(coalesce(max(CASE WHEN kind = 'min' THEN value END), 0) AS BIGINT) AS min_offset,
    CAST(coalesce(max(CASE WHEN kind = 'max' THEN value END), 0) AS BIGINT) AS max_offset,
    max(CASE WHEN kind = 'max' AND updated_ms > 0 THEN updated_ms END) AS newest_store_timestamp
FROM positions
WHERE kind IN ('min', 'max')
GROUP BY shard, topic, broker_name, queue_id
