"""How far an imported broker's delay levels were delivered: ``delivered_levels.py`` over the rows of its log."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rmq_store.broker_files.delivered_levels import Copy, CopyKey, Delayed, LeftOut, LevelProgress, level_progress
from rmq_store.commit.ctl import SCHEDULE_GROUP, Observed
from rmq_store.commit.positions import Positions, QueueRange
from rmq_store.lake.broker.imported_records import of_messages
from rmq_store.lake.read.message_search import quoted
from rmq_store.lake.sql.sql import query
from rmq_store.lake.table.imports import salvages_of
from rmq_store.lake.table.store import LakeStore
from rmq_store.message.message import MessageQueue
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
    store: LakeStore,
    shard: str,
    broker_names: Sequence[str],
    ranges: Mapping[int, tuple[int, int]],
    *,
    earlier_names: Sequence[str] = (),
) -> tuple[LevelProgress, ...]:
    """By level, as far as the log was imported. ``ranges``: [offset of ``delayOffset.json``, end) by level queue of the first
    of the names; a delivered copy may also be under the names that continue its log. ``earlier_names``: those that this name
    continues, whose delayed messages may have the copy."""
    ranges = {queue_id: (begin, end) for queue_id, (begin, end) in ranges.items() if begin < end}
    if not ranges:
        return ()
    waiting = " OR ".join(
        f"(queue_id = {queue_id} AND queue_offset >= {begin})" for queue_id, (begin, _) in ranges.items()
    )
    names = (*earlier_names, *broker_names)
    of_log = of_messages(f"shard = {quoted(shard)} AND broker_name IN ({', '.join(map(quoted, names))})", *_COLUMNS)
    text = _ROWS.format(
        of_log=of_log,
        broker=quoted(broker_names[0]),
        brokers=", ".join(map(quoted, broker_names)),
        schedule=quoted(SCHEDULE_TOPIC),
        waiting=waiting,
    )
    rows = query(store, text).to_pylist()
    delayed: list[Delayed] = []
    others: list[Delayed] = []
    for row in rows:
        if row["topic"] == SCHEDULE_TOPIC:
            of_name = delayed if row["broker_name"] == broker_names[0] else others
            times = (row["commit_log_offset"], row["store_timestamp"], row["deliver_at"])
            of_name.append(Delayed(row["queue_id"], row["queue_offset"], _key(row), *times))
    copies = [
        Copy(_key(row), row["commit_log_offset"], row["store_timestamp"])
        for row in rows
        if (row["topic"], row["queue_id"]) == (row["real_topic"], _queue_id(row))
    ]
    topics = {row.key.real_topic for row in delayed if row.key.real_topic is not None}
    removed_to = _removed_to(store, shard, broker_names, topics)
    left_out = [*_salvaged(store, shard, names), *_removed_levels(store, shard, names)]
    (first,) = query(store, f"SELECT min(commit_log_offset) AS place FROM ({of_log})").to_pylist()
    is_whole = first["place"] == 0  # else the broker, or retention here, has removed the begin of the log
    return level_progress(ranges, delayed, copies, removed_to, others=others, left_out=left_out, is_whole=is_whole)


def _salvaged(store: LakeStore, shard: str, names: Collection[str]) -> list[LeftOut]:
    """What salvages have left out of the log with these names: a message of a level queue may be in it."""
    (handle,) = store.shards(shard)
    return [
        LeftOut(min(begin for begin, _, _ in skipped), salvage.store_timestamp)
        for salvage in salvages_of(handle, names)
        if (skipped := salvage.parameter("skipped"))
    ]


def _removed_levels(store: LakeStore, shard: str, names: Collection[str]) -> list[LeftOut]:
    """What retention here has removed of level queues and is not stored any more, neither in the archive nor in a file that no
    compaction has written again."""
    log, schedule = ", ".join(map(quoted, names)), quoted(SCHEDULE_TOPIC)
    of_levels = f"shard = {quoted(shard)} AND topic = {schedule}"
    stored = of_messages(of_levels, "topic", "queue_id", "queue_offset")
    text = _REMOVED_LEVELS.format(shard=quoted(shard), log=log, schedule=schedule, stored=stored)
    return [LeftOut(0, row["removed_at"]) for row in query(store, text).to_pylist() if row["removed_at"] is not None]


def _removed_to(
    store: LakeStore, shard: str, broker_names: Sequence[str], topics: Collection[str]
) -> dict[tuple[str | None, int | None], int]:
    """By topic and queue the place in the commit log before which retention here has removed messages, for those of the topics
    of which it has removed some."""
    if not topics:
        return {}
    text = _REMOVED_TO.format(
        shard=quoted(shard), brokers=", ".join(map(quoted, broker_names)), topics=", ".join(map(quoted, sorted(topics)))
    )
    rows = query(store, text).to_pylist()
    return {(row["topic"], row["queue_id"]): row["place"] for row in rows if row["place"] is not None}


@dataclass(frozen=True, slots=True)
class PassedOver:
    """The messages of a level queue of which the log has no delivered copy, although the broker is past them."""

    queue: MessageQueue
    messages: int
    first: int
    """The queue offset of the first one."""


def passed_over(
    store: LakeStore, shard: str, broker_names: Sequence[str], ranges: Iterable[QueueRange], after: int
) -> list[PassedOver]:
    """Only what is certain, by queue: ``verdict`` says WAITING of each of these messages, and a copy of it would be here.
    ``broker_names``: of the log; ``ranges``: of its level queues; ``after``: the physical offset from which on the log was
    imported without a salvage.

    A broker goes past a message when it corrects the level's offset to the first message that its retention has left. What
    comes here from a deleted topic is a copy too. Of a queue from which retention here has removed messages it is not known.
    """
    passed = " OR ".join(
        f"(broker_name = {quoted(one.queue.broker_name)} AND queue_id = {one.queue.queue_id} "
        f"AND queue_offset >= {one.begin} AND queue_offset < {one.end})"
        for one in ranges
        if len(one)
    )
    if not passed:
        return []
    text = _PASSED_OVER.format(
        shard=quoted(shard),
        brokers=", ".join(map(quoted, broker_names)),
        schedule=quoted(SCHEDULE_TOPIC),
        passed=passed,
        after=after,
    )
    return [
        PassedOver(MessageQueue(SCHEDULE_TOPIC, row["broker_name"], row["queue_id"]), row["messages"], row["first"])
        for row in query(store, text).to_pylist()
    ]


def _key(row: Mapping[str, Any]) -> CopyKey:
    of_message = (row["reconsume_times"], row["body_crc"], row["born_timestamp"])
    return CopyKey(row["unique_key"], row["real_topic"], _queue_id(row), *of_message)


def _queue_id(row: Mapping[str, Any]) -> int | None:
    return whole_number(row["real_queue_id"] or "")


_BEHIND_ALL = (1 << 63) - 1
"""A place behind all others."""

_COLUMNS = (
    "topic", "queue_id", "queue_offset", "unique_key", "reconsume_times", "body_crc", "born_timestamp", "store_timestamp",
    "deliver_at",
    "properties['REAL_TOPIC'] AS real_topic", "properties['REAL_QID'] AS real_queue_id",
)  # fmt: skip

# What came from a topic that is deleted since is a copy too.
_ROWS = """
WITH of_log AS (
    {of_log}
), waiting AS (
    SELECT unique_key, min(commit_log_offset) AS place
    FROM of_log
    WHERE topic = {schedule} AND broker_name = {broker} AND ({waiting})
    GROUP BY unique_key
)
SELECT of_log.*
FROM of_log SEMI JOIN waiting
    ON of_log.unique_key IS NOT DISTINCT FROM waiting.unique_key AND (topic = {schedule} OR commit_log_offset > place)
WHERE topic = {schedule} OR (topic = real_topic AND broker_name IN ({brokers}))
"""

_REMOVED_TO = f"""
WITH removed AS (
    SELECT topic, broker_name, queue_id, min(begin_offset) AS first, max(end_offset) AS last_end
    FROM removed_ranges
    WHERE shard = {{shard}} AND broker_name IN ({{brokers}}) AND topic IN ({{topics}})
    GROUP BY ALL
), stored AS (
    SELECT
        removed.*, queue_offset, commit_log_offset,
        lag(queue_offset, 1, first - 1) OVER (
            PARTITION BY topic, broker_name, queue_id ORDER BY queue_offset
        ) AS previous
    FROM removed LEFT JOIN (SELECT * FROM messages WHERE shard = {{shard}}) USING (topic, broker_name, queue_id)
), places AS (
    SELECT CASE
        WHEN max(queue_offset) >= last_end - 1
        THEN max(CASE WHEN queue_offset > previous + 1 THEN commit_log_offset END)
        ELSE {_BEHIND_ALL}
    END AS place, topic, queue_id
    FROM stored
    GROUP BY topic, broker_name, queue_id, last_end
)
-- The first message behind those that are gone: of each name, so the last of these.
SELECT topic, queue_id, max(place) AS place FROM places GROUP BY ALL
"""

_REMOVED_LEVELS = """
SELECT max(removed_at) AS removed_at
FROM (
    SELECT removed_at
    FROM removed_ranges AS removed LEFT JOIN (
        {stored}
    ) AS kept
        ON kept.broker_name = removed.broker_name AND kept.queue_id = removed.queue_id
        AND kept.queue_offset >= removed.begin_offset AND kept.queue_offset < removed.end_offset
    WHERE removed.shard = {shard} AND removed.broker_name IN ({log}) AND removed.topic = {schedule}
    GROUP BY removed.broker_name, removed.queue_id, begin_offset, end_offset, removed_at
    HAVING count(kept.queue_offset) < end_offset - begin_offset
)
"""

_PASSED_OVER = """
WITH passed AS (
    SELECT
        broker_name, queue_id, queue_offset, commit_log_offset, unique_key, reconsume_times, body_crc, born_timestamp,
        properties['REAL_TOPIC'] AS real_topic, TRY_CAST(properties['REAL_QID'] AS INT) AS real_queue_id
    FROM messages
    WHERE shard = {shard} AND topic = {schedule} AND commit_log_offset >= {after} AND ({passed})
), copies AS (
    SELECT
        topic, queue_id, unique_key, reconsume_times, body_crc, born_timestamp,
        max(commit_log_offset) AS commit_log_offset
    FROM msg SEMI JOIN passed
        ON msg.topic = passed.real_topic AND msg.unique_key IS NOT DISTINCT FROM passed.unique_key
    WHERE shard = {shard} AND broker_name IN ({brokers})
    GROUP BY ALL
)
SELECT broker_name, queue_id, count(*) AS messages, min(queue_offset) AS first
FROM passed
ANTI JOIN copies
    ON passed.real_topic = copies.topic AND passed.real_queue_id = copies.queue_id
    AND passed.unique_key IS NOT DISTINCT FROM copies.unique_key
    AND passed.reconsume_times = copies.reconsume_times
    AND passed.body_crc IS NOT DISTINCT FROM copies.body_crc
    AND passed.born_timestamp IS NOT DISTINCT FROM copies.born_timestamp
    AND passed.commit_log_offset < copies.commit_log_offset
ANTI JOIN removed_ranges
    ON removed_ranges.shard = {shard} AND removed_ranges.broker_name IN ({brokers})
    AND passed.real_topic = removed_ranges.topic AND passed.real_queue_id = removed_ranges.queue_id
GROUP BY ALL
ORDER BY ALL
"""
