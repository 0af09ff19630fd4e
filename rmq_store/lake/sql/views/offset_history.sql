-- One row per move of an offset, by a window or by an operator. to_offset null: the offset was deleted with its group.
-- needs: offset_moves
SELECT
    shard, group_name, topic, broker_name, queue_id, read_version,
    store_timestamp AS committed_at,
    action, pass, from_offset, nullif(to_offset, -1) AS to_offset, window_id, request_id, actor, actor_source, reason, commit_id
FROM offset_moves
