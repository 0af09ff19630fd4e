"""The bytes of a commit log record, as a broker writes it (``MessageExtEncoder``, rules 1.1). ``record`` reads them.

An import only reads: tests and benchmarks write logs with this.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from rmq_store.errors import BadData
from rmq_store.log.record import (
    MESSAGE_MAGIC_V1,
    MESSAGE_MAGIC_V2,
    RECORD_HEAD,
    RECORD_TAIL,
    TOPIC_LENGTH,
    V1_TOPIC_MAX,
    Record,
)
from rmq_store.message.message_const import PROPERTIES_MAX_BYTES
from rmq_store.message.message_id import host_bytes
from rmq_store.message.properties import properties_text
from rmq_store.message.sys_flag import MessageSysFlag, body_crc

_INT: Final = struct.Struct(">i")
_LONG: Final = struct.Struct(">q")
_SHORT: Final = struct.Struct(">h")


def encode(record: Record) -> bytes:
    """The record's bytes. TOTALSIZE is computed; magic code, CRC and flags are taken from the record.

    :raises BadData: a length does not fit its field, or the address of a host contradicts the sysFlag.
    """
    topic = record.topic.encode()
    properties = record.properties_text.encode()
    topic_length = TOPIC_LENGTH.get(record.magic)
    if topic_length is None:
        raise BadData(f"unknown magic code {record.magic & 0xFFFFFFFF:08X}")
    if len(topic) > (1 << (8 * topic_length.size - 1)) - 1:
        raise BadData(f"a topic of {len(topic)} bytes does not fit into a record of this version; V2 allows 32767")
    if len(properties) > PROPERTIES_MAX_BYTES:
        raise BadData(f"properties of {len(properties)} bytes are longer than {PROPERTIES_MAX_BYTES}")
    return b"".join(
        (
            RECORD_HEAD.pack(
                encoded_size(record),
                record.magic,
                record.body_crc,
                record.queue_id,
                record.flag,
                record.queue_offset,
                record.commit_log_offset,
                record.sys_flag,
                record.born_timestamp,
            ),
            _host(record.born_host, record.sys_flag & MessageSysFlag.BORNHOST_V6_FLAG),
            _LONG.pack(record.store_timestamp),
            _host(record.store_host, record.sys_flag & MessageSysFlag.STOREHOSTADDRESS_V6_FLAG),
            RECORD_TAIL.pack(record.reconsume_times, record.prepared_transaction_offset, len(record.stored_body)),
            record.stored_body,
            topic_length.pack(len(topic)),
            topic,
            _SHORT.pack(len(properties)),
            properties,
        )
    )


def encoded_size(record: Record) -> int:
    """Bytes of the record (``MessageExtEncoder#calMsgLength``): 91 + parts for V1 and IPv4."""
    v6_hosts = bool(record.sys_flag & MessageSysFlag.BORNHOST_V6_FLAG) + bool(
        record.sys_flag & MessageSysFlag.STOREHOSTADDRESS_V6_FLAG
    )
    parts = len(record.stored_body) + len(record.topic.encode()) + len(record.properties_text.encode())
    return 91 + (record.magic == MESSAGE_MAGIC_V2) + 12 * v6_hosts + parts


def new_record(
    *,
    topic: str,
    queue_id: int,
    queue_offset: int,
    commit_log_offset: int,
    stored_body: bytes,
    properties: Mapping[str, str | None],
    born_timestamp: int,
    store_timestamp: int,
    born_host: str = "127.0.0.1|0",
    store_host: str = "127.0.0.1|10911",
    flag: int = 0,
    sys_flag: int = 0,
    reconsume_times: int = 0,
    prepared_transaction_offset: int = 0,
) -> Record:
    """A record as a broker writes it: version, CRC, size and the IPv6 bits follow from the arguments."""
    for host, bit in (
        (born_host, MessageSysFlag.BORNHOST_V6_FLAG),
        (store_host, MessageSysFlag.STOREHOSTADDRESS_V6_FLAG),
    ):
        sys_flag = sys_flag | bit if len(host_bytes(host)[0]) == 16 else sys_flag & ~bit
    is_v2 = len(topic.encode("utf-16-be")) // 2 > V1_TOPIC_MAX
    record = Record(
        topic=topic,
        queue_id=queue_id,
        queue_offset=queue_offset,
        commit_log_offset=commit_log_offset,
        store_size=0,
        magic=MESSAGE_MAGIC_V2 if is_v2 else MESSAGE_MAGIC_V1,
        body_crc=body_crc(stored_body),
        flag=flag,
        sys_flag=sys_flag,
        born_timestamp=born_timestamp,
        born_host=born_host,
        store_timestamp=store_timestamp,
        store_host=store_host,
        reconsume_times=reconsume_times,
        prepared_transaction_offset=prepared_transaction_offset,
        stored_body=stored_body,
        properties_text=properties_text(properties),
    )
    return replace(record, store_size=encoded_size(record))


def _host(host: str, is_v6: int) -> bytes:
    address, port = host_bytes(host)
    if len(address) != (16 if is_v6 else 4):
        raise BadData(f"host {host!r} contradicts the IPv6 bits of the sysFlag")
    return address + _INT.pack(port)
