"""Numbers in texts from outside: Python's ``int`` reads more than a number, and no reader of ours may."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import typer

from rmq_store.admin.dag_params import dead_letter_place
from rmq_store.broker_files.broker_json import number_of, parse
from rmq_store.broker_files.config_texts import parse_topic_line
from rmq_store.broker_files.consume_queue_file import list_consume_queues
from rmq_store.broker_files.mapped_file_queue import mapped_file_queue
from rmq_store.cli.options import QueueName, count_from
from rmq_store.consumer.delay import parse_delay_level
from rmq_store.consumer.timer import deliver_at_of
from rmq_store.errors import BadData, WrongUse
from rmq_store.log.record import parse_level
from rmq_store.message.message_id import decode_offset_message_id, host_bytes
from rmq_store.producer.json_messages import Lines, read_lines
from rmq_store.utils.numbers import whole_number
from rmq_store.utils.times import parse_duration, parse_time

MANY = "1" * 5000
"""More digits than Python converts."""


class Listing:
    """A store's folder with one file."""

    def __init__(self, name: str) -> None:
        self.name = name

    def list(self, _: str) -> list[tuple[str, int]]:
        return [(self.name, 20)]


READERS: dict[str, Callable[[str], Any]] = {
    "a number in quotes in a broker's file": lambda text: number_of(text, 64),
    "a number in a broker's file": lambda text: number_of(parse(text), 64),
    "a topic's line": lambda text: parse_topic_line(f"T {text} 4 6 SINGLE_TAG").read_queue_nums,
    "a queue's folder": lambda text: list_consume_queues(Listing(f"consumequeue/T/{text}/{0:020}"))[0].queue_id,  # type: ignore[arg-type]
    "a file's name": lambda text: (
        mapped_file_queue("f", [(f"f/{text and text.rjust(20, '0')}", 20)]).files[0].start_offset
    ),
    "a host": lambda text: host_bytes(f"127.0.0.1|{text}")[1],
    "an option": count_from(0),
    "a queue's name": lambda text: QueueName.parse(f"broker-a:{text}").queue_id,
    "a dead letter's place": lambda text: dead_letter_place(f"broker-a:0:{text}").offset,
    "a time": parse_time,
    "a time span": lambda text: parse_duration(f"{text}ms"),
    "a level": lambda text: parse_delay_level(f"{text}s")[0] // 1000,
    "a property of the timer": lambda text: deliver_at_of(text) - 1000,
    "a line of messages": lambda text: _sent(text).messages[0].delay_ms,
}

ALSO_READ = {
    "a number in quotes in a broker's file": {"+60"},  # RocketMQ's reader takes it
    "a number in a broker's file": {" 60", "60 ", "+60"},  # and blanks around a number are JSON's
    "a line of messages": {" 60", "60 "},
    "a time": {" 60", "60 "},  # a person's text
    "a time span": {" 60"},
    "a level": {"+60", "٦٠", "６０"},  # Java's parseLong takes them
    "a property of the timer": {"+60", "٦٠", "６０"},
}
"""What is a number to some readers."""


def _sent(text: str) -> Lines:
    found = read_lines(f'{{"topic": "T", "body": "b", "delay_ms": {text}}}'.encode(), 0)
    if found.problems:
        raise WrongUse(found.problems[0][1])
    return found


@pytest.mark.parametrize("reader", READERS)
def test_a_number_is_read(reader: str) -> None:
    assert READERS[reader]("60") == 60


@pytest.mark.parametrize(
    "text", ["6_0", " 60", "60 ", "+60", "٦٠", "６０", "0x3C", "", MANY], ids=lambda text: text[:9]
)
@pytest.mark.parametrize("reader", READERS)
def test_what_only_python_calls_a_number_is_refused(reader: str, text: str) -> None:
    if text in ALSO_READ.get(reader, ()):
        assert READERS[reader](text) == 60
        return
    with pytest.raises((BadData, WrongUse, typer.BadParameter)):
        READERS[reader](text)


@pytest.mark.parametrize("text", [MANY, "1_0", "𝟏", " 1", ""])
def test_a_delay_property_that_java_cannot_read_is_no_level(text: str) -> None:
    assert parse_level(text) is None


def test_a_sign_is_read_where_a_number_may_be_negative() -> None:
    assert (number_of("-2", 32), whole_number("-2", signed=True), whole_number("-2")) == (-2, -2, None)
    with pytest.raises(typer.BadParameter, match="a whole number, 1 or more"):
        count_from(1)("0")


@pytest.mark.parametrize("blanks", [" " * 8, "\t " * 4, "0x" * 4, "+1" * 4])
def test_a_message_id_is_hex_digits_and_nothing_else(blanks: str) -> None:
    with pytest.raises(BadData, match="hex digits"):
        decode_offset_message_id("7F0000010000276A" + "0" * 8 + blanks)
