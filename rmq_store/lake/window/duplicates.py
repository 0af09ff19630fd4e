"""Absorbing duplicates in a window: the rules of ``rmq_store/consumer/duplicates.py`` over columns.

Before the listener is called, the window reads only the keys of its messages, and looks their hashes up in the key files of
the horizon. So a window without duplicates costs one column of its own messages and one of the horizon. ``key_tasks.py`` does
this work, in threads of this process or as tasks of the engine; what is decided here needs hashes, and texts only of keys
whose hash occurs again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from rmq_store.commit.ctl import StagedFile
from rmq_store.commit.positions import Outcome, Tally
from rmq_store.consumer.duplicates import AbsorbRule, acks_count_since
from rmq_store.lake.table import tables
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.window.consume_job import NO_OFFSETS, ConsumeJob, ConsumeTask, Offsets, TaskResult
from rmq_store.lake.window.engine import Engine
from rmq_store.lake.window.key_files import HashSet, key_files
from rmq_store.lake.window.key_tasks import (
    LEAST_KEYS,
    LEAST_MESSAGES,
    WindowKeys,
    compared,
    engine_of_keys,
    look_up_in,
    read_window,
    stage_acked,
    threads_of,
)
from rmq_store.lake.window.window_keys import Numbers, around, within
from rmq_store.message.message import MessageQueue

Run = Callable[[Sequence[ConsumeTask]], list[TaskResult]]
"""Runs the tasks of one turn, and returns their results."""


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
    shard: Shard,
    job: ConsumeJob,
    rule: AbsorbRule,
    tasks: Sequence[ConsumeTask],
    run: Run,
    *,
    engine: Engine,
    started_ms: int,
) -> Absorbed:
    """Consume the window's messages turn by turn, so that each key is acked once at most. ``engine``: where much work on keys
    runs (``engine_of_keys``); ``started_ms``: of the window."""
    threads = threads_of(job.root)
    slices = [slice_ for task in tasks for slice_ in task.slices]
    window = read_window(engine_of_keys(engine, threads, sum(map(len, slices)), LEAST_MESSAGES), job, slices)
    keys = window.keys
    paths, count = key_files(shard, job.group.name, started_ms - rule.horizon_ms)
    where = engine_of_keys(engine, threads, count, LEAST_KEYS)
    candidates, acked = _candidates(window, where, started_ms - rule.horizon_ms, paths)
    rows = candidates.rows
    is_acked = np.ones(len(keys.offsets), dtype=np.bool_)
    results: list[TaskResult] = []
    turn = turn_of(candidates.keys, candidates.since, acked)
    duplicates = [rows[turn.duplicates]]
    leave = keys.by_queue(np.sort(np.concatenate([rows[turn.wait], *duplicates])))
    turn_tasks = [replace(task, leave=within(leave, task.slices)) for task in tasks]
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
    files, tally = stage_acked(window, is_acked)
    return Absorbed(results, keys.by_queue(absorbed), files, tally)


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
        slices = tuple(part for slice_ in task.slices for part in around(slice_, only))
        if slices:
            number_ = number + len(turn_tasks)
            turn_tasks.append(replace(task, number=number_, slices=slices, only=within(only, slices)))
    return turn_tasks


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


def _candidates(window: WindowKeys, engine: Engine, since_ms: int, paths: Sequence[str]) -> tuple[_Candidates, Numbers]:
    """The candidates, and per key the newest epoch in which it was acked; -1 for never. ``engine``: where the key files
    ``paths`` are searched."""
    job, keys = window.job, window.keys
    ascending = np.sort(keys.hashes)
    hits = look_up_in(engine, job, since_ms, ascending, paths)
    repeated = [ascending[1:][ascending[1:] == ascending[:-1]], *(hit.hashes for hit in hits)]
    repeated_set = HashSet(np.sort(np.concatenate(repeated)))
    rows, hashes = repeated_set.maybe_in([keys.hashes])
    rows = rows[repeated_set.contains(hashes)]
    numbers = _numbered([*compared(window, rows).chunks, *(chunk for hit in hits for chunk in hit.texts.chunks)])
    acked = np.full(numbers.max(initial=-1) + 1, -1)
    np.maximum.at(acked, numbers[len(rows) :], np.concatenate([NO_OFFSETS, *(hit.epochs for hit in hits)]))
    group = job.group.name
    since = np.array([acks_count_since(group, queue, job.passes[queue], job.epoch) for queue in keys.queues])
    return _Candidates(rows, numbers[: len(rows)], since[np.searchsorted(keys.begins, rows, side="right") - 1]), acked


def _numbered(texts: Sequence[pa.Array]) -> Numbers:
    """A number for each text, equal ones for equal texts."""
    encoded = pa.chunked_array(texts, pa.large_binary()).dictionary_encode()
    return np.concatenate([NO_OFFSETS, *(chunk.indices.to_numpy() for chunk in encoded.chunks)])


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
