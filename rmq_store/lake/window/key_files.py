"""Files of acked keys (kind ``key``): writing them, and looking up the keys of a window in them.

The rows of a file are in the window's order, by queue and offset. Every window reads the hashes of its whole horizon; they
are stored plain, without compression. A bitmap of some megabytes over the first bits of a hash (``HashSet``) rules out most
of them; the rest is searched. Texts are read only where hashes are equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rmq_store.commit.ctl import StagedFile
from rmq_store.commit.positions import Tally
from rmq_store.errors import BadData
from rmq_store.lake.table import tables
from rmq_store.lake.table.evidence import hashes
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.stage import NewFile, stage
from rmq_store.message.message import MessageQueue
from rmq_store.utils.host import uuid7_floor

Hashes = npt.NDArray[np.int64]
"""64-bit hashes of keys; signed, as they are stored."""

Numbers = npt.NDArray[np.int64]
"""Row numbers, epochs and the like."""

ROW_GROUP_ROWS = 32_768
"""Large enough for a short footer, small enough to read one row group for one hash."""

_NONE: Numbers = np.array([], dtype=np.int64)
_SPARSE_BITS = 5
_LEAST_BITS, _MOST_BITS = 10, 26


@dataclass(frozen=True, slots=True)
class Keys:
    """Messages with their keys, by queue and offset."""

    queues: Sequence[MessageQueue]
    begins: Numbers
    """The first row of each queue, and the number of rows."""
    offsets: Numbers
    texts: pa.ChunkedArray
    hashes: Hashes

    def rows_of(self, places: Iterable[tuple[MessageQueue, Numbers]]) -> Numbers:
        """The rows of the messages at these offsets. A message without a key has none."""
        numbers = {queue: number for number, queue in enumerate(self.queues)}
        found_rows = [_NONE]
        for queue, offsets in places:
            begin, end = self.begins[numbers[queue]], self.begins[numbers[queue] + 1]
            rows = begin + np.searchsorted(self.offsets[begin:end], offsets)
            has_key = rows < end
            has_key[has_key] = self.offsets[rows[has_key]] == offsets[has_key]
            found_rows.append(rows[has_key])
        return np.concatenate(found_rows)

    def by_queue(self, rows: Numbers) -> dict[MessageQueue, Numbers]:
        """The offsets of ascending rows, per queue."""
        bounds = np.searchsorted(rows, self.begins).tolist()
        several = zip(self.queues, pairwise(bounds), strict=True)
        return {queue: self.offsets[rows[begin:end]] for queue, (begin, end) in several if begin < end}

    def without(self, rows: npt.NDArray[np.bool_]) -> Keys:
        """The messages whose row is not marked."""
        if not rows.any():
            return self
        kept = np.flatnonzero(~rows)
        begins = np.searchsorted(kept, self.begins)
        return Keys(self.queues, begins, self.offsets[kept], self.texts.take(pa.array(kept)), self.hashes[kept])

    def cut(self, most: int) -> Iterator[Keys]:
        """The same messages in parts of at most ``most``."""
        for begin in range(0, len(self.hashes), most):
            end = min(begin + most, len(self.hashes))
            begins = np.clip(self.begins, begin, end) - begin
            yield Keys(
                self.queues,
                begins,
                self.offsets[begin:end],
                self.texts.slice(begin, end - begin),
                self.hashes[begin:end],
            )

    def tally(self) -> Tally:
        """What a ctl row records of the keys that its window acked (``key_tally`` of ``consumer/duplicates.py``)."""
        return Tally(len(self.hashes), int(self.hashes.view(np.uint64).sum(dtype=np.uint64)))


# --- hashes ----------------------------------------------------------------------------------------------------------


def text_hashes(texts: pa.Array) -> Hashes:
    """The hash of every text (``key_hash`` of ``consumer/duplicates.py``). No text is null."""
    if not len(texts):
        return np.array([], dtype=np.int64)
    type_, width = (np.int64, 8) if pa.types.is_large_string(texts.type) else (np.int32, 4)
    bounds = np.frombuffer(texts.buffers()[1], dtype=type_, count=len(texts) + 1, offset=texts.offset * width)
    bounds = bounds.astype(np.int64)
    data = np.frombuffer(texts.buffers()[2] or b"", dtype=np.uint8)[bounds[0] : bounds[-1]]
    starts, lengths = bounds[:-1] - bounds[0], np.diff(bounds)
    if (lengths == lengths[0]).all():
        return _hashes_of_one_length(data, len(texts), int(lengths[0]))
    padded = np.concatenate([data, np.zeros(8, dtype=np.uint8)])
    words: Any = np.ndarray((len(padded) - 7,), dtype="<u8", buffer=padded.data, strides=(1,))  # one at every byte
    state = hashes(lengths)
    active = np.flatnonzero(lengths > 0)
    begin = 0
    while len(active):
        rest = lengths[active] - begin
        unused = (8 * np.maximum(8 - rest, 0)).astype(np.uint64)
        used = np.uint64(0xFFFF_FFFF_FFFF_FFFF) >> unused
        state[active] = hashes(state[active] ^ words[starts[active] + begin] & used)
        begin += 8
        active = active[rest > 8]
    return state.view(np.int64)


def _hashes_of_one_length(data: npt.NDArray[np.uint8], count: int, length: int) -> Hashes:
    """Unique keys of one client version all have one length: their words are columns."""
    many = -(-length // 8)
    words = np.zeros((count, many * 8), dtype=np.uint8)
    words[:, :length] = data.reshape(count, length)
    state = hashes(np.full(count, length))
    for column in words.view("<u8").T:
        state ^= column
        state = hashes(state)
    return state.view(np.int64)


# --- reading ---------------------------------------------------------------------------------------------------------


def key_files(shard: Shard, group: str, since_ms: int) -> list[str]:
    """The key files that may hold keys of the group's windows made at this time (UTC ms) or later. Keys of older windows and of
    other groups may be among them."""
    where = (
        (pc.field("partition.kind") == "key")
        & (pc.field("max.commit_id") >= uuid7_floor(since_ms))
        & (pc.field("min.group_name") <= group)
        & (pc.field("max.group_name") >= group)
    )
    paths: list[str] = shard.commitlog.files(where).column("path").to_pylist()
    return paths


class HashSet:
    """A set of hashes, made of ascending ones, which may repeat."""

    def __init__(self, ascending: Hashes) -> None:
        self._hashes = ascending
        bits = min(max(len(ascending).bit_length() + _SPARSE_BITS, _LEAST_BITS), _MOST_BITS)
        self._shift = np.uint64(64 - bits)
        self._maybe = np.zeros(1 << bits, dtype=np.bool_)
        self._maybe[self._slots(ascending)] = True

    def maybe_in(self, stored: Iterable[Hashes]) -> tuple[Numbers, Hashes]:
        """The rows whose hash may be in the set, ascending, and their hashes. ``stored``: those of all rows, in batches."""
        rows, of_rows, begin = [_NONE], [_NONE], 0
        for batch in stored:
            maybe = np.flatnonzero(self._maybe.take(self._slots(batch), mode="wrap"))  # no slot lies outside
            rows.append(begin + maybe)
            of_rows.append(batch[maybe])
            begin += len(batch)
        return np.concatenate(rows), np.concatenate(of_rows)

    def contains(self, hashes_: Hashes) -> npt.NDArray[np.bool_]:
        """Which of these hashes are in the set. Look up many at once: a search in order stays in the cache."""
        is_in = np.zeros(len(hashes_), dtype=np.bool_)
        if len(self._hashes):
            order = np.argsort(hashes_)
            ordered = hashes_[order]
            at = np.minimum(np.searchsorted(self._hashes, ordered), len(self._hashes) - 1)
            is_in[order] = self._hashes[at] == ordered
        return is_in

    def _slots(self, hashes_: Hashes) -> Numbers:
        return (hashes_.view(np.uint64) >> self._shift).view(np.int64)


@dataclass(frozen=True, slots=True)
class AckedKeys:
    """Rows of a key file."""

    hashes: Hashes
    texts: pa.ChunkedArray
    epochs: Numbers


def maybe_acked_in(shard: Shard, path: str, group: str, hash_set: HashSet) -> tuple[Numbers, Hashes]:
    """The rows of a file whose hash may be in the set, ascending, and their hashes. Raises BadData for an unreadable file."""
    with _opened(shard, path, group) as file:
        batches = file.iter_batches(ROW_GROUP_ROWS, columns=["key_hash"], use_threads=False)
        return hash_set.maybe_in(batch.column(0).to_numpy() for batch in batches)


def acked_in(shard: Shard, path: str, group: str, since_ms: int, rows: Numbers, hashes: Hashes) -> AckedKeys:
    """Of ascending rows of a file those that the group acked in windows made at this time (UTC ms) or later. ``hashes``: of
    the rows. Raises BadData for an unreadable file."""
    with _opened(shard, path, group) as file:
        table = pa.concat_tables(_rows(file, rows, ["key_text", "epoch", "group_name", "commit_id"]))
    is_of_group = pc.equal(table.column("group_name").cast(pa.string()), group)
    is_young = pc.greater_equal(table.column("commit_id").cast(pa.string()), uuid7_floor(since_ms))
    is_own = pc.and_(is_of_group, is_young).to_numpy()
    kept = table.filter(pa.array(is_own))
    return AckedKeys(hashes[is_own], kept.column("key_text"), kept.column("epoch").to_numpy())


@contextmanager
def _opened(shard: Shard, path: str, group: str) -> Iterator[pq.ParquetFile]:
    root, name = shard.root, f"{shard.commitlog.path}/{path}"
    try:
        with pq.ParquetFile(root.open_file(name), pre_buffer=not root.is_local, read_dictionary=["group_name"]) as file:
            yield file
    except (pa.ArrowInvalid, OSError) as error:
        raise BadData(
            f"the acked keys of group {group} in {path} cannot be read ({error}). Without them a message could be acked "
            "again: restore the file."
        ) from error


def _rows(file: pq.ParquetFile, rows: Numbers, columns: list[str]) -> Iterator[pa.Table]:
    """Ascending rows of a file, one row group after the other."""
    sizes = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
    starts = np.cumsum([0, *sizes])
    groups, firsts = np.unique(np.searchsorted(starts, rows, side="right") - 1, return_index=True)
    for group, of_group in zip(groups.tolist(), np.split(rows, firsts[1:]), strict=True):
        whole = file.read_row_group(group, columns=columns, use_threads=False)
        yield whole.take(pa.array(of_group - starts[group]))


# --- writing ---------------------------------------------------------------------------------------------------------


def stage_keys(
    root: Root,
    table_path: str,
    keys: Keys,
    *,
    commit_id: str,
    group: str,
    epoch: int,
    part: int = 0,
) -> StagedFile:
    """Stage a file of the keys that a window acked. ``part``: the number of the file in its commit."""
    count = len(keys.hashes)
    which = np.repeat(np.arange(len(keys.queues), dtype=np.int32), np.diff(keys.begins))

    def same(value: str) -> pa.Array:
        return pa.DictionaryArray.from_arrays(np.zeros(count, dtype=np.int8), pa.array([value]))

    def of_queue(name: str) -> pa.Array:
        return pa.DictionaryArray.from_arrays(which, pa.array([getattr(queue, name) for queue in keys.queues]))

    columns = {
        "commit_id": same(commit_id),
        "part": np.full(count, part, dtype=np.int32),
        "rel": np.arange(count),
        "topic": of_queue("topic"),
        "broker_name": of_queue("broker_name"),
        "queue_id": np.array([queue.queue_id for queue in keys.queues], dtype=np.int32)[which],
        "queue_offset": keys.offsets,
        "group_name": same(group),
        "epoch": np.full(count, epoch),
        "key_hash": keys.hashes,
        "key_text": keys.texts,
    }
    assert list(columns) == tables.KEY.names
    whole = pa.table(columns)
    never_null = pa.schema([column.with_nullable(False) for column in whole.schema])  # quicker to write and to read
    rows = whole.cast(never_null)
    file = NewFile(kind="key", name=f"{commit_id}-{part:05d}", rows=rows, row_group_rows=ROW_GROUP_ROWS)
    return stage(root, table_path, file)
