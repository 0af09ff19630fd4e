"""Names, properties, ids, flags and bodies of messages, against answers of RocketMQ's own classes."""

from __future__ import annotations

import tracemalloc
import zlib

import pyarrow as pa
import pytest

from rmq_store.errors import BadData, BodyTooLarge, WrongUse, defect
from rmq_store.lake.broker.records import DECOMPRESSORS
from rmq_store.message.message import MessageExt, MessageQueue
from rmq_store.message.message_const import dlq_topic, retry_topic
from rmq_store.message.sys_flag import CompressionType, MessageSysFlag, plain_body
from tests.conformance import ids, properties
from tests.conformance.checks import passed
from tests.unit import vectors


def packed(body: bytes, codec: str) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as stream:
        stream.write(body)
    return bytes(sink.getvalue())


def test_properties_are_read_written_and_refused_as_by_rocketmq() -> None:
    assert passed(properties.check(vectors.read("properties"))) == 626


def test_ids_crcs_flags_and_packed_bodies_are_rocketmqs() -> None:
    lines = vectors.read("ids")
    assert passed(ids.check(lines)) == 2190
    assert {line["type"] for line in lines if line["kind"] == "compressed"} == set(CompressionType.__members__)


@pytest.mark.parametrize("compression", CompressionType)
def test_a_body_that_does_not_decompress_is_bad_data(compression: CompressionType) -> None:
    sys_flag = MessageSysFlag.COMPRESSED_FLAG | compression.value << MessageSysFlag.COMPRESSION_TYPE_SHIFT
    with pytest.raises(BadData, match=f"does not decompress as {compression.name}"):
        plain_body(b"not packed at all", sys_flag, DECOMPRESSORS)


PLAIN_BYTES = 8 << 20
SMALL = {
    CompressionType.ZLIB: zlib.compress(bytes(PLAIN_BYTES)),
    CompressionType.LZ4: packed(bytes(PLAIN_BYTES), "lz4"),
    CompressionType.ZSTD: packed(bytes(PLAIN_BYTES), "zstd"),
}


@pytest.mark.parametrize("compression", CompressionType)
def test_a_body_is_decompressed_up_to_its_limit_and_no_further(compression: CompressionType) -> None:
    stored = SMALL[compression]
    assert len(stored) < PLAIN_BYTES // 200
    sys_flag = MessageSysFlag.COMPRESSED_FLAG | compression.value << MessageSysFlag.COMPRESSION_TYPE_SHIFT
    assert plain_body(stored, sys_flag, DECOMPRESSORS, PLAIN_BYTES) == bytes(PLAIN_BYTES)
    with pytest.raises(BodyTooLarge, match="larger than 8,388,607 bytes"):
        plain_body(stored, sys_flag, DECOMPRESSORS, PLAIN_BYTES - 1)
    assert DECOMPRESSORS[compression](stored, 1000) == bytes(1000)


@pytest.mark.parametrize("compression", CompressionType)
def test_a_body_that_is_cut_off_is_bad_data(compression: CompressionType) -> None:
    sys_flag = MessageSysFlag.COMPRESSED_FLAG | compression.value << MessageSysFlag.COMPRESSION_TYPE_SHIFT
    with pytest.raises(BadData, match=f"does not decompress as {compression.name}"):
        plain_body(SMALL[compression][:-1], sys_flag, DECOMPRESSORS)


@pytest.mark.parametrize("compression", CompressionType)
def test_the_memory_for_a_body_is_bounded_by_the_limit(compression: CompressionType) -> None:
    tracemalloc.start()
    try:
        DECOMPRESSORS[compression](SMALL[compression], 1 << 20)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 4 << 20


def test_a_lack_of_memory_is_no_damage() -> None:
    def decompress(stored_body: bytes, most: int) -> bytes:
        raise MemoryError

    with pytest.raises(MemoryError) as raised:
        plain_body(b"x", MessageSysFlag.COMPRESSED_FLAG, {CompressionType.ZLIB: decompress})
    assert defect(raised.value).startswith("out of memory (MemoryError): give the process more")


def test_a_lack_of_threads_or_processes_is_no_defect() -> None:
    for error in (RuntimeError("can't start new thread"), BlockingIOError(11, "Resource temporarily unavailable")):
        assert defect(error).startswith("the system refused a thread or a process"), error
    assert defect(RuntimeError("generator didn't stop")).endswith("this is a defect")


def test_a_missing_decompressor_is_named() -> None:
    with pytest.raises(BadData, match="ZSTD"):
        plain_body(b"x", MessageSysFlag.COMPRESSED_FLAG | 0x200)


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
