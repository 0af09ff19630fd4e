-- One row per claim: who held a queue, or work that only one run may do at a time, from when until when.
-- needs: ctl, ctl_claims, clock
WITH claims AS (
    SELECT
        c.*,
        max(CASE WHEN action <> 'release' THEN lease_end_s * 1000 END) OVER one_claim AS lease_end,
        max(CASE WHEN action = 'release' THEN commit_id END) OVER one_claim AS release_commit_id,
        max(CASE WHEN action = 'release' THEN store_timestamp END) OVER one_claim AS released_at
    FROM ctl_claims c
    -- An id belongs to one group. Partitions that name it let the engines apply a condition on the group first.
    WINDOW one_claim AS (PARTITION BY shard, group_name, app_id, claim_number)
),
taken AS (
    SELECT
        c.*,
        lead(store_timestamp) OVER later AS next_claimed_at,
        lead(commit_id) OVER later AS next_commit_id
    FROM claims c
    WHERE action = 'claim'
    WINDOW later AS (PARTITION BY shard, group_name, app_id ORDER BY claim_number)
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
judged AS (
    SELECT
        t.*,
        CASE
            WHEN e.commit_id IS NOT NULL AND e.action <> 'release' THEN 'committed'
            WHEN e.commit_id IS NOT NULL OR t.release_commit_id IS NOT NULL THEN 'released'
            WHEN t.next_claimed_at < t.lease_end THEN 'taken over'
            WHEN t.next_claimed_at IS NOT NULL OR t.lease_end <= k.now_ms THEN 'lease ended'
        END AS ended_by,
        coalesce(e.store_timestamp, t.released_at) AS ended_at,
        coalesce(e.commit_id, t.release_commit_id) AS ended_commit_id,
        split_part(t.app_id, '/', 5) <> '' AS is_queue
    FROM taken t
    CROSS JOIN clock k
    LEFT JOIN ends e ON e.shard = t.shard AND e.claim_commit_id = t.commit_id
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
