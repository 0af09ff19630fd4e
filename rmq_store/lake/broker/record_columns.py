"""The columns of common records, made for a whole batch at once (see ``records.py``).

Bytes are not cut record by record. Offsets into the log's bytes make one Arrow array of all parts (body, topic,
properties and what lies between), and one ``take`` per part copies it out; names and values are cut out of the
properties in the same way. A step that cannot handle some rows raises :class:`UncommonRows`.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmq_store.lake.table.tags_codes import tags_codes
from rmq_store.log.consume_queue import schedule_delay_ms
from rmq_store.log.record import MESSAGE_MAGIC_V1, parse_level
from rmq_store.message.message_const import SCHEDULE_TOPIC, MessageConst
from rmq_store.message.message_id import host_text
from rmq_store.message.sys_flag import MessageSysFlag

Ints = npt.NDArray[np.int64]
Chars = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]

# The fixed fields of a V1 record with IPv4 hosts, up to and with BODYLEN; a host is its address and port in one number.
HEAD: Final = np.dtype(
    [
        ("store_size", ">i4"),
        ("magic", ">i4"),
        ("body_crc", ">i4"),
        ("queue_id", ">i4"),
        ("flag", ">i4"),
        ("queue_offset", ">i8"),
        ("commit_log_offset", ">i8"),
        ("sys_flag", ">i4"),
        ("born_timestamp", ">i8"),
        ("born_host", ">u8"),
        ("store_timestamp", ">i8"),
        ("store_host", ">u8"),
        ("reconsume_times", ">i4"),
        ("prepared_transaction_offset", ">i8"),
        ("stored_body_size", ">i4"),
    ]
)
_HOSTS: Final = ("born_host", "store_host")
_NUMBERS: Final = {name: HEAD[name].newbyteorder("=") for name in HEAD.names or () if name not in _HOSTS}
_V6_FLAGS: Final = MessageSysFlag.BORNHOST_V6_FLAG | MessageSysFlag.STOREHOSTADDRESS_V6_FLAG
_NAME_END: Final = 1
_VALUE_END: Final = 2
# A table of rows by names finds repeated names faster than sorting does, as long as it is small.
_TABLE_CELLS_MAX: Final = 1 << 22


class UncommonRows(Exception):
    """Some rows are not of the common kind; ``common`` masks those that are."""

    def __init__(self, common: Mask) -> None:
        super().__init__(f"{len(common) - int(common.sum())} of {len(common)} rows")
        self.common = common


@dataclass(frozen=True, kw_only=True)
class Heads:
    """The fixed fields of a batch's records, and where their parts are in ``data``.

    Where ``fits`` is true, the record is V1 with IPv4 hosts and its sizes add up; elsewhere the bounds mean nothing.
    """

    data: Chars
    starts: Ints
    fixed: npt.NDArray[np.void]
    body_end: Ints
    topic_end: Ints
    ends: Ints
    fits: Mask

    @staticmethod
    def read(data: Chars, starts: Ints) -> Heads:
        """Read the records that begin at ``starts``, each at least 91 bytes and, by its TOTALSIZE, inside ``data``."""
        fixed = np.lib.stride_tricks.sliding_window_view(data, HEAD.itemsize)[starts].view(HEAD)[:, 0]
        body_size = fixed["stored_body_size"].astype(np.int64)
        ends = starts + fixed["store_size"]
        body_end = starts + HEAD.itemsize + body_size
        fits = (fixed["magic"] == MESSAGE_MAGIC_V1) & (fixed["sys_flag"] & _V6_FLAGS == 0)
        fits &= (body_size >= 0) & (body_end + 3 <= ends)
        topic_length = data[np.where(fits, body_end, 0)].view(np.int8)
        topic_end = body_end + 1 + topic_length
        fits &= (topic_length >= 0) & (topic_end + 2 <= ends)
        length_at = np.where(fits, topic_end, 0)
        properties_length = (data[length_at].astype(np.int16) << 8) | data[length_at + 1]
        fits &= (properties_length >= 0) & (topic_end + 2 + properties_length == ends)
        for host in _HOSTS:
            fits &= fixed[host] & 0xFFFFFFFF <= 65535
        return Heads(
            data=data, starts=starts, fixed=fixed, body_end=body_end, topic_end=topic_end, ends=ends, fits=fits
        )

    def select(self, rows: Mask) -> Heads:
        """Some of the rows."""
        if rows.all():
            return self
        return Heads(
            data=self.data,
            starts=self.starts[rows],
            fixed=self.fixed[rows],
            body_end=self.body_end[rows],
            topic_end=self.topic_end[rows],
            ends=self.ends[rows],
            fits=self.fits[rows],
        )

    def __len__(self) -> int:
        return len(self.starts)

    def may_be_whole(self) -> Mask:
        """False for a last row with a zero in its topic or properties: if nothing follows it, it is not whole. The others are
        followed by the next row."""
        whole = np.ones(len(self), np.bool_)
        if self.fits[-1]:
            topic = self.data[self.body_end[-1] + 1 : self.topic_end[-1]]
            properties = self.data[self.topic_end[-1] + 2 : self.ends[-1]]
            whole[-1] = topic.all() and properties.all()
        return whole

    def cut(self) -> list[pa.Array]:
        """Stored bodies (null where there is none), topics and properties texts, as binary. Only where ``fits``."""
        first = int(self.starts[0])
        body_start = self.starts + HEAD.itemsize
        edges = (body_start, self.body_end, self.body_end + 1, self.topic_end, self.topic_end + 2, self.ends)
        data = pa.py_buffer(self.data[first : int(self.ends[-1])])
        is_empty = self.fixed["stored_body_size"] == 0
        return cut([edge - first for edge in edges], data, pa.binary(), first_is_null=is_empty)


def cut(edges: Sequence[Ints], data: pa.Buffer, kind: pa.DataType, first_is_null: Mask | None = None) -> list[pa.Array]:
    """Copy parts out of ``data``, one array per part.

    :param edges: begins and ends of the first part, then of the second and so on; row by row they never go back.
    :param first_is_null: rows whose first part is null.
    """
    rows = len(edges[0])
    if not rows:
        return [pa.array([], kind)] * (len(edges) // 2)
    bounds = np.empty((rows, len(edges)), np.int32)
    for column, edge in enumerate(edges):
        bounds[:, column] = edge
    # Parts and the gaps between them alternate.
    parts_and_gaps = pa.Array.from_buffers(kind, bounds.size - 1, [None, pa.py_buffer(bounds), data])
    indices = [pa.array(np.arange(part, bounds.size, len(edges))) for part in range(0, len(edges), 2)]
    if first_is_null is not None and first_is_null.any():
        indices[0] = pa.array(np.arange(0, bounds.size, len(edges)), mask=first_is_null)
    return [pc.take(parts_and_gaps, index, boundscheck=False) for index in indices]


@dataclass(frozen=True, kw_only=True)
class Properties:
    """Properties of a batch as entries; those of row i are ``offsets[i]`` to ``offsets[i + 1]``.

    ``codes`` are the entries' names as positions in ``known``.
    """

    offsets: Ints
    row_of_entry: Ints
    names: pa.Array
    values: pa.Array
    codes: Ints
    known: list[str]

    def as_map(self) -> pa.Array:
        """The map column; an empty map where there are none."""
        return pa.MapArray.from_arrays(pa.array(self.offsets, pa.int32()), self.names, self.values)

    def column(self, name: str) -> pa.Array:
        """The values of one property, null where a row has none."""
        rows = len(self.offsets) - 1
        if name not in self.known:
            return pa.nulls(rows, pa.string())
        entries = np.flatnonzero(self.codes == self.known.index(name))
        if len(entries) == rows:
            return pc.take(self.values, pa.array(entries), boundscheck=False)
        entry_of_row = np.full(rows, -1, np.int64)
        entry_of_row[self.row_of_entry[entries]] = entries
        return pc.take(self.values, pa.array(entry_of_row, mask=entry_of_row < 0), boundscheck=False)


def split_properties(texts: pa.Array) -> Properties:
    """Cut properties texts, ``name 0x01 value 0x02`` each; the last 0x02 may be missing, as old clients left it out.

    As the rule does, properties without name or value are dropped.

    :param texts: strings, not sliced.
    :raises UncommonRows: a row has a repeated name, a second 0x01 in a property, or text that is not a property.
    """
    rows = len(texts)
    _, bounds_buffer, data = texts.buffers()
    bounds = np.frombuffer(bounds_buffer, np.int32, rows + 1)
    chars = np.frombuffer(data, np.uint8, bounds[-1])
    name_ends, value_ends = np.flatnonzero(chars == _NAME_END), np.flatnonzero(chars == _VALUE_END)
    offsets, names_before = np.searchsorted(value_ends, bounds), np.searchsorted(name_ends, bounds)
    begins = np.concatenate(([0], value_ends + 1))
    has_text = np.flatnonzero(np.diff(bounds))
    unended = has_text[chars[bounds[has_text + 1] - 1] != _VALUE_END]
    if len(unended):
        # The end of the text stands for the missing 0x02; the next property begins right there.
        text_ends = bounds[unended + 1]
        begins = np.insert(begins, offsets[unended + 1] + 1, text_ends)
        value_ends = np.insert(value_ends, offsets[unended + 1], text_ends)
        offsets[1:] += np.searchsorted(unended, np.arange(rows), side="right")
    if not np.array_equal(offsets, names_before):
        raise UncommonRows(np.diff(offsets) == np.diff(names_before))
    begins, row_of_entry = begins[:-1], np.repeat(np.arange(rows), np.diff(offsets))
    is_whole = (begins <= name_ends) & (name_ends < value_ends)
    if not is_whole.all():
        common = np.ones(rows, np.bool_)
        common[row_of_entry[~is_whole]] = False
        raise UncommonRows(common)
    # counts: has a name and a value.
    counts = (begins < name_ends) & (name_ends + 1 < value_ends)
    if not counts.all():
        offsets = np.concatenate(([0], np.cumsum(counts)))[offsets]
        begins, name_ends, value_ends = begins[counts], name_ends[counts], value_ends[counts]
        row_of_entry = row_of_entry[counts]

    names, values = cut((begins, name_ends, name_ends + 1, value_ends), data, pa.string())
    encoded = names.dictionary_encode()
    codes, known = encoded.indices.to_numpy(), encoded.dictionary.to_pylist()
    _refuse_repeated_names(row_of_entry * len(known) + codes, rows, len(known))
    return Properties(offsets=offsets, row_of_entry=row_of_entry, names=names, values=values, codes=codes, known=known)


def _refuse_repeated_names(row_and_name: Ints, rows: int, names: int) -> None:
    if rows * names <= _TABLE_CELLS_MAX:
        seen = np.zeros(rows * names, np.bool_)
        seen[row_and_name] = True
        if np.count_nonzero(seen) == len(row_and_name):
            return
    ordered = np.sort(row_and_name)
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    if len(twice):
        common = np.ones(rows, np.bool_)
        common[twice // names] = False
        raise UncommonRows(common)


def common_columns(heads: Heads, delay_levels: Mapping[int, int], check_crc: bool) -> dict[str, pa.Array]:
    """The columns of ``records.SCHEMA`` by name, but ``body`` as it is stored. At least one row; ``fits`` is true for all.

    :raises UncommonRows: some are not common after all.
    """
    body, topic, texts = heads.cut()
    if check_crc:
        _refuse_wrong_crcs(body, heads.fixed)
    try:
        topic, texts = topic.cast(pa.string()), texts.cast(pa.string())
    except pa.ArrowInvalid as error:
        # A text is not UTF-8: RocketMQ replaces the bad bytes, and so does the rule.
        raise UncommonRows(np.zeros(len(heads), np.bool_)) from error
    properties = split_properties(texts)
    tags = properties.column(MessageConst.TAGS)
    fixed = heads.fixed
    return {
        **{name: pa.array(fixed[name].astype(kind)) for name, kind in _NUMBERS.items()},
        "topic": topic,
        **{name: host_texts(fixed[name]) for name in _HOSTS},
        "body": body,
        "properties": properties.as_map(),
        "unique_key": properties.column(MessageConst.UNIQ_CLIENT_MESSAGE_ID_KEYIDX),
        "keys": properties.column(MessageConst.KEYS),
        "tags": tags,
        "tags_code": entry_tags_codes(topic, tags, properties, fixed["store_timestamp"], delay_levels),
        "offset_msg_id": offset_message_ids(fixed["store_host"], fixed["commit_log_offset"]),
        # Neither PREPARED (4) nor ROLLBACK (12): consume_queue.is_indexed.
        "indexed": pa.array(fixed["sys_flag"] & MessageSysFlag.TRANSACTION_PREPARED_TYPE == 0),
    }


def _refuse_wrong_crcs(body: pa.Array, fixed: npt.NDArray[np.void]) -> None:
    stored = body.fill_null(b"") if body.null_count else body
    crcs = np.fromiter(map(zlib.crc32, stored.to_pylist()), np.int64, len(stored)) & 0x7FFFFFFF
    is_right = crcs == fixed["body_crc"]
    if not is_right.all():
        raise UncommonRows(is_right)


def host_texts(hosts: npt.NDArray[np.void]) -> pa.Array:
    """``address|port``; written once for each host, and there are few."""
    encoded = pa.array(hosts.astype(np.uint64)).dictionary_encode()
    texts = [host_text(host.to_bytes(8, "big")[:4], host & 0xFFFFFFFF) for host in encoded.dictionary.to_pylist()]
    return pa.array(texts, pa.string()).take(encoded.indices)


def offset_message_ids(store_hosts: npt.NDArray[np.void], commit_log_offsets: npt.NDArray[np.void]) -> pa.Array:
    """32 hex digits: the store host's 8 bytes, then the offset's."""
    numbers = np.empty((len(store_hosts), 2), ">u8")
    numbers[:, 0] = store_hosts
    numbers[:, 1] = commit_log_offsets
    octets = numbers.view(np.uint8)
    nibbles = np.empty((*octets.shape, 2), np.uint8)
    nibbles[:, :, 0] = octets >> 4
    nibbles[:, :, 1] = octets & 15
    digits = nibbles + np.uint8(ord("0")) + (nibbles > 9) * np.uint8(ord("A") - ord("9") - 1)
    ends = np.arange(0, digits.nbytes + 1, 32, dtype=np.int32)
    return pa.StringArray.from_buffers(len(numbers), pa.py_buffer(ends), pa.py_buffer(digits))


def entry_tags_codes(
    topics: pa.Array,
    tags: pa.Array,
    properties: Properties,
    store_timestamps: npt.NDArray[np.void],
    delay_levels: Mapping[int, int],
) -> pa.Array:
    """``consume_queue.entry_tags_code`` of every row.

    :raises UncommonRows: a DELAY in the schedule topic is not a number.
    """
    codes = tags_codes(tags)
    is_scheduled = pc.equal(topics, SCHEDULE_TOPIC).to_numpy(zero_copy_only=False)
    if not is_scheduled.any():
        return codes
    levels = properties.column(MessageConst.DELAY_TIME_LEVEL).dictionary_encode()
    texts = [*levels.dictionary.to_pylist(), None]
    level_of_row = levels.indices.fill_null(len(texts) - 1).to_numpy()
    is_not_number = np.array([text is not None and parse_level(text) is None for text in texts])
    if (is_scheduled & is_not_number[level_of_row]).any():
        raise UncommonRows(~(is_scheduled & is_not_number[level_of_row]))
    delays = [schedule_delay_ms(text, delay_levels) for text in texts]
    is_due = is_scheduled & np.array([delay is not None for delay in delays])[level_of_row]
    delay_ms = np.array([delay or 0 for delay in delays], np.int64)[level_of_row]
    return pa.array(np.where(is_due, store_timestamps + delay_ms, codes.to_numpy()))
