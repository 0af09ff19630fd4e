-- One row per key that a window acked, in groups that absorb duplicates.
-- needs: key_rows, ctl
SELECT
    k.shard, k.group_name, k.epoch, k.topic, k.broker_name, k.queue_id, k.queue_offset, k.key_text, k.key_hash,
    c.store_timestamp AS committed_at,
    k.commit_id
FROM key_rows k
LEFT JOIN ctl c ON c.shard = k.shard AND c.commit_id = k.commit_id
