"""``expected/NAME.messages`` and ``commitlog``: every message, as our rules read the files and as the lake holds it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rmq_store.lake.broker.records import DECOMPRESSORS
from rmq_store.log.commit_log import Blank, NothingWritten, Stop
from rmq_store.log.consume_queue import entry_of
from rmq_store.log.record import Record
from tests.conformance.broker_store import BrokerStore
from tests.conformance.checks import Line, Outcomes, same

ENTRY = ("topic", "queueId", "queueOffset", "commitLogOffset", "storeSize", "tagsCode")
ONLY_OF_THE_FILES = ("recordTopic", "recordQueueId", "recordQueueOffset")
"""What the record names itself: in the lake a row is both the entry and the record."""


def check_messages(lines: Sequence[Line], store: BrokerStore) -> Outcomes:
    yield from in_files(lines, store)
    yield from in_lake(lines, store)


def in_files(lines: Sequence[Line], store: BrokerStore) -> Outcomes:
    """For a killed store this is recovery: entries that were not yet on disk are made from the log."""
    for line in lines:
        record = store.made.get((line["topic"], line["queueId"]), {}).get(line["queueOffset"])
        found = None if record is None else of_record(record, store.delays_ms)
        yield from _compared("in the files", line, found, line)
    yield same("messages in the files", sum(map(len, store.made.values())), len(lines))


def in_lake(lines: Sequence[Line], store: BrokerStore) -> Outcomes:
    entries = set()
    for line in lines:
        row = store.messages.get((line["topic"], line["queueId"], line["queueOffset"]))
        wanted = {key: value for key, value in line.items() if key not in ONLY_OF_THE_FILES}
        yield from _compared("in the lake", line, None if row is None else of_row(row), wanted)
        entries.add(tuple(line[key] for key in ENTRY))
    yield same("messages in the lake", len(store.messages), len(lines))
    text = "SELECT topic, queue_id, queue_offset, commit_log_offset, size, tags_code FROM consume_queue_entries"
    found = {tuple(row.values()) for row in store.imported.rows(text) if not store.is_deleted(row["topic"])}
    yield same("entries only in the lake, only in RocketMQ", (found - entries, entries - found), (set(), set()))


def _compared(where: str, line: Line, found: dict[str, Any] | None, wanted: dict[str, Any]) -> Outcomes:
    said = f"{line['topic']} {line['queueId']} offset {line['queueOffset']} {where}"
    if found is None:
        yield f"{said}: not found"
        return
    differs = {key for key in wanted.keys() | found.keys() if found.get(key) != wanted.get(key)}
    yield same(said, *({key: values.get(key) for key in sorted(differs)} for values in (found, wanted)))


def of_record(record: Record, delays_ms: Mapping[int, int]) -> dict[str, Any] | None:
    """A record of the log in the words of the expectations, None if it makes no entry."""
    entry = entry_of(record, delays_ms)
    if entry is None:
        return None
    properties = record.properties
    body = record.body(DECOMPRESSORS)
    return {
        "topic": record.topic,
        "queueId": record.queue_id,
        "queueOffset": record.queue_offset,
        "commitLogOffset": entry.commit_log_offset,
        "storeSize": entry.size,
        "tagsCode": entry.tags_code,
        "magic": _hex(record.magic),
        "msgId": record.offset_msg_id,
        "uniqKey": properties.get("UNIQ_KEY"),
        "tags": properties.get("TAGS"),
        "keys": properties.get("KEYS"),
        "properties": properties,
        "flag": record.flag,
        "sysFlag": record.sys_flag,
        "bornTimestamp": record.born_timestamp,
        "storeTimestamp": record.store_timestamp,
        "bornHost": record.born_host,
        "storeHost": record.store_host,
        "reconsumeTimes": record.reconsume_times,
        "preparedTransactionOffset": record.prepared_transaction_offset,
        "bodyCRC": record.body_crc,
        "storedBodyLength": None if body is None else len(record.stored_body),
        **_body(body),
        "recordTopic": record.topic,
        "recordQueueId": record.queue_id,
        "recordQueueOffset": record.queue_offset,
    }


def of_row(row: dict[str, Any]) -> dict[str, Any]:
    """A row of the view ``messages`` in the words of the expectations."""
    return {
        "topic": row["topic"],
        "queueId": row["queue_id"],
        "queueOffset": row["queue_offset"],
        "commitLogOffset": row["commit_log_offset"],
        "storeSize": row["store_size"],
        "tagsCode": row["tags_code"],
        "magic": _hex(row["magic"]),
        "msgId": row["offset_msg_id"],
        "uniqKey": row["unique_key"],
        "tags": row["tags"],
        "keys": row["keys"],
        "properties": row["properties"],
        "flag": row["flag"],
        "sysFlag": row["sys_flag"],
        "bornTimestamp": row["born_timestamp"],
        "storeTimestamp": row["store_timestamp"],
        "bornHost": row["born_host"],
        "storeHost": row["store_host"],
        "reconsumeTimes": row["reconsume_times"],
        "preparedTransactionOffset": row["prepared_transaction_offset"],
        "bodyCRC": row["body_crc"],
        "storedBodyLength": None if row["body"] is None else row["stored_body_size"],
        **_body(row["body"]),
    }


def _body(body: bytes | None) -> dict[str, Any]:
    return {
        "bodyLength": None if body is None else len(body),
        "bodySha256": None if body is None else hashlib.sha256(body).hexdigest(),
    }


def _hex(magic: int) -> str:
    return f"{magic & 0xFFFFFFFF:08x}"


# --- the log in its own order ----------------------------------------------------------------------------------------


def check_commit_log(lines: Sequence[Line], store: BrokerStore) -> Outcomes:
    yield from walked(lines, store)
    yield from log_in_lake(lines, store)


def walked(lines: Sequence[Line], store: BrokerStore) -> Outcomes:
    """The files as dispatch walks them."""
    limits, *wanted = lines
    yield same("first line", limits["kind"], "range")
    *items, end = store.log_items
    yield same("end of the log", end, NothingWritten(limits["maxPhyOffset"]))
    yield same("begin of the log", store.log.files[0].start_offset, limits["minPhyOffset"])
    yield same("sizes of its files", {file.size_bytes for file in store.log.files}, {limits["fileSize"]})
    for item, line in zip(items, wanted, strict=False):
        yield same(f"at {line['offset']} of the files", _seen_by_dispatch(item, store.delays_ms), line)
    yield same("items in the files", len(items), len(wanted))


def log_in_lake(lines: Sequence[Line], store: BrokerStore) -> Outcomes:
    """The table ``commitlog``, which also holds records without an entry."""
    limits, *_ = lines
    report = store.imported.report
    yield same("range imported", (report.begin, report.end), (limits["minPhyOffset"], limits["maxPhyOffset"]))
    rows = {row["commit_log_offset"]: row for row in store.imported.rows(f"SELECT {', '.join(_LOGGED)} FROM msg")}
    wanted = [line for line in lines if line["kind"] == "message"]
    for line in wanted:
        row = rows.get(line["offset"])
        found = row and {"kind": "message", "magic": _hex(row["magic"])} | {
            name: row[column] for column, name in _LOGGED.items() if column != "magic"
        }
        yield same(f"at {line['offset']} in the lake", found, line)
    yield same("records in the lake", (len(rows), report.messages), (len(wanted), len(wanted)))


_LOGGED = {
    "commit_log_offset": "offset",
    "store_size": "size",
    "magic": "magic",
    "topic": "topic",
    "queue_id": "queueId",
    "queue_offset": "queueOffset",
    "tags_code": "tagsCode",
    "store_timestamp": "storeTimestamp",
    "keys": "keys",
    "unique_key": "uniqKey",
    "sys_flag": "sysFlag",
    "prepared_transaction_offset": "preparedTransactionOffset",
}


def _seen_by_dispatch(item: Record | Stop, delays_ms: Mapping[int, int]) -> dict[str, Any]:
    if isinstance(item, Blank):
        return {
            "kind": "blank",
            "offset": item.commit_log_offset,
            "markedLength": item.marked_size,
            "skipped": item.skipped,
        }
    assert isinstance(item, Record), item
    entry = entry_of(replace(item, sys_flag=0), delays_ms)  # dispatch computes a code also where no entry follows
    assert entry is not None
    return {
        "kind": "message",
        "offset": item.commit_log_offset,
        "size": item.store_size,
        "magic": _hex(item.magic),
        "topic": item.topic,
        "queueId": item.queue_id,
        "queueOffset": item.queue_offset,
        "tagsCode": entry.tags_code,
        "storeTimestamp": item.store_timestamp,
        # Dispatch starts with "" and takes what the map holds, null when there are properties without KEYS.
        "keys": item.properties.get("KEYS"),
        "uniqKey": item.properties.get("UNIQ_KEY"),
        "sysFlag": item.sys_flag,
        "preparedTransactionOffset": item.prepared_transaction_offset,
    }
