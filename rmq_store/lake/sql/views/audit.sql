-- Empty on a healthy store: the record of each commit is compared with its rows, with the commits around it, and with the
-- positions (docs/invariants.md, P1 to P3). Each part below is one proof; docs/sql.md says what each problem means.
-- needs: ctl, ctl_consumed, ctl_moved, ctl_produced, ctl_removed, ctl_replaced, positions, outcomes, outcome_ranges, msg, segments, key_rows, live_files
WITH ranges AS (
    SELECT * FROM ctl_consumed
),

-- 1. The history of a queue: every range and every move begins where the one before ended, and the last one ends at the
--    position. -1 is a deleted offset, which counts as none. Ranges of a redrive move no offset: they may be anywhere in
--    the dead-letter queue, but must not overlap.
--    A delivery begins at the first message of its queue where the offset lies before that.
steps AS (
    SELECT
        shard, group_name, pass, topic, broker_name, queue_id, read_version, commit_id,
        'range' AS step, begin_offset AS from_offset, end_offset AS to_offset, start_rule
    FROM ranges
    WHERE action <> 'redrive'
    UNION ALL
    SELECT
        shard, group_name, pass, topic, broker_name, queue_id, read_version, commit_id,
        'move' AS step, from_offset, to_offset, 'operator' AS start_rule
    FROM ctl_moved
),
joints AS (
    SELECT
        steps.*,
        nullif(lag(to_offset) OVER (
            PARTITION BY shard, group_name, topic, broker_name, queue_id ORDER BY read_version, commit_id
        ), -1) AS stood_at,
        row_number() OVER (
            PARTITION BY shard, group_name, topic, broker_name, queue_id ORDER BY read_version DESC, commit_id DESC
        ) AS from_last
    FROM steps
),
judged_joints AS (
    SELECT
        j.*,
        CASE
            WHEN step = 'move' AND from_offset IS DISTINCT FROM stood_at THEN 'moved from elsewhere'
            WHEN step = 'range' AND from_offset > stood_at
                AND (start_rule IS DISTINCT FROM 'first_offset' OR from_offset > coalesce(p.value, 0)) THEN 'gap'
            WHEN step = 'range' AND from_offset < stood_at THEN 'overlap'
            WHEN step = 'range' AND stood_at IS NULL AND start_rule = 'stored' THEN 'start not recorded'
        END AS problem
    FROM joints j
    LEFT JOIN (SELECT * FROM positions WHERE kind = 'min') p
        ON p.shard = j.shard AND p.topic = j.topic AND p.broker_name = j.broker_name AND p.queue_id = j.queue_id
),
history_problems AS (
    SELECT
        shard, group_name, pass, topic, broker_name, queue_id, problem,
        CASE WHEN problem IN ('gap', 'moved from elsewhere') THEN stood_at ELSE from_offset END AS begin_offset,
        CASE
            WHEN problem IN ('gap', 'moved from elsewhere') THEN from_offset
            WHEN problem = 'overlap' THEN least(stood_at, to_offset)
            ELSE to_offset
        END AS end_offset
    FROM judged_joints
    WHERE problem IS NOT NULL
    UNION ALL
    SELECT
        coalesce(j.shard, p.shard), coalesce(j.group_name, p.group_name), j.pass, coalesce(j.topic, p.topic),
        coalesce(j.broker_name, p.broker_name), coalesce(j.queue_id, p.queue_id),
        'position differs', j.to_offset, p.value
    FROM (SELECT * FROM joints WHERE from_last = 1 AND to_offset <> -1) j
    FULL OUTER JOIN (SELECT * FROM positions WHERE kind = 'off') p
        ON p.shard = j.shard AND p.group_name = j.group_name AND p.topic = j.topic
        AND p.broker_name = j.broker_name AND p.queue_id = j.queue_id
    WHERE p.value IS DISTINCT FROM j.to_offset
),
-- A delete ends every pass of its group; every window after it has a later pass.
deletes AS (
    SELECT shard, group_name, read_version, epoch FROM ctl WHERE action = 'delete'
),
delete_problems AS (
    SELECT DISTINCT
        r.shard, r.group_name, r.pass, r.topic, r.broker_name, r.queue_id,
        'window of a deleted group' AS problem, r.begin_offset, r.end_offset
    FROM ranges r
    JOIN deletes d
        ON d.shard = r.shard AND d.group_name = r.group_name AND r.read_version > d.read_version AND r.pass < d.epoch
    WHERE r.action = 'consume'
),
redrives AS (
    SELECT
        ranges.*,
        max(end_offset) OVER (
            PARTITION BY shard, group_name, topic, broker_name, queue_id
            ORDER BY begin_offset, end_offset, commit_id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) AS sent_to
    FROM ranges
    WHERE action = 'redrive'
),
redrive_problems AS (
    SELECT
        shard, group_name, pass, topic, broker_name, queue_id, 'redriven again' AS problem,
        begin_offset, least(end_offset, sent_to) AS end_offset
    FROM redrives
    WHERE sent_to > begin_offset
),

-- 2. The sums of a range: every offset has exactly one outcome. Damaged numbers may be of any size: their sum has more digits.
sums AS (
    SELECT
        ranges.*,
        CAST(acked AS DECIMAL(20, 0)) + filtered + retried + dead + duplicate + dropped + lost + skipped
        = CAST(end_offset AS DECIMAL(20, 0)) - begin_offset AS counts_add_up,
        CAST(acked_hash AS DECIMAL(20, 0)) + CAST(filtered_hash AS DECIMAL(20, 0))
        + CAST(retried_hash AS DECIMAL(20, 0)) + CAST(dead_hash AS DECIMAL(20, 0))
        + CAST(duplicate_hash AS DECIMAL(20, 0)) + CAST(dropped_hash AS DECIMAL(20, 0))
        + CAST(lost_hash AS DECIMAL(20, 0)) + CAST(skipped_hash AS DECIMAL(20, 0)) AS hash_sum
    FROM ranges
),
hashed AS (
    -- A range whose counts are wrong may have any length, so it is not hashed. Nor is one that is longer than any can be.
    SELECT sums.*, range_hash(begin_offset, CASE WHEN counts_add_up THEN end_offset ELSE begin_offset END) AS of_all
    FROM sums
),
sum_problems AS (
    SELECT
        shard, group_name, pass, topic, broker_name, queue_id,
        CASE WHEN counts_add_up THEN 'hash sums do not add up' ELSE 'counts do not add up' END AS problem,
        begin_offset, end_offset
    FROM hashed
    -- A count or a hash sum that is null makes all of this null.
    WHERE counts_add_up IS NOT TRUE OR of_all IS NULL
        OR mod(
            CAST(hash_sum - CAST(of_all AS DECIMAL(20, 0)) AS DECIMAL(38, 0)),
            CAST(18446744073709551616 AS DECIMAL(38, 0))
        ) IS DISTINCT FROM 0
),

-- 3. The rows of a range: as many as recorded, of the recorded offsets, inside the range, each once.
claims AS (
    SELECT
        r.shard, r.commit_id, r.group_name, r.pass, r.topic, r.broker_name, r.queue_id, r.begin_offset, r.end_offset,
        o.outcome,
        CASE o.outcome
            WHEN 'retried' THEN r.retried WHEN 'dead' THEN r.dead WHEN 'duplicate' THEN r.duplicate
            WHEN 'dropped' THEN r.dropped WHEN 'lost' THEN r.lost WHEN 'skipped' THEN r.skipped
            WHEN 'delivered' THEN r.acked
        END AS offsets,
        CASE o.outcome
            WHEN 'retried' THEN r.retried_hash WHEN 'dead' THEN r.dead_hash WHEN 'duplicate' THEN r.duplicate_hash
            WHEN 'dropped' THEN r.dropped_hash WHEN 'lost' THEN r.lost_hash WHEN 'skipped' THEN r.skipped_hash
            WHEN 'delivered' THEN r.acked_hash
        END AS hash_sum
    FROM ranges r
    CROSS JOIN (
        VALUES ('retried'), ('dead'), ('duplicate'), ('dropped'), ('lost'), ('skipped'), ('delivered')
    ) AS o (outcome)
    WHERE (o.outcome <> 'delivered' OR r.action = 'deliver') AND r.action <> 'redrive'
    UNION ALL
    -- A redrive has many ranges in one queue; its rows are compared with all of them at once.
    SELECT
        shard, commit_id, group_name, max(pass), topic, broker_name, queue_id, min(begin_offset), max(end_offset),
        'redriven',
        CAST(sum(acked) AS BIGINT),
        mod(sum(CAST(acked_hash AS DECIMAL(20, 0))), CAST(18446744073709551616 AS DECIMAL(38, 0)))
    FROM redrives
    GROUP BY shard, commit_id, group_name, topic, broker_name, queue_id
),
-- The copies of deliveries and redrives, and the rows that retention left of them.
deliveries AS (
    SELECT
        shard, commit_id, group_name, pass, origin_topic, origin_broker_name, origin_queue_id, origin_queue_offset
    FROM msg
    WHERE group_name = 'CID_RMQ_SYS_SCHEDULE' AND cause = 'deliver'
    UNION ALL
    SELECT shard, commit_id, group_name, pass, topic, broker_name, queue_id, begin_offset
    FROM outcome_ranges
    WHERE outcome = 'delivered'
),
evidence AS (
    SELECT shard, commit_id, group_name, pass, topic, broker_name, queue_id, outcome, begin_offset, end_offset
    FROM outcomes
    UNION ALL
    SELECT
        shard, commit_id, group_name, pass, origin_topic, origin_broker_name, origin_queue_id, 'delivered',
        origin_queue_offset, origin_queue_offset + 1
    FROM deliveries
    UNION ALL
    SELECT
        shard, commit_id, group_name, pass, origin_topic, origin_broker_name, origin_queue_id, 'redriven',
        origin_queue_offset, origin_queue_offset + 1
    FROM msg
    WHERE group_name IS NOT NULL AND cause = 'redrive'
    UNION ALL
    SELECT shard, commit_id, group_name, pass, topic, broker_name, queue_id, 'redriven', begin_offset, end_offset
    FROM outcome_ranges
    WHERE outcome = 'redriven'
),
shown AS (
    SELECT
        shard, commit_id, group_name, topic, broker_name, queue_id, outcome,
        max(pass) AS pass,
        sum(CAST(end_offset AS DECIMAL(20, 0)) - begin_offset) AS offsets,
        sum(CAST(range_hash(begin_offset, end_offset) AS DECIMAL(20, 0))) AS hash_sum,
        min(begin_offset) AS begin_offset,
        max(end_offset) AS end_offset
    FROM evidence
    GROUP BY shard, commit_id, group_name, topic, broker_name, queue_id, outcome
),
-- Ranges and rows of a commit in one order, so that no row is compared with all ranges: a row is in a range exactly if
-- the ranges that do not begin after it reach its end.
placed AS (
    SELECT
        together.*,
        coalesce(max(CASE WHEN outcome IS NULL THEN end_offset END) OVER before_it >= end_offset, FALSE) AS inside,
        max(CASE WHEN outcome IS NOT NULL THEN end_offset END) OVER before_it AS covered_to
    FROM (
        SELECT * FROM evidence
        UNION ALL
        SELECT shard, commit_id, group_name, pass, topic, broker_name, queue_id, NULL, begin_offset, end_offset FROM ranges
    ) together
    WINDOW before_it AS (
        PARTITION BY shard, commit_id, group_name, topic, broker_name, queue_id
        ORDER BY begin_offset, CASE WHEN outcome IS NULL THEN 0 ELSE 1 END, end_offset, outcome
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    )
),
row_problems AS (
    SELECT
        coalesce(c.shard, s.shard) AS shard,
        coalesce(c.group_name, s.group_name) AS group_name,
        coalesce(c.pass, s.pass) AS pass,
        coalesce(c.topic, s.topic) AS topic,
        coalesce(c.broker_name, s.broker_name) AS broker_name,
        coalesce(c.queue_id, s.queue_id) AS queue_id,
        coalesce(c.outcome, s.outcome) || ' differs from its rows' AS problem,
        coalesce(c.begin_offset, s.begin_offset) AS begin_offset,
        coalesce(c.end_offset, s.end_offset) AS end_offset
    FROM claims c
    FULL OUTER JOIN shown s
        ON s.shard = c.shard AND s.commit_id = c.commit_id AND s.group_name = c.group_name AND s.topic = c.topic
        AND s.broker_name = c.broker_name AND s.queue_id = c.queue_id AND s.outcome = c.outcome
    WHERE coalesce(c.offsets, 0) <> coalesce(s.offsets, 0)
        OR mod(
            CAST(coalesce(s.hash_sum, 0) - CAST(coalesce(c.hash_sum, 0) AS DECIMAL(20, 0)) AS DECIMAL(38, 0)),
            CAST(18446744073709551616 AS DECIMAL(38, 0))
        ) <> 0
    UNION ALL
    SELECT
        shard, group_name, pass, topic, broker_name, queue_id,
        outcome || CASE WHEN inside THEN ' twice' ELSE ' outside its range' END,
        begin_offset,
        CASE WHEN inside THEN least(end_offset, covered_to) ELSE end_offset END
    FROM placed
    WHERE outcome IS NOT NULL AND (NOT inside OR covered_to > begin_offset)
),

-- 4. The chain of a retry: its copy is in a queue where it waits, and is delivered once before the system group passes it.
delivered AS (
    SELECT shard, origin_topic, origin_broker_name, origin_queue_id, origin_queue_offset, count(*) AS times
    FROM deliveries
    GROUP BY shard, origin_topic, origin_broker_name, origin_queue_id, origin_queue_offset
),
copies AS (
    SELECT m.*, s.base_offset + m.rel - s.first_row AS stands_at
    FROM msg m
    LEFT JOIN segments s
        ON s.shard = m.shard AND s.commit_id = m.commit_id AND s.part = m.part
        AND s.topic = m.topic AND s.broker_name = m.broker_name AND s.queue_id = m.queue_id
        AND m.rel >= s.first_row AND m.rel < s.first_row + s.end_offset - s.base_offset
    WHERE m.group_name IS NOT NULL
),
chains AS (
    SELECT
        c.shard, c.group_name, c.pass, c.origin_topic, c.origin_broker_name, c.origin_queue_id, c.origin_queue_offset,
        c.topic, c.stands_at,
        coalesce(d.times, 0) AS times,
        CASE WHEN c.stands_at < p.value THEN 1 ELSE 0 END AS due_times
    FROM copies c
    LEFT JOIN delivered d
        ON d.shard = c.shard AND d.origin_topic = c.topic AND d.origin_broker_name = c.broker_name
        AND d.origin_queue_id = c.queue_id AND d.origin_queue_offset = c.stands_at
    LEFT JOIN (SELECT * FROM positions WHERE kind = 'off' AND group_name = 'CID_RMQ_SYS_SCHEDULE') p
        ON p.shard = c.shard AND p.topic = c.topic AND p.broker_name = c.broker_name AND p.queue_id = c.queue_id
),
chain_problems AS (
    SELECT
        shard, group_name, pass, origin_topic AS topic, origin_broker_name AS broker_name, origin_queue_id AS queue_id,
        CASE
            WHEN stands_at IS NULL THEN 'copy in no queue'
            WHEN times = 0 THEN 'retry not delivered'
            WHEN due_times = 1 THEN 'retry delivered twice'
            ELSE 'retry delivered early'
        END AS problem,
        origin_queue_offset AS begin_offset, origin_queue_offset + 1 AS end_offset
    FROM chains
    WHERE stands_at IS NULL OR (topic IN ('SCHEDULE_TOPIC_XXXX', 'rmq_sys_wheel_timer') AND times <> due_times)
),

-- 5. The keys that a window acked, in groups that absorb duplicates: as many rows as recorded, with the recorded hashes, all of
--    the window's group and epoch. If one is missing, or is another group's or epoch's, a duplicate can be acked.
acked_keys_told AS (
    SELECT
        shard, commit_id, group_name, epoch,
        CAST(nullif(regexp_extract(parameters, '"key_rows":([0-9]+)', 1), '') AS BIGINT) AS key_rows,
        CAST(nullif(regexp_extract(parameters, '"key_hash_sum":([0-9]+)', 1), '') AS DECIMAL(20, 0)) AS hash_sum
    FROM ctl
    WHERE action = 'consume' AND parameters LIKE '%"key_rows":%'
),
acked_keys_shown AS (
    SELECT
        shard, commit_id,
        min(group_name) AS group_name, max(group_name) AS last_group,
        min(epoch) AS epoch, max(epoch) AS last_epoch,
        count(CASE WHEN epoch IS NOT NULL THEN group_name END) AS key_rows,
        sum(CAST(key_hash AS DECIMAL(20, 0))) AS hash_sum
    FROM key_rows
    GROUP BY shard, commit_id
),
key_problems AS (
    SELECT
        coalesce(t.shard, s.shard) AS shard,
        coalesce(t.group_name, s.group_name) AS group_name,
        CAST(NULL AS BIGINT) AS pass,
        CAST(NULL AS STRING) AS topic,
        CAST(NULL AS STRING) AS broker_name,
        CAST(NULL AS INT) AS queue_id,
        'acked keys differ from their rows' AS problem,
        CAST(NULL AS BIGINT) AS begin_offset,
        CAST(NULL AS BIGINT) AS end_offset
    FROM acked_keys_told t
    FULL OUTER JOIN acked_keys_shown s ON s.shard = t.shard AND s.commit_id = t.commit_id
    WHERE coalesce(t.key_rows, 0) <> coalesce(s.key_rows, 0)
        OR mod(
            CAST(coalesce(s.hash_sum, 0) - coalesce(t.hash_sum, 0) AS DECIMAL(38, 0)),
            CAST(18446744073709551616 AS DECIMAL(38, 0))
        ) <> 0
        OR s.group_name <> t.group_name OR s.last_group <> t.group_name
        OR s.epoch <> t.epoch OR s.last_epoch <> t.epoch
),

-- 6. The file of every segment is live, or a compaction has replaced it. Another tool (OPTIMIZE, DELETE) removed one that is
--    neither: its messages can be read until the file is deleted.
file_problems AS (
    SELECT
        s.shard,
        CAST(NULL AS STRING) AS group_name,
        CAST(NULL AS BIGINT) AS pass,
        s.topic, s.broker_name, s.queue_id,
        'segment file not live' AS problem,
        s.base_offset AS begin_offset,
        s.end_offset
    FROM segments s
    LEFT JOIN live_files f ON f.shard = s.shard AND f.file = s.file
    LEFT JOIN ctl_replaced r ON r.shard = s.shard AND r.file = s.file
    WHERE f.file IS NULL AND r.file IS NULL
),

-- 7. The beginning of a queue: each removal begins where the one before ended, and the last one ends at the first readable
--    offset. So no message is out of reach without a commit that says who removed it.
removals AS (
    SELECT
        r.*,
        lag(end_offset) OVER (
            PARTITION BY shard, topic, broker_name, queue_id ORDER BY read_version, commit_id
        ) AS removed_to,
        row_number() OVER (
            PARTITION BY shard, topic, broker_name, queue_id ORDER BY read_version DESC, commit_id DESC
        ) AS from_last
    FROM ctl_removed r
),
removal_problems AS (
    SELECT
        r.shard,
        CAST(NULL AS STRING) AS group_name,
        CAST(NULL AS BIGINT) AS pass,
        r.topic, r.broker_name, r.queue_id,
        'first offset differs' AS problem,
        CASE WHEN r.begin_offset <> r.removed_to THEN r.removed_to ELSE r.end_offset END AS begin_offset,
        CASE WHEN r.begin_offset <> r.removed_to THEN r.begin_offset ELSE p.value END AS end_offset
    FROM removals r
    LEFT JOIN (SELECT * FROM positions WHERE kind = 'min') p
        ON p.shard = r.shard AND p.topic = r.topic AND p.broker_name = r.broker_name AND p.queue_id = r.queue_id
    WHERE r.begin_offset <> r.removed_to OR (r.from_last = 1 AND r.end_offset IS DISTINCT FROM p.value)
),
-- A removal is decided on its ``read_version``. Messages of then were stored by commits that were decided before.
stored_and_removed AS (
    SELECT
        together.*,
        max(stored_to) OVER (
            PARTITION BY shard, topic, broker_name, queue_id ORDER BY read_version
            RANGE BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) AS stored_before
    FROM (
        SELECT
            s.shard, s.topic, s.broker_name, s.queue_id, s.read_version,
            s.base_offset + s.count AS stored_to, CAST(NULL AS BIGINT) AS removed_to
        FROM ctl_produced s
        JOIN (SELECT DISTINCT shard, topic, broker_name, queue_id FROM ctl_removed) q
            ON q.shard = s.shard AND q.topic = s.topic AND q.broker_name = s.broker_name AND q.queue_id = s.queue_id
        UNION ALL
        SELECT shard, topic, broker_name, queue_id, read_version, NULL, end_offset FROM ctl_removed
    ) together
),
-- Nor does it remove what a group still has to read, unless it records what groups lose. Every commit by which a group begins
-- in a queue, or goes back there, conflicts with a removal: one of the two has seen the other. A replay holds nothing back.
-- A group that an operator moved to before the first message stays there: its next window reports what it loses.
offsets_and_removals AS (
    SELECT
        together.*,
        max(removed_to) OVER before_it AS first_offset,
        max(lossless_to) OVER before_it AS lossless_before,
        max(CASE WHEN lossless_to IS NOT NULL THEN read_version END) OVER before_it AS decided_before,
        max(lossless_to) OVER of_queue AS last_lossless,
        max(CASE WHEN lossless_to IS NOT NULL THEN read_version END) OVER of_queue AS last_decided
    FROM (
        SELECT
            j.shard, j.topic, j.broker_name, j.queue_id, j.read_version, j.commit_id, j.group_name, j.pass,
            j.step, j.start_rule, j.stood_at, j.to_offset,
            CAST(NULL AS BIGINT) AS removed_to, CAST(NULL AS BIGINT) AS lossless_to
        FROM joints j
        JOIN (SELECT DISTINCT shard, topic, broker_name, queue_id FROM ctl_removed) q
            ON q.shard = j.shard AND q.topic = j.topic AND q.broker_name = j.broker_name AND q.queue_id = j.queue_id
        WHERE j.group_name NOT LIKE '%-replay-%'
        UNION ALL
        SELECT
            r.shard, r.topic, r.broker_name, r.queue_id, r.read_version, r.commit_id, NULL, NULL,
            'removal', NULL, NULL, NULL,
            r.end_offset, CASE WHEN c.parameters LIKE '%"lost":{},"removed":%' THEN r.end_offset END
        FROM ctl_removed r
        JOIN (SELECT shard, commit_id, parameters FROM ctl WHERE action = 'retention') c
            ON c.shard = r.shard AND c.commit_id = r.commit_id
    ) together
    WINDOW
        of_queue AS (PARTITION BY shard, topic, broker_name, queue_id),
        before_it AS (
            PARTITION BY shard, topic, broker_name, queue_id ORDER BY read_version
            RANGE BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        )
),
standing AS (
    SELECT
        h.*,
        coalesce(first_offset, 0) AS least,
        CASE WHEN is_last THEN last_lossless ELSE next_lossless END AS lossless_after,
        CASE WHEN is_last THEN last_decided ELSE next_decided END AS decided_after
    FROM (
        SELECT
            offsets_and_removals.*,
            lead(lossless_before) OVER of_group AS next_lossless,
            lead(decided_before) OVER of_group AS next_decided,
            lead(commit_id) OVER of_group IS NULL AS is_last
        FROM offsets_and_removals
        WHERE step <> 'removal'
        WINDOW of_group AS (
            PARTITION BY shard, group_name, topic, broker_name, queue_id ORDER BY read_version, commit_id
        )
    ) h
    WHERE to_offset <> -1
),
removed_unread AS (
    SELECT
        shard,
        CAST(NULL AS STRING) AS group_name,
        CAST(NULL AS BIGINT) AS pass,
        topic, broker_name, queue_id,
        'first offset differs' AS problem,
        coalesce(stored_before, 0) AS begin_offset,
        removed_to AS end_offset
    FROM stored_and_removed
    WHERE removed_to > coalesce(stored_before, 0)
    UNION ALL
    SELECT
        shard, group_name, pass, topic, broker_name, queue_id, 'first offset differs', to_offset, lossless_after
    FROM standing
    WHERE to_offset >= least AND decided_after > read_version AND lossless_after > to_offset
    UNION ALL
    SELECT
        shard, group_name, pass, topic, broker_name, queue_id, 'first offset differs', to_offset, least
    FROM standing
    WHERE step = 'range' AND group_name <> 'CID_RMQ_SYS_SCHEDULE' AND stood_at IS NULL AND start_rule <> 'stored'
        AND to_offset < least
)

SELECT shard, group_name, pass, topic, broker_name, queue_id, problem, begin_offset, end_offset FROM history_problems
UNION ALL
SELECT shard, group_name, pass, topic, broker_name, queue_id, problem, begin_offset, end_offset FROM delete_problems
UNION ALL
SELECT shard, group_name, pass, topic, broker_name, queue_id, problem, begin_offset, end_offset FROM redrive_problems
UNION ALL
SELECT shard, group_name, pass, topic, broker_name, queue_id, problem, begin_offset, end_offset FROM sum_problems
UNION ALL
SELECT shard, group_name, pass, topic, broker_name, queue_id, problem, begin_offset, end_offset FROM row_problems
UNION ALL
SELECT shard, group_name, pass, topic, broker_name, queue_id, problem, begin_offset, end_offset FROM chain_problems
UNION ALL
SELECT shard, group_name, pass, topic, broker_name, queue_id, problem, begin_offset, end_offset FROM key_problems
UNION ALL
SELECT shard, group_name, pass, topic, broker_name, queue_id, problem, begin_offset, end_offset FROM file_problems
UNION ALL
SELECT shard, group_name, pass, topic, broker_name, queue_id, problem, begin_offset, end_offset FROM removal_problems
UNION ALL
SELECT shard, group_name, pass, topic, broker_name, queue_id, problem, begin_offset, end_offset FROM removed_unread
