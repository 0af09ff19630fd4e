"""Commit log bytes -> Arrow record batches: the rule of ``log/record.py`` and ``log/commit_log.py``, in columns for speed.

A batch is made in columns. A row that is not of the common kind (V2, an IPv6 host, odd properties, bytes that are not
UTF-8) is decoded by the rule and put into its place, and the rule decides about a row that does not check; so the result
is the rule's. Only the CRC of each body and the compressed bodies are handled one by one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmq_store.errors import BadData, BodyTooLarge
from rmq_store.lake.broker.record_columns import HEAD, Heads, Ints, Mask, UncommonRows, common_columns
from rmq_store.log.commit_log import QUEUE_IDS, QUEUE_OFFSETS, Damage, Stop, Unsupported, damage_at, item_at
from rmq_store.log.consume_queue import entry_tags_code, is_indexed
from rmq_store.log.record import MESSAGE_MAGIC_V1, MESSAGE_MAGIC_V2, STORE_TIMES, Bytes, Record, decode
from rmq_store.message.message_const import MessageConst
from rmq_store.message.sys_flag import (
    MAX_BODY_BYTES,
    CompressionType,
    Decompressor,
    Decompressors,
    MessageSysFlag,
    inflate,
    plain_body,
)

SCHEMA: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("queue_id", pa.int32()),
        ("queue_offset", pa.int64()),
        ("commit_log_offset", pa.int64()),
        ("store_size", pa.int32()),
        ("magic", pa.int32()),
        ("body_crc", pa.int32()),
        ("flag", pa.int32()),
        ("sys_flag", pa.int32()),
        ("born_timestamp", pa.int64()),
        ("born_host", pa.string()),
        ("store_timestamp", pa.int64()),
        ("store_host", pa.string()),
        ("reconsume_times", pa.int32()),
        ("prepared_transaction_offset", pa.int64()),
        ("body", pa.binary()),
        ("stored_body_size", pa.int32()),
        ("properties", pa.map_(pa.string(), pa.string())),
        ("unique_key", pa.string()),
        ("keys", pa.string()),
        ("tags", pa.string()),
        ("tags_code", pa.int64()),
        ("offset_msg_id", pa.string()),
        ("indexed", pa.bool_()),
    ]
)

# Some MB of log, so that the parts of a batch stay in the processor's cache; big messages end a batch earlier.
BATCH_ROWS: Final = 16_384
BATCH_BYTES: Final = 64 << 20

_READ_BYTES: Final = 64 << 10

_INT: Final = struct.Struct(">i")
_SMALLEST_RECORD_BYTES: Final = 91
_MAGICS: Final = [magic.to_bytes(4, "big", signed=True) for magic in (MESSAGE_MAGIC_V1, MESSAGE_MAGIC_V2)]


def _stream_decompressor(codec: str) -> Decompressor:
    """Arrow's one-shot call wants the size of the result, which a body does not carry; a stream does not."""

    def decompress(data: bytes, most: int) -> bytes:
        plain = bytearray()
        with pa.CompressedInputStream(pa.BufferReader(data), codec) as stream:
            while chunk := stream.read(min(_READ_BYTES, most - len(plain))):
                plain += chunk
        return bytes(plain)

    return decompress


DECOMPRESSORS: Final[Decompressors] = {
    CompressionType.ZLIB: inflate,
    CompressionType.LZ4: _stream_decompressor("lz4"),
    CompressionType.ZSTD: _stream_decompressor("zstd"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Slice:
    """Bytes of one file, and the parameters of :func:`record_batches` for them."""

    data: Bytes
    start_offset: int
    file_end: int
    check_crc: bool
    delay_levels: Mapping[int, int]
    max_body_bytes: int

    def item_at(self, position: int) -> Record | Stop:
        """What the rule finds at ``position``."""
        return item_at(self.data, position, self.start_offset, self.file_end, check_crc=self.check_crc)

    def row_at(self, position: int) -> dict[str, Any] | Stop:
        """The record at ``position`` as a row, or what is there instead."""
        record = self.item_at(position)
        if not isinstance(record, Record):
            return record
        body = self.plain_body(position, record.stored_body, record.sys_flag)
        return body if isinstance(body, Stop) else _row(record, body, self.delay_levels)

    def plain_body(self, position: int, stored: bytes, sys_flag: int) -> bytes | Damage | Unsupported | None:
        """The decoded body of the record at ``position``, or why there is none."""
        try:
            return plain_body(stored, sys_flag, DECOMPRESSORS, self.max_body_bytes)
        except BodyTooLarge as error:
            record = decode(self.data, position)
            assert isinstance(record, Record), "its body was found"
            return Unsupported(
                self.start_offset + position,
                f"topic {record.topic}, queue {record.queue_id}, offset {record.queue_offset}: {error}. If the machine has "
                "about ten times the memory that the body needs, import with a higher max_body_bytes (--max-body-bytes)",
            )
        except BadData as error:
            return damage_at(self.data, position, self.start_offset, str(error))


def record_batches(
    data: Bytes,
    start_offset: int,
    file_end: int,
    *,
    delay_levels: Mapping[int, int],
    check_crc: bool = True,
    batch_rows: int = BATCH_ROWS,
    max_body_bytes: int = MAX_BODY_BYTES,
) -> Iterator[pa.RecordBatch | Stop]:
    """The records of a file or of a slice of one as batches of :data:`SCHEMA`; the last item is why the walk ended.

    Finds what :func:`rmq_store.log.commit_log.walk` finds with the same parameters; beyond that, a body that does not
    decompress is a ``Damage``, and one that would become larger than ``max_body_bytes`` is ``Unsupported``. A batch holds at
    most BATCH_BYTES of bodies that were decompressed, and the last of them. ``delay_levels``: the broker's, for the due
    times in the schedule topic.
    """
    part = _Slice(
        data=data,
        start_offset=start_offset,
        file_end=file_end,
        check_crc=check_crc,
        delay_levels=delay_levels,
        max_body_bytes=max_body_bytes,
    )
    chains = _Chains.of(data)
    position = 0
    stop: Stop | None = None
    while stop is None:
        starts, position = chains.walk(position, batch_rows) or _walk_sizes(data, position, batch_rows)
        if not len(starts):
            item = part.item_at(position)
            assert not isinstance(item, Record), "the walk of sizes ends at no record"
            stop = item
        while len(starts) and stop is None:
            batch, stop = _batch(part, starts)
            starts = starts[batch.num_rows :]
            if batch.num_rows:
                yield batch
    yield stop


@dataclass(frozen=True, slots=True)
class _Chains:
    """Where magic codes stand, and which of these records end where the next one begins: what ``_walk_sizes`` would
    find, without looking at the records one by one.

    ``ends``: where the records of ``starts`` end, -1 where they cannot. ``last``: positions in both of records that no
    other of them follows.
    """

    starts: Ints
    ends: Ints
    last: Ints

    @staticmethod
    def of(data: Bytes) -> _Chains:
        chars = np.frombuffer(data, np.uint8)
        at = np.flatnonzero(chars[4:] == _MAGICS[0][0])
        at = at[at + 8 <= len(chars)]
        for place in (1, 2, 3):
            byte = chars[at + 4 + place]
            at = at[np.logical_or.reduce([byte == magic[place] for magic in _MAGICS])]
        sizes = np.zeros(len(at), np.int64)
        for place in range(4):
            sizes = sizes << 8 | chars[at + place]
        ends = at + sizes
        ends[(sizes < _SMALLEST_RECORD_BYTES) | (ends > len(chars))] = -1
        return _Chains(at, ends, np.flatnonzero(ends != np.append(at[1:], -2)))

    def walk(self, position: int, rows: int) -> tuple[Ints, int] | None:
        """As ``_walk_sizes``, up to the end of a chain; None when no record is known at ``position``."""
        first = int(np.searchsorted(self.starts, position))
        if first == len(self.starts) or self.starts[first] != position or self.ends[first] < 0:
            return None
        end = min(first + rows, int(self.last[np.searchsorted(self.last, first)]) + 1)
        end = first + int(np.searchsorted(self.starts[first:end], position + BATCH_BYTES, side="right"))
        end -= int(self.ends[end - 1] < 0)
        return self.starts[first:end], int(self.ends[end - 1])


def _walk_sizes(data: Bytes, position: int, rows: int) -> tuple[Ints, int]:
    """Where records begin if each TOTALSIZE is right, as many as a batch may hold, and where the next one begins."""
    size_at, starts = _INT.unpack_from, []
    end = position + BATCH_BYTES
    try:
        for _ in range(rows):
            (size,) = size_at(data, position)
            if size < _SMALLEST_RECORD_BYTES or position > end:
                break
            starts.append(position)
            position += size
    except struct.error:  # less than four bytes are left
        pass
    if position > len(data):
        position = starts.pop()
    return np.array(starts, np.int64), position


def _batch(part: _Slice, starts: Ints) -> tuple[pa.RecordBatch, Stop | None]:
    """The rows before the first that is not a good record, and what is there instead; None: all rows are good, and these
    are all of them or as many as BATCH_BYTES of decompressed bodies allow."""
    heads = Heads.read(np.frombuffer(part.data, np.uint8), starts)
    common = heads.fits & (heads.fixed["commit_log_offset"] == starts + part.start_offset)
    common &= _within(heads.fixed["queue_id"], QUEUE_IDS)
    common &= _within(heads.fixed["queue_offset"], QUEUE_OFFSETS)
    common &= _within(heads.fixed["store_timestamp"], STORE_TIMES)
    common &= heads.may_be_whole()
    columns: dict[str, pa.Array] | None = None
    while columns is None and common.any():
        try:
            columns = common_columns(heads.select(common), part.delay_levels, part.check_crc)
        except UncommonRows as uncommon:
            _narrow(common, uncommon.common)

    packed = common & (heads.fixed["sys_flag"] & MessageSysFlag.COMPRESSED_FLAG != 0)
    packed &= heads.fixed["stored_body_size"] > 0
    unpacked: list[bytes | None] = []
    others: list[dict[str, Any]] = []
    body_bytes, end, stop = 0, len(starts), None
    for row in np.flatnonzero(packed | ~common).tolist():
        position = int(starts[row])
        item: bytes | dict[str, Any] | Stop | None
        if packed[row]:
            stored = bytes(part.data[position + HEAD.itemsize : int(heads.body_end[row])])
            item = part.plain_body(position, stored, int(heads.fixed["sys_flag"][row]))
        else:
            item = part.row_at(position)
        if isinstance(item, Stop):
            end, stop = row, item
            break
        if isinstance(item, dict):
            others.append(item)
        else:
            unpacked.append(item)
        body_bytes += len((item["body"] if isinstance(item, dict) else item) or b"")
        if body_bytes >= BATCH_BYTES:
            end = row + 1
            break
    kept = common[:end]
    if columns is not None:
        columns = {name: column.slice(0, np.count_nonzero(kept)) for name, column in columns.items()}
    return _assemble(columns, packed[:end][kept], unpacked, others, kept), stop


def _within(values: Ints, allowed: range) -> Mask:
    return (values >= allowed.start) & (values < allowed.stop)


def _narrow(rows: Mask, kept: Mask) -> None:
    """Keep those of the ``rows`` for which ``kept`` is true, in place."""
    rows[rows] = kept


def _assemble(
    columns: dict[str, pa.Array] | None,
    packed: Mask,
    unpacked: list[bytes | None],
    others: list[dict[str, Any]],
    common: Mask,
) -> pa.RecordBatch:
    """Put unpacked bodies and the other rows into their places among the columns of the common rows."""
    batches = []
    if columns is not None:
        if unpacked:
            bodies = pa.array(unpacked, pa.binary())
            columns["body"] = pc.replace_with_mask(columns["body"], pa.array(packed), bodies)
        batches.append(pa.record_batch([columns[name] for name in SCHEMA.names], SCHEMA))
    if others or not batches:
        batches.append(pa.RecordBatch.from_pylist(others, SCHEMA))
    if len(batches) == 1:
        return batches[0]
    order = np.empty(len(common), np.int64)
    order[common] = np.arange(len(common) - len(others))
    order[~common] = np.arange(len(common) - len(others), len(common))
    return pa.concat_batches(batches).take(pa.array(order))


def _row(record: Record, body: bytes | None, delay_levels: Mapping[int, int]) -> dict[str, Any]:
    """A record as a row of :data:`SCHEMA`: the rule for every column."""
    properties = record.properties
    return {
        "topic": record.topic,
        "queue_id": record.queue_id,
        "queue_offset": record.queue_offset,
        "commit_log_offset": record.commit_log_offset,
        "store_size": record.store_size,
        "magic": record.magic,
        "body_crc": record.body_crc,
        "flag": record.flag,
        "sys_flag": record.sys_flag,
        "born_timestamp": record.born_timestamp,
        "born_host": record.born_host,
        "store_timestamp": record.store_timestamp,
        "store_host": record.store_host,
        "reconsume_times": record.reconsume_times,
        "prepared_transaction_offset": record.prepared_transaction_offset,
        "body": body,
        "stored_body_size": len(record.stored_body),
        "properties": list(properties.items()),
        "unique_key": properties.get(MessageConst.UNIQ_CLIENT_MESSAGE_ID_KEYIDX),
        "keys": properties.get(MessageConst.KEYS),
        "tags": properties.get(MessageConst.TAGS),
        "tags_code": entry_tags_code(record.topic, properties, record.store_timestamp, delay_levels),
        "offset_msg_id": record.offset_msg_id,
        "indexed": is_indexed(record.sys_flag),
    }
