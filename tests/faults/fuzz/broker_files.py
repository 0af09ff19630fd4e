"""A small broker store as bytes: its log, its consume queues and its config files, good or with changes that keep it whole.

A changed record has the CRC of its changed body, the entries of its queue name it, and only then some bytes may change: so an
import does not stop at the first check.
"""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import replace

from rmq_store.consumer.delay import MESSAGE_DELAY_LEVEL, parse_delay_level
from rmq_store.errors import BadData
from rmq_store.log.consume_queue import FILLER, ConsumeQueueEntry, entry_of
from rmq_store.log.record import BLANK_MAGIC, MESSAGE_MAGIC_V1, Record
from rmq_store.log.record_encoder import encode, new_record
from rmq_store.message.java_text import wrapped
from rmq_store.message.message_const import SCHEDULE_TOPIC
from rmq_store.message.sys_flag import body_crc
from tests.faults.fuzz.changes import changed, changed_values, nasty_int, nasty_text

FILE_BYTES = 8 << 10
_STORED_MS = 1_700_000_000_000
_ENTRIES_A_FILE = 10
VERSION = b'{"dataVersion":{"counter":7,"stateVersion":0,"timestamp":17},'
CONFIGS: dict[str, bytes] = {
    "consumerOffset.json": VERSION + b'"groupTopicMap":{},"offsetTable":{"T@g":{0:1,1:1},"%RETRY%g@g":{0:1}},'
    b'"pullOffsetTable":{"T@g":{0:1}},"resetOffsetTable":{}}',
    "delayOffset.json": VERSION + b'"offsetTable":{3:0,18:0}}',
    "topics.json": VERSION + b'"topicConfigTable":{"T":{"attributes":{"+message.type":"NORMAL"},"order":false,"perm":6,'
    b'"readQueueNums":8,"topicFilterType":"SINGLE_TAG","topicName":"T","topicSysFlag":0,"writeQueueNums":8}}}',
    "subscriptionGroup.json": VERSION
    + b'"forbiddenTable":{"g":{"T":1}},"subscriptionGroupTable":{"g":{"groupName":"g",'
    b'"consumeEnable":true,"groupRetryPolicy":{"type":"CUSTOMIZED"},"retryQueueNums":1,"subscriptionDataSet":[{"a":"T"}]}}}',
    "consumerFilter.json": b'{"filterDataByTopic":{"T":{"topic":"T","groupFilterData":{"g":{"bloomFilterData":{"bitNum":4,'
    b'"bitPos":[1,2]},"bornTime":1,"clientVersion":1700000000000,"expression":"a > 5"}}}}}',
}


def broker_store(
    chance: random.Random, *, records: float = 0, entries: float = 0, configs: float = 0
) -> dict[str, bytes]:
    """Files by their paths in the store directory. The numbers are shares, 0 to 1: how much of each kind is changed."""
    log = _log(chance, records)
    files = dict(_log_files(chance, log, records))
    if chance.random() < 0.7:
        files |= _queue_files(chance, log, entries)
    for name, text in CONFIGS.items():
        if chance.random() < configs:
            text = chance.choice((changed, changed_values))(chance, text)
        files[f"config/{name}"] = text
    return files


# --- records ----------------------------------------------------------------------------------------------------------


def _log(chance: random.Random, share: float) -> list[Record]:
    """Records with their places in the log, each with the next offset of its queue."""
    topics = ["T", "T", "U", "%RETRY%g", SCHEDULE_TOPIC]
    if chance.random() < share:
        topics[chance.randrange(3)] = nasty_text(chance)[:200]
    nexts: dict[tuple[str, int], int] = {}
    records: list[Record] = []
    position = 0
    for number in range(chance.randint(8, 40)):
        topic = chance.choice(topics)
        queue = 2 if topic == SCHEDULE_TOPIC else chance.randrange(2) if topic == "T" else 0
        start = wrapped(nasty_int(chance), 64) if (topic, queue) not in nexts and chance.random() < share / 4 else 0
        offset = nexts.get((topic, queue), start)
        record = _record(chance, number, topic, queue, offset)
        if chance.random() < share:
            record = _changed_record(chance, record)
        record = _encodable(record)
        size = len(encode(record))
        if position % FILE_BYTES + size + 8 > FILE_BYTES:
            position += FILE_BYTES - position % FILE_BYTES
        if size + 8 > FILE_BYTES:
            continue
        records.append(replace(record, commit_log_offset=position, store_size=size))
        position += size
        nexts[record.topic, record.queue_id] = wrapped(record.queue_offset + 1, 64)
    return records


def _record(chance: random.Random, number: int, topic: str, queue: int, offset: int) -> Record:
    properties = {
        "KEYS": f"k{number}",
        "TAGS": chance.choice("abc"),
        "UNIQ_KEY": f"{number:032X}",
        "amount": str(number),
    }
    if topic == SCHEDULE_TOPIC:
        properties |= {"DELAY": "3", "REAL_TOPIC": chance.choice(("T", "%RETRY%g")), "REAL_QID": "0"}
    elif topic == "%RETRY%g":
        properties |= {"RETRY_TOPIC": "T", "ORIGIN_MESSAGE_ID": f"{number:032X}", "DELAY": "4"}
    body, flag = f'{{"order": {number}}}'.encode(), 0
    if chance.random() < 0.1:
        body, flag = zlib.compress(body), 1
    record = new_record(
        topic="T",
        queue_id=queue,
        queue_offset=0,
        commit_log_offset=0,
        stored_body=body,
        properties=properties,
        sys_flag=flag,
        born_timestamp=_STORED_MS + number,
        store_timestamp=_STORED_MS + number,
        born_host=chance.choice(("127.0.0.1|80", "::1|80")),
        reconsume_times=1 if topic == "%RETRY%g" else 0,
    )
    return replace(record, topic=topic, queue_offset=offset)


_NUMBERS = {
    **dict.fromkeys(("queue_id", "flag", "sys_flag", "reconsume_times", "magic", "body_crc"), 32),
    **dict.fromkeys(("queue_offset", "born_timestamp", "store_timestamp", "prepared_transaction_offset"), 64),
}
_PROPERTIES = (
    *(
        "KEYS",
        "TAGS",
        "UNIQ_KEY",
        "DELAY",
        "REAL_TOPIC",
        "REAL_QID",
        "RETRY_TOPIC",
        "ORIGIN_MESSAGE_ID",
        "RECONSUME_TIME",
    ),
    *(
        "MAX_RECONSUME_TIMES",
        "INNER_NUM",
        "TIMER_OUT_MS",
        "TIMER_DELAY_MS",
        "TRAN_MSG",
        "PGROUP",
        "MIN_OFFSET",
        "CLUSTER",
    ),
    *("DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID", "CONSUME_START_TIME", "__SHARDINGKEY", "amount", ""),
)


def _changed_record(chance: random.Random, record: Record) -> Record:
    match chance.randrange(6):
        case 0:
            name = chance.choice(list(_NUMBERS))
            number = wrapped(nasty_int(chance), _NUMBERS[name])
            return replace(record, **{name: number})  # type: ignore[arg-type]
        case 1:
            return replace(record, topic=nasty_text(chance)[:200])
        case 2:
            body = chance.choice((b"", nasty_text(chance).encode("utf-8", "surrogatepass"), chance.randbytes(40)))
            return replace(record, stored_body=body, body_crc=body_crc(body))
        case 3:
            text = changed(chance, record.properties_text.encode("utf-8", "replace")).decode("utf-8", "replace")
            return replace(record, properties_text=text[:20_000])
        case 4:  # several messages in one record
            inner = b"".join(_inner(chance, number) for number in range(chance.randint(0, 3)))
            text = f"{record.properties_text}INNER_NUM\1{chance.choice((1, 2, 3, nasty_int(chance)))}\2"
            return replace(record, stored_body=inner, body_crc=body_crc(inner), properties_text=text, sys_flag=0xC0)
        case _:
            text = "".join(
                f"{chance.choice(_PROPERTIES)}\1{nasty_text(chance)[:400]}\2" for _ in range(chance.randint(1, 3))
            )
            return replace(record, properties_text=chance.choice((text, record.properties_text + text)))


def _inner(chance: random.Random, number: int) -> bytes:
    body, properties = b"inner", f"KEYS\1i{number}\2".encode()
    data = struct.pack(">iiiii", 22 + len(body) + len(properties), 0, 0, 0, len(body)) + body
    data += struct.pack(">h", len(properties)) + properties
    return changed(chance, data) if chance.random() < 0.2 else data


def _encodable(record: Record) -> Record:
    """The record; if it has no bytes, one with an empty text for its properties and a topic that has."""
    try:
        encode(record)
    except (BadData, ValueError, struct.error):
        return replace(record, topic="T", properties_text="", magic=MESSAGE_MAGIC_V1, sys_flag=0, born_host="1.1.1.1|1")
    return record


def _log_files(chance: random.Random, log: list[Record], share: float) -> Iterator[tuple[str, bytes]]:
    files: dict[int, bytearray] = {0: bytearray(FILE_BYTES)}
    ends: dict[int, int] = {0: 0}
    for record in log:
        begin = record.commit_log_offset // FILE_BYTES * FILE_BYTES
        file = files.setdefault(begin, bytearray(FILE_BYTES))
        at = record.commit_log_offset - begin
        data = bytearray(encode(record))
        if chance.random() < share / 8:  # in the head, which has no CRC
            data[chance.randrange(min(88, len(data)))] ^= 1 << chance.randrange(8)
        file[at : at + len(data)] = data
        ends[begin] = at + len(data)
    for begin, file in files.items():
        if begin + FILE_BYTES in files:
            struct.pack_into(">ii", file, ends[begin], FILE_BYTES - ends[begin], BLANK_MAGIC)
        yield f"commitlog/{begin:020}", bytes(file)


# --- consume queues ---------------------------------------------------------------------------------------------------

_DELAYS_MS: Mapping[int, int] = dict(enumerate(parse_delay_level(MESSAGE_DELAY_LEVEL), 1))


def _queue_files(chance: random.Random, log: list[Record], share: float) -> dict[str, bytes]:
    """The files of the queues whose names a file system can have."""
    queues: dict[tuple[str, int], dict[int, ConsumeQueueEntry]] = {}
    for record in log:
        entry = entry_of(record, _DELAYS_MS)
        if entry and 0 <= record.queue_offset < 10_000 and record.queue_id >= 0 and _is_name(record.topic):
            queues.setdefault((record.topic, record.queue_id), {})[record.queue_offset] = entry
    files: dict[str, bytes] = {}
    for (topic, queue), entries in queues.items():
        first, end = min(entries), max(entries) + 1
        begin = first // _ENTRIES_A_FILE * _ENTRIES_A_FILE
        data = b"".join(entries.get(offset, FILLER).encode() for offset in range(begin, end))
        if chance.random() < share:
            data = _changed_entries(chance, data)
        size = _ENTRIES_A_FILE * 20
        for at in range(0, len(data), size):
            files[f"consumequeue/{topic}/{queue}/{begin * 20 + at:020}"] = data[at : at + size].ljust(size, b"\0")
    return files


def _changed_entries(chance: random.Random, data: bytes) -> bytes:
    if chance.random() < 0.3:
        return changed(chance, data)
    at = chance.randrange(max(len(data) // 20, 1)) * 20
    offset, size, code = struct.unpack_from(">qiq", data.ljust(at + 20, b"\0"), at)
    long = wrapped(nasty_int(chance), 64)
    match chance.randrange(3):
        case 0:
            offset = long
        case 1:
            size = wrapped(long, 32)
        case _:
            code = long
    return data[:at] + struct.pack(">qiq", offset, size, code) + data[at + 20 :]


def _is_name(topic: str) -> bool:
    try:
        return topic not in ("", ".", "..") and not set("/\0") & set(topic) and len(topic.encode()) < 200
    except UnicodeEncodeError:
        return False
