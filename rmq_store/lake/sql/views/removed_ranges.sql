-- One row per range of offsets that retention has removed from a queue: who did it, when and why.
-- needs: ctl_removed
SELECT
    shard, topic, broker_name, queue_id, begin_offset, end_offset,
    store_timestamp AS removed_at,
    request_id, actor, actor_source, reason, commit_id
FROM ctl_removed
