"""The rows of failed messages with all columns that their copies need.

A listener names the columns that it reads; the others are read only for what failed, a file at a time when all slices of the
task are consumed, so that a row group of many queues is read once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmq_store.consumer.listener import Answer
from rmq_store.consumer.pull import Slice
from rmq_store.lake.read.filter import Mask
from rmq_store.lake.read.open_files import OpenFiles
from rmq_store.lake.read.slice_reader import SliceReader
from rmq_store.lake.window.consume_job import ConsumeJob, Offsets
from rmq_store.lake.window.retry_rows import COPY_COLUMNS, PROPERTY_COLUMNS, Failures, Origin


@dataclass(slots=True)
class FailedSlice:
    """The failed messages of a slice."""

    slice: Slice
    offsets: Offsets
    """Ascending."""
    answers: Sequence[Answer]
    """What the listener answered, per message."""
    rows: pa.Table
    """Their rows, with those of COPY_COLUMNS that were read for the listener."""
    dead: Mask = field(init=False)
    """Which become dead letters; ``failures_by_file`` decides it."""


def failures_by_file(job: ConsumeJob, files: OpenFiles, failed: Sequence[FailedSlice]) -> list[Failures]:
    """The failed messages of all slices with all COPY_COLUMNS, one value for each file and set of columns read."""
    by_file: dict[tuple[str, ...], list[FailedSlice]] = {}
    for of_slice in failed:  # topics with different filters have different columns
        by_file.setdefault((of_slice.slice.file, *of_slice.rows.column_names), []).append(of_slice)
    return [
        _failures(job, files, sorted(several, key=lambda of_slice: of_slice.slice.first_row))
        for several in by_file.values()
    ]


def _failures(job: ConsumeJob, files: OpenFiles, several: Sequence[FailedSlice]) -> Failures:
    origins = [Origin(one.slice.queue, job.passes[one.slice.queue], one.offsets) for one in several]
    answers = [answer for one in several for answer in one.answers]
    failures = Failures(origins, answers, _completed(job, files, several))
    ends = np.cumsum([len(one.offsets) for one in several])
    for one, dead in zip(several, np.split(failures.dead(job), ends[:-1]), strict=True):
        one.dead = dead
    return failures


def _completed(job: ConsumeJob, files: OpenFiles, several: Sequence[FailedSlice]) -> pa.Table:
    """The failed rows of one file, in its order, with all COPY_COLUMNS."""
    rows = pa.concat_tables([one.rows for one in several])
    missing = [name for name in COPY_COLUMNS if name not in rows.column_names]
    columns = {name: rows.column(name) for name in rows.column_names}
    if names := [name for name in missing if name not in PROPERTY_COLUMNS]:
        # One slice from the first to the last of them, whose offsets are the rows' numbers in the file.
        first, last = several[0].slice, several[-1].slice
        span = replace(first, begin=first.first_row, end=last.first_row + len(last))
        numbers = np.concatenate([one.offsets + (one.slice.first_row - one.slice.begin) for one in several])
        more = SliceReader(job.root, job.table, span, files).rows(numbers, names)
        columns |= {name: more.column(name) for name in names}
    properties = {name: PROPERTY_COLUMNS[name] for name in missing if name in PROPERTY_COLUMNS}
    columns |= {name: pc.map_lookup(columns["properties"], key, "first") for name, key in properties.items()}
    return pa.table({name: columns[name] for name in COPY_COLUMNS})
