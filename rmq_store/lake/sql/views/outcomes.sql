-- One row per exceptional outcome: a range without copies, or a message of which a copy was made. Where retention has removed
-- the copy, an outcome row has its columns.
-- needs: msg, outcome_ranges, ctl
SELECT
    e.shard, e.group_name, e.pass, e.topic, e.broker_name, e.queue_id, e.begin_offset, e.end_offset, e.outcome, e.reason,
    e.attempt, e.error_type, e.error_text, e.unique_key,
    c.store_timestamp AS committed_at,
    e.window_id, e.commit_id
FROM (
    SELECT
        shard, group_name, pass, topic, broker_name, queue_id, begin_offset, end_offset, outcome, reason,
        attempt, error_type, error_text, unique_key, window_id, commit_id
    FROM outcome_ranges
    WHERE outcome NOT IN ('delivered', 'redriven', 'redrive_failed')
    UNION ALL
    SELECT
        shard, group_name, pass,
        origin_topic AS topic,
        origin_broker_name AS broker_name,
        origin_queue_id AS queue_id,
        origin_queue_offset AS begin_offset,
        origin_queue_offset + 1 AS end_offset,
        CASE WHEN substr(topic, 1, 5) = '%DLQ%' THEN 'dead' ELSE 'retried' END AS outcome,
        cause AS reason,
        attempt, error_type, error_text, unique_key, window_id, commit_id
    FROM msg
    WHERE group_name IS NOT NULL AND cause <> 'deliver'
        AND (topic IN ('SCHEDULE_TOPIC_XXXX', 'rmq_sys_wheel_timer') OR substr(topic, 1, 5) = '%DLQ%')
) e
LEFT JOIN ctl c ON c.shard = e.shard AND c.commit_id = e.commit_id
