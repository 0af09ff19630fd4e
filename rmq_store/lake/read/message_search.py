"""Finding single messages (rules 13.5): by offset message id, by unique key, by key and time, and by their place in a queue.

A place is looked up by its segment, which opens one file. So is the id of a message born in the lake, which names the
commit of its file; a broker's offset id narrows the search to the import of its log position. Keys are searched by SQL, over
the row groups that may have them (``key_search.py``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow.compute as pc

from rmq_store.commit.ctl import Action
from rmq_store.commit.positions import QueueRange
from rmq_store.consumer.pull import Slice, cover
from rmq_store.errors import BadData
from rmq_store.lake.read.key_search import KeySearch
from rmq_store.lake.read.segments import segments_of
from rmq_store.lake.read.slice_reader import SliceReader
from rmq_store.lake.sql.sql import query
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.store import LakeStore
from rmq_store.message.message import MessageQueue
from rmq_store.message.message_id import decode_offset_message_id

Message = Mapping[str, Any]
"""A message by the columns of ``PLACE`` and ``CONTENT``; properties are a dict."""

PLACE = ("shard", "topic", "broker_name", "queue_id", "queue_offset", "store_timestamp", "offset_msg_id")
CONTENT = (
    "unique_key", "keys", "tags", "reconsume_times", "born_timestamp", "born_host", "store_host", "commit_log_offset",
    "store_size", "flag", "sys_flag", "properties", "body",
)  # fmt: skip

MESSAGE_RELATIONS = ("message_rows", "archived_rows")
ALL_MESSAGES = f"({' UNION ALL '.join(f'SELECT * FROM {name}' for name in MESSAGE_RELATIONS)})"
"""In SQL: the messages of the queues, and those that retention has moved to the archive."""

MOST_KEYS = 64
"""At most so many messages are found by RocketMQ's query by key (``maxMsgsNumBatch``)."""

_COMMIT_DIGITS, _PART_DIGITS = 32, 8
_LAKE_ID_DIGITS = _COMMIT_DIGITS + _PART_DIGITS + 16
_HEX = re.compile(r"[0-9A-F]*")


def message_by_id(store: LakeStore, message_id: str) -> list[Message]:
    """The message with this offset message id: none, one, or several where brokers of one address were imported."""
    id_ = message_id.upper()
    messages: list[Message] = []
    if len(id_) == _LAKE_ID_DIGITS:
        messages = _lake_born(store, id_)
    return messages or _imported(store, id_)


def _lake_born(store: LakeStore, message_id: str) -> list[Message]:
    """By the place that the id names (``commit/ctl.py``, ``lake_message_id``)."""
    if not _HEX.fullmatch(message_id):
        return []
    part = int(message_id[_COMMIT_DIGITS : _COMMIT_DIGITS + _PART_DIGITS], 16)
    row = int(message_id[_COMMIT_DIGITS + _PART_DIGITS :], 16)
    commit_id = message_id[:_COMMIT_DIGITS].lower()
    for shard in store.shards():
        ctl = shard.ctl_of(commit_id)
        for segment in ctl.produced if ctl else ():
            if segment.part == part and segment.first_row <= row < segment.first_row + segment.count:
                offset = (segment.base or 0) + row - segment.first_row
                messages = messages_at(shard, QueueRange(segment.queue, offset, offset + 1))
                here = [message for message in messages if message["offset_msg_id"] == message_id]
                return here or _messages(
                    store, f"commit_id = {quoted(commit_id)} AND offset_msg_id = {quoted(message_id)}"
                )
    return []


def _imported(store: LakeStore, message_id: str) -> list[Message]:
    """By the position in the broker's log, in the import of that position."""
    try:
        at = decode_offset_message_id(message_id).commit_log_offset
    except BadData:
        return []
    imports = [
        ctl.commit_id
        for shard in store.shards()
        for action in (Action.IMPORT, Action.SALVAGE)
        for ctl in shard.ctls_since(0, action=str(action))
        if _reaches(ctl.parameter("range"), at)
    ]
    if not imports:
        return []
    listed = ", ".join(map(quoted, imports))
    return _messages(
        store, f"commit_id IN ({listed}) AND commit_log_offset = {at} AND offset_msg_id = {quoted(message_id)}"
    )


def _reaches(range_: Sequence[int] | None, at: int) -> bool:
    return range_ is None or range_[0] <= at < range_[1]


def messages_by_unique_key(
    store: LakeStore, unique_key: str, *, topic: str | None = None, since_ms: int | None = None, most: int = 32
) -> list[Message]:
    """The messages with this producer's id, oldest first: the message that was sent, and the copies for its retries.
    ``topic`` and ``since_ms`` (stored then or later, UTC ms) narrow the search; without them it looks into every file."""
    where = [f"unique_key = {quoted(unique_key)}"]
    where += [] if topic is None else [f"topic = {quoted(topic)}"]
    where += [] if since_ms is None else [f"store_timestamp >= {since_ms}"]
    search = KeySearch(key=unique_key, unique_only=True, topic=topic, begin_ms=since_ms)
    return _messages(store, " AND ".join(where), search)[:most]


def messages_by_key(
    store: LakeStore,
    topic: str,
    key: str,
    *,
    begin_ms: int | None = None,
    end_ms: int | None = None,
    most: int = MOST_KEYS,
) -> list[Message]:
    """The places of the newest ``most`` messages of a topic that have the key among their KEYS (separated by blanks), or as
    their unique key; oldest first. Stored in ``[begin_ms, end_ms)``, UTC ms."""
    columns = (*PLACE, "unique_key", "keys", "tags", "reconsume_times")
    where = [
        f"topic = {quoted(topic)}",
        f"(unique_key = {quoted(key)} OR list_contains(string_split(keys, ' '), {quoted(key)}))",
    ]
    where += [] if begin_ms is None else [f"store_timestamp >= {begin_ms}"]
    where += [] if end_ms is None else [f"store_timestamp < {end_ms}"]
    order = "store_timestamp, commit_log_offset, broker_name, queue_id, queue_offset"
    newest = ", ".join(f"{column} DESC" for column in order.split(", "))
    text = f"SELECT {', '.join({*columns, 'commit_log_offset'})} FROM messages WHERE {' AND '.join(where)}"
    text = f"SELECT * FROM (FROM ({text}) ORDER BY {newest} LIMIT {most}) ORDER BY {order}"
    search = KeySearch(key=key, unique_only=False, topic=topic, begin_ms=begin_ms, end_ms=end_ms)
    rows = query(store, text, of_messages=search.row_groups).to_pylist()
    return [{name: row[name] for name in columns} for row in rows]


def messages_at(shard: Shard, range_: QueueRange, *, body: bool = True) -> list[Message]:
    """The messages of a range of a queue, in order; offsets without a message are left out. Only their rows are read."""
    slices, _ = cover(range_, segments_of(shard, [range_]).get(range_.queue, ()))
    return [message for slice_ in slices for message in _read(shard, slice_, body)]


def _read(shard: Shard, slice_: Slice, body: bool) -> Iterator[Message]:
    columns = [name for name in ("offset_msg_id", "store_timestamp", *CONTENT) if body or name != "body"]
    table = SliceReader(shard.root, shard.commitlog.path, slice_).rows(np.arange(slice_.begin, slice_.end), columns)
    of_slice = {
        "shard": shard.name,
        "topic": slice_.queue.topic,
        "broker_name": slice_.queue.broker_name,
        "queue_id": slice_.queue.queue_id,
    }
    for n, row in enumerate(table.to_pylist(maps_as_pydicts="lossy")):
        row["queue_offset"] = slice_.begin + n
        message = of_slice | row
        yield {name: message.get(name) for name in (*PLACE, *CONTENT) if body or name != "body"}


def _messages(store: LakeStore, where: str, search: KeySearch | None = None) -> list[Message]:
    """Whole messages, oldest first."""
    table = query(
        store,
        f"SELECT {', '.join((*PLACE, *CONTENT))} FROM {ALL_MESSAGES} WHERE {where}"
        " ORDER BY store_timestamp, topic, broker_name, queue_id, queue_offset",
        of_messages=search.row_groups if search else None,
    )
    rows: list[Message] = table.to_pylist(maps_as_pydicts="lossy")
    return rows


def store_times(shard: Shard, offsets: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
    """When the message at an offset was stored (UTC ms); a queue without such a message is left out."""
    times = {}
    for slice_ in _slices_at(shard, offsets):
        time_ms = slice_.store_timestamp
        times[slice_.queue] = _value_of(shard, slice_, "store_timestamp") if time_ms is None else time_ms
    return times


def log_places(shard: Shard, offsets: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
    """The commit log offset of the message at an offset; a queue without such a message is left out."""
    return {slice_.queue: _value_of(shard, slice_, "commit_log_offset") for slice_ in _slices_at(shard, offsets)}


def _slices_at(shard: Shard, offsets: Mapping[MessageQueue, int]) -> Iterator[Slice]:
    """One row of each queue that has a message there."""
    ranges = [QueueRange(queue, offset, offset + 1) for queue, offset in offsets.items() if offset >= 0]
    segments = segments_of(shard, ranges)
    for range_ in ranges:
        yield from cover(range_, segments.get(range_.queue, ()))[0]


def _value_of(shard: Shard, slice_: Slice, column: str) -> int:
    rows = shard.commitlog.rows(slice_.file, slice_.first_row, 1, [column])
    value: int = pc.max(rows.column(0)).as_py()
    return value


def quoted(text: str) -> str:
    """A text as a literal of SQL."""
    return "'" + text.replace("'", "''") + "'"
