"""How far an imported broker's delay levels were delivered: ``delivered_levels.py`` over the rows of its log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rmq_store.broker_files.delivered_levels import Copy, CopyKey, Delayed, LevelProgress, level_progress
from rmq_store.commit.ctl import SCHEDULE_GROUP, Observed
from rmq_store.commit.positions import Positions
from rmq_store.lake.read.message_search import quoted
from rmq_store.lake.sql.sql import query
from rmq_store.lake.table.store import LakeStore
from rmq_store.message.message_const import SCHEDULE_TOPIC
from rmq_store.utils.numbers import whole_number


def with_levels_to_end(positions: Positions, observed: Iterable[Observed]) -> tuple[Observed, ...]:
    """What an import observed, with the offset of each level at most at the end of its queue. A power failure may take the end
    of the log and not ``delayOffset.json``, and a salvage may leave out the last record. The broker corrects such an offset
    when it starts: ``ScheduleMessageService#correctDelayOffset`` (rules 3.4). ``positions``: of when it was observed; messages
    that came later may have the offset."""
    return tuple(
        replace(seen, offset=min(seen.offset, positions.max_offset(seen.queue)))
        if seen.group == SCHEDULE_GROUP
        else seen
        for seen in observed
    )


def delivered_levels(
    store: LakeStore, shard: str, broker_names: Sequence[str], ranges: Mapping[int, tuple[int, int]]
) -> tuple[LevelProgress, ...]:
    """By level, as far as the log was imported. ``ranges``: [offset of ``delayOffset.json``, end) by level queue of the first
    of the names; a delivered copy may also be under the names that continue its log."""
    ranges = {queue_id: (begin, end) for queue_id, (begin, end) in ranges.items() if begin < end}
    if not ranges:
        return ()
    waiting = " OR ".join(
        f"(queue_id = {queue_id} AND queue_offset >= {begin})" for queue_id, (begin, _) in ranges.items()
    )
    text = _ROWS.format(
        shard=quoted(shard),
        broker=quoted(broker_names[0]),
        brokers=", ".join(map(quoted, broker_names)),
        schedule=quoted(SCHEDULE_TOPIC),
        waiting=waiting,
    )
    rows = query(store, text).to_pylist()
    delayed = [
        Delayed(row["queue_id"], row["queue_offset"], _key(row), row["commit_log_offset"], row["store_timestamp"])
        for row in rows
        if row["topic"] == SCHEDULE_TOPIC
    ]
    copies = [
        Copy(_key(row), row["commit_log_offset"], row["store_timestamp"])
        for row in rows
        if (row["topic"], row["queue_id"]) == (row["real_topic"], _queue_id(row))
    ]
    return level_progress(ranges, delayed, copies)


def _key(row: Mapping[str, Any]) -> CopyKey:
    return CopyKey(row["unique_key"], row["real_topic"], _queue_id(row), row["reconsume_times"])


def _queue_id(row: Mapping[str, Any]) -> int | None:
    return whole_number(row["real_queue_id"] or "")


_ROWS = """
WITH of_broker AS (
    SELECT
        topic, queue_id, queue_offset, unique_key, reconsume_times, commit_log_offset, store_timestamp,
        properties['REAL_TOPIC'] AS real_topic, properties['REAL_QID'] AS real_queue_id
    FROM messages
    WHERE shard = {shard} AND (broker_name = {broker} OR (broker_name IN ({brokers}) AND topic <> {schedule}))
), waiting AS (
    SELECT unique_key, min(commit_log_offset) AS place
    FROM of_broker
    WHERE topic = {schedule} AND ({waiting})
    GROUP BY unique_key
)
SELECT of_broker.*
FROM of_broker SEMI JOIN waiting
    ON of_broker.unique_key IS NOT DISTINCT FROM waiting.unique_key AND (topic = {schedule} OR commit_log_offset > place)
WHERE topic = {schedule} OR topic = real_topic
"""
