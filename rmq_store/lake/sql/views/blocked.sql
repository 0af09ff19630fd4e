-- One row per run of messages that a queue of an orderly group waits at, as the queue's last window left it.
-- needs: ctl_blocked, offset_moves
WITH newest AS (
    SELECT
        shard, group_name, topic, broker_name, queue_id, commit_id, to_offset,
        row_number() OVER (
            PARTITION BY shard, group_name, topic, broker_name, queue_id ORDER BY read_version DESC, commit_id DESC
        ) AS newness
    FROM offset_moves
)
SELECT
    b.shard, b.group_name, b.topic, b.broker_name, b.queue_id,
    n.to_offset AS next_offset,
    b.begin_offset, b.end_offset, b.attempts, b.status,
    CASE WHEN b.attempts > 0 THEN coalesce(b.first_failed_at, b.store_timestamp) END AS first_failed_at,
    b.store_timestamp AS last_tried_at,
    b.error_type, b.error_text, b.window_id, b.request_id, b.commit_id
FROM ctl_blocked b
JOIN newest n
    ON n.shard = b.shard AND n.group_name = b.group_name AND n.topic = b.topic
    AND n.broker_name = b.broker_name AND n.queue_id = b.queue_id
    AND n.newness = 1 AND n.commit_id = b.commit_id
