-- One row per group and queue with an offset, and the window that moved it last.
-- needs: stored_offsets, offset_moves
WITH newest AS (
    SELECT
        shard, group_name, topic, broker_name, queue_id, window_id,
        row_number() OVER (
            PARTITION BY shard, group_name, topic, broker_name, queue_id ORDER BY read_version DESC, commit_id DESC
        ) AS newness
    FROM offset_moves
)
SELECT o.shard, o.group_name, o.topic, o.broker_name, o.queue_id, o.next_offset, o.updated_at, n.window_id
FROM stored_offsets o
LEFT JOIN newest n
    ON n.shard = o.shard AND n.group_name = o.group_name AND n.topic = o.topic
    AND n.broker_name = o.broker_name AND n.queue_id = o.queue_id
    AND n.newness = 1
