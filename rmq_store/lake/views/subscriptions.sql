-- One row per version of what a group reads and with which listener, as its windows recorded it.
-- needs: ctl
SELECT
    shard, group_name, subscription_version, subscription, listener,
    min(store_timestamp) AS first_committed_at,
    max(store_timestamp) AS last_committed_at,
    count(*) AS windows
FROM ctl
WHERE subscription IS NOT NULL
GROUP BY shard, group_name, subscription_version, subscription, listener
