-- One row per exceptional outcome in an attempt of a replay. An attempt is a pass: the first is pass 0, every later one has
-- the epoch of the commit that began it.
-- needs: outcomes, ctl
WITH begun AS (
    SELECT shard, group_name, epoch, row_number() OVER (PARTITION BY shard, group_name ORDER BY read_version) + 1 AS attempt
    FROM ctl
    WHERE action = 'replay'
)
SELECT
    o.shard, o.group_name,
    substr(o.group_name, 1, length(o.group_name) - 18) AS replay_of,
    CAST(coalesce(b.attempt, 1) AS BIGINT) AS attempt,
    o.topic, o.broker_name, o.queue_id, o.begin_offset, o.end_offset, o.outcome, o.reason, o.error_type, o.error_text,
    o.unique_key, o.committed_at, o.window_id, o.commit_id
FROM outcomes o
LEFT JOIN begun b ON b.shard = o.shard AND b.group_name = o.group_name AND b.epoch = o.pass
WHERE substr(o.group_name, length(o.group_name) - 17, 8) = '-replay-'
    AND substr(o.topic, 1, 7) <> '%RETRY%'
    AND (o.pass = 0 OR b.attempt IS NOT NULL)
