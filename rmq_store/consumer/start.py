"""Where a group begins to read a queue (``RebalancePushImpl#computePullFromWhereWithException``, rules 5.1).

A stored offset always wins. Without one, ConsumeFromWhere decides for queues that were there at the group's first
window. Differences from RocketMQ, on purpose, each with its rule's name in the ctl row:

- the beginning is the first readable offset: RocketMQ answers 0 and its first pull corrects that;
- waiting retries are never skipped: RocketMQ's TIMESTAMP starts a retry topic at its end;
- a queue born in the lake, or one that appears later, starts at its beginning: RocketMQ would skip what was sent to it
  before the group looked (``later_queues_start_at_min`` off asks for that);
- "young topics start at 0" depends on a broker's memory; ``young_topic_starts_at_zero`` asks for it where the topic was
  never trimmed.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from rmq_store.errors import BadData
from rmq_store.message.message import RETRY_GROUP_TOPIC_PREFIX

NOT_FOUND = -1
"""A stored offset that is not there. Below it are failed queries, which must never become a start."""


class ConsumeFromWhere(StrEnum):
    """RocketMQ's names; the three in the middle are deprecated and mean CONSUME_FROM_LAST_OFFSET."""

    CONSUME_FROM_LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST = "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST"
    CONSUME_FROM_MIN_OFFSET = "CONSUME_FROM_MIN_OFFSET"
    CONSUME_FROM_MAX_OFFSET = "CONSUME_FROM_MAX_OFFSET"
    CONSUME_FROM_FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    CONSUME_FROM_TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


class StartRule(StrEnum):
    """Which rule chose the start; recorded with it."""

    STORED = "stored"
    YOUNG_TOPIC = "young_topic_starts_at_zero"
    RETRY_TOPIC = "retry_topic_from_min"
    LAKE_BORN = "lake_born_from_min"
    LATER_QUEUE = "later_queue_from_min"
    FIRST_OFFSET = "first_offset"
    LAST_OFFSET = "last_offset"
    TIMESTAMP = "timestamp"


@dataclass(frozen=True, slots=True)
class Start:
    """Where a group begins to read a queue, and which rule said so."""

    offset: int
    rule: str


@dataclass(frozen=True, slots=True)
class StartSwitches:
    """What a group may choose differently."""

    young_topic_starts_at_zero: bool = False
    later_queues_start_at_min: bool = True


@dataclass(frozen=True, slots=True)
class QueueToStart:
    """What is known of the queue when the group looks at it first. Offsets are the queue's own, half-open.

    ``lake_born``: made by this store, not imported. ``later``: it was not there at the group's first window.
    """

    topic: str
    stored_offset: int
    min_offset: int
    max_offset: int
    lake_born: bool = False
    later: bool = False


def start_rule(where: ConsumeFromWhere, queue: QueueToStart, switches: StartSwitches | None = None) -> StartRule:
    """Which rule applies. Only for TIMESTAMP does the caller have to search by time.

    Raises BadData when the stored offset could not be read (below -1): no rule may replace it by a guess.
    """
    chosen = switches or StartSwitches()
    if queue.stored_offset < NOT_FOUND:
        raise BadData(
            f"{queue.topic}: the stored offset could not be read ({queue.stored_offset}); nothing is consumed before"
        )
    if queue.stored_offset >= 0:
        return StartRule.STORED
    if chosen.young_topic_starts_at_zero and queue.min_offset <= 0 < queue.max_offset:
        return StartRule.YOUNG_TOPIC
    if queue.topic.startswith(RETRY_GROUP_TOPIC_PREFIX):
        return StartRule.RETRY_TOPIC
    if chosen.later_queues_start_at_min and queue.lake_born:
        return StartRule.LAKE_BORN
    if chosen.later_queues_start_at_min and queue.later:
        return StartRule.LATER_QUEUE
    if where is ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET:
        return StartRule.FIRST_OFFSET
    if where is ConsumeFromWhere.CONSUME_FROM_TIMESTAMP:
        return StartRule.TIMESTAMP
    return StartRule.LAST_OFFSET


def compute_pull_from_where(
    where: ConsumeFromWhere, queue: QueueToStart, time_search: int | None = None, switches: StartSwitches | None = None
) -> Start:
    """The first offset to read and the rule that says so.

    ``time_search``: the first offset whose message was stored at or after the group's consumeTimestamp, the end when
    there is none; needed by TIMESTAMP only. Raises BadData when the number that the rule needs is missing or negative.
    """
    rule = start_rule(where, queue, switches)
    match rule:
        case StartRule.STORED:
            offset: int | None = queue.stored_offset
        case StartRule.LAST_OFFSET:
            offset = queue.max_offset
        case StartRule.TIMESTAMP:
            offset = time_search
        case StartRule.YOUNG_TOPIC:
            offset = 0
        case _:
            offset = queue.min_offset
    if offset is None or offset < 0:
        raise BadData(f"{queue.topic}: the rule {rule} needs an offset and found {offset}; nothing is consumed")
    return Start(offset, rule)
