"""The work of absorbing duplicates that grows with the window and the horizon, as tasks: reading the keys of messages, looking
them up in the key files of the horizon, and writing those that were acked.

The same functions run in threads of this process, or as tasks of the engine (``engine_of_keys``). In threads the texts of the
keys stay in memory until they are written. Tasks of the engine return no texts: they read them again where they need them, so
this process gets 8 bytes and a bit of each message.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pyarrow as pa

from rmq_store.commit.ctl import StagedFile
from rmq_store.commit.positions import Tally
from rmq_store.consumer.pull import Slice
from rmq_store.lake.read.filter import Mask
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.window.consume_job import ConsumeJob
from rmq_store.lake.window.engine import Engine, ThreadsEngine
from rmq_store.lake.window.key_files import AckedKeys, HashSet, Horizon, look_up, stage_keys
from rmq_store.lake.window.window_keys import (
    Hashes,
    Keys,
    Numbers,
    PartKeys,
    around,
    bits_of,
    comparable,
    hash_tally,
    keys_of,
    mask_of,
    read_keys,
)
from rmq_store.lake.window.window_tasks import in_bins

LEAST_MESSAGES = 4_000_000
"""A window of fewer messages has its keys read and written in threads of this process."""
LEAST_KEYS = 20_000_000
"""Fewer keys in the horizon's files are searched in threads of this process."""
PART_ROWS = 250_000
"""A task reads the keys of about so many messages; its result has about 2 MB."""
KEYS_A_FILE = 500_000
MOST_HASHES = 8_000_000
"""A task gets so many hashes of the window at most, 64 MB. For a larger window the horizon is read several times."""

_CORES = os.cpu_count() or 1
_REMOTE_READS = 8


# --- where -----------------------------------------------------------------------------------------------------------


def threads_of(root: Root) -> ThreadsEngine:
    """The threads of this process. More than cores are slower, unless they wait for a store."""
    return ThreadsEngine(_CORES if root.is_local else max(_CORES, _REMOTE_READS))


def engine_of_keys(engine: Engine, threads: ThreadsEngine, rows: int, least: int, cores: int = _CORES) -> Engine:
    """Where work on so many rows runs: as tasks of ``engine`` if there are ``least`` or more, and it has other hosts, or more
    task slots than this host has cores."""
    if rows < least:
        return threads
    return engine if engine.on_cluster or engine.slots > cores else threads


# --- the keys of a window --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Part:
    """Neighbouring slices of a window, by queue and offset."""

    number: int
    slices: tuple[Slice, ...]
    texts: pa.ChunkedArray | None = None
    """Of its messages' keys; None: to be read."""
    rows: Numbers | None = None
    """Some of its keys; None: all."""


@dataclass(frozen=True, slots=True)
class WindowKeys:
    """The keys of all messages of a window that match the group's subscriptions."""

    engine: Engine
    """Where they were read, and are written."""
    job: ConsumeJob
    slices: Sequence[Slice]
    parts: Sequence[Part]
    begins: Numbers
    """The first row of each part, and the number of rows."""
    keys: Keys


def read_window(engine: Engine, job: ConsumeJob, slices: Sequence[Slice]) -> WindowKeys:
    """Read the keys of the slices' messages. Where ``engine`` is other than this process's threads, texts stay there."""
    slices = sorted(slices, key=lambda slice_: (slice_.queue, slice_.begin))
    rows, run, most = sum(map(len, slices)), _read_hashes, PART_ROWS
    if isinstance(engine, ThreadsEngine):
        run, most = _read, min(most, max(-(-rows // engine.slots), 1))
    parts = parts_of(slices, most)
    results = sorted(engine(run, job, parts), key=lambda keys: keys.number) if parts else []
    parts = [replace(part, texts=keys.texts) for part, keys in zip(parts, results, strict=True)]
    begins = np.cumsum([0, *(len(keys.hashes) for keys in results)])
    keys = keys_of(zip((part.slices for part in parts), results, strict=True))
    return WindowKeys(engine, job, slices, parts, begins, keys)


def parts_of(slices: Sequence[Slice], most: int) -> list[Part]:
    """Neighbouring slices in parts of about ``most`` (1 or more) messages, each less than ``most + PART_ROWS``."""
    units = [[cut] for slice_ in slices for cut in slice_.cut(PART_ROWS)]
    return [Part(number, tuple(slices)) for number, slices in enumerate(in_bins(units, most))]


def _read(job: ConsumeJob, part: Part, attempt: str) -> PartKeys:
    return read_keys(job, part.slices, part.number)


def _read_hashes(job: ConsumeJob, part: Part, attempt: str) -> PartKeys:
    return replace(read_keys(job, part.slices, part.number), texts=None)


def compared(window: WindowKeys, rows: Numbers) -> pa.ChunkedArray:
    """Of some ascending rows of the window's keys what ``comparable`` makes of their texts."""
    bounds = np.searchsorted(rows, window.begins)
    parts = [
        replace(part, rows=rows[begin:end] - first)
        for part, first, (begin, end) in zip(window.parts, window.begins[:-1], pairwise(bounds), strict=True)
        if begin < end
    ]
    results = sorted(window.engine(_compared, window.job, parts), key=lambda one: one[0]) if parts else []
    return pa.chunked_array([chunk for _, texts in results for chunk in texts.chunks], pa.large_binary())


def _compared(job: ConsumeJob, part: Part, attempt: str) -> tuple[int, pa.ChunkedArray]:
    texts = read_keys(job, part.slices).texts if part.texts is None else part.texts
    assert texts is not None
    return part.number, comparable(texts.take(pa.array(part.rows)))


# --- what was acked before -------------------------------------------------------------------------------------------


def look_up_in(
    engine: Engine, job: ConsumeJob, since_ms: int, ascending: Hashes, paths: Sequence[str]
) -> list[AckedKeys]:
    """The keys that the group acked since that time and whose hash is among the ascending ones, in no order."""
    if not paths:
        return []
    most = len(ascending) if isinstance(engine, ThreadsEngine) else MOST_HASHES
    count = min(engine.slots, len(paths))
    tasks = [tuple(paths[number::count]) for number in range(count)]
    hits: list[AckedKeys] = []
    for begin in range(0, len(ascending), max(most, 1)):
        hash_set = HashSet(ascending[begin : begin + most])
        hits += engine(_look_up, Horizon(job.root, job.table, job.group.name, since_ms, hash_set), tasks)
    return hits


def _look_up(horizon: Horizon, paths: tuple[str, ...], attempt: str) -> AckedKeys:
    return look_up(horizon, paths)


# --- what was acked --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AckedPart:
    """Neighbouring keys of a window, of which those that were acked become a file."""

    number: int
    """The file's in the commit."""
    not_acked: bytes
    """A bit for each key."""
    slices: tuple[Slice, ...] = ()
    keys: Keys | None = None
    """None: to be read from the slices."""


def stage_acked(window: WindowKeys, is_acked: Mask) -> tuple[list[StagedFile], Tally]:
    """Stage the files of the keys that were acked, each of at most ``KEYS_A_FILE``. ``is_acked``: per row of the keys."""
    tally, parts = Tally(), list[AckedPart]()
    for number, keys in enumerate(window.keys.cut(KEYS_A_FILE)):
        acked = is_acked[number * KEYS_A_FILE :][: len(keys.hashes)]
        if not acked.any():
            continue
        part = AckedPart(len(parts), bits_of(~acked), keys=keys)
        if keys.texts is None:
            offsets = keys.by_queue(np.arange(len(keys.hashes)))
            slices = (cut for slice_ in window.slices for cut in around(slice_, offsets))
            part = replace(part, keys=None, slices=tuple(slices))
        parts.append(part)
        tally += hash_tally(keys.hashes[acked])
    results = sorted(window.engine(_stage, window.job, parts), key=lambda one: one[0]) if parts else []
    return [file for _, file in results], tally


def _stage(job: ConsumeJob, part: AckedPart, attempt: str) -> tuple[int, StagedFile]:
    keys = keys_of([(part.slices, read_keys(job, part.slices))]) if part.keys is None else part.keys
    acked = keys.without(mask_of(part.not_acked, len(keys.hashes)))
    group = job.group.name
    file = stage_keys(
        job.root, job.table, acked, commit_id=job.commit_id, group=group, epoch=job.epoch, part=part.number,
        attempt=attempt,
    )  # fmt: skip
    return part.number, file
