-- Where a group stands, without its history: the lake's own offset, else the one its living broker was last seen with.
-- needs: positions, ctl_observed
WITH seen AS (
    SELECT
        shard, group_name, topic, broker_name, queue_id, observed_offset, store_timestamp,
        row_number() OVER (
            PARTITION BY shard, group_name, topic, broker_name, queue_id ORDER BY read_version DESC, commit_id DESC
        ) AS newness
    FROM ctl_observed
)
SELECT
    coalesce(p.shard, s.shard) AS shard,
    coalesce(p.group_name, s.group_name) AS group_name,
    coalesce(p.topic, s.topic) AS topic,
    coalesce(p.broker_name, s.broker_name) AS broker_name,
    coalesce(p.queue_id, s.queue_id) AS queue_id,
    coalesce(p.value, s.observed_offset) AS next_offset,
    CASE WHEN p.value IS NULL THEN s.store_timestamp ELSE p.updated_ms END AS updated_at,
    CASE WHEN p.value IS NULL THEN 'broker' ELSE 'lake' END AS held_by
FROM (SELECT * FROM positions WHERE kind = 'off') p
FULL OUTER JOIN (SELECT * FROM seen WHERE newness = 1) s
    ON s.shard = p.shard AND s.group_name = p.group_name AND s.topic = p.topic
    AND s.broker_name = p.broker_name AND s.queue_id = p.queue_id
