from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from rmq_store.consumer.start import (
    ConsumeFromWhere,
    QueueToStart,
    StartRule,
    StartSwitches,
    compute_pull_from_where,
    start_rule,
)
from rmq_store.errors import BadData, WrongUse
from rmq_store.utils.times import parse_consume_timestamp
from tests.conformance import start_offsets
from tests.conformance.checks import passed
from tests.unit import vectors

LAST = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
TIMESTAMP = ConsumeFromWhere.CONSUME_FROM_TIMESTAMP


def test_a_queue_starts_where_a_push_consumer_starts_it() -> None:
    rows = vectors.read("start-offsets")
    assert passed(start_offsets.check(rows)) == 507
    skipping = [row for row in rows if start_offsets.skips_waiting_retries(ConsumeFromWhere(row["where"]), row)]
    assert len(skipping) == 3  # where RocketMQ passes over waiting retries and we do not


@pytest.mark.parametrize(
    "text",
    ["20240229235959+0800", "20240229235959+08:00", "2024-02-29T23:59:59+08:00", "20240229155959Z"],
)
def test_one_moment_can_be_written_in_several_ways(text: str) -> None:
    assert parse_consume_timestamp(text) == 1_709_222_399_000


@pytest.mark.parametrize("text", ["20240229235959", "2024-02-29T23:59:59"])
def test_a_time_without_a_zone_is_refused(text: str) -> None:
    with pytest.raises(WrongUse, match="has no zone"):
        parse_consume_timestamp(text)


@pytest.mark.parametrize("text", ["", "2024-02-29", "20240229", "20230229000000Z", "2024022923595٩Z", "1709222399000"])
def test_what_is_no_moment_is_refused(text: str) -> None:
    with pytest.raises(WrongUse, match="invalid time"):
        parse_consume_timestamp(text)


def test_a_time_of_toml_is_taken() -> None:
    assert parse_consume_timestamp(datetime.fromisoformat("2024-02-29T23:59:59.123+08:00")) == 1_709_222_399_123


def queue(**known: Any) -> QueueToStart:
    usual: dict[str, Any] = {"topic": "T", "stored_offset": -1, "min_offset": 18, "max_offset": 25}
    return QueueToStart(**(usual | known))


@pytest.mark.parametrize("where", [LAST, FIRST, TIMESTAMP])
@pytest.mark.parametrize(("kind", "rule"), [("lake_born", "lake_born_from_min"), ("later", "later_queue_from_min")])
def test_nothing_sent_to_a_new_queue_is_skipped(where: ConsumeFromWhere, kind: str, rule: str) -> None:
    start = compute_pull_from_where(where, queue(**{kind: True}), time_search=20)
    assert (start.offset, start.rule) == (18, rule)


def test_rocketmqs_rule_for_later_queues_can_be_asked_for() -> None:
    switches = StartSwitches(later_queues_start_at_min=False)
    assert compute_pull_from_where(LAST, queue(later=True, lake_born=True), switches=switches).offset == 25


def test_young_topics_start_at_zero_only_when_asked_and_only_untrimmed() -> None:
    young = StartSwitches(young_topic_starts_at_zero=True)
    assert start_rule(LAST, queue(min_offset=0)) is StartRule.LAST_OFFSET
    assert compute_pull_from_where(LAST, queue(min_offset=0), switches=young).rule == StartRule.YOUNG_TOPIC
    assert start_rule(LAST, queue(), young) is StartRule.LAST_OFFSET
    assert start_rule(LAST, queue(min_offset=0, max_offset=0), young) is StartRule.LAST_OFFSET


def test_first_means_the_first_readable_offset() -> None:
    assert compute_pull_from_where(FIRST, queue()).offset == 18


def test_a_stored_offset_wins_over_everything() -> None:
    switches = StartSwitches(young_topic_starts_at_zero=True)
    start = compute_pull_from_where(FIRST, queue(stored_offset=0, min_offset=0, later=True), switches=switches)
    assert (start.offset, start.rule) == (0, StartRule.STORED)


def test_a_missing_answer_never_becomes_a_start() -> None:
    with pytest.raises(BadData, match="the start rule timestamp needs an offset >= 0, it is None"):
        compute_pull_from_where(TIMESTAMP, queue())
