"""Absorbing duplicates in the lake: the rules of ``rmq_store/consumer/duplicates.py`` over columns.

Before a window asks anybody, its keys are read, and nothing else of its messages; their hashes are looked up in the
key files of the horizon (``key_files.py``). So what a window of different messages pays is one column of its own and
one of the horizon. All of it runs in threads of the driver: a stage of tasks would take longer to start than this
takes, and what was read is needed again when the acked keys are written.
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
    Found,
    Hashes,
    Keys,
    Numbers,
    Wanted,
    acked_in,
    key_files,
    maybe_acked_in,
    stage_keys,
    text_hashes,
)
from rmq_store.lake.window.void_rows import void_rows, with_epoch
from rmq_store.message.message import MessageQueue

Run = Callable[[Sequence[ConsumeTask]], list[TaskResult]]
"""Tasks of one turn to their results."""

_CORES = os.cpu_count() or 1
_REMOTE_READS = 8
_ROWS_A_THREAD = 250_000
_ROWS_AT_ONCE = 32_768
_KEYS_A_FILE = 500_000
_COLUMNS = {UNIQ_KEY: "unique_key", KEYS: "keys"}


@dataclass(frozen=True, slots=True)
class Absorbed:
    """What a window did: the results of all turns, the offsets absorbed, and the keys it acked.

    ``keys``: how many these are and the sum of their hashes; None where nothing is absorbed.
    """

    results: Sequence[TaskResult]
    duplicates: Mapping[MessageQueue, Offsets] = field(default_factory=dict)
    files: Sequence[StagedFile] = ()
    keys: Tally | None = None


def consume_absorbing(
    shard: Shard, job: ConsumeJob, rule: AbsorbRule, tasks: Sequence[ConsumeTask], started_ms: int, run: Run
) -> Absorbed:
    """Ask about the window's messages turn by turn, so that each key is acked once at the most."""
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
        left = keys.by_queue(np.sort(np.concatenate([rows[turn.wait], *duplicates])))
        todo = [replace(task, leave=left) for task in tasks]
        while todo:
            new = run(todo)
            results += new
            is_acked[keys.rows_of(failure for result in new for failure in result.failed)] = False
            acked[candidates.keys[turn.ask[is_acked[rows[turn.ask]]]]] = job.epoch
            turn = turn_of(candidates.keys, candidates.since, acked, turn.wait)
            duplicates.append(rows[turn.duplicates])
            todo = _tasks_of(tasks, keys.by_queue(rows[turn.ask]), len(results))
        absorbed = np.sort(np.concatenate(duplicates))
        is_acked[absorbed] = False
        not_acked = (~is_acked[begin:][:_KEYS_A_FILE] for begin in range(0, len(is_acked), _KEYS_A_FILE))
        pieces = pool.map(Keys.without, keys.cut(_KEYS_A_FILE), not_acked)
        done = [piece for piece in pieces if len(piece.hashes)]
        write = partial(stage_keys, shard.root, shard.commitlog.path, job.commit_id, job.group, job.epoch)
        files = list(pool.map(write, done, count()))
    tally = sum((piece.tally() for piece in done), Tally())
    return Absorbed(results, keys.by_queue(absorbed), files, tally)


# --- turns -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TurnOf:
    """``absorb.Turn`` as numbers of candidates; each ascends."""

    ask: Numbers
    wait: Numbers
    duplicates: Numbers


def turn_of(keys: Numbers, since: Numbers, acked: Numbers, which: Numbers | None = None) -> TurnOf:
    """``absorb.take_turn`` over columns: ``keys`` and ``since`` of the candidates; ``acked`` by key, -1 for never.

    ``which``: the candidates that are left, ascending; None: all.
    """
    which = np.arange(len(keys)) if which is None else which
    is_duplicate = acked[keys[which]] >= since[which]
    left = which[~is_duplicate]
    first = np.zeros(len(left), dtype=np.bool_)
    first[np.unique(keys[left], return_index=True)[1]] = True
    return TurnOf(left[first], left[~first], which[is_duplicate])


def _tasks_of(tasks: Sequence[ConsumeTask], only: Mapping[MessageQueue, Offsets], number: int) -> list[ConsumeTask]:
    """The tasks that look at some messages only, with the numbers from ``number`` on: a number is a part of the commit."""
    found: list[ConsumeTask] = []
    for task in tasks if only else ():
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


def _window_keys(pool: Executor, job: ConsumeJob, rule: AbsorbRule, tasks: Sequence[ConsumeTask]) -> Keys:
    slices = sorted((s for task in tasks for s in task.slices), key=lambda s: (s.queue, s.begin))
    pieces = [piece for slice_ in slices for piece in slice_.cut(_ROWS_A_THREAD)]
    of_pieces = list(pool.map(partial(_keys_of, job, rule), pieces))
    rows = dict.fromkeys((slice_.queue for slice_ in slices), 0)
    for piece, found in zip(pieces, of_pieces, strict=True):
        rows[piece.queue] += len(found.offsets)
    return Keys(
        queues=list(rows),
        begins=np.cumsum([0, *rows.values()]),
        offsets=_joined(found.offsets for found in of_pieces),
        texts=pa.chunked_array([chunk for found in of_pieces for chunk in found.texts], pa.large_string()),
        hashes=_joined(found.hashes for found in of_pieces),
    )


def _joined(parts: Iterable[Numbers]) -> Numbers:
    return np.concatenate([np.array([], dtype=np.int64), *parts])


@dataclass(frozen=True, slots=True)
class _Piece:
    offsets: Offsets
    texts: Sequence[pa.Array]
    hashes: Hashes


def _keys_of(job: ConsumeJob, rule: AbsorbRule, slice_: Slice) -> _Piece:
    """The keys of what the group wants of a slice."""
    subscription = job.subscriptions[slice_.queue.topic]
    column = _COLUMNS.get(rule.by, "properties")
    void_before = job.void_before(slice_.queue)
    columns = with_epoch([*dict.fromkeys([column, *filter_columns(subscription)])], void_before)
    of_batches: list[Offsets] = []
    texts: list[pa.Array] = []
    for offsets, batch in SliceReader(job.root, job.table, slice_).batches(columns, _ROWS_AT_ONCE):
        wanted = matching(batch, subscription)
        found = batch.column(column)
        if column == "properties":
            found = pc.map_lookup(found, rule.by, "last")
        keyed = pc.greater(pc.binary_length(found), 0)
        if keyed.true_count < len(keyed) or wanted is not None or void_before is not None:
            mask = pc.fill_null(keyed, False).to_numpy(zero_copy_only=False)
            mask = mask if wanted is None else mask & wanted
            mask = mask if void_before is None else mask & ~void_rows(batch, void_before)
            offsets, found = offsets[mask], found.filter(pa.array(mask))
        of_batches.append(offsets)
        texts.append(found.cast(pa.large_string()))
    return _Piece(_joined(of_batches), texts, _joined(map(text_hashes, texts)))


# --- what was acked --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Candidates:
    """The messages whose hash is not alone in the window, or is in the horizon, in the order of the window's keys.

    ``keys``: equal numbers are equal texts. ``since``: the epoch of the oldest ack that counts.
    """

    rows: Numbers
    keys: Numbers
    since: Numbers


def _candidates(
    pool: Executor, shard: Shard, job: ConsumeJob, keys: Keys, since_ms: int
) -> tuple[_Candidates, Numbers]:
    """The candidates, and per key the newest epoch in which it was acked; -1 for never."""
    ascending = np.sort(keys.hashes)
    hits = _hits(pool, shard, job.group, key_files(shard, job.group, since_ms), Wanted(ascending))
    again = [ascending[1:][ascending[1:] == ascending[:-1]], *(found.hashes for found in hits)]
    seldom = Wanted(np.sort(_joined(again)))
    rows, hashes = seldom.maybe_in([keys.hashes])
    rows = rows[seldom.are(hashes)]
    own = keys.texts.take(pa.array(rows)).chunks if len(rows) else []
    texts = [*own, *(chunk for found in hits for chunk in found.texts.chunks)]
    numbers = _numbered(texts)
    acked = np.full(numbers.max(initial=-1) + 1, -1)
    np.maximum.at(acked, numbers[len(rows) :], _joined(found.epochs for found in hits))
    since = np.array([acks_count_since(job.group, queue, job.passes[queue], job.epoch) for queue in keys.queues])
    return _Candidates(rows, numbers[: len(rows)], since[np.searchsorted(keys.begins, rows, side="right") - 1]), acked


def _hits(pool: Executor, shard: Shard, group: str, paths: Sequence[str], wanted: Wanted) -> list[Found]:
    """What the group acked with hashes that are wanted, file by file."""
    maybe = list(pool.map(partial(maybe_acked_in, shard, group=group, wanted=wanted), paths))
    there = wanted.are(_joined(hashes for _, hashes in maybe))
    ends = np.cumsum([len(rows) for rows, _ in maybe])
    of_files = zip(paths, maybe, np.split(there, ends[:-1]), strict=True) if paths else ()
    found = [(path, rows[hit], hashes[hit]) for path, (rows, hashes), hit in of_files if hit.any()]
    return list(pool.map(lambda one: acked_in(shard, one[0], group, *one[1:]), found))


def _numbered(texts: Sequence[pa.Array]) -> Numbers:
    """A number for each text, equal ones for equal texts."""
    encoded = pa.chunked_array(
        [chunk.cast(pa.large_string()) for chunk in texts], pa.large_string()
    ).dictionary_encode()
    return _joined(chunk.indices.to_numpy() for chunk in encoded.chunks)


# --- what is absorbed ------------------------------------------------------------------------------------------------


def duplicate_outcomes(job: ConsumeJob, duplicates: Mapping[MessageQueue, Offsets], reason: str) -> pa.Table:
    """A row per run of neighbours (schema OUTCOME)."""
    return pa.concat_tables(_runs(job, queue, offsets, reason) for queue, offsets in duplicates.items())


def _runs(job: ConsumeJob, queue: MessageQueue, offsets: Offsets, reason: str) -> pa.Table:
    """``absorb.runs`` over an array, as rows."""
    begins = offsets[np.diff(offsets, prepend=-2) != 1]
    ends = offsets[np.diff(offsets, append=-2) != 1] + 1
    of_queue = {
        "commit_id": job.commit_id,
        "part": None,
        "rel": None,
        "topic": queue.topic,
        "broker_name": queue.broker_name,
        "queue_id": queue.queue_id,
        "group_name": job.group,
        "pass": job.passes[queue],
        "window_id": job.window_id,
        "outcome": str(Outcome.DUPLICATE),
        "reason": reason,
    }
    columns = {
        name: pa.repeat(pa.scalar(value, tables.OUTCOME.field(name).type), len(begins))
        for name, value in of_queue.items()
    }
    columns |= {"begin_offset": pa.array(begins), "end_offset": pa.array(ends)}
    return pa.table([columns[name] for name in tables.OUTCOME.names], schema=tables.OUTCOME)
