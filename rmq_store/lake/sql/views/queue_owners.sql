-- One row per claim: who held a queue, or work that only one run may do at a time, from when until when.
-- needs: ctl, ctl_claims, clock
WITH taken AS (
    SELECT
        c.*,
        lead(store_timestamp) OVER (PARTITION BY shard, app_id ORDER BY claim_number) AS next_claimed_at,
        lead(commit_id) OVER (PARTITION BY shard, app_id ORDER BY claim_number) AS next_commit_id
    FROM ctl_claims c
    WHERE action = 'claim'
),
leases AS (
    SELECT shard, app_id, claim_number, max(lease_end_s) * 1000 AS lease_end
    FROM ctl_claims
    WHERE action IN ('claim', 'renew')
    GROUP BY shard, app_id, claim_number
),
-- The commit of a run names the commit of its claims. A run that committed nothing releases its claims by a list, and the
-- release of a withdrawn window names their commit.
ends AS (
    SELECT
        shard, commit_id, store_timestamp, action,
        regexp_extract(parameters, '"claim":"([0-9a-f]+)"', 1) AS claim_commit_id
    FROM ctl
    WHERE action NOT IN ('claim', 'renew')
),
releases AS (
    SELECT shard, app_id, claim_number, max(commit_id) AS commit_id, max(store_timestamp) AS store_timestamp
    FROM ctl_claims
    WHERE action = 'release'
    GROUP BY shard, app_id, claim_number
),
judged AS (
    SELECT
        t.*, l.lease_end,
        CASE
            WHEN e.commit_id IS NOT NULL AND e.action <> 'release' THEN 'committed'
            WHEN e.commit_id IS NOT NULL OR r.commit_id IS NOT NULL THEN 'released'
            WHEN t.next_claimed_at < l.lease_end THEN 'taken over'
            WHEN t.next_claimed_at IS NOT NULL OR l.lease_end <= k.now_ms THEN 'lease ended'
        END AS ended_by,
        coalesce(e.store_timestamp, r.store_timestamp) AS ended_at,
        coalesce(e.commit_id, r.commit_id) AS ended_commit_id,
        split_part(t.app_id, '/', 5) <> '' AS is_queue
    FROM taken t
    CROSS JOIN clock k
    JOIN leases l ON l.shard = t.shard AND l.app_id = t.app_id AND l.claim_number = t.claim_number
    LEFT JOIN ends e ON e.shard = t.shard AND e.claim_commit_id = t.commit_id
    LEFT JOIN releases r ON r.shard = t.shard AND r.app_id = t.app_id AND r.claim_number = t.claim_number
)
SELECT
    shard,
    url_decode(substr(app_id, 5)) AS scope,
    group_name,
    CASE WHEN is_queue THEN url_decode(split_part(app_id, '/', 3)) END AS topic,
    CASE WHEN is_queue THEN url_decode(split_part(app_id, '/', 4)) END AS broker_name,
    CASE WHEN is_queue THEN TRY_CAST(split_part(app_id, '/', 5) AS INT) END AS queue_id,
    claim_number,
    client_id, request_id, actor, actor_source,
    store_timestamp AS claimed_at,
    CASE WHEN ended_by = 'taken over' THEN next_claimed_at ELSE coalesce(ended_at, lease_end) END AS held_until,
    ended_by,
    reason,
    commit_id,
    CASE WHEN ended_by = 'taken over' THEN next_commit_id ELSE ended_commit_id END AS ended_commit_id
FROM judged
