-- Empty on a healthy store: what each commit recorded is held against its rows, against the commits around it, and
-- against the positions (promises P1 to P3). Each part below is one kind of proof; docs/sql.md says what each problem means.
-- needs: ctl, ctl_consumed, ctl_moved, positions, outcomes, msg, segments
WITH ranges AS (
    SELECT c.group_name, c.read_version, c.action, r.*
    FROM ctl_consumed r
    JOIN ctl c ON c.shard = r.shard AND c.commit_id = r.commit_id
),

-- 1. The history of a queue: every range and every move begins where the one before ended.
steps AS (
    SELECT
        shard, group_name, pass, topic, broker_name, queue_id, read_version, commit_id,
        'range' AS step, begin_offset AS from_offset, end_offset AS to_offset,
        CASE WHEN action = 'deliver' THEN 'min' ELSE start_rule END AS start_rule
    FROM ranges
    UNION ALL
    SELECT
        m.shard, m.group_name, m.pass, m.topic, m.broker_name, m.queue_id, c.read_version, m.commit_id,
        'move' AS step, m.from_offset, m.to_offset, 'operator' AS start_rule
    FROM ctl_moved m
    JOIN ctl c ON c.shard = m.shard AND c.commit_id = m.commit_id
),
history AS (
    SELECT
        steps.*,
        lag(to_offset) OVER (
            PARTITION BY shard, group_name, topic, broker_name, queue_id ORDER BY read_version, commit_id
        ) AS end_before,
        row_number() OVER (
            PARTITION BY shard, group_name, topic, broker_name, queue_id ORDER BY read_version DESC, commit_id DESC
        ) AS from_last
    FROM steps
),
joints AS (
    -- -1 is an offset that was deleted: as if it had never been there.
    SELECT history.*, CASE WHEN end_before <> -1 THEN end_before END AS stood_at FROM history
),
history_problems AS (
    SELECT shard, group_name, pass, topic, broker_name, queue_id, 'gap' AS problem,
        stood_at AS begin_offset, from_offset AS end_offset
    FROM joints WHERE step = 'range' AND from_offset > stood_at
    UNION ALL
    SELECT shard, group_name, pass, topic, broker_name, queue_id, 'overlap' AS problem,
        from_offset AS begin_offset, least(stood_at, to_offset) AS end_offset
    FROM joints WHERE step = 'range' AND from_offset < stood_at
    UNION ALL
    SELECT shard, group_name, pass, topic, broker_name, queue_id, 'start not recorded' AS problem,
        from_offset AS begin_offset, to_offset AS end_offset
    FROM joints WHERE step = 'range' AND stood_at IS NULL AND start_rule = 'stored'
    UNION ALL
    SELECT shard, group_name, pass, topic, broker_name, queue_id, 'moved from elsewhere' AS problem,
        stood_at AS begin_offset, from_offset AS end_offset
    FROM joints WHERE step = 'move' AND from_offset IS DISTINCT FROM stood_at
    UNION ALL
    SELECT
        coalesce(j.shard, p.shard), coalesce(j.group_name, p.group_name), j.pass, coalesce(j.topic, p.topic),
        coalesce(j.broker_name, p.broker_name), coalesce(j.queue_id, p.queue_id),
        'position differs' AS problem,
        j.to_offset AS begin_offset, p.value AS end_offset
    FROM (SELECT * FROM joints WHERE from_last = 1 AND to_offset <> -1) j
    FULL OUTER JOIN (SELECT * FROM positions WHERE kind = 'off') p
        ON p.shard = j.shard AND p.group_name = j.group_name AND p.topic = j.topic
        AND p.broker_name = j.broker_name AND p.queue_id = j.queue_id
    WHERE p.value IS DISTINCT FROM j.to_offset
),

-- 2. The sums of a range: every offset has exactly one outcome.
sums AS (
    SELECT
        ranges.*,
        acked + filtered + retried + dead + duplicate + dropped + lost + skipped = end_offset - begin_offset AS counts_add_up,
        CAST(acked_hash AS DECIMAL(20, 0)) + CAST(filtered_hash AS DECIMAL(20, 0))
        + CAST(retried_hash AS DECIMAL(20, 0)) + CAST(dead_hash AS DECIMAL(20, 0))
        + CAST(duplicate_hash AS DECIMAL(20, 0)) + CAST(dropped_hash AS DECIMAL(20, 0))
        + CAST(lost_hash AS DECIMAL(20, 0)) + CAST(skipped_hash AS DECIMAL(20, 0)) AS hash_sum
    FROM ranges
),
hashed AS (
    -- A range whose counts are wrong may be of any length: it is not hashed.
    SELECT sums.*, range_hash(begin_offset, CASE WHEN counts_add_up THEN end_offset ELSE begin_offset END) AS of_all
    FROM sums
),
sum_problems AS (
    SELECT shard, group_name, pass, topic, broker_name, queue_id,
        CASE WHEN counts_add_up THEN 'hash sums do not add up' ELSE 'counts do not add up' END AS problem,
        begin_offset, end_offset
    FROM hashed
    WHERE NOT counts_add_up
        OR of_all IS NULL
        OR mod(CAST(hash_sum - CAST(of_all AS DECIMAL(20, 0)) AS DECIMAL(38, 0)), CAST(18446744073709551616 AS DECIMAL(38, 0))) <> 0
),

-- 3. The rows behind a range: as many as recorded, of the offsets recorded, inside the range, each once.
claims AS (
    SELECT shard, commit_id, group_name, pass, topic, broker_name, queue_id, begin_offset, end_offset,
        'retried' AS outcome, retried AS offsets, retried_hash AS hash_sum FROM ranges
    UNION ALL
    SELECT shard, commit_id, group_name, pass, topic, broker_name, queue_id, begin_offset, end_offset,
        'dead', dead, dead_hash FROM ranges
    UNION ALL
    SELECT shard, commit_id, group_name, pass, topic, broker_name, queue_id, begin_offset, end_offset,
        'duplicate', duplicate, duplicate_hash FROM ranges
    UNION ALL
    SELECT shard, commit_id, group_name, pass, topic, broker_name, queue_id, begin_offset, end_offset,
        'dropped', dropped, dropped_hash FROM ranges
    UNION ALL
    SELECT shard, commit_id, group_name, pass, topic, broker_name, queue_id, begin_offset, end_offset,
        'lost', lost, lost_hash FROM ranges
    UNION ALL
    SELECT shard, commit_id, group_name, pass, topic, broker_name, queue_id, begin_offset, end_offset,
        'skipped', skipped, skipped_hash FROM ranges
    UNION ALL
    SELECT shard, commit_id, group_name, pass, topic, broker_name, queue_id, begin_offset, end_offset,
        'delivered', acked, acked_hash FROM ranges WHERE action = 'deliver'
),
deliveries AS (
    SELECT * FROM msg WHERE group_name = 'CID_RMQ_SYS_SCHEDULE' AND cause = 'deliver'
),
evidence AS (
    SELECT shard, commit_id, group_name, pass, topic, broker_name, queue_id, outcome, begin_offset, end_offset FROM outcomes
    UNION ALL
    SELECT shard, commit_id, group_name, pass, origin_topic, origin_broker_name, origin_queue_id, 'delivered',
        origin_queue_offset, origin_queue_offset + 1
    FROM deliveries
),
shown AS (
    SELECT
        shard, commit_id, group_name, topic, broker_name, queue_id, outcome,
        max(pass) AS pass,
        sum(end_offset - begin_offset) AS offsets,
        sum(CAST(range_hash(begin_offset, end_offset) AS DECIMAL(20, 0))) AS hash_sum,
        min(begin_offset) AS begin_offset,
        max(end_offset) AS end_offset
    FROM evidence
    GROUP BY shard, commit_id, group_name, topic, broker_name, queue_id, outcome
),
row_problems AS (
    SELECT
        coalesce(c.shard, s.shard) AS shard, coalesce(c.group_name, s.group_name) AS group_name,
        coalesce(c.pass, s.pass) AS pass, coalesce(c.topic, s.topic) AS topic,
        coalesce(c.broker_name, s.broker_name) AS broker_name, coalesce(c.queue_id, s.queue_id) AS queue_id,
        coalesce(c.outcome, s.outcome) || ' differs from its rows' AS problem,
        coalesce(c.begin_offset, s.begin_offset) AS begin_offset, coalesce(c.end_offset, s.end_offset) AS end_offset
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
    SELECT e.shard, e.group_name, e.pass, e.topic, e.broker_name, e.queue_id,
        e.outcome || ' outside its range' AS problem, e.begin_offset, e.end_offset
    FROM evidence e
    LEFT JOIN ranges r
        ON r.shard = e.shard AND r.commit_id = e.commit_id AND r.group_name = e.group_name AND r.topic = e.topic
        AND r.broker_name = e.broker_name AND r.queue_id = e.queue_id
        AND r.begin_offset <= e.begin_offset AND r.end_offset >= e.end_offset
    WHERE r.commit_id IS NULL
    UNION ALL
    SELECT shard, group_name, pass, topic, broker_name, queue_id, outcome || ' twice' AS problem,
        begin_offset, least(end_offset, covered_to) AS end_offset
    FROM (
        SELECT
            evidence.*,
            max(end_offset) OVER (
                PARTITION BY shard, commit_id, group_name, topic, broker_name, queue_id
                ORDER BY begin_offset, end_offset, outcome ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
            ) AS covered_to
        FROM evidence
    ) e
    WHERE covered_to > begin_offset
),

-- 4. The chain of a retry: its copy stands in a level queue, and is delivered once when the system group has passed it.
copies AS (
    SELECT
        m.shard, m.group_name, m.pass, m.cause, m.origin_topic, m.origin_broker_name, m.origin_queue_id,
        m.origin_queue_offset, m.topic, m.broker_name, m.queue_id,
        s.base_offset + m.rel - s.first_rel AS queue_offset
    FROM msg m
    LEFT JOIN segments s
        ON s.shard = m.shard AND s.commit_id = m.commit_id AND s.part = m.part
        AND s.topic = m.topic AND s.broker_name = m.broker_name AND s.queue_id = m.queue_id
        AND m.rel >= s.first_rel AND m.rel < s.first_rel + s.end_offset - s.base_offset
    WHERE m.group_name IS NOT NULL
),
delivered AS (
    SELECT shard, origin_broker_name, origin_queue_id, origin_queue_offset, count(*) AS times
    FROM deliveries
    WHERE origin_topic = 'SCHEDULE_TOPIC_XXXX'
    GROUP BY shard, origin_broker_name, origin_queue_id, origin_queue_offset
),
chains AS (
    SELECT
        c.*, coalesce(d.times, 0) AS times,
        c.queue_offset < coalesce(p.value, 0) AS passed
    FROM copies c
    LEFT JOIN delivered d
        ON d.shard = c.shard AND d.origin_broker_name = c.broker_name AND d.origin_queue_id = c.queue_id
        AND d.origin_queue_offset = c.queue_offset
    LEFT JOIN (SELECT * FROM positions WHERE kind = 'off' AND group_name = 'CID_RMQ_SYS_SCHEDULE') p
        ON p.shard = c.shard AND p.topic = c.topic AND p.broker_name = c.broker_name AND p.queue_id = c.queue_id
    WHERE c.topic = 'SCHEDULE_TOPIC_XXXX'
),
chain_problems AS (
    SELECT shard, group_name, pass, origin_topic AS topic, origin_broker_name AS broker_name, origin_queue_id AS queue_id,
        'copy in no queue' AS problem,
        origin_queue_offset AS begin_offset, origin_queue_offset + 1 AS end_offset
    FROM copies WHERE queue_offset IS NULL
    UNION ALL
    SELECT shard, group_name, pass, origin_topic, origin_broker_name, origin_queue_id,
        CASE
            WHEN times = 0 THEN 'retry not delivered' WHEN passed THEN 'retry delivered twice' ELSE 'retry delivered early'
        END,
        origin_queue_offset, origin_queue_offset + 1
    FROM chains
    WHERE times <> CASE WHEN passed THEN 1 ELSE 0 END
)

SELECT shard, group_name, pass, topic, broker_name, queue_id, problem, begin_offset, end_offset FROM history_problems
UNION ALL
SELECT shard, group_name, pass, topic, broker_name, queue_id, problem, begin_offset, end_offset FROM sum_problems
UNION ALL
SELECT shard, group_name, pass, topic, broker_name, queue_id, problem, begin_offset, end_offset FROM row_problems
UNION ALL
SELECT shard, group_name, pass, topic, broker_name, queue_id, problem, begin_offset, end_offset FROM chain_problems
