"""Where a group begins to read a queue (``RebalancePushImpl#computePullFromWhereWithException``, rules 5.1).

A stored offset always wins. Without one, ConsumeFromWhere decides for the queues that exist at the group's first
window. Differences from RocketMQ, on purpose, each with its rule's name in the ctl row:

- the beginning is the first readable offset: RocketMQ answers 0, and its first pull corrects that;
- waiting retries are never skipped: RocketMQ's TIMESTAMP starts a retry topic at its end;
- a queue born in the lake, or one that appears later, starts at its beginning: RocketMQ skips what was sent to it
  before the group's first look (``later_queues_start_at_min = false`` does that here too);
- "young topics start at 0" depends on a broker's memory (rules 5.4); ``young_topic_starts_at_zero = true`` does it for
  every topic from which nothing was removed yet.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from rmq_store.errors import BadData
from rmq_store.message.message_const import RETRY_GROUP_TOPIC_PREFIX

NOT_FOUND = -1
"""There is no stored offset. Lower numbers mean that the query failed, and must never become a start."""


class ConsumeFromWhere(StrEnum):
    """RocketMQ's names; the three in the middle are deprecated and mean CONSUME_FROM_LAST_OFFSET."""

    CONSUME_FROM_LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST = "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST"
    CONSUME_FROM_MIN_OFFSET = "CONSUME_FROM_MIN_OFFSET"
    CONSUME_FROM_MAX_OFFSET = "CONSUME_FROM_MAX_OFFSET"
    CONSUME_FROM_FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    CONSUME_FROM_TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


class StartRule(StrEnum):
    """Which rule chose the start. Recorded in the ctl row."""

    STORED = "stored"
    YOUNG_TOPIC = "young_topic_starts_at_zero"
    RETRY_TOPIC = "retry_topic_from_min"
    LAKE_BORN = "lake_born_from_min"
    LATER_QUEUE = "later_queue_from_min"
    FIRST_OFFSET = "first_offset"
    LAST_OFFSET = "last_offset"
    TIMESTAMP = "timestamp"
    REPLAY = "replay"
    """A replay from a time, in place of ConsumeFromWhere."""
    OBSERVED = "observed"
    """The broker's own offset of the group, as the newest import observed it."""


@dataclass(frozen=True, slots=True)
class Start:
    """Where a group begins to read a queue."""

    offset: int
    rule: StartRule


@dataclass(frozen=True, slots=True)
class StartSwitches:
    """The two settings of a group that change the rules."""

    young_topic_starts_at_zero: bool = False
    later_queues_start_at_min: bool = True


@dataclass(frozen=True, slots=True)
class QueueToStart:
    """A queue that holds the offsets ``[min_offset, max_offset)`` when the group first looks at it."""

    topic: str
    stored_offset: int
    """The group's committed offset, ``NOT_FOUND`` without one; below that it could not be read."""
    min_offset: int
    max_offset: int
    lake_born: bool = False
    """Made by this store, not imported."""
    later: bool = False
    """It did not exist at the group's first window."""


def start_rule(where: ConsumeFromWhere, queue: QueueToStart, switches: StartSwitches | None = None) -> StartRule:
    """Which rule applies. Only for TIMESTAMP does the caller have to search by time.

    Raises BadData when the stored offset could not be read (below -1): no rule may replace it by a guess.
    """
    settings = switches or StartSwitches()
    if queue.stored_offset < NOT_FOUND:
        raise BadData(
            f"{queue.topic}: the group's stored offset could not be read ({queue.stored_offset}). Nothing was consumed."
        )
    if queue.stored_offset >= 0:
        return StartRule.STORED
    if settings.young_topic_starts_at_zero and queue.min_offset <= 0 < queue.max_offset:
        return StartRule.YOUNG_TOPIC
    if queue.topic.startswith(RETRY_GROUP_TOPIC_PREFIX):
        return StartRule.RETRY_TOPIC
    if settings.later_queues_start_at_min and queue.lake_born:
        return StartRule.LAKE_BORN
    if settings.later_queues_start_at_min and queue.later:
        return StartRule.LATER_QUEUE
    if where is ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET:
        return StartRule.FIRST_OFFSET
    if where is ConsumeFromWhere.CONSUME_FROM_TIMESTAMP:
        return StartRule.TIMESTAMP
    return StartRule.LAST_OFFSET


def compute_pull_from_where(
    where: ConsumeFromWhere, queue: QueueToStart, time_search: int | None = None, switches: StartSwitches | None = None
) -> Start:
    """The first offset to read, and the rule that chose it.

    ``time_search``: the first offset whose message was stored at or after the group's consumeTimestamp, the queue's max
    offset when there is none; only TIMESTAMP needs it. Raises BadData when the rule's offset is missing or negative.
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
        raise BadData(
            f"{queue.topic}: the start rule {rule} needs an offset >= 0, it is {offset}. Nothing was consumed."
        )
    return Start(offset, rule)
