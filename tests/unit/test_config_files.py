"""The broker's configuration files: its own texts read and written, odd texts, and which file is taken."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_store.broker_files.broker_json import parse, render, render_compact
from rmq_store.broker_files.config_files import (
    ConsumerFilterData,
    DataVersion,
    SubscriptionGroupConfig,
    TopicConfig,
    parse_consumer_filters,
    parse_consumer_offsets,
    parse_data_version,
    parse_delay_offsets,
    parse_forbidden_table,
    parse_subscription_groups,
    parse_topics,
    read_consumer_filters,
    read_consumer_offsets,
    read_delay_offsets,
    read_subscription_groups,
    read_topics,
    write_config,
)
from rmq_store.broker_files.config_texts import (
    consumer_filters_text,
    consumer_offsets_text,
    delay_offsets_text,
    parse_topic_line,
    subscription_groups_text,
    topics_text,
)
from rmq_store.broker_files.consumer_offset_manager import ConsumerOffsetManager
from rmq_store.broker_files.file_source import LocalFileSource
from rmq_store.errors import BadData, WrongUse
from tests.conformance.checks import passed
from tests.conformance.offset_files import check, in_our_order
from tests.conformance.recovery import check_recovery
from tests.unit import vectors


def test_offset_files_and_the_offset_manager_are_rocketmqs() -> None:
    assert passed(check(vectors.read("offset-files"))) == 2614


def test_pull_offsets_are_not_taken_for_commits() -> None:
    text = '{"offsetTable":{"T@g":{0:1}},"pullOffsetTable":{"T@viewer":{0:9}}}'
    assert list(parse_consumer_offsets(text).commits()) == [("T", "g", 0, 1)]


def test_keys_without_exactly_one_at_sign_are_kept_but_are_no_commits() -> None:
    offsets = parse_consumer_offsets('{"offsetTable":{"T@g":{0:1},"T":{0:2},"a@b@c":{0:3}}}')
    assert set(offsets.offset_table) == {"T@g", "T", "a@b@c"}
    assert list(offsets.commits()) == [("T", "g", 0, 1)]
    assert parse(consumer_offsets_text(offsets.offset_table, DataVersion()))["groupTopicMap"] == {"g": ["T"]}


def test_the_bak_file_is_used_when_rocketmq_uses_it_and_the_note_says_so() -> None:
    lines = [line for line in vectors.expected("market-killed.recovery") if line["kind"] == "offsetFile"]
    assert passed(check_recovery(lines, cast(Any, None))) == 63


def test_the_files_of_a_real_store_are_read(broker_store: Callable[[str], Path]) -> None:
    source = LocalFileSource(broker_store("market-clean"))
    topics = read_topics(source).value
    assert topics["OrderEvents"] == TopicConfig("OrderEvents", read_queue_nums=8, write_queue_nums=8)
    assert topics["SCHEDULE_TOPIC_XXXX"].read_queue_nums == 18
    groups = read_subscription_groups(source).value
    assert groups["gm_ack"] == SubscriptionGroupConfig("gm_ack", group_retry_policy={"type": "CUSTOMIZED"})
    assert read_delay_offsets(source).value == {1: 56, 2: 6, 3: 432, 4: 154, 5: 127, 6: 3, 7: 3, 17: 0, 18: 0}
    assert list(read_consumer_filters(source).value) == [("PaymentFlow", "gm_sql")]
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


WRITTEN_AGAIN: dict[str, Callable[[str], str]] = {
    "consumerOffset.json": lambda text: consumer_offsets_text(
        parse_consumer_offsets(text).offset_table, parse_data_version(text)
    ),
    "delayOffset.json": lambda text: delay_offsets_text(parse_delay_offsets(text), parse_data_version(text)),
    "topics.json": lambda text: topics_text(parse_topics(text).values(), parse_data_version(text)),
    "subscriptionGroup.json": lambda text: subscription_groups_text(
        parse_subscription_groups(text).values(), parse_data_version(text), parse_forbidden_table(text)
    ),
    "consumerFilter.json": lambda text: consumer_filters_text(parse_consumer_filters(text).values()),
}


@pytest.mark.parametrize("name", WRITTEN_AGAIN)
def test_a_real_brokers_file_is_written_again_with_every_field_and_in_order(
    broker_store: Callable[[str], Path], name: str
) -> None:
    for store in ("market-clean", "market-trimmed", "market-killed"):
        text = (broker_store(store) / "config" / name).read_text(encoding="utf-8")
        wanted = parse(text)
        if name == "consumerOffset.json":
            wanted["pullOffsetTable"] = {}
        assert WRITTEN_AGAIN[name](text) == render(in_our_order(wanted))


def test_equal_tables_are_equal_files_whatever_order_they_were_filled_in() -> None:
    topics = [TopicConfig("b", attributes={"+x": "1", "+a": "2"}), TopicConfig("a")]
    groups = [SubscriptionGroupConfig("h"), SubscriptionGroupConfig("g")]
    filters = [ConsumerFilterData("h", "T", "a = 1"), ConsumerFilterData("g", "T", "b = 2")]
    version = DataVersion(counter=3)
    forwards, backwards = (
        (
            consumer_offsets_text({"b@g": {10: 1, 2: 3}, "a@g": {0: 1}}, version),
            delay_offsets_text({10: 1, 2: 3}, version),
            topics_text(topics, version),
            subscription_groups_text(groups, version, {"h": {"b": 1, "a": 2}, "g": {}}),
            consumer_filters_text(filters),
        ),
        (
            consumer_offsets_text({"a@g": {0: 1}, "b@g": {2: 3, 10: 1}}, version),
            delay_offsets_text({2: 3, 10: 1}, version),
            topics_text(reversed([replace(topics[0], attributes={"+a": "2", "+x": "1"}), topics[1]]), version),
            subscription_groups_text(reversed(groups), version, {"g": {}, "h": {"a": 2, "b": 1}}),
            consumer_filters_text(reversed(filters)),
        ),
    )
    assert forwards == backwards


def test_what_a_group_must_not_do_and_its_subscriptions_are_read_back() -> None:
    group = SubscriptionGroupConfig("g", subscription_data_set=[{"topic": "T", "subString": "*"}])
    text = subscription_groups_text([group], DataVersion(), {"g": {"T": 2}})
    assert parse_subscription_groups(text) == {"g": group}
    assert parse_forbidden_table(text) == {"g": {"T": 2}}


def test_a_subscription_is_dead_when_it_ended_after_it_began() -> None:
    alive = ConsumerFilterData("g", "T", "a = 1", born_time=5)
    assert (alive.dead, replace(alive, dead_time=5).dead) == (False, True)
    assert parse_consumer_filters(consumer_filters_text([alive])) == {("T", "g"): alive}


def test_the_table_of_a_file_is_changed_by_commits_and_written_again() -> None:
    offsets = parse_consumer_offsets('{"offsetTable":{"T@g":{0:5}}}')
    manager = ConsumerOffsetManager.of(offsets)
    assert [manager.commit_offset("g", "T", queue_id, 3) for queue_id in (0, 1)] == [5, None]
    manager.commit_pull_offset("viewer", "T", 0, 9)
    assert parse_consumer_offsets(manager.text(DataVersion())).offset_table == {"T@g": {0: 3, 1: 3}}
    assert offsets.offset_table == {"T@g": {0: 5}}


def test_a_pending_reset_answers_for_the_commit_unless_the_broker_is_told_otherwise() -> None:
    for server_side, answers in ((True, [7, 7, 8]), (False, [8, 7, 8])):
        manager = ConsumerOffsetManager(use_server_side_reset_offset=server_side)
        manager.assign_reset_offset("g", "T", 0, 7)
        manager.commit_offset("g", "T", 0, 8)
        found = [manager.query_offset("g", "T", 0), manager.query_then_erase_reset_offset("g", "T", 0)]
        assert [*found, manager.query_offset("g", "T", 0)] == answers


@pytest.mark.parametrize("call", [("", "T", 0, 1), ("g", "", 0, 1), ("g", "T", -1, 1), ("g", "T", 0, -1)])
def test_a_reset_of_nothing_or_to_nowhere_is_refused(call: tuple[str, str, int, int]) -> None:
    manager = ConsumerOffsetManager()
    with pytest.raises(WrongUse, match="must not be negative"):
        manager.assign_reset_offset(*call)
    assert manager == ConsumerOffsetManager()


@pytest.mark.parametrize("line", ["", "T 1 2 6", "T one 2 6 SINGLE_TAG"])
def test_a_line_that_is_no_topic_is_refused(line: str) -> None:
    with pytest.raises(BadData, match="is not a topic line"):
        parse_topic_line(line)


@pytest.mark.parametrize("attributes", ["", " {", " 5"])
def test_attributes_of_a_topics_line_that_cannot_be_read_are_left_out(attributes: str) -> None:
    assert parse_topic_line(f"T 1 2 6 MULTI_TAG{attributes}") == TopicConfig("T", 1, 2, 6, "MULTI_TAG")


def test_writing_keeps_the_file_before_as_bak(tmp_path: Path) -> None:
    path = tmp_path / "config" / "consumerOffset.json"
    for text in ('{"first":1}', '{"second":{2:3}}'):
        write_config(path, text)
    assert (path.read_text(), path.with_name("consumerOffset.json.bak").read_text()) == (
        '{"second":{2:3}}',
        '{"first":1}',
    )


@pytest.mark.parametrize("bad", ["", "garbage", '{"offsetTable":{', "[]"])
def test_a_file_that_cannot_be_read_does_not_take_the_place_of_its_bak(tmp_path: Path, bad: str) -> None:
    path = tmp_path / "consumerOffset.json"
    bak = path.with_name("consumerOffset.json.bak")
    path.write_text(bad, encoding="utf-8")
    bak.write_text('{"good":1}', encoding="utf-8")
    write_config(path, "{}")
    assert (path.read_text(), bak.read_text()) == ("{}", '{"good":1}')


def test_a_link_stays_and_the_file_it_leads_to_is_written(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    path, real = tmp_path / "consumerOffset.json", tmp_path / "real" / "offsets"
    path.symlink_to(real)
    for text in ('{"first":1}', '{"second":{2:3}}'):
        write_config(path, text)
    assert (path.is_symlink(), real.read_text()) == (True, '{"second":{2:3}}')
    assert path.with_name("consumerOffset.json.bak").read_text() == '{"first":1}'
    assert [one.name for one in real.parent.iterdir()] == ["offsets"]


@pytest.mark.parametrize("name", ["consumerOffset.json", "consumerOffset.json.bak"])
def test_a_file_keeps_its_mode_and_owner_also_as_bak(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    owners: list[tuple[int, int]] = []
    monkeypatch.setattr("rmq_store.broker_files.config_files.os.fchown", lambda _, *owner: owners.append(owner))
    before = tmp_path / name
    before.write_text('{"old":1}')
    before.chmod(0o640)
    write_config(tmp_path / "consumerOffset.json", '{"new":1}')
    assert {one.stat().st_mode & 0o777 for one in tmp_path.iterdir()} == {0o640}
    assert set(owners) == {(-1, before.stat().st_gid), (before.stat().st_uid, -1)}


def test_a_file_whose_owner_cannot_be_kept_is_written_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def may_not(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr("rmq_store.broker_files.config_files.os.fchown", may_not)
    for text in ('{"old":1}', '{"new":1}'):
        write_config(tmp_path / "consumerOffset.json", text)
    assert (tmp_path / "consumerOffset.json").read_text() == '{"new":1}'


class Died(Exception):
    """The process, while it wrote."""


@pytest.mark.parametrize("dies_at", [1, 2])
def test_a_file_is_never_missing_while_another_takes_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies_at: int
) -> None:
    path = tmp_path / "consumerOffset.json"
    write_config(path, '{"old":1}')
    replace, calls = os.replace, []

    def dying(source: Path, target: Path) -> None:
        calls.append(target)
        if len(calls) == dies_at:
            raise Died
        replace(source, target)

    monkeypatch.setattr("rmq_store.broker_files.config_files.os.replace", dying)
    with pytest.raises(Died):
        write_config(path, '{"new":1}')
    assert path.read_text(encoding="utf-8") == '{"old":1}'
    assert (
        sorted(one.name for one in tmp_path.iterdir()) == ["consumerOffset.json", "consumerOffset.json.bak"][:dies_at]
    )


def test_whatever_moment_writing_dies_at_one_of_the_two_files_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "config" / "consumerOffset.json"
    tables = [{"T@g": {0: offset}} for offset in range(4)]
    texts = [consumer_offsets_text(table, DataVersion()) for table in tables]
    for text in texts[:2]:
        write_config(path, text)

    def die(*_: object) -> None:
        raise Died

    def loaded() -> object:
        return read_consumer_offsets(LocalFileSource(tmp_path)).value.offset_table

    with monkeypatch.context() as patch:  # twice, so that the second finds what the first left behind
        patch.setattr("rmq_store.broker_files.config_files.os.fsync", die)
        for half in (texts[2][:40], texts[3][:40]):
            with pytest.raises(Died):
                write_config(path, half)
            assert loaded() == tables[1]
    write_config(path, texts[3])
    assert loaded() == tables[3]
    assert path.with_name("consumerOffset.json.bak").read_text(encoding="utf-8") == texts[1]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[1",
        '{"a"}',
        '{"a":}',
        "{null:1}",
        "{[1]:1}",
        '"a',
        '"\\x"',
        '"\\u12"',
        '"\\q"',
        "[" * 5000,
        "1l",
        "0x10",
        "{1/**/:2}",
        "{1:2,/**/3:4}",
        "{1:2,,3:4}",
        ".",
        "{}x",
        "1 2",
        "nul",
    ],
)
def test_what_is_no_json_at_all_is_refused_with_its_place(text: str) -> None:
    with pytest.raises(BadData, match="at character"):
        parse(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("\ufeff{} ", {}),
        ("{}\0\0", {}),
        ("{},", {}),
        ("// who\n/* why */ {/* a */'a':{}/* b */}// c", {"a": {}}),
        ('{"a":1 "b":[2 3]}', {"a": 1, "b": [2, 3]}),
        ("{1:+1,2:01,3:.5,4:1.,5:7L,6:-1e2}", {1: 1, 2: 1, 3: 0.5, 4: 1.0, 5: 7, 6: -100.0}),
        ("{1.5:2,0:/* c */3,true:4}", {1.5: 2, 0: 3, True: 4}),
        ("{1:{},,2:9007199254740993.0}", {1: {}, 2: 9007199254740993}),
        ('"\\x41\\@\\v\\0"', "A@\v\0"),
    ],
)
def test_what_fastjson_reads_beside_json_is_read(text: str, value: Any) -> None:
    assert parse(text) == value


@pytest.mark.parametrize("field", ["{1:2}", "{'a':1,}", "[1 2]", "1,", "1 'y':2", "{a:1}"])
def test_a_field_that_the_broker_skips_is_read_as_strictly_as_it_does(field: str) -> None:
    for name in ("x", "offsetTable"):
        text = f"{{'{name}':{field}}}"
        assert parse_or_none(text, ["offsetTable"]) == (None if name == "x" else parse_or_none(text))


def parse_or_none(text: str, known: list[str] | None = None) -> Any:
    try:
        return parse(text, known)
    except BadData:
        return None


@pytest.mark.parametrize(
    "field",
    [
        '"offsetTable":{"T@g":null}',
        '"offsetTable":[]',
        '"pullOffsetTable":[]',
        '"pullOffsetTable":{"T@g":{0:"x"}}',
        '"groupTopicMap":1',
        '"groupTopicMap":{"g":1}',
        '"dataVersion":{"counter":"x"}',
        '"dataVersion":{"counter":[]}',
        "1:1",
    ],
)
def test_an_offset_file_that_its_class_cannot_read_is_refused_as_a_whole(field: str) -> None:
    with pytest.raises(BadData):
        parse_consumer_offsets(f'{{"offsetTable":{{}},{field}}}')


def test_numbers_of_an_offset_file_are_read_in_all_their_spellings() -> None:
    text = '{"offsetTable":{"T@g":{"1.9":"+1",2:"1e3",3:true,4:[5],5:1e19,+6:"-1.5"}}}'
    wanted = {1: 1, 2: 1000, 3: 1, 4: 5, 5: 2**63 - 1, 6: -1}
    assert parse_consumer_offsets(text).offset_table == {"T@g": wanted}


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
    assert parse(render_compact(value)) == value


@pytest.mark.parametrize(
    "topic",
    ["5", "[]", '{"readQueueNums":"x"}', '{"perm":[]}', '{"order":{}}', '{"attributes":7}', '{"perm":3000000000}'],
)
def test_a_field_of_another_type_is_refused_in_words(topic: str) -> None:
    with pytest.raises(BadData, match=r"expected|is not a .*number"):
        parse_topics(f'{{"topicConfigTable":{{"T":{topic}}}}}')


def test_names_and_attributes_are_texts_whatever_their_json_is() -> None:
    text = '{"topicConfigTable":{7:{"order":null,"attributes":{1:true}},{1:2}:{}}}'
    assert parse_topics(text) == {"7": TopicConfig("7", attributes={"1": "true"}), "{1:2}": TopicConfig("{1:2}")}


@pytest.mark.parametrize(
    "bad",
    [
        '{"offsetTable":{{"a":[]}:{}}}',
        '{"offsetTable":{{"a":{}}:{}}}',
        '{"offsetTable":' * 3000,
        "[" * 100_000,
        '{"offsetTable":{"t@g":{0:' + "9" * 5000 + "}}}",
    ],
)
def test_what_is_nested_or_long_without_end_gives_way_to_the_bak(tmp_path: Path, bad: str) -> None:
    config = tmp_path / "config"
    config.mkdir()
    (config / "consumerOffset.json").write_text(bad)
    (config / "consumerOffset.json.bak").write_text('{"offsetTable":{"t@g":{0:7}}}')
    found = read_consumer_offsets(LocalFileSource(tmp_path))
    assert (found.value.offset_table, found.used) == ({"t@g": {0: 7}}, "config/consumerOffset.json.bak")
