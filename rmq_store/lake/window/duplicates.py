"""Absorbing duplicates in a window: the rules of ``rmq_store/consumer/duplicates.py`` over columns.

Before the listener is called, the window reads only the keys of its messages, and looks their hashes up in the key files of
the horizon (``key_files.py``). So a window without duplicates costs one column of its own messages and one of the horizon.
All of it runs in threads of the driver: a stage of tasks takes longer to start than this takes, and the keys are needed
again when the acked ones are written.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmq_store.commit.ctl import StagedFile
from rmq_store.commit.positions import Outcome, Tally
from rmq_store.consumer.duplicates import KEYS, UNIQ_KEY, AbsorbRule, acks_count_since
from rmq_store.consumer.pull import Slice
from rmq_store.lake.read.filter import filter_columns, matching
from rmq_store.lake.read.slice_reader import SliceReader
from rmq_store.lake.table import tables
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.window.consume_job import ConsumeJob, ConsumeTask, Offsets, TaskResult
from rmq_store.lake.window.key_files import (
    AckedKeys,
    Hashes,
    HashSet,
    Keys,
    Numbers,
    acked_in,
    key_files,
    maybe_acked_in,
    stage_keys,
    text_hashes,
)
from rmq_store.lake.window.void_rows import void_rows, with_epoch
from rmq_store.message.message import MessageQueue

Run = Callable[[Sequence[ConsumeTask]], list[TaskResult]]
"""Runs the tasks of one turn, and returns their results."""

_CORES = os.cpu_count() or 1
_REMOTE_READS = 8
_ROWS_A_THREAD = 250_000
_ROWS_AT_ONCE = 32_768
_KEYS_A_FILE = 500_000
_COLUMNS = {UNIQ_KEY: "unique_key", KEYS: "keys"}


@dataclass(frozen=True, slots=True)
class Absorbed:
    """What the tasks of a window did."""

    results: Sequence[TaskResult]
    """Of all turns."""
    duplicates: Mapping[MessageQueue, Offsets] = field(default_factory=dict)
    """The offsets of the absorbed messages, ascending."""
    files: Sequence[StagedFile] = ()
    """The files of the acked keys."""
    keys: Tally | None = None
    """How many keys were acked, and the sum of their hashes; None for a group that absorbs nothing."""


def consume_absorbing(
    shard: Shard, job: ConsumeJob, rule: AbsorbRule, tasks: Sequence[ConsumeTask], run: Run, *, started_ms: int
) -> Absorbed:
    """Consume the window's messages turn by turn, so that each key is acked once at most. ``started_ms``: of the window."""
    # More threads than cores are slower, unless they wait for a store.
    threads = _CORES if job.root.is_local else max(_CORES, _REMOTE_READS)
    with ThreadPoolExecutor(threads) as pool:
        keys = _window_keys(pool, job, rule, tasks)
        candidates, acked = _candidates(pool, shard, job, keys, started_ms - rule.horizon_ms)
        rows = candidates.rows
        is_acked = np.ones(len(keys.offsets), dtype=np.bool_)
        results: list[TaskResult] = []
        turn = turn_of(candidates.keys, candidates.since, acked)
        duplicates = [rows[turn.duplicates]]
        leave = keys.by_queue(np.sort(np.concatenate([rows[turn.wait], *duplicates])))
        turn_tasks = [replace(task, leave=leave) for task in tasks]
        while turn_tasks:
            new = run(turn_tasks)
            results += new
            is_acked[keys.rows_of(failure for result in new for failure in result.failed)] = False
            acked[candidates.keys[turn.ask[is_acked[rows[turn.ask]]]]] = job.epoch
            turn = turn_of(candidates.keys, candidates.since, acked, turn.wait)
            duplicates.append(rows[turn.duplicates])
            turn_tasks = _tasks_of(tasks, keys.by_queue(rows[turn.ask]), len(results))
        absorbed = np.sort(np.concatenate(duplicates))
        is_acked[absorbed] = False
        not_acked = (~is_acked[begin:][:_KEYS_A_FILE] for begin in range(0, len(is_acked), _KEYS_A_FILE))
        acked_keys = pool.map(Keys.without, keys.cut(_KEYS_A_FILE), not_acked)
        per_file = [part for part in acked_keys if len(part.hashes)]
        files = list(pool.map(partial(_stage_keys, job), per_file, count()))
    tally = sum((part.tally() for part in per_file), Tally())
    return Absorbed(results, keys.by_queue(absorbed), files, tally)


def _stage_keys(job: ConsumeJob, keys: Keys, part: int) -> StagedFile:
    return stage_keys(
        job.root, job.table, keys, commit_id=job.commit_id, group=job.group.name, epoch=job.epoch, part=part
    )


# --- turns -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TurnOf:
    """``Turn`` of ``consumer/duplicates.py``, as indexes of candidates, each ascending."""

    ask: Numbers
    wait: Numbers
    duplicates: Numbers


def turn_of(keys: Numbers, since: Numbers, acked: Numbers, which: Numbers | None = None) -> TurnOf:
    """``take_turn`` of ``consumer/duplicates.py`` over columns.

    ``keys``, ``since``: of each candidate its key, and the epoch of the oldest ack that counts. ``acked``: by key the newest
    epoch in which it was acked, -1 for never. ``which``: the candidates that still wait, ascending; None: all.
    """
    which = np.arange(len(keys)) if which is None else which
    is_duplicate = acked[keys[which]] >= since[which]
    rest = which[~is_duplicate]
    first = np.zeros(len(rest), dtype=np.bool_)
    first[np.unique(keys[rest], return_index=True)[1]] = True
    return TurnOf(rest[first], rest[~first], which[is_duplicate])


def _tasks_of(tasks: Sequence[ConsumeTask], only: Mapping[MessageQueue, Offsets], number: int) -> list[ConsumeTask]:
    """The tasks of a turn, which consume the offsets ``only``, numbered from ``number`` on."""
    turn_tasks: list[ConsumeTask] = []
    for task in tasks if only else ():
        slices = tuple(part for slice_ in task.slices for part in _around(slice_, only))
        if slices:
            turn_tasks.append(replace(task, number=number + len(turn_tasks), slices=slices, only=only))
    return turn_tasks


def _around(slice_: Slice, only: Mapping[MessageQueue, Offsets]) -> Iterator[Slice]:
    """The slice from the first to the last of these offsets, if it holds any."""
    offsets = only.get(slice_.queue, np.array([], dtype=np.int64))
    begin, end = np.searchsorted(offsets, [slice_.begin, slice_.end])
    if begin < end:
        first, last = int(offsets[begin]), int(offsets[end - 1])
        yield replace(slice_, begin=first, end=last + 1, first_row=slice_.first_row + first - slice_.begin)


# --- the keys of a window --------------------------------------------------------------------------------------------


def _window_keys(pool: Executor, job: ConsumeJob, rule: AbsorbRule, tasks: Sequence[ConsumeTask]) -> Keys:
    """The keys of all messages of the window that match the group's subscriptions."""
    slices = sorted((s for task in tasks for s in task.slices), key=lambda s: (s.queue, s.begin))
    cuts = [cut for slice_ in slices for cut in slice_.cut(_ROWS_A_THREAD)]
    of_cuts = list(pool.map(partial(_keys_of, job, rule), cuts))
    rows = dict.fromkeys((slice_.queue for slice_ in slices), 0)
    for cut, keys in zip(cuts, of_cuts, strict=True):
        rows[cut.queue] += len(keys.offsets)
    return Keys(
        queues=list(rows),
        begins=np.cumsum([0, *rows.values()]),
        offsets=_joined(keys.offsets for keys in of_cuts),
        texts=pa.chunked_array([chunk for keys in of_cuts for chunk in keys.texts], pa.large_string()),
        hashes=_joined(keys.hashes for keys in of_cuts),
    )


def _joined(parts: Iterable[Numbers]) -> Numbers:
    return np.concatenate([np.array([], dtype=np.int64), *parts])


@dataclass(frozen=True, slots=True)
class _SliceKeys:
    offsets: Offsets
    texts: Sequence[pa.Array]
    hashes: Hashes


def _keys_of(job: ConsumeJob, rule: AbsorbRule, slice_: Slice) -> _SliceKeys:
    """The keys of a slice's messages that match the group's subscription and have a key."""
    subscription = job.subscription(slice_.queue.topic)
    column = _COLUMNS.get(rule.by, "properties")
    void_before = job.void_before(slice_.queue)
    columns = with_epoch([*dict.fromkeys([column, *filter_columns(subscription)])], void_before)
    of_batches: list[Offsets] = []
    texts: list[pa.Array] = []
    for offsets, batch in SliceReader(job.root, job.table, slice_).batches(columns, _ROWS_AT_ONCE):
        matches = matching(batch, subscription)
        keys = batch.column(column)
        if column == "properties":
            keys = pc.map_lookup(keys, rule.by, "last")
        has_key = pc.greater(pc.binary_length(keys), 0)
        if has_key.true_count < len(has_key) or matches is not None or void_before is not None:
            mask = pc.fill_null(has_key, False).to_numpy(zero_copy_only=False)
            mask = mask if matches is None else mask & matches
            mask = mask if void_before is None else mask & ~void_rows(batch, void_before)
            offsets, keys = offsets[mask], keys.filter(pa.array(mask))
        of_batches.append(offsets)
        texts.append(keys.cast(pa.large_string()))
    return _SliceKeys(_joined(of_batches), texts, _joined(map(text_hashes, texts)))


# --- what was acked --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Candidates:
    """The messages that may be duplicates: their key's hash occurs again in the window, or in the horizon."""

    rows: Numbers
    """Their rows in the window's keys, ascending."""
    keys: Numbers
    """A number for each key; equal numbers are equal texts."""
    since: Numbers
    """The epoch of the oldest ack that counts for each."""


def _candidates(
    pool: Executor, shard: Shard, job: ConsumeJob, keys: Keys, since_ms: int
) -> tuple[_Candidates, Numbers]:
    """The candidates, and per key the newest epoch in which it was acked; -1 for never."""
    group = job.group.name
    ascending = np.sort(keys.hashes)
    hits = _hits(pool, shard, group, since_ms, HashSet(ascending))
    repeated = [ascending[1:][ascending[1:] == ascending[:-1]], *(hit.hashes for hit in hits)]
    repeated_set = HashSet(np.sort(_joined(repeated)))
    rows, hashes = repeated_set.maybe_in([keys.hashes])
    rows = rows[repeated_set.contains(hashes)]
    window_texts = keys.texts.take(pa.array(rows)).chunks if len(rows) else []
    texts = [*window_texts, *(chunk for hit in hits for chunk in hit.texts.chunks)]
    numbers = _numbered(texts)
    acked = np.full(numbers.max(initial=-1) + 1, -1)
    np.maximum.at(acked, numbers[len(rows) :], _joined(hit.epochs for hit in hits))
    since = np.array([acks_count_since(group, queue, job.passes[queue], job.epoch) for queue in keys.queues])
    return _Candidates(rows, numbers[: len(rows)], since[np.searchsorted(keys.begins, rows, side="right") - 1]), acked


def _hits(pool: Executor, shard: Shard, group: str, since_ms: int, hash_set: HashSet) -> list[AckedKeys]:
    """The keys that the group acked since that time and whose hash is in the set, file by file."""
    paths = key_files(shard, group, since_ms)
    maybe = list(pool.map(partial(maybe_acked_in, shard, group=group, hash_set=hash_set), paths))
    is_hit = hash_set.contains(_joined(hashes for _, hashes in maybe))
    ends = np.cumsum([len(rows) for rows, _ in maybe])
    of_files = zip(paths, maybe, np.split(is_hit, ends[:-1]), strict=True) if paths else ()
    hits = [(path, rows[hit], hashes[hit]) for path, (rows, hashes), hit in of_files if hit.any()]
    return list(pool.map(lambda hit: acked_in(shard, hit[0], group, since_ms, *hit[1:]), hits))


def _numbered(texts: Sequence[pa.Array]) -> Numbers:
    """A number for each text, equal ones for equal texts."""
    encoded = pa.chunked_array(
        [chunk.cast(pa.large_string()) for chunk in texts], pa.large_string()
    ).dictionary_encode()
    return _joined(chunk.indices.to_numpy() for chunk in encoded.chunks)


# --- what is absorbed ------------------------------------------------------------------------------------------------


def duplicate_outcomes(job: ConsumeJob, duplicates: Mapping[MessageQueue, Offsets], reason: str) -> pa.Table:
    """The rows (schema OUTCOME_RANGE) of absorbed messages, one per run of neighbouring offsets."""
    return pa.concat_tables(_runs(job, queue, offsets, reason) for queue, offsets in duplicates.items())


def _runs(job: ConsumeJob, queue: MessageQueue, offsets: Offsets, reason: str) -> pa.Table:
    """The rows of one queue: ``runs`` of ``utils/offset_ranges.py`` over an array."""
    begins = offsets[np.diff(offsets, prepend=-2) != 1]
    ends = offsets[np.diff(offsets, append=-2) != 1] + 1
    of_queue = {
        "commit_id": job.commit_id,
        "part": None,
        "rel": None,
        "topic": queue.topic,
        "broker_name": queue.broker_name,
        "queue_id": queue.queue_id,
        "group_name": job.group.name,
        "pass": job.passes[queue],
        "window_id": job.window_id,
        "outcome": str(Outcome.DUPLICATE),
        "reason": reason,
    }
    columns = {
        name: pa.repeat(pa.scalar(value, tables.OUTCOME_RANGE.field(name).type), len(begins))
        for name, value in of_queue.items()
    }
    columns |= {"begin_offset": pa.array(begins), "end_offset": pa.array(ends)}
    return pa.table([columns[name] for name in tables.OUTCOME_RANGE.names], schema=tables.OUTCOME_RANGE)
