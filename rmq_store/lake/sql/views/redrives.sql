-- One row per dead letter: whether it waits, was sent again or could not be sent, by which request and why.
-- needs: message_rows, outcome_ranges, ctl_redriven, ctl
WITH failed AS (
    -- A dead letter may fail in several requests; the newest counts.
    SELECT
        o.shard, o.topic, o.broker_name, o.queue_id, o.begin_offset, o.error_text, o.commit_id,
        row_number() OVER (
            PARTITION BY o.shard, o.topic, o.broker_name, o.queue_id, o.begin_offset
            ORDER BY t.read_version DESC, o.commit_id DESC
        ) AS from_last
    FROM outcome_ranges o
    JOIN ctl t ON t.shard = o.shard AND t.commit_id = o.commit_id
    WHERE o.outcome = 'redrive_failed'
),
copies AS (
    SELECT
        shard, commit_id, origin_topic, origin_broker_name, origin_queue_id, origin_queue_offset,
        broker_name, queue_id, queue_offset
    FROM message_rows
    WHERE group_name IS NOT NULL AND cause = 'redrive'
)
SELECT
    m.shard,
    substr(m.topic, 6) AS group_name,
    m.topic, m.broker_name, m.queue_id, m.queue_offset, m.unique_key, m.keys,
    CASE WHEN s.commit_id IS NOT NULL THEN 'sent' WHEN f.commit_id IS NOT NULL THEN 'failed' ELSE 'pending' END AS state,
    t.store_timestamp AS committed_at,
    t.actor, t.actor_source, t.reason, t.request_id,
    s.to_topic,
    c.broker_name AS to_broker_name,
    c.queue_id AS to_queue_id,
    c.queue_offset AS to_queue_offset,
    CASE WHEN s.commit_id IS NULL THEN f.error_text END AS error_text,
    t.parameters, t.commit_id
FROM message_rows m
LEFT JOIN ctl_redriven s
    ON s.shard = m.shard AND s.topic = m.topic AND s.broker_name = m.broker_name AND s.queue_id = m.queue_id
    AND s.queue_offset = m.queue_offset
LEFT JOIN failed f
    ON f.shard = m.shard AND f.topic = m.topic AND f.broker_name = m.broker_name AND f.queue_id = m.queue_id
    AND f.begin_offset = m.queue_offset AND f.from_last = 1
LEFT JOIN ctl t ON t.shard = m.shard AND t.commit_id = coalesce(s.commit_id, f.commit_id)
LEFT JOIN copies c
    ON c.shard = m.shard AND c.commit_id = s.commit_id AND c.origin_topic = m.topic
    AND c.origin_broker_name = m.broker_name AND c.origin_queue_id = m.queue_id AND c.origin_queue_offset = m.queue_offset
WHERE substr(m.topic, 1, 5) = '%DLQ%'
