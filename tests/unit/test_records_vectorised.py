"""The vectorised parser finds what the rule finds, field by field: real stores, odd records, damage, slices."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_store.broker_files.commit_log_file import list_commit_log
from rmq_store.broker_files.file_source import LocalFileSource
from rmq_store.errors import BadData
from rmq_store.lake.broker.records import DECOMPRESSORS, SCHEMA, record_batches
from rmq_store.log.commit_log import Blank, Damage, FileEnd, MoreBytes, NothingWritten, Stop, Unsupported, walk
from rmq_store.log.consume_queue import entry_of, entry_tags_code
from rmq_store.log.record import BLANK_MAGIC, MESSAGE_MAGIC_V2, Record
from rmq_store.log.record_encoder import encode, encoded_size, new_record
from rmq_store.message.message_const import SCHEDULE_TOPIC
from tests.unit import vectors

STORES = ("market-clean", "market-trimmed", "market-killed")
DELAY_LEVELS = {level: level * 1000 for level in range(1, 17)} | {17: 600_000, 18: 7_200_000}

Extract = Callable[[str], Path]
Rows = list[dict[str, Any]]


def by_rule(data: bytes, start_offset: int, file_end: int, *, check_crc: bool = True) -> tuple[Rows, Stop]:
    """Rows and end as the rule finds them, one record after another."""
    rows: Rows = []
    for item in walk(data, start_offset, file_end, check_crc=check_crc):
        if not isinstance(item, Record):
            return rows, item
        properties = item.properties
        try:
            body = item.body(DECOMPRESSORS)
        except BadData as error:
            return rows, Damage(item.commit_log_offset, str(error), item.store_size, torn=False)
        rows.append(
            {
                "topic": item.topic,
                "queue_id": item.queue_id,
                "queue_offset": item.queue_offset,
                "commit_log_offset": item.commit_log_offset,
                "store_size": item.store_size,
                "magic": item.magic,
                "body_crc": item.body_crc,
                "flag": item.flag,
                "sys_flag": item.sys_flag,
                "born_timestamp": item.born_timestamp,
                "born_host": item.born_host,
                "store_timestamp": item.store_timestamp,
                "store_host": item.store_host,
                "reconsume_times": item.reconsume_times,
                "prepared_transaction_offset": item.prepared_transaction_offset,
                "body": body,
                "stored_body_size": len(item.stored_body),
                "properties": list(properties.items()),
                "unique_key": properties.get("UNIQ_KEY"),
                "keys": properties.get("KEYS"),
                "tags": properties.get("TAGS"),
                "tags_code": entry_tags_code(item.topic, properties, item.store_timestamp, DELAY_LEVELS),
                "offset_msg_id": item.offset_msg_id,
                "indexed": entry_of(item, DELAY_LEVELS) is not None,
            }
        )
    raise AssertionError("a walk ends with a stop")


def vectorised(
    data: bytes, start_offset: int, file_end: int, *, check_crc: bool = True, batch_rows: int = 1000
) -> tuple[Rows, Stop]:
    batches: list[Any]
    *batches, stop = record_batches(
        data, start_offset, file_end, delay_levels=DELAY_LEVELS, check_crc=check_crc, batch_rows=batch_rows
    )
    assert not isinstance(stop, pa.RecordBatch)
    rows: Rows = []
    for batch in batches:
        assert isinstance(batch, pa.RecordBatch)
        assert 0 < batch.num_rows <= batch_rows
        assert batch.schema.equals(SCHEMA)
        batch.validate(full=True)
        rows += batch.to_pylist()
    return rows, stop


@pytest.mark.parametrize("name", STORES)
def test_a_real_log_gives_the_rules_rows(broker_store: Extract, name: str) -> None:
    source = LocalFileSource(broker_store(name))
    seen = 0
    for file in list_commit_log(source).files:
        data = source.read(file.name, 0, file.size_bytes)
        assert vectorised(data, file.start_offset, file.end_offset) == by_rule(data, file.start_offset, file.end_offset)
        rows, _ = vectorised(data, file.start_offset, file.end_offset, batch_rows=77)
        seen += len(rows)
    lines = vectors.expected(f"{name}.commitlog")
    assert seen == sum(line["kind"] == "message" for line in lines)


def test_every_record_of_the_vectors_gives_the_rules_row() -> None:
    for lines in (vectors.read("records"), vectors.read("damaged")):
        compared = 0
        for line in lines:
            data = bytes.fromhex(line["hex"])
            if line.get("kind") == "batchBody" or len(data) < 48:
                continue
            start_offset = int.from_bytes(data[28:36], "big", signed=True)
            file_end = start_offset + len(data)
            for check_crc in (True, False):
                found = vectorised(data, start_offset, file_end, check_crc=check_crc)
                assert found == by_rule(data, start_offset, file_end, check_crc=check_crc)
            compared += 1
        assert compared > 200


def test_all_records_of_the_vectors_in_one_log_keep_their_order() -> None:
    """Versions, IPv6, compressions, empty and odd properties, all mixed in one batch."""
    records = []
    at = 0
    for line in vectors.read("records"):
        if line["kind"] == "record":
            data = bytes.fromhex(line["hex"])
            records.append(data[:28] + struct.pack(">q", at) + data[36:])
            at += len(data)
    log = b"".join(records)
    rows, stop = vectorised(log, 0, at)
    assert (rows, stop) == by_rule(log, 0, at)
    assert stop == FileEnd(at)
    assert len(rows) == len(records)


COMPRESSED = {
    0x000: lambda body: zlib.compress(body),
    0x100: lambda body: compress_stream(body, "lz4"),
    0x200: lambda body: compress_stream(body, "zstd"),
    0x300: lambda body: zlib.compress(body),
}


def compress_stream(body: bytes, codec: str) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as stream:
        stream.write(body)
    return bytes(sink.getvalue())


NAMES = st.sampled_from(["KEYS", "TAGS", "UNIQ_KEY", "DELAY", "k", "ключ", "a longer name than twelve bytes"])
VALUES = st.sampled_from(["3", "99", "0", "-1", "TagA", "значение", "v" * 40, "a\x01b"]) | st.text(max_size=8)
# Mostly what a broker writes; sometimes what its parser has to put up with.
ENTRIES = st.lists(st.tuples(NAMES, VALUES), max_size=5)
PROPERTIES = st.one_of(
    ENTRIES.map(lambda entries: "".join(f"{name}\x01{value}\x02" for name, value in dict(entries).items())),
    ENTRIES.map(lambda entries: "\x02".join(f"{name}\x01{value}" for name, value in entries)),
    st.text(st.sampled_from("ab\x01\x02\0"), max_size=12),
    st.lists(st.sampled_from(["a\x01b", "b\x01", "\x01a", "a", "", "c\x01d\x01e"]), max_size=4).map("\x02".join),
)
STORE_TIMES = (
    st.integers(0, 1 << 47) | st.integers(0, 1 << 47) | st.sampled_from([-1, 253402300799999, 253402300800000])
)
HOSTS = st.sampled_from(["10.0.0.1|5001", "10.0.0.2|0", "255.255.255.255|65535", "2001:db8:0:0:0:0:0:1|9"])


@st.composite
def record(draw: st.DrawFn) -> Record:
    body = draw(st.binary(max_size=30))
    sys_flag = draw(st.sampled_from([0, 0, 0, 4, 8, 12]))
    if draw(st.integers(0, 4)) == 0:
        kind = draw(st.sampled_from(sorted(COMPRESSED)))
        body, sys_flag = COMPRESSED[kind](body), sys_flag | 1 | kind
    made = new_record(
        topic=draw(st.sampled_from(["T", SCHEDULE_TOPIC, "Тема", "x" * 127, "y" * 130, ""])),
        queue_id=draw(st.integers(0, (1 << 31) - 1) | st.integers(-(1 << 31), -1)),
        queue_offset=draw(st.integers(-(1 << 63), (1 << 63) - 1)),
        commit_log_offset=0,
        stored_body=body,
        properties={},
        born_timestamp=draw(st.integers(-(1 << 63), (1 << 63) - 1)),
        store_timestamp=draw(STORE_TIMES),
        born_host=draw(HOSTS),
        store_host=draw(HOSTS),
        flag=draw(st.integers(-(1 << 31), (1 << 31) - 1)),
        sys_flag=sys_flag,
        reconsume_times=draw(st.integers(-(1 << 31), (1 << 31) - 1)),
        prepared_transaction_offset=draw(st.integers(-(1 << 63), (1 << 63) - 1)),
    )
    return replace(made, properties_text=draw(PROPERTIES))


def log_of(records: list[Record], start_offset: int) -> bytes:
    data = b""
    for item in records:
        data += encode(replace(item, commit_log_offset=start_offset + len(data), store_size=encoded_size(item)))
    return data


START = 1 << 40


@given(
    records=st.lists(record(), max_size=12),
    flips=st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(1, 255)), max_size=2),
    tail=st.sampled_from(["file end", "zeros", "blank", "garbage", "slice"]),
    batch_rows=st.sampled_from([1, 3, 1000]),
    check_crc=st.booleans(),
)
def test_any_log_gives_the_rules_rows_and_ends_where_the_rule_ends(
    records: list[Record], flips: list[tuple[int, int]], tail: str, batch_rows: int, check_crc: bool
) -> None:
    data = bytearray(log_of(records, START))
    file_end = START + len(data)
    match tail:
        case "zeros":
            data += bytes(200)
            file_end += 200
        case "blank":
            data += struct.pack(">ii", 200, BLANK_MAGIC) + b"\xff" * 192
            file_end += 200
        case "garbage":
            data += b"\x00\x00\x01" * 70
            file_end += 210
        case "slice":
            del data[len(data) * 2 // 3 :]
    for place, mask in flips:
        if data:
            data[place % len(data)] ^= mask
    expected = by_rule(bytes(data), START, file_end, check_crc=check_crc)
    assert vectorised(bytes(data), START, file_end, check_crc=check_crc, batch_rows=batch_rows) == expected


def plain(body: bytes = b"body", **changes: Any) -> Record:
    values: dict[str, Any] = {
        "topic": "T",
        "queue_id": 0,
        "queue_offset": 0,
        "commit_log_offset": 0,
        "stored_body": body,
        "properties": {"k": "v"},
        "born_timestamp": 1,
        "store_timestamp": 2,
    }
    return new_record(**(values | changes))


@pytest.mark.parametrize(("mask", "check_crc"), [(0x01, True), (0x80, False)])
def test_whatever_byte_changes_the_rule_and_the_columns_agree(mask: int, check_crc: bool) -> None:
    records = [plain(), plain(b"a body", properties={"KEYS": "k", "TAGS": "t"}), plain(b"last")]
    log = log_of(records, 0)
    begin = encoded_size(records[0])
    for at in range(begin, len(log)):
        data = bytearray(log)
        data[at] ^= mask
        expected = by_rule(bytes(data), 0, len(data), check_crc=check_crc)
        assert vectorised(bytes(data), 0, len(data), check_crc=check_crc) == expected, at


def test_whatever_body_length_a_record_claims_the_rule_and_the_columns_agree() -> None:
    log = bytearray(log_of([plain(), plain(b"last")], 0))
    begin = encoded_size(plain())
    for length in range(-2, 120):
        log[begin + 84 : begin + 88] = struct.pack(">i", length)
        data = bytes(log)
        assert vectorised(data, 0, len(data), check_crc=False) == by_rule(data, 0, len(data), check_crc=False), length


def test_records_without_body_and_properties_are_common_too() -> None:
    data = log_of([plain(b"", properties={}), plain(b"", properties={}, topic="")], 0)
    rows, stop = vectorised(data, 0, len(data))
    assert (rows, stop) == by_rule(data, 0, len(data))
    assert [(row["body"], row["properties"], row["tags"], row["tags_code"]) for row in rows] == [
        (None, [], None, 0)
    ] * 2


def test_big_messages_end_a_batch_early() -> None:
    data = log_of([plain(bytes(4 << 20)) for _ in range(33)], 0)
    batches: list[Any]
    *batches, stop = record_batches(data, 0, len(data), delay_levels={})
    assert [batch.num_rows for batch in batches] == [16, 16, 1]
    assert stop == FileEnd(len(data))


def test_big_decompressed_bodies_end_a_batch_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of both ways: a V2 record goes by the rule."""
    monkeypatch.setattr("rmq_store.lake.broker.records.BATCH_BYTES", 5000)
    big, plain_one = plain(zlib.compress(bytes(3000)), sys_flag=1), plain()
    data = log_of([big, plain_one, replace(big, topic="y" * 130, magic=MESSAGE_MAGIC_V2), plain_one, big] * 2, 0)
    batches: list[Any]
    *batches, stop = record_batches(data, 0, len(data), delay_levels=DELAY_LEVELS)
    assert [batch.num_rows for batch in batches] == [3, 3, 4]
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert (rows, stop) == by_rule(data, 0, len(data))


def test_a_body_over_the_limit_ends_the_walk_and_is_no_damage() -> None:
    large = plain(zlib.compress(bytes(1001)), sys_flag=1, queue_id=2, queue_offset=9)
    for too_large in (large, replace(large, topic="y" * 130, magic=MESSAGE_MAGIC_V2)):
        data = log_of([plain(), plain(zlib.compress(bytes(1000)), sys_flag=1), too_large, plain()], 0)
        batches: list[Any]
        *batches, stop = record_batches(data, 0, len(data), delay_levels={}, max_body_bytes=1000)
        assert sum(batch.num_rows for batch in batches) == 2
        assert isinstance(stop, Unsupported)
        body = f"body of {len(too_large.stored_body)} bytes is larger than 1,000 bytes"
        assert f"topic {too_large.topic}, queue 2, offset 9: {body}" in stop.reason


def test_no_body_is_null_and_an_empty_packed_body_is_empty() -> None:
    data = log_of([plain(b""), plain(zlib.compress(b""), sys_flag=1), plain(b"x")], 0)
    rows, _ = vectorised(data, 0, len(data))
    assert [row["body"] for row in rows] == [None, b"", b"x"]
    assert [row["stored_body_size"] for row in rows] == [0, 8, 1]


def test_a_body_that_does_not_decompress_is_damage_and_the_rows_before_it_are_kept() -> None:
    for broken in (plain(b"nothing packed", sys_flag=1), plain(b"x", sys_flag=0x701), plain(b"x", sys_flag=0x21)):
        host = {"store_host": "2001:db8:0:0:0:0:0:1|9"} if broken.sys_flag & 0x20 else {}
        data = log_of([plain(), plain(broken.stored_body, sys_flag=broken.sys_flag, **host), plain()], 0)
        rows, stop = vectorised(data, 0, len(data))
        assert len(rows) == 1
        assert isinstance(stop, Damage)
        assert (stop.commit_log_offset, stop.torn) == (rows[0]["store_size"], False)
        assert "compress" in stop.reason


def test_a_level_that_is_no_number_ends_the_log_in_the_schedule_topic() -> None:
    good = plain(topic=SCHEDULE_TOPIC, properties={"DELAY": "3"})
    bad = plain(topic=SCHEDULE_TOPIC, properties={"DELAY": "soon"})
    data = log_of([good, plain(properties={"DELAY": "soon"}), bad, good], 0)
    rows, stop = vectorised(data, 0, len(data))
    assert [row["tags_code"] for row in rows] == [3002, 0]
    assert isinstance(stop, Damage)
    assert "'soon'" in stop.reason


def test_text_that_is_no_utf_8_is_replaced_as_java_replaces_it() -> None:
    data = log_of([plain(), plain(properties={"name": "some value"})], 0).replace(b"some", b"s\xffme")
    rows, _ = vectorised(data, 0, len(data))
    assert [row["properties"] for row in rows] == [[("k", "v")], [("name", "s\ufffdme value")]]


def test_the_last_of_two_equal_names_wins() -> None:
    data = log_of([plain(), replace(plain(), properties_text="k\x01a\x02j\x01b\x02k\x01c\x02")], 0)
    rows, _ = vectorised(data, 0, len(data))
    assert rows[1]["properties"] == [("k", "c"), ("j", "b")]


def test_what_brokers_and_clients_write_takes_the_fast_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty tag, a last property without its end (old clients), packed bodies, no properties at all."""
    texts = ["TAGS\x01\x02k\x01v\x02", "k\x01v\x02TAGS\x01\x02", "k\x01v\x02TAGS\x01t", "TAGS\x01", "", "k\x01v\x02"]
    records = [replace(plain(zlib.compress(b"body"), sys_flag=1), properties_text=text) for text in texts]
    for order in (records, records[::-1], records[2:4] * 3):
        data = log_of(order, 0)
        expected = by_rule(data, 0, len(data))
        with monkeypatch.context() as patch:
            patch.setattr("rmq_store.lake.broker.records.item_at", no_rule)
            batch = next(record_batches(data, 0, len(data), delay_levels=DELAY_LEVELS))
        assert isinstance(batch, pa.RecordBatch)
        assert (batch.to_pylist(), FileEnd(len(data))) == expected


def no_rule(*_: Any, **__: Any) -> None:
    raise AssertionError("a common row went by the rule")


def test_more_distinct_names_than_a_small_table_holds_are_checked_too() -> None:
    records = [plain(b"", properties={f"name {row} {index}": "v" for index in range(40)}) for row in range(400)]
    records.append(replace(plain(), properties_text="k\x01a\x02k\x01b\x02"))
    data = log_of(records, 0)
    assert vectorised(data, 0, len(data)) == by_rule(data, 0, len(data))


@pytest.mark.parametrize("cut", [0, 3, 7, 90, 95, 150, 199])
def test_a_slice_tells_where_to_read_on(cut: int) -> None:
    data = log_of([plain(), plain()], 5000)
    size = len(data) // 2
    rows, stop = vectorised(data[:cut], 5000, 9000)
    assert len(rows) == cut // size
    assert stop == MoreBytes(5000 + size * len(rows), size if cut - size * len(rows) >= 8 else 8)


def test_the_ends_of_a_file_are_told_apart() -> None:
    data = log_of([plain()], 0)
    size = len(data)
    blank = struct.pack(">ii", 100, BLANK_MAGIC)
    wrong = (data + struct.pack(">ii", 95, BLANK_MAGIC)).ljust(size + 99, b"\0") + b"x"
    assert isinstance(vectorised(wrong, 0, size + 100)[1], Damage)
    assert vectorised(wrong, 0, size + 100) == by_rule(wrong, 0, size + 100)
    assert vectorised(data, 0, size)[1] == FileEnd(size)
    assert vectorised(data + bytes(100), 0, size + 100)[1] == NothingWritten(size)
    assert vectorised(data + blank.ljust(100), 0, size + 100)[1] == Blank(size, 100, 100)
    assert vectorised(data + blank, 0, size + 100)[1] == Blank(size, 100, 100)


@pytest.mark.parametrize("batch_rows", [1, 2, 3, 100])
def test_records_inside_a_body_are_no_records(batch_rows: int) -> None:
    inner = log_of([plain(), plain()], 0)
    data = log_of([plain(), plain(inner), plain(inner + inner[:50]), plain(), plain(b"\xda\xa3\x20\xa7" * 9)], 0)
    for end in (len(data), len(data) - 1, len(data) - 200):
        found = vectorised(data[:end], 0, len(data), batch_rows=batch_rows)
        assert found == by_rule(data[:end], 0, len(data))
