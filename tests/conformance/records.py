"""``vectors/records`` and ``damaged``: bytes of a record, the broker's check, the client's decoder (rules 1.1, 1.4)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rmq_store.errors import BadData
from rmq_store.lake.broker.records import DECOMPRESSORS
from rmq_store.log.record import MESSAGE_MAGIC_V1, MESSAGE_MAGIC_V2, Record, check, decode, message_ext
from rmq_store.log.record_encoder import encode, encoded_size, new_record
from rmq_store.message.properties import properties_text
from tests.conformance.checks import Line, Outcomes, by_kind, per_line, same
from tests.oracle.message_batch import BatchMessage, decode_batch, encode_batch

MAGIC = {"V1": MESSAGE_MAGIC_V1, "V2": MESSAGE_MAGIC_V2}
IPV6_BITS = 0x30


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
    assert isinstance(record, Record), record.reason
    return record


def _record(line: Line) -> Outcomes:
    data = bytes.fromhex(line["hex"])
    record = decoded(data)
    yield same("fields", fields(record), line["fields"])
    yield same("properties", record.properties_text, line["propertiesText"])
    yield same("version", (record.magic, f"{record.magic & 0xFFFFFFFF:08x}"), (MAGIC[line["version"]], line["magic"]))
    yield same("bytes", encode(record).hex(), line["hex"])
    yield same("size", encoded_size(record), len(data))
    # Version, CRC, size and IPv6 bits follow from the rest; a property without a value is gone then.
    text = properties_text(record.properties)
    shorter = len(record.properties_text.encode()) - len(text.encode())
    made = replace(record, properties_text=text, store_size=record.store_size - shorter)
    yield same("made new", _made_new(record), made)
    if "plainBody" in line:
        message = message_ext(record, "broker-a", DECOMPRESSORS)
        yield same("plain body", message.body.hex() if message.body is not None else None, line["plainBody"])
        yield same("flag that says so", message.sys_flag, line["plainSysFlag"])
        yield same("message id", message.offset_msg_id, line["fields"]["msgId"])


def _made_new(record: Record) -> Record:
    return new_record(
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
        sys_flag=record.sys_flag & ~IPV6_BITS,
        reconsume_times=record.reconsume_times,
        prepared_transaction_offset=record.prepared_transaction_offset,
    )


def _batch_body(line: Line) -> Outcomes:
    messages = [BatchMessage(m["flag"], bytes.fromhex(m["body"]), m["propertiesText"]) for m in line["messages"]]
    yield same("bytes of a batch", encode_batch(messages).hex(), line["hex"])
    yield same("messages of a batch", decode_batch(bytes.fromhex(line["hex"])), messages)


check_records = by_kind({"record": _record, "batchBody": _batch_body})


@per_line
def check_damaged(line: Line) -> Outcomes:
    data = bytes.fromhex(line["hex"])
    yield from _broker_check(line, data)
    yield from _client_decoder(line, data)
    yield same(f"strictly decoded, {line['edits']}", _is_strictly_decoded(data), line["strictDecoded"])


def _broker_check(line: Line, data: bytes) -> Outcomes:
    for check_crc, answer in ((True, line["checkWithCrc"]), (False, line["checkWithoutCrc"])):
        checked = check(data, check_crc=check_crc)
        found = checked.success, checked.size, bool(checked.reason)
        yield same(f"check, CRC {check_crc}", found, (answer["success"], answer["size"], not answer["success"]))


def _client_decoder(line: Line, data: bytes) -> Outcomes:
    record = decode(data)
    if not isinstance(record, Record):
        # RocketMQ moves to the end of the buffer when it refuses.
        found = None, bool(record.reason), len(data)
        yield same(f"refused, {line['edits']}", found, (line["decoded"], True, line["positionAfter"]))
        return
    yield same(f"decoded, {line['edits']}", fields(record), line["decoded"])
    # A damaged name may be no UTF-8; then its length in bytes is gone.
    if "\ufffd" not in record.topic + record.properties_text:
        yield same(f"position, {line['edits']}", encoded_size(record), line["positionAfter"])


def _is_strictly_decoded(data: bytes) -> bool:
    """With the CRC checked and the body unpacked."""
    record = decode(data, check_crc=True)
    try:
        return isinstance(record, Record) and record.body(DECOMPRESSORS) is not NotImplemented
    except BadData:
        return False
