"""Record bytes against RocketMQ's encoder, its client decoder and its broker's check."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_store.errors import BadData
from rmq_store.lake.records import DECOMPRESSORS
from rmq_store.message import SCHEDULE_TOPIC, properties_text
from rmq_store.record import (
    MESSAGE_MAGIC_V1,
    MESSAGE_MAGIC_V2,
    Record,
    Refused,
    check,
    decode,
    encode,
    encoded_size,
    message_ext,
    new_record,
)
from tests.unit import vectors


def fields(record: Record) -> dict[str, Any]:
    """A record in the words of the vectors."""
    return {
        "topic": record.topic,
        "queueId": record.queue_id,
        "flag": record.flag,
        "queueOffset": record.queue_offset,
        "commitLogOffset": record.commit_log_offset,
        "sysFlag": record.sys_flag,
        "bornTimestamp": record.born_timestamp,
        "bornHost": record.born_host,
        "storeTimestamp": record.store_timestamp,
        "storeHost": record.store_host,
        "reconsumeTimes": record.reconsume_times,
        "preparedTransactionOffset": record.prepared_transaction_offset,
        "bodyCRC": record.body_crc,
        "body": record.stored_body.hex() or None,
        "properties": record.properties if record.properties_text else None,
        "storeSize": record.store_size,
        "msgId": record.offset_msg_id,
    }


def decoded(data: bytes, position: int = 0) -> Record:
    record = decode(data, position)
    assert isinstance(record, Record)
    return record


RECORDS = [line for line in vectors.read("records") if line["kind"] == "record"]


def test_every_record_decodes_to_rocketmqs_fields() -> None:
    assert RECORDS
    for line in RECORDS:
        record = decoded(bytes.fromhex(line["hex"]))
        assert fields(record) == line["fields"]
        assert record.properties_text == line["propertiesText"]
        assert record.magic == {"V1": MESSAGE_MAGIC_V1, "V2": MESSAGE_MAGIC_V2}[line["version"]]
        assert f"{record.magic & 0xFFFFFFFF:08x}" == line["magic"]


def test_every_record_encodes_to_rocketmqs_bytes() -> None:
    for line in RECORDS:
        data = bytes.fromhex(line["hex"])
        record = decoded(data)
        assert encode(record) == data
        assert encoded_size(record) == len(data)


def test_a_record_made_new_follows_rocketmq_in_version_crc_size_and_ipv6_bits() -> None:
    for line in RECORDS:
        record = decoded(bytes.fromhex(line["hex"]))
        made = new_record(
            topic=record.topic,
            queue_id=record.queue_id,
            queue_offset=record.queue_offset,
            commit_log_offset=record.commit_log_offset,
            stored_body=record.stored_body,
            properties=record.properties,
            born_timestamp=record.born_timestamp,
            store_timestamp=record.store_timestamp,
            born_host=record.born_host,
            store_host=record.store_host,
            flag=record.flag,
            sys_flag=record.sys_flag & ~0x30,
            reconsume_times=record.reconsume_times,
            prepared_transaction_offset=record.prepared_transaction_offset,
        )
        assert made == replace(record, properties_text=properties_text(record.properties))


def test_a_listener_gets_the_plain_body_and_a_flag_that_says_so() -> None:
    with_plain_body = [line for line in RECORDS if "plainBody" in line]
    assert with_plain_body
    for line in with_plain_body:
        message = message_ext(decoded(bytes.fromhex(line["hex"])), "broker-a", DECOMPRESSORS)
        assert (message.body.hex() if message.body is not None else None) == line["plainBody"]
        assert message.sys_flag == line["plainSysFlag"]
        assert message.broker_name == "broker-a"
        assert message.offset_msg_id == line["fields"]["msgId"]


def test_the_brokers_check_answers_as_rocketmq_on_damaged_records() -> None:
    for line in vectors.read("damaged"):
        data = bytes.fromhex(line["hex"])
        for check_crc, answer in ((True, line["checkWithCrc"]), (False, line["checkWithoutCrc"])):
            checked = check(data, check_crc=check_crc)
            assert (checked.success, checked.size) == (answer["success"], answer["size"]), line["edits"]
            assert bool(checked.reason) is not checked.success


def test_the_clients_decoder_answers_as_rocketmq_on_damaged_records() -> None:
    for line in vectors.read("damaged"):
        data = bytes.fromhex(line["hex"])
        record = decode(data)
        if line["decoded"] is None:
            assert isinstance(record, Refused), line["edits"]
            assert record.reason
            # RocketMQ moves to the end of the buffer when it refuses.
            assert line["positionAfter"] == len(data)
        else:
            assert isinstance(record, Record), line["edits"]
            assert fields(record) == line["decoded"]
            # A damaged name may be no UTF-8; then its length in bytes is gone.
            if "\ufffd" not in record.topic + record.properties_text:
                assert encoded_size(record) == line["positionAfter"]


def test_the_strict_decoder_checks_the_crc_and_unpacks_the_body() -> None:
    for line in vectors.read("damaged"):
        record = decode(bytes.fromhex(line["hex"]), check_crc=True)
        strict = isinstance(record, Record)
        if isinstance(record, Record):
            try:
                record.body(DECOMPRESSORS)
            except BadData:
                strict = False
        assert strict is line["strictDecoded"], line["edits"]


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
