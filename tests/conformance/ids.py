"""``vectors/ids``: message ids, body CRC, compressed bodies and flag bits (rules 1.3, 1.6, 1.8)."""

from __future__ import annotations

import re

from rmq_store.errors import BadData
from rmq_store.lake.broker.records import DECOMPRESSORS
from rmq_store.message.message_id import decode_offset_message_id, decode_unique_key, offset_message_id
from rmq_store.message.sys_flag import CompressionType, MessageSysFlag, body_crc, plain_body
from tests.conformance.checks import Line, Outcomes, by_kind, refused, same

HEX_DIGITS = re.compile(r"[0-9a-fA-F]{32}|[0-9a-fA-F]{56}")


def _offset_id(line: Line) -> Outcomes:
    yield same("offset id", offset_message_id(f"{line['address']}|{line['port']}", line["offset"]), line["id"])
    yield same(line["id"], decode_offset_message_id(line["id"]), (line["decodedHost"], line["decodedOffset"]))


def _decode_offset_id(line: Line) -> Outcomes:
    # RocketMQ takes letters behind F for digits, and does not look behind 56 of them; we refuse such an id.
    message_id = line["id"] or ""
    if "error" in line or not HEX_DIGITS.fullmatch(message_id):
        yield refused(message_id, BadData, lambda: decode_offset_message_id(message_id))
        if "host" in line and HEX_DIGITS.fullmatch(message_id[:56]):
            yield same(message_id[:56], decode_offset_message_id(message_id[:56]), (line["host"], line["offset"]))
    else:
        yield same(message_id, decode_offset_message_id(message_id), (line["host"], line["offset"]))


def _unique_key(line: Line) -> Outcomes:
    wanted = tuple(line[key] for key in ("ip", "pidLow16", "loaderHash", "msInMonth", "counter"))
    yield same(line["id"], tuple(decode_unique_key(line["id"])), wanted)
    yield same(f"process of {line['id']}", decode_unique_key(line["id"]).pid_low_16, line["pid"])


def _crc(line: Line) -> Outcomes:
    yield same(line["hex"], body_crc(None if line["hex"] is None else bytes.fromhex(line["hex"])), line["crc"])


def _sys_flag(line: Line) -> Outcomes:
    flag = line["flag"]
    yield same(f"transaction of {flag}", MessageSysFlag.transaction_type(flag), line["transaction"])
    yield same(f"{flag} cleared", MessageSysFlag.clear_compressed(flag), line["cleared"])
    if "compressionError" in line:
        yield refused(flag, BadData, lambda: MessageSysFlag.compression_type(flag), "compression type")
    else:
        found = MessageSysFlag.compression_type(flag)
        yield same(f"compression of {flag}", found, CompressionType[line["compression"]])


def _compressed(line: Line) -> Outcomes:
    packed = bytes.fromhex(line["packed"])
    sys_flag = line["sysFlagBits"] | MessageSysFlag.COMPRESSED_FLAG
    plain = plain_body(packed, sys_flag, DECOMPRESSORS)
    yield same(f"{line['type']} unpacked", None if plain is None else plain.hex(), line["plain"])
    yield same("not compressed", plain_body(packed, line["sysFlagBits"], DECOMPRESSORS), packed)


check = by_kind(
    {
        "offsetId": _offset_id,
        "decodeOffsetId": _decode_offset_id,
        "uniqKey": _unique_key,
        "crc": _crc,
        "sysFlag": _sys_flag,
        "compressed": _compressed,
    }
)
