"""The broker's configuration files: its own texts read and written, odd texts, and which file is taken."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_store.broker_files.broker_json import parse, render
from rmq_store.broker_files.config_files import (
    DataVersion,
    SubscriptionGroupConfig,
    TopicConfig,
    consumer_offsets_text,
    parse_consumer_offsets,
    parse_delay_offsets,
    parse_local_offsets,
    parse_subscription_groups,
    parse_topics,
    read_consumer_offsets,
    read_delay_offsets,
    read_subscription_groups,
    read_topics,
    write_config,
)
from rmq_store.broker_files.file_source import LocalFileSource
from rmq_store.errors import BadData
from rmq_store.message import MessageQueue
from tests.unit import vectors


def of_kind(kind: str) -> list[dict[str, Any]]:
    lines = [line for line in vectors.read("offset-files") if line["kind"] == kind]
    assert lines
    return lines


def queues(table: dict[str, int] | None) -> dict[int, int]:
    """The vectors are JSON, where every key is a text."""
    return {int(key): value for key, value in (table or {}).items()}


def offset_table(table: dict[str, dict[str, int]] | None) -> dict[str, dict[int, int]]:
    return {key: queues(value) for key, value in (table or {}).items()}


def test_consumer_offsets_are_read_from_both_shapes_the_broker_writes() -> None:
    for line in of_kind("consumerOffset"):
        for text in (line["pretty"], line["compact"]):
            offsets = parse_consumer_offsets(text)
            assert offsets.offset_table == offset_table(line["table"])
            assert offsets.data_version == DataVersion(*line["version"])


def test_what_we_write_reads_back_to_the_same_table_and_is_the_brokers_text_but_for_the_order() -> None:
    for line in of_kind("consumerOffset"):
        text = consumer_offsets_text(offset_table(line["table"]), DataVersion(*line["version"]))
        assert parse_consumer_offsets(text).offset_table == offset_table(line["readBack"])
        assert sorted(text.replace(",\n", "\n").splitlines()) == sorted(
            line["pretty"].replace(",\n", "\n").splitlines()
        )
        assert list(parse(text)["offsetTable"]) == sorted(line["table"])


def test_every_text_of_the_broker_is_rendered_again_byte_by_byte() -> None:
    for kind in ("consumerOffset", "delayOffset", "localOffsets"):
        for line in of_kind(kind):
            assert render(parse(line["pretty"])) == line["pretty"]


def test_odd_texts_are_read_or_refused_as_by_the_broker() -> None:
    for line in of_kind("readConsumerOffset"):
        if "error" in line:
            with pytest.raises(BadData):
                parse_consumer_offsets(line["text"])
        else:
            assert parse_consumer_offsets(line["text"]).offset_table == offset_table(line["table"])


def test_delay_offsets_are_read() -> None:
    for line in of_kind("delayOffset"):
        assert parse_delay_offsets(line["pretty"]) == queues(line["table"])


def test_the_local_offset_file_is_read_although_its_keys_are_objects() -> None:
    for line in of_kind("localOffsets"):
        expected = {MessageQueue(*entry[:3]): entry[3] for entry in line["entries"]}
        assert parse_local_offsets(line["pretty"]) == parse_local_offsets(line["compact"]) == expected


def test_pull_offsets_are_not_taken_for_commits() -> None:
    text = '{"offsetTable":{"T@g":{0:1}},"pullOffsetTable":{"T@viewer":{0:9}}}'
    assert list(parse_consumer_offsets(text).commits()) == [("T", "g", 0, 1)]


def test_keys_without_exactly_one_at_sign_are_kept_but_are_no_commits() -> None:
    offsets = parse_consumer_offsets('{"offsetTable":{"T@g":{0:1},"T":{0:2},"a@b@c":{0:3}}}')
    assert set(offsets.offset_table) == {"T@g", "T", "a@b@c"}
    assert list(offsets.commits()) == [("T", "g", 0, 1)]
    assert parse(consumer_offsets_text(offsets.offset_table, DataVersion()))["groupTopicMap"] == {"g": ["T"]}


OFFSET_FILES = [line for line in vectors.expected("market-killed.recovery") if line["kind"] == "offsetFile"]


@pytest.mark.parametrize("line", OFFSET_FILES, ids=[f"{line['main']} {line['bak']}" for line in OFFSET_FILES])
def test_the_bak_file_is_used_when_rocketmq_uses_it_and_the_note_says_so(tmp_path: Path, line: dict[str, Any]) -> None:
    (tmp_path / "config").mkdir()
    for name, text in (("consumerOffset.json", line["main"]), ("consumerOffset.json.bak", line["bak"])):
        if text is not None:
            (tmp_path / "config" / name).write_text(text, encoding="utf-8")
    source = LocalFileSource(tmp_path)
    before = source.list("")
    if not line["loaded"]:
        with pytest.raises(BadData, match="restore one of the two"):
            read_consumer_offsets(source)
    else:
        found = read_consumer_offsets(source)
        assert found.value.offset_table == offset_table(line["table"])
        # RocketMQ removes a main file that it could not use; we leave it and say so.
        assert (found.used == "config/consumerOffset.json") is line["mainExistsAfter"]
        assert ("is readable" in found.note) is line["mainExistsAfter"]
    assert source.list("") == before


def test_the_files_of_a_real_store_are_read(broker_store: Callable[[str], Path]) -> None:
    source = LocalFileSource(broker_store("market-clean"))
    topics = read_topics(source).value
    assert topics["OrderEvents"] == TopicConfig("OrderEvents", read_queue_nums=8, write_queue_nums=8)
    assert topics["SCHEDULE_TOPIC_XXXX"].read_queue_nums == 18
    groups = read_subscription_groups(source).value
    assert groups["gm_ack"] == SubscriptionGroupConfig("gm_ack", group_retry_policy={"type": "CUSTOMIZED"})
    assert read_delay_offsets(source).value == {1: 56, 2: 6, 3: 432, 4: 154, 5: 127, 6: 3, 7: 3, 17: 0, 18: 0}
    offsets = read_consumer_offsets(source)
    assert offsets.used == "config/consumerOffset.json"
    assert {topic for topic, *_ in offsets.value.commits()} <= set(topics)


def test_a_real_offset_file_is_rendered_again_byte_by_byte(broker_store: Callable[[str], Path]) -> None:
    for name in ("market-clean", "market-trimmed", "market-killed"):
        for path in (broker_store(name) / "config").glob("*.json*"):
            text = path.read_text(encoding="utf-8")
            if text:
                assert render(parse(text)) == text, path


def test_fields_that_a_newer_broker_adds_are_left_out() -> None:
    assert parse_topics('{"topicConfigTable":{"T":{"perm":4,"colour":"red"}}}') == {"T": TopicConfig("T", perm=4)}
    assert parse_subscription_groups('{"subscriptionGroupTable":{"g":{"retryMaxTimes":3,"new":[1]}}}') == {
        "g": SubscriptionGroupConfig("g", retry_max_times=3)
    }


def test_writing_keeps_the_file_before_as_bak(tmp_path: Path) -> None:
    path = tmp_path / "consumerOffset.json"
    write_config(path, "first")
    write_config(path, "second")
    assert (path.read_text(), path.with_name("consumerOffset.json.bak").read_text()) == ("second", "first")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[1",
        '{"a"}',
        '{"a":}',
        "{1.5:2}",
        "{null:1}",
        "{true:1}",
        "{[1]:1}",
        '"a',
        '"\\x"',
        '"\\u12"',
        "1 2",
        "nul",
    ],
)
def test_what_is_no_json_at_all_is_refused_with_its_place(text: str) -> None:
    with pytest.raises(BadData, match="at character"):
        parse(text)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(JSON)
def test_json_is_read_as_json(value: Any) -> None:
    assert parse(json.dumps(value)) == value
    assert parse(json.dumps(value, ensure_ascii=False)) == value
    assert parse(render(value)) == value
