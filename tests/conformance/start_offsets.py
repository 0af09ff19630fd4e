"""``vectors/start-offsets``: where a push consumer starts a queue (S5.1, S5.3)."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from rmq_store.consumer.start import (
    ConsumeFromWhere,
    QueueToStart,
    StartRule,
    compute_pull_from_where,
    parse_consume_timestamp,
)
from rmq_store.errors import BadData, WrongUse
from rmq_store.message import RETRY_GROUP_TOPIC_PREFIX
from tests.conformance.checks import Line, Outcomes, per_line, refused, same


@per_line
def check(row: Line) -> Outcomes:
    where = ConsumeFromWhere(row["where"])
    queue = QueueToStart(row["topic"], row["stored"], min_offset=0, max_offset=_number(row["max"]))
    said = f"{where} of {row['topic']}, stored {row['stored']}"

    def start() -> Any:
        return compute_pull_from_where(where, queue, _number(row["search"]))

    if skips_waiting_retries(where, row):
        # RocketMQ starts at the end; waiting retries are never skipped here.
        found = start()
        yield same(said, (found.offset, found.rule), (0, StartRule.RETRY_TOPIC))
    elif "error" in row:
        yield refused(said, BadData, start)
    else:
        yield same(said, start().offset, row["start"])
    searches = where is ConsumeFromWhere.CONSUME_FROM_TIMESTAMP and row["stored"] == -1
    is_retry = row["topic"].startswith(RETRY_GROUP_TOPIC_PREFIX)
    yield same(f"{said}: searches by time", searches and not is_retry, row["searchedTime"] is not None)
    if row["searchedTime"] is not None:
        yield from _searched_time(row["consumeTimestamp"], row["searchedTime"])


def skips_waiting_retries(where: ConsumeFromWhere, row: Line) -> bool:
    is_retry = row["topic"].startswith(RETRY_GROUP_TOPIC_PREFIX)
    return where is ConsumeFromWhere.CONSUME_FROM_TIMESTAMP and row["stored"] == -1 and is_retry


def _searched_time(text: str, time_ms: int) -> Outcomes:
    try:
        datetime.strptime(text, "%Y%m%d%H%M%S")  # noqa: DTZ007
    except ValueError:
        # RocketMQ rolls such a date over (30 February, month 13); we refuse it.
        yield refused(text, WrongUse, lambda: parse_consume_timestamp(f"{text}Z"), "no such time")
    else:
        yield same(text, parse_consume_timestamp(f"{text}Z"), time_ms)


def _number(value: Any) -> int:
    """What the server answered; a failed call is no offset."""
    return -1 if value == "error" else int(value)
