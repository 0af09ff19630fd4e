"""Files of acked keys (kind ``key``): writing them, and looking up the keys of a window in them.

The rows of a file are in the window's order, by queue and offset. Every window reads the hashes of its whole horizon; they
are stored plain, without compression. A bitmap of some megabytes over the first bits of a hash (``HashSet``) rules out most
of them; the rest is searched. Texts are read only where hashes are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rmq_store.commit.ctl import StagedFile
from rmq_store.errors import BadData
from rmq_store.lake.table import tables
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.stage import NewFile, stage
from rmq_store.lake.window.window_keys import Hashes, Keys, Numbers, comparable
from rmq_store.utils.host import uuid7_floor

ROW_GROUP_ROWS = 32_768
"""Large enough for a short footer, small enough to read one row group for one hash."""

_NONE: Numbers = np.array([], dtype=np.int64)
_SPARSE_BITS = 5
_LEAST_BITS, _MOST_BITS = 10, 26


# --- reading ---------------------------------------------------------------------------------------------------------


def key_files(shard: Shard, group: str, since_ms: int) -> tuple[list[str], int]:
    """The key files that may hold keys of the group's windows made at this time (UTC ms) or later, and how many rows they have
    in all, as far as the log says it. Keys of older windows and of other groups may be among them."""
    where = (
        (pc.field("partition.kind") == "key")
        & (pc.field("max.commit_id") >= uuid7_floor(since_ms))
        & (pc.field("min.group_name") <= group)
        & (pc.field("max.group_name") >= group)
    )
    files = shard.commitlog.files(where)
    return files.column("path").to_pylist(), pc.sum(files.column("num_records")).as_py() or 0


class HashSet:
    """A set of hashes, made of ascending ones, which may repeat."""

    def __init__(self, ascending: Hashes) -> None:
        self._hashes = ascending
        bits = min(max(len(ascending).bit_length() + _SPARSE_BITS, _LEAST_BITS), _MOST_BITS)
        self._shift = np.uint64(64 - bits)
        self._maybe = np.zeros(1 << bits, dtype=np.bool_)
        self._maybe[self._slots(ascending)] = True

    def __reduce__(self) -> tuple[Callable[[Hashes], HashSet], tuple[Hashes]]:
        """A task gets the hashes and makes the table itself, which may be ten times as large."""
        return HashSet, (self._hashes,)

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
class Horizon:
    """What is looked up in key files, and what of them counts. A value: tasks get it."""

    root: Root
    table: str
    """The path of the commit log table below the root."""
    group: str
    since_ms: int
    """Only the acks of windows made at this time (UTC ms) or later count."""
    hash_set: HashSet
    """The hashes of the window's keys."""


@dataclass(frozen=True, slots=True)
class AckedKeys:
    """Rows of key files."""

    hashes: Hashes
    texts: pa.ChunkedArray
    """As ``comparable`` makes them."""
    epochs: Numbers


def look_up(horizon: Horizon, paths: Sequence[str]) -> AckedKeys:
    """The rows of some key files that count and whose hash is in the set. Raises BadData for an unreadable file."""
    maybe = [_maybe_in(horizon, path) for path in paths]
    is_in = horizon.hash_set.contains(np.concatenate([_NONE, *(hashes for _, hashes in maybe)]))
    ends = np.cumsum([len(rows) for rows, _ in maybe])
    of_files = zip(paths, maybe, np.split(is_in, ends[:-1]), strict=True) if paths else ()
    acked = [_acked_in(horizon, path, rows[hit], hashes[hit]) for path, (rows, hashes), hit in of_files if hit.any()]
    return AckedKeys(
        np.concatenate([_NONE, *(one.hashes for one in acked)]),
        pa.chunked_array([chunk for one in acked for chunk in one.texts.chunks], pa.large_binary()),
        np.concatenate([_NONE, *(one.epochs for one in acked)]),
    )


def _maybe_in(horizon: Horizon, path: str) -> tuple[Numbers, Hashes]:
    """The rows of a file whose hash may be in the set, ascending, and their hashes."""
    with _opened(horizon, path) as file:
        batches = file.iter_batches(ROW_GROUP_ROWS, columns=["key_hash"], use_threads=False)
        return horizon.hash_set.maybe_in(batch.column(0).to_numpy() for batch in batches)


def _acked_in(horizon: Horizon, path: str, rows: Numbers, hashes: Hashes) -> AckedKeys:
    """Of ascending rows of a file those that count. ``hashes``: of the rows."""
    with _opened(horizon, path) as file:
        table = pa.concat_tables(_rows(file, rows, ["key_text", "epoch", "group_name", "commit_id"]))
    is_of_group = pc.equal(table.column("group_name").cast(pa.string()), horizon.group)
    is_young = pc.greater_equal(table.column("commit_id").cast(pa.string()), uuid7_floor(horizon.since_ms))
    counts = pc.and_(is_of_group, is_young).to_numpy()
    kept = table.filter(pa.array(counts))
    return AckedKeys(hashes[counts], comparable(kept.column("key_text")), kept.column("epoch").to_numpy())


@contextmanager
def _opened(horizon: Horizon, path: str) -> Iterator[pq.ParquetFile]:
    root, name = horizon.root, f"{horizon.table}/{path}"
    try:
        with (
            root.reading(name),
            pq.ParquetFile(root.open_file(name), pre_buffer=not root.is_local, read_dictionary=["group_name"]) as file,
        ):
            yield file
    except (pa.ArrowInvalid, OSError) as error:
        raise BadData(
            f"the acked keys of group {horizon.group} in {path} cannot be read ({error}). Without them a message could be "
            "acked again: restore the file."
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
    attempt: str,
) -> StagedFile:
    """Stage a file of the keys that a window acked. ``part``: the number of the file in its commit; ``attempt``: a text that no
    other attempt to write it has."""
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
    file = NewFile(kind="key", name=f"{commit_id}-{part:05d}-{attempt}", rows=rows, row_group_rows=ROW_GROUP_ROWS)
    return stage(root, table_path, file)
