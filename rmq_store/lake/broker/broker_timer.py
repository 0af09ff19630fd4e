"""What waits in the timer queue of an imported broker (``TimerMessageStore``, rules 11.4), derived from what has arrived.

The progress of that queue is recorded in the broker's timer log, which is not imported. But a delivered message is in the
topic REAL_TOPIC and queue REAL_QID, keeps UNIQ_KEY and TIMER_OUT_MS, and is further on in the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rmq_store.consumer.timer import TICK_MS
from rmq_store.lake.broker.imported_records import of_messages
from rmq_store.lake.read.message_search import quoted
from rmq_store.lake.sql.sql import query
from rmq_store.lake.table.store import LakeStore
from rmq_store.message.message_const import TIMER_TOPIC


@dataclass(frozen=True, slots=True)
class WaitingTimers:
    """The messages for one topic that have not arrived there."""

    topic: str | None
    """None: they have no REAL_TOPIC. No check sum of the broker covers the properties, and none is known to have arrived."""
    messages: int
    first_due_ms: int | None
    """UTC ms; None: no due time can be read."""
    last_due_ms: int | None
    """UTC ms; None as above."""
    may_have_arrived: bool = False
    """Whether some of them may have arrived: retention here has removed messages of the topic."""


def waiting_timers(store: LakeStore, shard: str, broker_names: Sequence[str]) -> list[WaitingTimers]:
    """By topic, as far as the broker's log was imported under these names. A message that was sent twice counts twice; one that
    was rolled to a later row counts once; a cancelled one (TIMER_DEL_UNIQKEY) and its cancellation do not count."""
    brokers = ", ".join(map(quoted, broker_names))
    of_log = of_messages(
        f"shard = {quoted(shard)} AND broker_name IN ({brokers})", "topic", "queue_id", "unique_key", "properties"
    )
    text = _WAITING.format(shard=quoted(shard), brokers=brokers, timer=quoted(TIMER_TOPIC), of_log=of_log)
    return [
        WaitingTimers(
            row["topic"], row["messages"], _due_ms(row["first_ms"]), _due_ms(row["last_ms"]), row["removed"] > 0
        )
        for row in query(store, text).to_pylist()
    ]


def _due_ms(out_ms: int | None) -> int | None:
    return None if out_ms is None else out_ms + TICK_MS


_WAITING = """
WITH timer AS (
    SELECT
        properties['REAL_TOPIC'] AS topic, properties['REAL_QID'] AS queue, unique_key,
        properties['TIMER_OUT_MS'] AS out_ms, properties['TIMER_ROLL_TIMES'] AS rolled,
        properties['TIMER_DEL_UNIQKEY'] AS cancels
    FROM messages
    WHERE shard = {shard} AND broker_name IN ({brokers}) AND topic = {timer}
), expected AS (
    SELECT topic, queue, unique_key, out_ms, max(messages) AS messages
    FROM (
        SELECT topic, queue, unique_key, out_ms, rolled, count(*) AS messages
        FROM timer
        WHERE cancels IS NULL
        GROUP BY topic, queue, unique_key, out_ms, rolled
    )
    GROUP BY topic, queue, unique_key, out_ms
), arrived AS (
    SELECT
        topic, CAST(queue_id AS VARCHAR) AS queue, unique_key, properties['TIMER_OUT_MS'] AS out_ms, count(*) AS messages
    FROM ({of_log})  -- what came from a topic that is deleted since has arrived too
    WHERE topic IN (SELECT topic FROM expected) AND unique_key IN (SELECT unique_key FROM expected)
    GROUP BY ALL
)
SELECT
    topic, CAST(sum(expected.messages - coalesce(arrived.messages, 0)) AS BIGINT) AS messages,
    min(TRY_CAST(out_ms AS BIGINT)) AS first_ms, max(TRY_CAST(out_ms AS BIGINT)) AS last_ms,
    (
        SELECT count(*) FROM removed_ranges
        WHERE shard = {shard} AND broker_name IN ({brokers}) AND removed_ranges.topic = expected.topic
    ) AS removed
FROM expected LEFT JOIN arrived USING (topic, queue, unique_key, out_ms)
WHERE expected.messages > coalesce(arrived.messages, 0)
    AND NOT EXISTS (
        SELECT 1 FROM timer AS cancel
        WHERE cancel.out_ms = expected.out_ms
            AND cancel.cancels IN (expected.unique_key, expected.topic || '+' || expected.unique_key)
    )
GROUP BY topic
ORDER BY topic
"""
