-- One row per range of a queue that a commit is done with, and how many of its offsets had which outcome.
-- needs: ctl, ctl_consumed
SELECT
    c.shard, c.group_name, r.topic, r.broker_name, r.queue_id, c.read_version,
    c.store_timestamp AS committed_at,
    c.action, r.pass, r.begin_offset, r.end_offset, r.start_rule,
    r.acked, r.filtered, r.retried, r.dead, r.duplicate, r.dropped, r.lost, r.skipped,
    c.window_id, c.request_id, c.commit_id
FROM ctl_consumed r
JOIN ctl c ON c.shard = r.shard AND c.commit_id = r.commit_id
