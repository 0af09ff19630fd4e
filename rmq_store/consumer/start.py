"""Where a group begins to read a queue (S5, ``RebalancePushImpl#computePullFromWhere``).

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

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from rmq_store.errors import BadData, WrongUse
from rmq_store.message import RETRY_GROUP_TOPIC_PREFIX
from rmq_store.window import Start

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


_HOUR, _SIXTY, _FRACTION = "(?:[01][0-9]|2[0-3])", "[0-5][0-9]", "(?:[.,][0-9]+)?"
_CLOCK = f"(?:{_HOUR}(?::{_SIXTY}(?::{_SIXTY}{_FRACTION})?)?|{_HOUR}{_SIXTY}(?:{_SIXTY}{_FRACTION})?)"
_MONTH, _DAY = "(?:0[1-9]|1[0-2])", "(?:0[1-9]|[12][0-9]|3[01])"
_ISO_TIME = f"[0-9]{{4}}-{_MONTH}-{_DAY}[T ]{_CLOCK}"
_COMPACT_TIME = f"[0-9]{{4}}{_MONTH}{_DAY}{_HOUR}{_SIXTY}{_SIXTY}"
_ZONE = f"(?:Z|[+-]{_HOUR}(?::?{_SIXTY})?)"
TIMESTAMP_PATTERN = f"(?:{_ISO_TIME}|{_COMPACT_TIME}){_ZONE}"
"""What ``parse_consume_timestamp`` reads, as a regular expression of JSON Schema too. It knows no calendar: it takes
30 February."""

_TIMESTAMP = re.compile(f"{TIMESTAMP_PATTERN}?")  # where the zone is missing, that is said
_COMPACT = re.compile(rf"(\d{{4}})(\d\d)(\d\d)(\d\d)(\d\d)(\d\d)({_ZONE})?", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def parse_consume_timestamp(value: str | datetime) -> int:
    """A consumeTimestamp in epoch ms: RocketMQ's ``yyyyMMddHHmmss``, or ISO 8601, each with its zone.

    ``20240229235959+08:00``, ``20240229235959Z``, ``2024-02-29T23:59:59+08:00``. RocketMQ takes the zone of the
    machine and rolls 30 February over to March; both are refused here. Raises WrongUse.
    """
    moment = value if isinstance(value, datetime) else _parsed(value.strip())
    if moment is None:
        raise WrongUse(f"no such time: {value!r}. Write 2026-01-31T12:00:00Z or 2026-01-31T20:00:00+08:00.")
    if moment.tzinfo is None:
        raise WrongUse(f"the time {str(value)!r} has no zone: add Z for UTC or an offset like +08:00")
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def _parsed(text: str) -> datetime | None:
    """The moment, with or without a zone; None when there is no such time."""
    if not _TIMESTAMP.fullmatch(text):
        return None  # Python reads much that is no time, like "2026-10-03 046Z"
    if compact := _COMPACT.fullmatch(text):
        year, month, day, hour, minute, second, zone = compact.groups(default="")
        text = f"{year}-{month}-{day}T{hour}:{minute}:{second}{zone}"
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None
