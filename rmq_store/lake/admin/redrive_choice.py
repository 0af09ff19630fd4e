"""Which dead letters a redrive sends, and to which of them its edits apply."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmq_store.admin.dead_letters import DeadLetter, DeadLetterFilter, column_of
from rmq_store.admin.redrive import PREVIEWED, Failure, RedrivePlan, RedriveRequest, plan_redrive
from rmq_store.admin.redrive_edits import Content, Preview, changes
from rmq_store.commit.ctl import Action, Ctl
from rmq_store.consumer.pull import Slice, cover
from rmq_store.lake.read.segments import segments_of
from rmq_store.lake.read.slice_reader import SliceReader
from rmq_store.lake.table.edited_rows import after_edits, columns_of, contents
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.window.plan import ShardLookup
from rmq_store.message.message_const import MessageConst

Offsets = npt.NDArray[np.int64]
Matches = list[tuple[Slice, Offsets]]
"""Dead letters by slice: the slice, and their offsets in it, ascending."""


@dataclass(slots=True)
class Chosen:
    """What a part sends, and the dead letters that it read and does not send."""

    matches: Matches
    failures: list[Failure]
    complete: bool
    """Whether no dead letter of the request is behind them."""


def plan_of(shard: Shard, request: RedriveRequest, parts: Sequence[Ctl]) -> RedrivePlan:
    redrives = shard.ctls_since(0, group=request.group, action=Action.REDRIVE)
    return plan_redrive(ShardLookup(shard), request, parts, redrives)


def chosen_of(shard: Shard, request: RedriveRequest, plan: RedrivePlan, *, whole: bool) -> Chosen:
    """The dead letters that match, divided by whether the edits apply, up to the request's limit of those that do. ``whole``:
    not only those of the next part."""
    most = plan.most(request) if not whole else None if request.edits else plan.allowed
    matches: Matches = []
    for slice_, offsets in _matches(shard, plan, request.dead_letters):
        matches.append((slice_, offsets))
        if most is not None and count_of(matches) >= most:
            matches = first_of(matches, most)
            break
    complete = whole or count_of(matches) <= plan.cap
    if not complete:
        matches = first_of(matches, plan.cap)
    if not request.edits:
        return Chosen(matches, [], complete)
    chosen = Chosen([], [], complete)
    for slice_, offsets in matches:
        room = None if plan.allowed is None else plan.allowed - count_of(chosen.matches)
        if room == 0:
            break
        applies, failures = _divided(shard, request, slice_, offsets)
        if room is not None and len(applies) >= room:
            applies = applies[:room]
            failures = [failure for failure in failures if failure.offset < applies[-1]]
            chosen.complete = True
        if len(applies):
            chosen.matches.append((slice_, applies))
        chosen.failures += failures
    return chosen


def _divided(shard: Shard, request: RedriveRequest, slice_: Slice, offsets: Offsets) -> tuple[Offsets, list[Failure]]:
    """The offsets of the dead letters to which the edits apply, and the others."""
    columns = [*columns_of(request.edits), "unique_key"]
    rows = SliceReader(shard.root, shard.commitlog.path, slice_).rows(offsets, columns)
    keys = rows.column("unique_key").to_pylist()
    results = zip(offsets.tolist(), keys, after_edits(rows, request.edits), strict=True)
    failures = [
        Failure.of(slice_.queue, offset, key, result)
        for offset, key, result in results
        if not isinstance(result, Content)
    ]
    failed = np.array([failure.offset for failure in failures], dtype=np.int64)
    return offsets[~np.isin(offsets, failed)], failures


def previews_of(shard: Shard, request: RedriveRequest, matches: Matches) -> Iterator[Preview]:
    """What the edits change in the first ones."""
    for slice_, offsets in first_of(matches, PREVIEWED) if request.edits else ():
        rows = SliceReader(shard.root, shard.commitlog.path, slice_).rows(offsets, ["properties", "body"])
        pairs = zip(offsets.tolist(), contents(rows), after_edits(rows, request.edits), strict=True)
        for offset, before, after in pairs:
            if isinstance(after, Content):
                yield Preview(slice_.queue, offset, changes(before, after))


def _matches(shard: Shard, plan: RedrivePlan, conditions: DeadLetterFilter) -> Iterator[tuple[Slice, Offsets]]:
    """The waiting dead letters that match, in queue order. Messages are read only where the filter needs properties."""
    segments = segments_of(shard, plan.hulls())
    for hull in plan.hulls():
        begins, ends = np.array(plan.waiting[hull.queue], dtype=np.int64).T
        for slice_ in cover(hull, segments.get(hull.queue, ()))[0]:
            offsets = np.arange(slice_.begin, slice_.end)
            at = np.searchsorted(begins, offsets, side="right") - 1
            waiting = offsets[(at >= 0) & (offsets < ends[at])]
            if len(waiting) and conditions.needs_properties:
                waiting = waiting[_do_match(shard, slice_, waiting, conditions)]
            if len(waiting):
                yield slice_, waiting


_FILTER_COLUMNS = ["keys", "unique_key", "properties"]
_STORED = {"attempt": "reconsume_times"}
"""Columns that are stored under another name than the view ``dead_letters`` gives them."""
_OF_QUEUE = ("topic", "broker_name", "queue_id")
_NOT_STORED = (*_OF_QUEUE, "queue_offset", "original_topic")


def _do_match(shard: Shard, slice_: Slice, offsets: Offsets, conditions: DeadLetterFilter) -> npt.NDArray[np.bool_]:
    """For each offset, whether the filter matches the message there."""
    names = conditions.names
    columns = [column for name in names if (column := column_of(name)) is not None]
    stored = [_STORED.get(column, column) for column in columns if column not in _NOT_STORED]
    if "original_topic" in columns:
        stored.append("origin_topic")
    rows = SliceReader(shard.root, shard.commitlog.path, slice_).rows(
        offsets, list(dict.fromkeys([*_FILTER_COLUMNS, *stored]))
    )
    topics = _property(rows, MessageConst.RETRY_TOPIC).to_pylist()
    keys, unique_keys = (rows.column(name).to_pylist() for name in ("keys", "unique_key"))
    texts = [_texts(name, slice_, offsets, rows) for name in names]
    matches = (
        conditions.matches(
            topics[n], keys[n], unique_keys[n], {name: text[n] for name, text in zip(names, texts, strict=True)}
        )
        for n in range(len(offsets))
    )
    return np.fromiter(matches, dtype=np.bool_, count=len(offsets))


def _texts(name: str, slice_: Slice, offsets: Offsets, rows: pa.Table) -> list[str | None]:
    """The values of a name in ``where`` as text, None where a dead letter has none."""
    column = column_of(name)
    if column is None:
        values = _property(rows, name)
    elif column in _OF_QUEUE:
        values = pa.repeat(str(getattr(slice_.queue, column)), len(offsets))
    elif column == "queue_offset":
        values = pa.array(offsets)
    elif column == "original_topic":
        values = pc.coalesce(_property(rows, MessageConst.RETRY_TOPIC), rows.column("origin_topic").combine_chunks())
    elif column == "store_timestamp" and slice_.store_timestamp is not None:
        values = pa.repeat(slice_.store_timestamp, len(offsets))
    else:
        values = rows.column(_STORED.get(column, column))
    texts: list[str | None] = values.cast(pa.string()).to_pylist()
    return texts


def _property(rows: pa.Table, name: str) -> pa.Array:
    return pc.map_lookup(rows.column("properties").combine_chunks(), pa.scalar(name), "last")


def dead_letters_at(shard: Shard, slice_: Slice, offsets: Offsets) -> list[DeadLetter]:
    columns = [*_FILTER_COLUMNS, "store_timestamp", "reconsume_times"]
    rows = SliceReader(shard.root, shard.commitlog.path, slice_).rows(offsets, columns)
    topics = _property(rows, MessageConst.RETRY_TOPIC).to_pylist()
    return [
        DeadLetter(
            queue=slice_.queue,
            offset=offset,
            store_timestamp=(row["store_timestamp"] if slice_.store_timestamp is None else slice_.store_timestamp) or 0,
            original_topic=topic,
            keys=row["keys"],
            unique_key=row["unique_key"],
            reconsume_times=row["reconsume_times"],
        )
        for offset, topic, row in zip(
            offsets.tolist(), topics, rows.drop_columns(["properties"]).to_pylist(), strict=True
        )
    ]


def count_of(matches: Matches) -> int:
    return sum(len(offsets) for _, offsets in matches)


def first_of(matches: Matches, most: int) -> Matches:
    """The first of them, at most so many."""
    first: Matches = []
    for slice_, offsets in matches:
        if most > 0:
            first.append((slice_, offsets[:most]))
            most -= len(offsets)
    return first
