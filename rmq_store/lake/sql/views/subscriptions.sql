-- One row per version of a group's subscription and listener, as its windows recorded it.
-- needs: ctl, positions
WITH version AS (
    SELECT
        shard, group_name, subscription_version, subscription, listener,
        min(store_timestamp) AS first_committed_at,
        max(store_timestamp) AS last_committed_at,
        count(*) AS windows,
        max(read_version) AS last_read_version
    FROM ctl
    WHERE subscription IS NOT NULL
    GROUP BY shard, group_name, subscription_version, subscription, listener
),
newest AS (
    SELECT *, row_number() OVER (PARTITION BY shard, group_name ORDER BY last_read_version DESC) AS place
    FROM version
),
-- The version that the next window is compared with; the clients of a broadcasting group (group@client) share it.
recorded AS (
    SELECT shard, group_name, value >> 32 AS version
    FROM positions
    WHERE kind = 'sub'
)
SELECT
    n.shard, n.group_name, n.subscription_version, n.subscription, n.listener,
    n.first_committed_at, n.last_committed_at, n.windows,
    n.place = 1 AND coalesce(n.subscription_version = r.version, FALSE) AS is_current
FROM newest n
LEFT JOIN recorded r ON r.shard = n.shard AND r.group_name = split_part(n.group_name, '@', 1)
