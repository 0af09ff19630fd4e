"""The times of segments follow from the records of their commits: when the messages were stored, and when they are due.

A reset by time, retention and a listener's search go by the first, ``rmq deliver`` by the second. Nothing but the log is read
for it; that the rows of messages have these times takes ``--full`` (``file_content.py``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rmq_store.consumer.delay import DelayLevels, queue_id_to_delay_level
from rmq_store.consumer.timer import SECONDS, SLOT_MS, SLOTS, TICK_MS, WHEEL_QUEUES
from rmq_store.lake.audit.finding import Finding, Problem
from rmq_store.lake.sql.sql import Ask
from rmq_store.lake.table.store import LakeStore, read_store
from rmq_store.message.message_const import SCHEDULE_TOPIC, TIMER_TOPIC

Row = Mapping[str, Any]

GIVES_TIME = "action NOT IN ('import', 'salvage', 'compact')"
"""Of a segment, that its commit gave its messages its own time. Imported ones have that of their broker, and a compaction keeps
those of its rows."""

_BORN_HERE = "broker_name LIKE 'lake-%'"
_IN_LEVEL_QUEUE = f"topic = '{SCHEDULE_TOPIC}'"
_IN_TIMER = f"(topic = '{TIMER_TOPIC}' AND {_BORN_HERE})"

_WRONG = f"""
SELECT * FROM (
    SELECT shard, topic, broker_name, queue_id, base_offset AS begin_offset, end_offset, commit_id, CASE
        WHEN min_store_timestamp > max_store_timestamp
            THEN 'a min_store_timestamp that is after the max_store_timestamp'
        WHEN is_born AND (min_store_timestamp <> store_timestamp OR max_store_timestamp <> store_timestamp)
            THEN 'another time than its commit'
        WHEN is_born AND store_timestamp < before_ms
            THEN 'an earlier time than the messages before it'
        WHEN deliver_at IS NULL AND ({_IN_LEVEL_QUEUE} AND {_BORN_HERE} OR {_IN_TIMER})
            THEN 'no deliver_at'
        WHEN deliver_at IS NOT NULL AND NOT ({_IN_LEVEL_QUEUE} OR {_IN_TIMER})
            THEN 'a deliver_at, and does not wait'
        WHEN {_IN_TIMER} AND CASE
            WHEN queue_id < {SECONDS}
                THEN deliver_at % {TICK_MS} <> 0 OR deliver_at // {TICK_MS} % {SECONDS} <> queue_id
            WHEN queue_id < {WHEEL_QUEUES}
                THEN deliver_at % {SLOT_MS} <> 0 OR deliver_at // {SLOT_MS} % {SLOTS} <> queue_id - {SECONDS}
            ELSE deliver_at - max_store_timestamp <> queue_id - {WHEEL_QUEUES}
        END THEN 'a deliver_at that is not of its queue'
    END AS fact
    FROM (
        SELECT *, {GIVES_TIME} AS is_born,
            max(CASE WHEN action <> 'compact' THEN store_timestamp END) OVER (
                PARTITION BY shard, topic, broker_name, queue_id ORDER BY base_offset, end_offset
                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
            ) AS before_ms
        FROM segments
    ) s
) f WHERE fact IS NOT NULL
"""
"""A commit gives the messages that are born in it its own time, which is not before that of the messages before them
(``commit/decide.py``). A queue has either imported messages or such. A compaction joins segments that are due at one time."""

_WAITING = f"""
SELECT shard, topic, broker_name, queue_id, deliver_at - max_store_timestamp AS delay_ms,
    min(base_offset) AS begin_offset, max(end_offset) AS end_offset, min(commit_id) AS commit_id
FROM segments WHERE {_IN_LEVEL_QUEUE} AND {_BORN_HERE} AND deliver_at IS NOT NULL
GROUP BY shard, topic, broker_name, queue_id, deliver_at - max_store_timestamp
"""
"""What waits in the level queues of lanes. All messages of one queue wait equally long."""

TEXTS = (_WRONG, _WAITING)
"""The statements of ``segment_times``."""


def segment_times(store: LakeStore, ask: Ask) -> Iterator[Finding]:
    """Segments with another time than their commits gave them, or that are due at another time than their queues say."""
    wrong, waiting = (answer.to_pylist() for answer in ask(TEXTS))
    versions = [DelayLevels(one["levels"], one["version"]) for one in read_store(store.root)["delay_levels"]]
    for row in wrong:
        yield _finding(row, row["fact"])
    for row in waiting:
        level = queue_id_to_delay_level(row["queue_id"])
        if row["delay_ms"] not in {levels.delay_ms(level) for levels in versions}:
            yield _finding(
                row, f"a deliver_at {row['delay_ms']:,} ms after its store timestamp, which is no level {level}"
            )


def _finding(row: Row, fact: str) -> Finding:
    return Finding(
        shard=row["shard"],
        problem=Problem.RECORD_NOT_VALID,
        **{name: row[name] for name in ("topic", "broker_name", "queue_id", "begin_offset", "end_offset")},
        detail=f"by the record of commit {row['commit_id']} the segment has {fact}",
    )
