"""The tasks of an import: a commit log file is cut into chunks, so that one file keeps all cores busy.

A cut must be where a record begins. The broker's consume queues name such places; no cut is taken at their word. A file's
first chunk begins at a record, and each chunk must end exactly where the next one begins; this proves all cuts. A file of
which a chunk ends elsewhere is read again by one task: its entries were wrong, or there is a hole, damage, or the end of
the log.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby, pairwise

import numpy as np
import numpy.typing as npt

from rmq_store.broker_files.consume_queue_file import ConsumeQueueFiles
from rmq_store.broker_files.file_source import FileSource
from rmq_store.broker_files.mapped_file_queue import MappedFile
from rmq_store.lake.broker.entry_reader import ENTRY
from rmq_store.lake.broker.import_job import ImportJob, ImportResult, ImportTask
from rmq_store.lake.broker.import_slice import import_file
from rmq_store.lake.broker.salvage import CHUNK_BYTES
from rmq_store.lake.window.engine import Engine
from rmq_store.log.commit_log import only_zeros

_QUEUES_PER_CHUNK = 256
"""A task reads one chunk for each so many queues: its requests for their entries take about as long as the rest."""
_MOST_CHUNKS = 16
_QUEUES_TO_LOOK_AT = 8
_LOOK_BYTES = 4096
_ROUNDS_AT_ONCE = 2

Offsets = npt.NDArray[np.int64]


def tasks_of(job: ImportJob, files: Sequence[MappedFile], begin: int, *, cut: bool = True) -> list[ImportTask]:
    """The tasks that read these files from the physical offset ``begin`` on, in log order. ``cut`` False: one a file."""
    tasks: list[ImportTask] = []
    for file in files:
        first = max(begin, file.start_offset)
        edges = [first, *(_cuts(job, file, first) if cut else ()), file.end_offset]
        tasks += [
            ImportTask(len(tasks) + number, file, *chunk, is_cut=number > 0)
            for number, chunk in enumerate(pairwise(edges))
        ]
    return tasks


def run_tasks(
    job: ImportJob, tasks: Sequence[ImportTask], engine: Engine, progress: Callable[[int], None] = lambda _: None
) -> list[ImportResult]:
    """The results in log order; a file's chunks follow one another without a gap. ``progress(read_bytes)`` is called as tasks
    are finished. Raises what ``import_file`` raises."""
    results = []
    for result in _in_order(job, tasks, engine):
        results.append(result)
        progress(sum(one.end - one.begin for one in results))
    result_of = dict(zip((task.number for task in tasks), results, strict=True))
    files = [list(of_file) for _, of_file in groupby(tasks, key=lambda task: task.file)]
    again = [
        ImportTask(chunks[0].number, chunks[0].file, chunks[0].begin, chunks[-1].end)
        for chunks in files
        if not _fit([result_of[chunk.number] for chunk in chunks])
    ]
    if not again:
        return results
    redone = {task.file: result for task, result in zip(again, _in_order(job, again, engine), strict=True)}
    return [
        result
        for chunks in files
        for result in ([redone[chunks[0].file]] if chunks[0].file in redone else [result_of[c.number] for c in chunks])
    ]


def _in_order(job: ImportJob, tasks: Sequence[ImportTask], engine: Engine) -> Iterator[ImportResult]:
    """The results in the order of the tasks. While the last tasks of a round run, those of the next one have the free slots."""
    if not tasks:
        return  # to ask Spark for its slots would start it
    slots = engine.slots
    size = 1 if slots == 1 else 2 * slots
    rounds = [tasks[at : at + size] for at in range(0, len(tasks), size)]

    def results_of(round_: Sequence[ImportTask]) -> list[ImportResult]:
        return sorted(engine(import_file, job, round_), key=lambda result: result.number)

    if slots == 1:
        yield from (result for round_ in rounds for result in results_of(round_))
        return
    with ThreadPoolExecutor(_ROUNDS_AT_ONCE) as pool:
        for results in pool.map(results_of, rounds):
            yield from results


def _fit(chunks: Sequence[ImportResult]) -> bool:
    """Whether each chunk of a file ends where the next one begins, and all could be read."""
    follows = all(before.full and before.end == after.begin for before, after in pairwise(chunks))
    return follows and not any(chunk.failed for chunk in chunks)


# --- where to cut -----------------------------------------------------------------------------------------------------


def _cuts(job: ImportJob, file: MappedFile, begin: int) -> list[int]:
    """Where to cut the file from ``begin`` on. A salvage is not cut: it looks for the next record after damage itself."""
    step = CHUNK_BYTES * min(max(len(job.queues) // _QUEUES_PER_CHUNK, 1), _MOST_CHUNKS)
    if job.salvage or not _may_reach(job.source, file, begin + step):
        return []
    largest = sorted(job.queues.values(), key=lambda queue: (-queue.files[-1].end_offset, queue.topic, queue.queue_id))
    places, cuts = np.empty(0, np.int64), list[int]()
    for queue in largest[:_QUEUES_TO_LOOK_AT]:
        places = np.union1d(places, record_places(job.source, queue, begin, file.end_offset))
        cuts = cut_points(begin, file.end_offset, places, step)
        if cuts and max(after - before for before, after in pairwise([begin, *cuts])) <= step:
            break
    return cuts


def _may_reach(source: FileSource, file: MappedFile, at: int) -> bool:
    """Whether something may be written at ``at`` and after it. The newest file is mostly empty, and is not worth a look at
    the queues."""
    begin = at - file.start_offset
    return at < file.end_offset and not only_zeros(source.read(file.name, begin, begin + _LOOK_BYTES), 0)


def cut_points(begin: int, end: int, places: Offsets, step: int) -> list[int]:
    """Some of the ``places`` (sorted), so that no chunk of ``[begin, end)`` between them is longer than ``step`` where the
    places allow it. What follows the last place is not cut off."""
    cuts: list[int] = []
    at = begin
    while len(places) and places[-1] > at + step:
        number = int(np.searchsorted(places, at + step, side="right"))
        before = int(places[number - 1]) if number else at
        at = before if before > at else int(places[number])
        if at >= end:
            break
        cuts.append(at)
    return cuts


def record_places(source: FileSource, queue: ConsumeQueueFiles, begin: int, end: int) -> Offsets:
    """The physical offsets in ``(begin, end)`` that the queue's entries name, sorted. An entry is a few bytes and may be
    wrong."""

    def begins_after(file: MappedFile) -> bool:
        head = np.frombuffer(source.read(file.name, 0, ENTRY.itemsize), ENTRY)
        return not len(head) or not head[0]["size"] or bool(head[0]["commit_log_offset"] > begin)

    first = max(bisect_left(queue.files, True, key=begins_after) - 1, 0)
    parts = [np.empty(0, np.int64)]
    for file in queue.files[first:]:
        entries = np.frombuffer(source.read(file.name, 0, file.size_bytes), ENTRY)
        offsets = entries["commit_log_offset"][entries["size"] > 0].astype(np.int64)
        parts.append(offsets[(offsets > begin) & (offsets < end)])
        if len(offsets) < len(entries) or (len(offsets) and offsets[-1] >= end):
            break
    return np.unique(np.concatenate(parts))
