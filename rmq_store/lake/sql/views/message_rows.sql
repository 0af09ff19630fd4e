-- One row per consume queue entry, with all columns of the commit log, provenance included.
-- needs: msg, segments

-- The rows of imported messages have their queue offset; without a rel they have no consume queue entry.
SELECT
    shard, topic, broker_name, queue_id, queue_offset, commit_log_offset, offset_msg_id, unique_key, keys, tags,
    CASE WHEN topic = 'SCHEDULE_TOPIC_XXXX' THEN coalesce(deliver_at, tags_code) ELSE tags_code END AS tags_code,
    properties, body, body_crc, flag, sys_flag, born_timestamp, store_timestamp, born_host, store_host,
    reconsume_times, prepared_transaction_offset, magic, store_size, stored_body_size,
    deliver_at, group_name, pass, origin_topic, origin_broker_name, origin_queue_id, origin_queue_offset,
    cause, attempt, error_type, error_text, window_id, commit_id, part, rel
FROM msg
WHERE queue_offset IS NOT NULL AND rel IS NOT NULL

UNION ALL

-- A message born in the lake has offset, id and times from its place: commit, part and row (commit/ctl.py).
SELECT
    m.shard, m.topic, m.broker_name, m.queue_id,
    s.base_offset + m.rel - s.first_row AS queue_offset,
    m.rel AS commit_log_offset,
    upper(m.commit_id) || lpad(hex(m.part), 8, '0') || lpad(hex(m.rel), 16, '0') AS offset_msg_id,
    m.unique_key, m.keys, m.tags,
    CASE WHEN m.topic = 'SCHEDULE_TOPIC_XXXX' THEN coalesce(s.deliver_at, m.tags_code) ELSE m.tags_code END AS tags_code,
    m.properties, m.body, m.body_crc, m.flag, m.sys_flag, m.born_timestamp, s.store_timestamp, m.born_host, m.store_host,
    m.reconsume_times, m.prepared_transaction_offset, m.magic, m.store_size, m.stored_body_size,
    coalesce(m.deliver_at, s.deliver_at) AS deliver_at,
    m.group_name, m.pass, m.origin_topic, m.origin_broker_name, m.origin_queue_id, m.origin_queue_offset,
    m.cause, m.attempt, m.error_type, m.error_text, m.window_id, m.commit_id, m.part, m.rel
FROM msg m
JOIN segments s
    ON s.shard = m.shard AND s.commit_id = m.commit_id AND s.part = m.part
    AND s.topic = m.topic AND s.broker_name = m.broker_name AND s.queue_id = m.queue_id
    AND m.rel >= s.first_row AND m.rel < s.first_row + s.end_offset - s.base_offset
WHERE m.queue_offset IS NULL
