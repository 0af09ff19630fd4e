"""``vectors/start-offsets``: where a push consumer starts a queue (rules 5.1, 5.3)."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

from rmq_store.consumer.start import ConsumeFromWhere, QueueToStart, StartRule, compute_pull_from_where
from rmq_store.errors import BadData, WrongUse
from rmq_store.message.message_const import RETRY_GROUP_TOPIC_PREFIX
from rmq_store.utils.times import parse_consume_timestamp
from tests.conformance.checks import Line, Outcomes, per_line, refused, same

COMPACT = re.compile(r"[0-9]{14}")
GREGORIAN_SINCE = "15821015000000"
DAY_MS = 86_400_000


@per_line
def check(row: Line) -> Outcomes:
    where = ConsumeFromWhere(row["where"])
    queue = QueueToStart(row["topic"], row["stored"], min_offset=0, max_offset=_number(row["max"]))
    said = f"{where} of {row['topic']}, stored {row['stored']}"

    def start() -> Any:
        return compute_pull_from_where(where, queue, _number(row["search"]))

    is_retry = row["topic"].startswith(RETRY_GROUP_TOPIC_PREFIX)
    searches = where is ConsumeFromWhere.CONSUME_FROM_TIMESTAMP and row["stored"] == -1 and not is_retry
    if searches and row["searchedTime"] is None:  # RocketMQ could not read the time
        yield from _searched_time(row["consumeTimestamp"] or "", None)
        return
    if skips_waiting_retries(where, row):
        # RocketMQ starts at the end; waiting retries are never skipped here.
        found = start()
        yield same(said, (found.offset, found.rule), (0, StartRule.RETRY_TOPIC))
    elif "error" in row:
        yield refused(said, BadData, start)
    else:
        yield same(said, start().offset, row["start"])
    yield same(f"{said}: searches by time", searches, row["searchedTime"] is not None)
    if row["searchedTime"] is not None:
        yield from _searched_time(row["consumeTimestamp"], row["searchedTime"])


def skips_waiting_retries(where: ConsumeFromWhere, row: Line) -> bool:
    is_retry = row["topic"].startswith(RETRY_GROUP_TOPIC_PREFIX)
    return where is ConsumeFromWhere.CONSUME_FROM_TIMESTAMP and row["stored"] == -1 and is_retry


def _searched_time(text: str, time_ms: int | None) -> Outcomes:
    """What RocketMQ makes of a time, None where it cannot read it. Of its own form, ``yyyyMMddHHmmss``, it reads all; what
    is in no calendar rolls over, and other forms become some time or none. We read what says a time, and refuse the
    rest."""
    said, found = _said(text), f"{text.strip()}Z"
    if said is None:
        yield refused(text, WrongUse, lambda: parse_consume_timestamp(found), "invalid time")
    elif not COMPACT.fullmatch(text):
        yield same(text, parse_consume_timestamp(found), int(said.timestamp()) * 1000)
    elif text < GREGORIAN_SINCE and time_ms is not None:
        # Java counts in the old calendar then, which has the same hours.
        yield same(f"hour of {text}", parse_consume_timestamp(found) % DAY_MS, time_ms % DAY_MS)
    else:
        yield same(text, parse_consume_timestamp(found), time_ms)


def _said(text: str) -> datetime | None:
    """The moment that a person reads in it, also between blanks or as ISO 8601."""
    form = "%Y%m%d%H%M%S" if COMPACT.fullmatch(text.strip()) else "%Y-%m-%dT%H:%M:%S"
    try:
        return datetime.strptime(text.strip(), form).replace(tzinfo=UTC)
    except ValueError:
        return None


def _number(value: Any) -> int:
    """What the server answered; a failed call is no offset."""
    return -1 if value == "error" else int(value)
