"""The keys of a window's messages, as columns: reading them, hashing them, comparing them.

Keys are read in parts (``PartKeys``), by threads of this process or by tasks of an engine (``key_tasks.py``). ``Keys`` is
what the parts are together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmq_store.commit.positions import Tally
from rmq_store.consumer.duplicates import KEYS, UNIQ_KEY, AbsorbRule
from rmq_store.consumer.pull import Slice
from rmq_store.lake.read.filter import Mask, filter_columns, matching
from rmq_store.lake.read.first_topics import first_topics, has_first_topics
from rmq_store.lake.read.open_files import OpenFiles
from rmq_store.lake.read.slice_reader import SliceReader
from rmq_store.lake.table.evidence import hashes
from rmq_store.lake.window.consume_job import ConsumeJob
from rmq_store.lake.window.void_rows import void_rows, with_epoch
from rmq_store.message.message import MessageQueue

Hashes = npt.NDArray[np.int64]
"""64-bit hashes of keys; signed, as they are stored."""

Numbers = npt.NDArray[np.int64]
"""Row numbers, epochs and the like."""

COMPARED_BYTES = 32
"""So many bytes stand for a key when it is compared, at most: a unique key as it is."""

_ROWS_AT_ONCE = 32_768
_COLUMNS = {UNIQ_KEY: "unique_key", KEYS: "keys"}
_NONE: Numbers = np.array([], dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Keys:
    """Messages with their keys, by queue and offset."""

    queues: Sequence[MessageQueue]
    begins: Numbers
    """The first row of each queue, and the number of rows."""
    offsets: Numbers
    texts: pa.ChunkedArray | None
    """None: not in this process."""
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
        texts = None if self.texts is None else self.texts.take(pa.array(kept))
        return Keys(self.queues, begins, self.offsets[kept], texts, self.hashes[kept])

    def cut(self, most: int) -> Iterator[Keys]:
        """The same messages in parts of at most ``most``."""
        for begin in range(0, len(self.hashes), most):
            end = min(begin + most, len(self.hashes))
            begins = np.clip(self.begins, begin, end) - begin
            texts = None if self.texts is None else self.texts.slice(begin, end - begin)
            yield Keys(self.queues, begins, self.offsets[begin:end], texts, self.hashes[begin:end])

    def tally(self) -> Tally:
        """What a ctl row records of the keys that its window acked (``key_tally`` of ``consumer/duplicates.py``)."""
        return hash_tally(self.hashes)


def around(slice_: Slice, offsets: Mapping[MessageQueue, Numbers]) -> Iterator[Slice]:
    """The slice from the first to the last of these ascending offsets, if it holds any."""
    if (of_queue := offsets.get(slice_.queue)) is None:
        return
    begin, end = np.searchsorted(of_queue, [slice_.begin, slice_.end])
    if begin < end:
        first, last = int(of_queue[begin]), int(of_queue[end - 1])
        yield replace(slice_, begin=first, end=last + 1, first_row=slice_.first_row + first - slice_.begin)


def within(offsets: Mapping[MessageQueue, Numbers], slices: Iterable[Slice]) -> dict[MessageQueue, Numbers]:
    """Those of ascending offsets that the slices hold. ``slices``: per queue in offset order."""
    parts: dict[MessageQueue, list[Numbers]] = {}
    for slice_ in slices:
        of_queue = offsets.get(slice_.queue, _NONE)
        begin, end = np.searchsorted(of_queue, [slice_.begin, slice_.end])
        if begin < end:
            parts.setdefault(slice_.queue, []).append(of_queue[begin:end])
    return {queue: np.concatenate(several) for queue, several in parts.items()}


# --- reading ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PartKeys:
    """The keys of a part of a window: of slices by queue and offset."""

    number: int
    """Of the part."""
    kept: bytes | None
    """Which messages have a key and match the subscription: a bit for each (``bits_of``); None: all."""
    hashes: Hashes
    texts: pa.ChunkedArray | None
    """None: not in this process."""

    def offsets(self, slices: Sequence[Slice]) -> tuple[Numbers, Numbers]:
        """The offsets of these messages, and how many each of the part's slices has."""
        offsets = np.concatenate([_NONE, *(np.arange(slice_.begin, slice_.end) for slice_ in slices)])
        ends = np.cumsum([0, *map(len, slices)])
        if self.kept is None:
            return offsets, np.diff(ends)
        mask = mask_of(self.kept, len(offsets))
        return offsets[mask], np.diff(np.concatenate([[0], np.cumsum(mask)])[ends])


def read_keys(job: ConsumeJob, slices: Sequence[Slice], number: int = 0) -> PartKeys:
    """The keys of the slices' messages that match the group's subscription and have a key. ``number``: of the part."""
    assert job.group.absorb_duplicates is not None
    masks: list[Mask] = []
    texts: list[pa.Array] = []
    files = OpenFiles(job.root)
    for slice_ in slices:
        for keys, mask in _batches(job, job.group.absorb_duplicates, slice_, files):
            masks.append(np.ones(len(keys), dtype=np.bool_) if mask is None else mask)
            texts.append((keys if mask is None else keys.filter(pa.array(mask))).cast(pa.large_string()))
    of_texts = np.concatenate([_NONE, *map(text_hashes, texts)])
    kept = None if len(of_texts) == sum(map(len, masks)) else bits_of(np.concatenate(masks))
    return PartKeys(number, kept, of_texts, pa.chunked_array(texts, pa.large_string()))


def _batches(
    job: ConsumeJob, rule: AbsorbRule, slice_: Slice, files: OpenFiles
) -> Iterator[tuple[pa.Array, Mask | None]]:
    """The keys of a slice's messages, and which of them count; None: all."""
    subscription = job.subscription(slice_.queue.topic)
    topic, column = slice_.queue.topic, _COLUMNS.get(rule.by, "properties")
    of_texts = ["properties"] if rule.label and has_first_topics(topic) else []
    void_before = job.void_before(slice_.queue)
    columns = with_epoch([*dict.fromkeys([column, *of_texts, *filter_columns(subscription)])], void_before)
    for _, batch in SliceReader(job.root, job.table, slice_, files).batches(columns, _ROWS_AT_ONCE):
        matches = matching(batch, subscription)
        values = batch.column(column)
        if column == "properties":
            values = pc.map_lookup(values, rule.by, "last")
        keys = key_texts(rule, topic, values, batch.column("properties") if of_texts else None)
        has_key = pc.greater(pc.binary_length(values), 0)
        if has_key.true_count == len(has_key) and matches is None and void_before is None:
            yield keys, None
            continue
        mask = pc.fill_null(has_key, False).to_numpy(zero_copy_only=False)
        mask = mask if matches is None else mask & matches
        yield keys, mask if void_before is None else mask & ~void_rows(batch, void_before)


def key_texts(rule: AbsorbRule, topic: str, values: pa.Array, properties: pa.Array | None) -> pa.Array:
    """The texts of keys (``AbsorbRule.key_of``); null where a value is null. ``values``: of the rule's property.
    ``properties``: of the messages, None unless the topic ``has_first_topics``."""
    if rule.label is None:
        return values
    topics = topic if properties is None else first_topics(topic, properties)
    return pc.binary_join_element_wise(topics, values, f" {rule.label}")


def keys_of(parts: Iterable[tuple[Sequence[Slice], PartKeys]]) -> Keys:
    """The keys of neighbouring parts, each with its slices."""
    rows: dict[MessageQueue, int] = {}
    offsets: list[Numbers] = [_NONE]
    hashes_: list[Hashes] = [_NONE]
    texts: list[pa.Array] = []
    has_texts = True
    for slices, keys in parts:
        of_part, counts = keys.offsets(slices)
        for slice_, count in zip(slices, counts.tolist(), strict=True):
            rows[slice_.queue] = rows.get(slice_.queue, 0) + count
        offsets.append(of_part)
        hashes_.append(keys.hashes)
        has_texts = has_texts and keys.texts is not None
        texts += keys.texts.chunks if keys.texts is not None else []
    return Keys(
        queues=list(rows),
        begins=np.cumsum([0, *rows.values()]),
        offsets=np.concatenate(offsets),
        texts=pa.chunked_array(texts, pa.large_string()) if has_texts else None,
        hashes=np.concatenate(hashes_),
    )


def bits_of(mask: Mask) -> bytes:
    """A bit for each."""
    return np.packbits(mask).tobytes()


def mask_of(bits: bytes, count: int) -> Mask:
    """The first ``count`` bits."""
    return np.unpackbits(np.frombuffer(bits, dtype=np.uint8), count=count).view(np.bool_)


# --- comparing -------------------------------------------------------------------------------------------------------


def comparable(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """For each text bytes that only an equal text has, at most ``COMPARED_BYTES``: the UTF-8 bytes of a short one, else a
    digest behind a byte that UTF-8 does not have."""
    columns = [_comparable(chunk.cast(pa.large_binary())) for chunk in texts.chunks]
    return pa.chunked_array(columns, pa.large_binary())


def _comparable(texts: pa.Array) -> pa.Array:
    is_long = pc.greater(pc.binary_length(texts), COMPARED_BYTES)
    if not is_long.true_count:
        return texts
    digests = [
        b"\xff" + blake2b(text, digest_size=COMPARED_BYTES - 1).digest() for text in texts.filter(is_long).to_pylist()
    ]
    return pc.replace_with_mask(texts, is_long, pa.array(digests, pa.large_binary()))


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


def hash_tally(hashes_: Hashes) -> Tally:
    """How many hashes, and their sum modulo 2^64 (``key_tally`` of ``consumer/duplicates.py``)."""
    return Tally(len(hashes_), int(hashes_.view(np.uint64).sum(dtype=np.uint64)))


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
