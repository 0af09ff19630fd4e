-- One row per range of a queue that a commit consumed, with the number of offsets per outcome.
-- needs: ctl_consumed
SELECT
    shard, group_name, topic, broker_name, queue_id, read_version,
    store_timestamp AS committed_at,
    action, pass, begin_offset, end_offset, start_rule,
    acked, filtered, retried, dead, duplicate, dropped, lost, skipped,
    window_id, request_id, commit_id
FROM ctl_consumed
