"""Names, properties, ids, flags and bodies of messages, against answers of RocketMQ's own classes."""

from __future__ import annotations

from typing import Any

import pytest

from rmq_store.errors import BadData, WrongUse
from rmq_store.lake.records import DECOMPRESSORS
from rmq_store.message import (
    RESERVED_PROPERTY_NAMES,
    CompressionType,
    MessageExt,
    MessageQueue,
    MessageSysFlag,
    body_crc,
    check_user_property,
    decode_offset_message_id,
    decode_unique_key,
    dlq_topic,
    offset_message_id,
    parse_properties,
    plain_body,
    properties_text,
    retry_topic,
    tags_code,
)
from tests.unit import vectors


def of_kind(name: str, kind: str) -> list[dict[str, Any]]:
    lines = [line for line in vectors.read(name) if line["kind"] == kind]
    assert lines
    return lines


def test_properties_text_is_read_as_rocketmq_reads_it() -> None:
    for line in of_kind("properties", "parse"):
        assert parse_properties(line["text"]) == line["properties"]


def test_properties_are_written_as_rocketmq_writes_them_and_lose_empty_values_on_the_way_back() -> None:
    for line in of_kind("properties", "write"):
        text = properties_text(dict(line["entries"]))
        assert text == line["text"]
        assert parse_properties(text) == line["back"]


def test_the_reserved_names_are_exactly_rocketmqs() -> None:
    (line,) = of_kind("properties", "reserved")
    assert set(line["names"]) == RESERVED_PROPERTY_NAMES


def test_put_user_property_refuses_what_rocketmq_refuses_with_its_words() -> None:
    for line in of_kind("properties", "putUserProperty"):
        if line.get("ok"):
            check_user_property(line["name"], line["value"])
        else:
            with pytest.raises(WrongUse) as refusal:
                check_user_property(line["name"], line["value"])
            assert str(refusal.value) == line["error"].partition(": ")[2]


def test_tags_code_is_javas_hash_over_utf_16() -> None:
    for line in of_kind("tags", "code"):
        assert tags_code(line["tag"]) == line["tagsCode"]


def test_offset_message_ids_go_there_and_back() -> None:
    for line in of_kind("ids", "offsetId"):
        assert offset_message_id(f"{line['address']}|{line['port']}", line["offset"]) == line["id"]
        assert decode_offset_message_id(line["id"]) == (line["decodedHost"], line["decodedOffset"])


def test_an_offset_message_id_is_decoded_by_its_length_and_refused_where_rocketmq_throws() -> None:
    for line in of_kind("ids", "decodeOffsetId"):
        # RocketMQ takes the letter G for a digit; we refuse what is not hex.
        if "error" in line or line["id"].startswith("G"):
            with pytest.raises(BadData):
                decode_offset_message_id(line["id"])
        else:
            assert decode_offset_message_id(line["id"]) == (line["host"], line["offset"])


def test_a_unique_key_tells_its_parts() -> None:
    for line in of_kind("ids", "uniqKey"):
        assert decode_unique_key(line["id"]) == (
            line["ip"],
            line["pidLow16"],
            line["loaderHash"],
            line["msInMonth"],
            line["counter"],
        )


def test_body_crc_has_no_sign_bit_and_is_zero_for_no_body() -> None:
    for line in of_kind("ids", "crc"):
        assert body_crc(None if line["hex"] is None else bytes.fromhex(line["hex"])) == line["crc"]


def test_sys_flag_bits_mean_what_rocketmq_means_by_them() -> None:
    for line in of_kind("ids", "sysFlag"):
        flag = line["flag"]
        assert MessageSysFlag.transaction_type(flag) == line["transaction"]
        assert MessageSysFlag.clear_compressed(flag) == line["cleared"]
        if "compressionError" in line:
            with pytest.raises(BadData, match="compression type"):
                MessageSysFlag.compression_type(flag)
        else:
            assert MessageSysFlag.compression_type(flag) is CompressionType[line["compression"]]


def test_what_java_packed_is_unpacked_with_every_compression() -> None:
    seen = set()
    for line in of_kind("ids", "compressed"):
        sys_flag = line["sysFlagBits"] | MessageSysFlag.COMPRESSED_FLAG
        packed = bytes.fromhex(line["packed"])
        assert plain_body(packed, sys_flag, DECOMPRESSORS) == bytes.fromhex(line["plain"])
        assert plain_body(packed, line["sysFlagBits"], DECOMPRESSORS) == packed
        seen.add(line["type"])
    assert seen == {"LZ4", "ZSTD", "ZLIB"}


@pytest.mark.parametrize("compression", CompressionType)
def test_a_body_that_does_not_decompress_is_bad_data(compression: CompressionType) -> None:
    sys_flag = MessageSysFlag.COMPRESSED_FLAG | compression.value << MessageSysFlag.COMPRESSION_TYPE_SHIFT
    with pytest.raises(BadData, match=f"does not decompress as {compression.name}"):
        plain_body(b"not packed at all", sys_flag, DECOMPRESSORS)


def test_a_missing_decompressor_is_named() -> None:
    with pytest.raises(BadData, match="ZSTD"):
        plain_body(b"x", MessageSysFlag.COMPRESSED_FLAG | 0x200)


def test_queues_and_only_queues_sort_by_topic_broker_and_numeric_id() -> None:
    for line in vectors.read("allocation-order"):
        ordered = sorted(MessageQueue(*queue) for queue in line["queues"])
        assert [[queue.topic, queue.broker_name, queue.queue_id] for queue in ordered] == line["sorted"]


def test_queues_compare_by_utf_16_units_like_java() -> None:
    assert MessageQueue("\U0001f33f", "b", 0) < MessageQueue("\uff21", "b", 0)


def test_a_queue_prints_as_in_rocketmq() -> None:
    assert str(MessageQueue("T", "broker-a", 3)) == "MessageQueue [topic=T, brokerName=broker-a, queueId=3]"


def test_msg_id_is_the_unique_key_and_else_the_offset_id() -> None:
    message = MessageExt("T", "b", 0, 7, offset_msg_id="00AA", properties={"UNIQ_KEY": "U", "KEYS": "k l", "TAGS": "t"})
    assert (message.msg_id, message.keys, message.tags, message.unique_key) == ("U", "k l", "t", "U")
    del message.properties["UNIQ_KEY"]
    assert message.msg_id == "00AA"
    message.put_user_property("colour", "red")
    assert message.get_user_property("colour") == message.get_property("colour") == "red"
    with pytest.raises(WrongUse):
        message.put_user_property("KEYS", "k")


def test_retry_and_dead_letter_topics_carry_the_group() -> None:
    assert (retry_topic("g"), dlq_topic("g")) == ("%RETRY%g", "%DLQ%g")
