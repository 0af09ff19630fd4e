"""Absorbing duplicates in the lake: the rules of ``rmq_store/absorb.py`` over columns.

Before a window asks anybody, its keys are read, and nothing else of its messages. Their hashes are merged with the
sorted ones of the horizon's key files; only where hashes are equal, texts are compared. So what a window of different
messages pays is one column of its own and one of the horizon.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rmq_store.absorb import KEYS, UNIQ_KEY, AbsorbRule, Keyed, acks_count_since, take_turn
from rmq_store.consumer.pull import Slice
from rmq_store.host import uuid7_floor
from rmq_store.lake import tables
from rmq_store.lake.consume_slice import ConsumeJob, ConsumeTask, Offsets, TaskResult
from rmq_store.lake.evidence import hashes
from rmq_store.lake.filter import filter_columns, matching
from rmq_store.lake.shard import Shard
from rmq_store.lake.slice_reader import SliceReader
from rmq_store.lake.stage import stage
from rmq_store.lake.void_rows import void_rows, with_epoch
from rmq_store.message import MessageQueue
from rmq_store.store import StagedFile

Hashes = npt.NDArray[np.int64]
"""Signed, as they are stored and sorted."""

Run = Callable[[Sequence[ConsumeTask]], list[TaskResult]]
"""Tasks of one turn to their results."""

_PARALLEL_READS = 8
_COLUMNS = {UNIQ_KEY: "unique_key", KEYS: "keys"}


@dataclass(frozen=True, slots=True)
class Absorbed:
    """What a window did: the results of all turns, the offsets absorbed, and the keys it acked (one file, or none)."""

    results: Sequence[TaskResult]
    duplicates: Mapping[MessageQueue, Offsets] = field(default_factory=dict)
    files: Sequence[StagedFile] = ()


def consume_absorbing(
    shard: Shard, job: ConsumeJob, rule: AbsorbRule, tasks: Sequence[ConsumeTask], started_ms: int, run: Run
) -> Absorbed:
    """Ask about the window's messages turn by turn, so that each key is acked once at the most."""
    keys = _window_keys(job, rule, tasks)
    candidates, acked = _candidates(shard, job, keys, started_ms - rule.horizon_ms)
    is_acked = np.ones(len(keys.offsets), dtype=np.bool_)
    results: list[TaskResult] = []
    turn = take_turn(candidates, acked)
    duplicates = list(turn.duplicates)
    left = _by_queue([*turn.wait, *turn.duplicates])
    todo = [replace(task, leave=left) for task in tasks]
    while todo:
        new = run(todo)
        results += new
        failed = [failure for result in new for failure in result.failed]
        is_acked[keys.rows_of(failed)] = False
        vain = {(queue, offset) for queue, offsets in failed for offset in offsets.tolist()}
        acked |= {one.key: job.epoch for one in turn.ask if (one.queue, one.offset) not in vain}
        turn = take_turn(turn.wait, acked)
        duplicates += turn.duplicates
        todo = _tasks_of(tasks, turn.ask, len(results))
    absorbed = _by_queue(duplicates)
    is_acked[keys.rows_of(absorbed.items())] = False
    files = [_stage_keys(shard, job, keys, np.flatnonzero(is_acked))] if is_acked.any() else []
    return Absorbed(results, absorbed, files)


def _by_queue(these: Sequence[Keyed]) -> dict[MessageQueue, Offsets]:
    found: dict[MessageQueue, list[int]] = {}
    for one in these:
        found.setdefault(one.queue, []).append(one.offset)
    return {queue: np.array(sorted(offsets), dtype=np.int64) for queue, offsets in found.items()}


def _tasks_of(tasks: Sequence[ConsumeTask], ask: Sequence[Keyed], number: int) -> list[ConsumeTask]:
    """The tasks that look at some messages only, with the numbers from ``number`` on: a number is a part of the commit."""
    only = _by_queue(ask)
    found: list[ConsumeTask] = []
    for task in tasks:
        slices = tuple(part for slice_ in task.slices for part in _around(slice_, only))
        if slices:
            found.append(replace(task, number=number + len(found), slices=slices, only=only))
    return found


def _around(slice_: Slice, only: Mapping[MessageQueue, Offsets]) -> Iterator[Slice]:
    """The slice from the first to the last of these offsets, if it holds any."""
    offsets = only.get(slice_.queue, np.array([], dtype=np.int64))
    begin, end = np.searchsorted(offsets, [slice_.begin, slice_.end])
    if begin < end:
        first, last = int(offsets[begin]), int(offsets[end - 1])
        yield replace(slice_, begin=first, end=last + 1, first_row=slice_.first_row + first - slice_.begin)


# --- the keys of a window --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _WindowKeys:
    """The wanted messages that have a key, by queue and offset. ``begins``: the first row of each queue, and the end."""

    queues: list[MessageQueue]
    begins: list[int]
    offsets: Offsets
    texts: pa.ChunkedArray
    hashes: Hashes

    def rows_of(self, places: Iterable[tuple[MessageQueue, Offsets]]) -> npt.NDArray[np.int64]:
        """The rows of some messages; those without a key have none."""
        found = [np.array([], dtype=np.int64)]
        for queue, offsets in places:
            number = self.queues.index(queue)
            begin, end = self.begins[number], self.begins[number + 1]
            found.append(begin + np.flatnonzero(np.isin(self.offsets[begin:end], offsets)))
        return np.concatenate(found)


def _window_keys(job: ConsumeJob, rule: AbsorbRule, tasks: Sequence[ConsumeTask]) -> _WindowKeys:
    slices = sorted((s for task in tasks for s in task.slices), key=lambda s: (s.queue, s.begin))
    queues = sorted({slice_.queue for slice_ in slices})
    offsets: list[Offsets] = [np.array([], dtype=np.int64)]
    texts: list[pa.Array] = []
    rows = dict.fromkeys(queues, 0)
    for slice_ in slices:
        for of_keys, keys in _keys_of(job, rule, slice_):
            offsets.append(of_keys)
            texts.append(keys)
            rows[slice_.queue] += len(of_keys)
    whole = pa.chunked_array(texts, pa.string())
    hashed = [text_hashes(chunk) for chunk in whole.chunks]
    begins = [0, *np.cumsum([rows[queue] for queue in queues]).tolist()]
    return _WindowKeys(
        queues, begins, np.concatenate(offsets), whole, np.concatenate([np.array([], dtype=np.int64), *hashed])
    )


def _keys_of(job: ConsumeJob, rule: AbsorbRule, slice_: Slice) -> Iterator[tuple[Offsets, pa.Array]]:
    """The keys of what the group wants of a slice, batch by batch."""
    subscription = job.subscriptions[slice_.queue.topic]
    column = _COLUMNS.get(rule.by, "properties")
    void_before = job.void_before(slice_.queue)
    columns = with_epoch([*dict.fromkeys([column, *filter_columns(subscription)])], void_before)
    for offsets, batch in SliceReader(job.root, job.table, slice_).batches(columns):
        wanted = matching(batch, subscription)
        found = batch.column(column)
        if column == "properties":
            found = pc.map_lookup(found, rule.by, "last")
        keyed = pc.fill_null(pc.not_equal(found, ""), False)
        if wanted is not None:
            keyed = pc.and_(keyed, pa.array(wanted))
        if void_before is not None:
            keyed = pc.and_(keyed, pa.array(~void_rows(batch, void_before)))
        yield offsets[keyed.to_numpy(zero_copy_only=False)], found.filter(keyed)


def text_hashes(texts: pa.Array) -> Hashes:
    """``absorb.key_hash`` of every text; none is null."""
    if not len(texts):
        return np.array([], dtype=np.int64)
    bounds = np.frombuffer(texts.buffers()[1], dtype=np.int32)[texts.offset :][: len(texts) + 1].astype(np.int64)
    starts, lengths = bounds[:-1], np.diff(bounds)
    data = texts.buffers()[2]
    padded = np.concatenate([np.frombuffer(data or b"", dtype=np.uint8), np.zeros(8, dtype=np.uint8)])
    words: Any = np.ndarray((len(padded) - 7,), dtype="<u8", buffer=padded.data, strides=(1,))  # one at every byte
    state = hashes(lengths)
    active = np.flatnonzero(lengths > 0)
    begin = 0
    while len(active):
        left = lengths[active] - begin
        unused = (8 * np.maximum(8 - left, 0)).astype(np.uint64)
        word = words[starts[active] + begin] & (np.uint64(0xFFFF_FFFF_FFFF_FFFF) >> unused)
        state[active] = hashes(state[active] ^ word)
        begin += 8
        active = active[left > 8]
    return state.view(np.int64)


# --- what was acked --------------------------------------------------------------------------------------------------


def _candidates(shard: Shard, job: ConsumeJob, keys: _WindowKeys, since_ms: int) -> tuple[list[Keyed], dict[str, int]]:
    """The messages whose hash is not alone in the window, or in the horizon, and what the horizon says of their keys."""
    order = np.argsort(keys.hashes, kind="stable")
    ascending = keys.hashes[order]
    again = np.zeros(len(order), dtype=np.bool_)
    again[1:] = ascending[1:] == ascending[:-1]
    again[:-1] |= again[1:]
    distinct = ascending[np.diff(ascending, prepend=ascending[:1] - 1) != 0]
    acked: dict[str, int] = {}
    hits = [np.array([], dtype=np.int64)]
    with ThreadPoolExecutor(_PARALLEL_READS) as pool:
        look_up = partial(_acked_in, shard, group=job.group, wanted=distinct)
        of_files = list(pool.map(look_up, _key_files(shard, job.group, since_ms)))
    for found in of_files:
        hits.append(found.hashes)
        for text, epoch in zip(found.texts, found.epochs, strict=True):
            acked[text] = max(epoch, acked.get(text, -1))
    again |= _among(ascending, np.sort(np.concatenate(hits)))
    rows = np.sort(order[again])
    since = [acks_count_since(job.group, queue, job.passes[queue], job.epoch) for queue in keys.queues]
    which = (np.searchsorted(keys.begins, rows, side="right") - 1).tolist()
    texts = keys.texts.take(pa.array(rows)).to_pylist() if len(rows) else []
    offsets = keys.offsets[rows].tolist()
    told = zip(which, offsets, texts, strict=True)
    return [Keyed(keys.queues[number], offset, text, since[number]) for number, offset, text in told], acked


def _among(ascending: Hashes, these: Hashes) -> npt.NDArray[np.bool_]:
    """Which hashes are among ``these``, which ascend too."""
    if not len(these):
        return np.zeros(len(ascending), dtype=np.bool_)
    found: npt.NDArray[np.bool_] = these[np.minimum(np.searchsorted(these, ascending), len(these) - 1)] == ascending
    return found


def _key_files(shard: Shard, group: str, since_ms: int) -> list[str]:
    """The key files of the group's windows that were made at a moment (UTC ms) or later, and maybe of other groups."""
    where = (
        (pc.field("partition.kind") == "key")
        & (pc.field("min.commit_id") >= uuid7_floor(since_ms))
        & (pc.field("min.group_name") <= group)
        & (pc.field("max.group_name") >= group)
    )
    found: list[str] = shard.commitlog.files(where).column("path").to_pylist()
    return found


@dataclass(frozen=True, slots=True)
class _Found:
    hashes: Hashes
    texts: Sequence[str] = ()
    epochs: Sequence[int] = ()


def _acked_in(shard: Shard, path: str, group: str, wanted: Hashes) -> _Found:
    """The group's rows of a file whose hash is wanted; both ascend."""
    filesystem, base = shard.root.filesystem()
    with pq.ParquetFile(filesystem.open_input_file(f"{base}/{shard.commitlog.path}/{path}")) as file:
        stored = file.read(columns=["key_hash"]).column(0).to_numpy()
        if len(wanted) < len(stored):  # many are looked at, few are looked up
            hit = wanted[_among(wanted, stored)]
            begins, ends = np.searchsorted(stored, hit), np.searchsorted(stored, hit, side="right")
            rows = np.concatenate([begins[:0], *map(np.arange, begins, ends)]) if (ends - begins > 1).any() else begins
        else:
            rows = np.flatnonzero(_among(stored, wanted))
        if not len(rows):
            return _Found(stored[:0])
        told = _rows(file, rows, ["key_text", "epoch", "group_name"])
    own = pc.equal(told.column("group_name"), group)
    told = told.filter(own)
    kept = rows[own.combine_chunks().to_numpy(zero_copy_only=False)]
    return _Found(stored[kept], told.column("key_text").to_pylist(), told.column("epoch").to_pylist())


def _rows(file: pq.ParquetFile, rows: npt.NDArray[np.int64], columns: list[str]) -> pa.Table:
    """Ascending rows of a file, read from the row groups that hold them."""
    sizes = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
    starts = np.cumsum([0, *sizes])
    groups = np.flatnonzero(np.diff(np.searchsorted(rows, starts)))
    skipped = starts[:-1] - np.cumsum([0, *np.where(np.isin(np.arange(len(sizes)), groups), sizes, 0)])[:-1]
    within = np.searchsorted(starts, rows, side="right") - 1
    return file.read_row_groups(groups.tolist(), columns=columns).take(pa.array(rows - skipped[within]))


# --- what is acked ---------------------------------------------------------------------------------------------------


def _stage_keys(shard: Shard, job: ConsumeJob, keys: _WindowKeys, rows: npt.NDArray[np.int64]) -> StagedFile:
    """The keys of the acked messages, sorted by hash."""
    rows = rows[np.argsort(keys.hashes[rows], kind="stable")]
    which = pa.array(np.searchsorted(keys.begins, rows, side="right") - 1, pa.int32())
    count = len(rows)

    def of_queue(name: str, type_: pa.DataType) -> pa.Array:
        return pa.array([getattr(queue, name) for queue in keys.queues], type_).take(which)

    columns = {
        "commit_id": pa.repeat(pa.scalar(job.commit_id, pa.string()), count),
        "part": pa.repeat(pa.scalar(0, pa.int32()), count),
        "rel": pa.array(np.arange(count), pa.int64()),
        "topic": of_queue("topic", pa.string()),
        "broker_name": of_queue("broker_name", pa.string()),
        "queue_id": of_queue("queue_id", pa.int32()),
        "queue_offset": pa.array(keys.offsets[rows]),
        "group_name": pa.repeat(pa.scalar(job.group, pa.string()), count),
        "epoch": pa.repeat(pa.scalar(job.epoch, pa.int64()), count),
        "key_hash": pa.array(keys.hashes[rows]),
        "key_text": keys.texts.take(pa.array(rows)),
    }
    table = pa.table(columns, schema=tables.KEY)
    return stage(shard.root, shard.commitlog.path, "key", job.commit_id, table, tables.COMMITLOG_STATS)
