"""``vectors/offset-files``: the broker's offset files, its offset manager, and the client's file (rules 3, 4).

A text of ``consumerOffset.json`` is in the order of Java's hash maps, ours is sorted. So there are compared: the table
and version read from each of the broker's texts; the broker's texts written again from what was read, byte for byte; and
our text of the table with the broker's text after sorting its keys and its lists of topics, and without what it says
about pulls, which ours never does. ``delayOffset.json`` likewise. The broadcasting client's file has to be RocketMQ's text
byte for byte, in its hash map's order; a topic's line, but for the order of its attributes.

A ``sets`` step does not say of which queue it asked for a pending reset: the answer has to be that of one of the queues
that the other steps of its line name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from rmq_store.broker_files.broker_json import parse, render, render_compact
from rmq_store.broker_files.config_files import (
    DataVersion,
    TopicConfig,
    parse_consumer_offsets,
    parse_data_version,
    parse_delay_offsets,
)
from rmq_store.broker_files.config_texts import consumer_offsets_text, delay_offsets_text, parse_topic_line, topic_line
from rmq_store.broker_files.consumer_offset_manager import ConsumerOffsetManager
from rmq_store.broker_files.local_offsets import local_offsets_text, parse_local_offsets
from rmq_store.errors import BadData, WrongUse
from rmq_store.message.message import MessageQueue
from tests.conformance.checks import Line, Outcomes, by_kind, same


def queues(table: dict[str, int]) -> dict[int, int]:
    """The vectors are JSON, where every key is a text."""
    return {int(key): value for key, value in table.items()}


def offset_table(table: dict[str, dict[str, int]] | None) -> dict[str, dict[int, int]]:
    """RocketMQ keeps null where a file says so and fails at its first use; here that is an empty table."""
    return {key: queues(value) for key, value in (table or {}).items()}


def in_our_order(value: Any) -> Any:
    """The same value with keys and lists of texts sorted."""
    if isinstance(value, dict):
        return {key: in_our_order(value[key]) for key in sorted(value)}
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return sorted(value)
    return value


def consumer_offset(line: Line) -> Outcomes:
    table, version = offset_table(line["table"]), DataVersion(*line["version"])
    for shape, written in (("pretty", render), ("compact", render_compact)):
        offsets = parse_consumer_offsets(line[shape])
        yield same(f"{shape}: table", offsets.offset_table, table)
        yield same(f"{shape}: version", offsets.data_version, version)
        yield same(f"{shape}: written again", written(parse(line[shape])), line[shape])
    text = consumer_offsets_text(table, version)
    yield same("our text", text, render(in_our_order(parse(line["pretty"]) | {"pullOffsetTable": {}})))
    yield same("our text read back", parse_consumer_offsets(text).offset_table, offset_table(line["readBack"]))


def delay_offset(line: Line) -> Outcomes:
    table, version = queues(line["table"]), DataVersion(timestamp=line["timestamp"])
    yield same("table", parse_delay_offsets(line["pretty"]), table)
    yield same("version", parse_data_version(line["pretty"]), version)
    theirs = parse(line["pretty"])
    texts = delay_offsets_text(table, version), render(theirs)
    yield same("our text, and theirs written again", texts, (render(in_our_order(theirs)), line["pretty"]))


def local_offsets(line: Line) -> Outcomes:
    table = {MessageQueue(*queue): offset for *queue, offset in line["entries"]}
    for shape, written in (("pretty", render), ("compact", render_compact)):
        yield same(f"{shape}: table", parse_local_offsets(line[shape]), table)
        yield same(f"{shape}: written again", written(parse(line[shape])), line[shape])
    yield same("text", local_offsets_text(table), line["pretty"])


def topic_config(line: Line) -> Outcomes:
    topic = TopicConfig(line["name"], line["read"], line["write"], line["perm"], attributes=line["attributes"])
    *parts, attributes = line["line"].split(" ", 5)
    yield same("line", topic_line(topic), " ".join([*parts, render_compact(in_our_order(parse(attributes)))]))
    try:
        decoded = parse_topic_line(line["line"])
    except BadData:
        yield same("decodes", False, line["decodes"])
    else:
        yield same("decodes", True, line["decodes"])
        yield same("same", decoded == topic, line["same"])


def read_consumer_offset(line: Line) -> Outcomes:
    try:
        found: Any = parse_consumer_offsets(line["text"]).offset_table
    except BadData:
        found = "refused"
    yield same(line["text"], found, "refused" if "error" in line else offset_table(line["table"]))


def operations(line: Line) -> Outcomes:
    manager = ConsumerOffsetManager()
    named = {step[3] for step in line["steps"] if len(step) == 5} or {0}
    queue_ids = range(min(named), max(named) + 1)
    for at, step in enumerate(line["steps"], 1):
        if answer := play(manager, step, queue_ids):
            yield same(f"step {at} {step}", *answer)
    yield same("table", manager.offset_table, offset_table(line["table"]))


def play(manager: ConsumerOffsetManager, step: Sequence[Any], queue_ids: Iterable[int]) -> tuple[Any, Any] | None:
    """One call: the answer and the wanted one, None for a call that only changes something."""
    match step:
        case ["commit", group, topic, queue_id, offset]:
            manager.commit_offset(group, topic, queue_id, offset)
        case ["commitPull", group, topic, queue_id, offset]:
            manager.commit_pull_offset(group, topic, queue_id, offset)
        case ["assignReset", group, topic, queue_id, offset]:
            with suppress(WrongUse):  # RocketMQ logs it; what follows shows that nothing was done
                manager.assign_reset_offset(group, topic, queue_id, offset)
        case ["removeGroup", group]:
            manager.remove_offset(group)
        case ["removeTopic", topic]:
            manager.clean_offset_by_topic(topic)
        case ["clone", source_group, topic, group]:
            manager.clone_offset(source_group, group, topic)
        case ["query", group, topic, queue_id, wanted]:
            return manager.query_offset(group, topic, queue_id), wanted
        case ["queryPull", group, topic, queue_id, wanted]:
            return manager.query_pull_offset(group, topic, queue_id), wanted
        case ["takeReset", group, topic, queue_id, wanted]:
            return manager.query_then_erase_reset_offset(group, topic, queue_id), wanted
        case ["sets", group, topic, topics, groups, reset]:
            found = sorted(manager.which_topic_by_consumer(group)), sorted(manager.which_group_by_topic(topic))
            pending = {manager.has_offset_reset(group, topic, queue_id) for queue_id in queue_ids}
            return (*found, reset in pending), (topics, groups, True)
        case _:
            raise ValueError(f"unknown step {step}")
    return None


check = by_kind(
    {
        "consumerOffset": consumer_offset,
        "delayOffset": delay_offset,
        "localOffsets": local_offsets,
        "topicConfig": topic_config,
        "readConsumerOffset": read_consumer_offset,
        "operations": operations,
    }
)
