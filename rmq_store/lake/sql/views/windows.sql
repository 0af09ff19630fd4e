-- One row per committed consumption window.
-- needs: ctl, consumed_ranges
WITH done AS (
    SELECT
        shard, commit_id,
        count(*) AS queues,
        CAST(sum(end_offset - begin_offset) AS BIGINT) AS messages,
        CAST(sum(acked) AS BIGINT) AS acked,
        CAST(sum(filtered) AS BIGINT) AS filtered,
        CAST(sum(retried) AS BIGINT) AS retried,
        CAST(sum(dead) AS BIGINT) AS dead,
        CAST(sum(duplicate) AS BIGINT) AS duplicate,
        CAST(sum(dropped) AS BIGINT) AS dropped,
        CAST(sum(lost) AS BIGINT) AS lost,
        CAST(sum(skipped) AS BIGINT) AS skipped
    FROM consumed_ranges
    WHERE action = 'consume'
    GROUP BY shard, commit_id
),
-- A replay's group is named <group>-replay-<10 hex digits>. Its first attempt begins with its first window, every later one
-- with a commit of action 'replay'.
counted AS (
    SELECT
        c.*,
        CASE WHEN substr(group_name, length(group_name) - 17, 8) = '-replay-' THEN 1 + CAST(sum(
            CASE WHEN action = 'replay' THEN 1 ELSE 0 END
        ) OVER (PARTITION BY shard, group_name ORDER BY read_version) AS BIGINT) END AS attempt
    FROM ctl c
    WHERE action IN ('consume', 'replay')
)
SELECT
    c.shard, c.group_name, c.window_id, c.action,
    CASE WHEN c.attempt IS NOT NULL THEN substr(c.group_name, 1, length(c.group_name) - 18) END AS replay_of,
    c.attempt,
    max(c.attempt) OVER (PARTITION BY c.shard, c.group_name) AS attempts,
    c.store_timestamp AS committed_at,
    coalesce(d.queues, CAST(0 AS BIGINT)) AS queues,
    coalesce(d.messages, CAST(0 AS BIGINT)) AS messages,
    coalesce(d.acked, CAST(0 AS BIGINT)) AS acked,
    coalesce(d.filtered, CAST(0 AS BIGINT)) AS filtered,
    coalesce(d.retried, CAST(0 AS BIGINT)) AS retried,
    coalesce(d.dead, CAST(0 AS BIGINT)) AS dead,
    coalesce(d.duplicate, CAST(0 AS BIGINT)) AS duplicate,
    coalesce(d.dropped, CAST(0 AS BIGINT)) AS dropped,
    coalesce(d.lost, CAST(0 AS BIGINT)) AS lost,
    coalesce(d.skipped, CAST(0 AS BIGINT)) AS skipped,
    c.actor, c.actor_source, c.reason, c.listener,
    nullif(regexp_extract(c.parameters, '"listener_version":"([^"]*)"', 1), '') AS listener_version, c.subscription, c.subscription_version,
    c.request_id, c.request_part, c.request_complete, c.parameters, c.epoch, c.read_version, c.commit_id
FROM counted c
LEFT JOIN done d ON d.shard = c.shard AND d.commit_id = c.commit_id
WHERE c.action = 'consume'
