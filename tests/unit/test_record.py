"""Record bytes against RocketMQ's encoder, its client decoder and its broker's check."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_store.errors import BadData
from rmq_store.log.record import MESSAGE_MAGIC_V1, Record, check
from rmq_store.log.record_encoder import encode, encoded_size, new_record
from rmq_store.message.message_const import SCHEDULE_TOPIC
from tests.conformance import records
from tests.conformance.checks import passed
from tests.conformance.records import decoded
from tests.unit import vectors


def test_every_record_is_decoded_and_encoded_as_by_rocketmq() -> None:
    assert passed(records.check_records(vectors.read("records"))) == 3990


def test_damaged_records_are_checked_and_decoded_as_by_rocketmq() -> None:
    assert passed(records.check_damaged(vectors.read("damaged"))) == 1419


def test_the_example_of_the_specification_is_read_byte_by_byte() -> None:
    text = """
        00000077 daa320a7 3610a686 00000002 00000000 0000000000000007 0000000000000400 00000000
        0000018bcfe56800 0a000001 0000c350 0000018bcfe5687b 0a000002 00002a9f 00000000 0000000000000000
        00000005 68656c6c6f 09 546f70696354657374 000e 6b01760254414753015461674102"""
    record = decoded(bytes.fromhex("".join(text.split())))
    assert (record.topic, record.queue_id, record.queue_offset, record.commit_log_offset) == ("TopicTest", 2, 7, 1024)
    assert (record.store_size, record.stored_body) == (119, b"hello")
    assert record.properties == {"k": "v", "TAGS": "TagA"}
    assert record.offset_msg_id == "0A00000200002A9F0000000000000400"


@pytest.mark.parametrize(("topic_chars", "size"), [(127, 226), (128, 228), (300, 400)])
def test_a_topic_of_more_than_127_characters_is_written_as_v2(topic_chars: int, size: int) -> None:
    record = plain_record(topic="T" * topic_chars, stored_body=b"x", properties={"TAGS": "t"})
    assert len(encode(record)) == record.store_size == size
    assert decoded(encode(record)) == record


def test_a_topic_too_long_for_its_version_is_refused() -> None:
    record = replace(plain_record(topic="т" * 100), magic=MESSAGE_MAGIC_V1)
    with pytest.raises(BadData, match="200 bytes"):
        encode(record)


def test_properties_of_32767_bytes_fit_and_one_more_does_not() -> None:
    assert len(encode(plain_record(properties={"k": "v" * 32764}))) == 91 + 1 + 32767
    with pytest.raises(BadData, match="32767"):
        encode(plain_record(properties={"k": "v" * 32765}))


def test_a_level_that_is_no_number_fails_the_check_in_the_schedule_topic_only() -> None:
    assert check(encode(plain_record(topic=SCHEDULE_TOPIC, properties={"DELAY": "+3"}))).success
    assert not check(encode(plain_record(topic=SCHEDULE_TOPIC, properties={"DELAY": "three"}))).success
    assert check(encode(plain_record(topic="SCHEDULE_TOPIC_XXXY", properties={"DELAY": "three"}))).success


def plain_record(**changes: Any) -> Record:
    values: dict[str, Any] = {
        "topic": "T",
        "queue_id": 0,
        "queue_offset": 0,
        "commit_log_offset": 0,
        "stored_body": b"",
        "properties": {},
        "born_timestamp": 1,
        "store_timestamp": 2,
    }
    return new_record(**(values | changes))


INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)
HOST = st.one_of(
    st.tuples(st.ip_addresses(v=4), st.integers(0, 65535)).map(lambda host: f"{host[0]}|{host[1]}"),
    st.tuples(st.lists(st.integers(0, 65535), min_size=8, max_size=8), st.integers(0, 65535)).map(
        lambda host: f"{':'.join(f'{group:x}' for group in host[0])}|{host[1]}"
    ),
)


@given(
    topic=st.text(st.characters(codec="ascii"), max_size=300),
    numbers=st.tuples(INT32, INT64, INT64, INT64, INT64, INT32, INT64),
    sys_flag=INT32.map(lambda flag: flag & ~0x30),
    hosts=st.tuples(HOST, HOST),
    stored_body=st.binary(max_size=200),
    text=TEXT,
)
def test_what_is_encoded_is_decoded_and_passes_the_check(
    topic: str, numbers: tuple[int, ...], sys_flag: int, hosts: tuple[str, str], stored_body: bytes, text: str
) -> None:
    queue_id, queue_offset, commit_log_offset, born, stored, reconsume_times, prepared = numbers
    record = replace(
        new_record(
            topic=topic,
            queue_id=queue_id,
            queue_offset=queue_offset,
            commit_log_offset=commit_log_offset,
            stored_body=stored_body,
            properties={},
            born_timestamp=born,
            store_timestamp=stored,
            born_host=hosts[0],
            store_host=hosts[1],
            sys_flag=sys_flag,
            reconsume_times=reconsume_times,
            prepared_transaction_offset=prepared,
        ),
        properties_text=text,
    )
    record = replace(record, store_size=encoded_size(record))
    data = b"before" + encode(record) + b"after"
    assert decoded(data, 6) == record
    assert check(data, 6) == (True, record.store_size, "")


@pytest.mark.parametrize(
    ("topic", "text"),
    [("eda080", "\ufffd"), ("41eda0", "A\ufffd"), ("edbf41", "\ufffdA"), ("ed9fbf", "\ud7ff"), ("e28241", "\ufffdA")],
)
def test_a_name_that_is_no_utf8_reads_as_in_java(topic: str, text: str) -> None:
    record = new_record(
        topic="x" * (len(topic) // 2), queue_id=0, queue_offset=0, commit_log_offset=0, stored_body=b"", properties={},
        born_timestamp=0, store_timestamp=0,
    )  # fmt: skip
    data = encode(record).replace(b"x" * (len(topic) // 2), bytes.fromhex(topic))
    assert decoded(data).topic == text
