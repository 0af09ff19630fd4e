"""Delivery of due retries and delayed messages to their topics, in one commit per shard over all levels and the timer.

``rmq_store/window/due.py`` says what is due, ``rmq_store/window/deliver.py`` where it goes and what the commit records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmq_store.commit.claim import Wish
from rmq_store.commit.ctl import SCHEDULE_GROUP, Action, Actor
from rmq_store.consumer.pull import Slice
from rmq_store.consumer.timer import is_coarse
from rmq_store.errors import BadData
from rmq_store.lake.commit.claim import claimed
from rmq_store.lake.commit.commit import commit, reached
from rmq_store.lake.commit.dispatch import follow_up
from rmq_store.lake.read.segments import waiting_segments
from rmq_store.lake.read.slice_reader import MESSAGE_COLUMNS, SliceReader
from rmq_store.lake.table import tables
from rmq_store.lake.table.arrow_maps import edit_maps
from rmq_store.lake.table.evidence import tally_of_range
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.stage import NewFile, stage
from rmq_store.lake.table.store import LakeStore
from rmq_store.message.message import MessageQueue
from rmq_store.message.message_const import MessageConst
from rmq_store.utils.host import Host
from rmq_store.window.deliver import (
    CAP,
    CAUSE,
    DeliverReport,
    DeliverRequest,
    Step,
    already_delivered,
    committed_delivery,
    deliver_proposal,
    moved_to,
    nothing_due,
    step,
)
from rmq_store.window.due import Due, select_due, still_due


def deliver(
    store: LakeStore,
    shard: Shard,
    request_id: str,
    actor: Actor,
    host: Host,
    *,
    now_ms: int | None = None,
    cap: int = CAP,
) -> DeliverReport:
    """Move what is due at ``now_ms`` (UTC ms; default: this host's clock) to its real topic, in one commit of at most ``cap``
    messages.

    Raises HeldByAnother when another delivery of the shard runs, and the errors of ``commit``.
    """
    started_ms = host.now_ms()
    request = DeliverRequest(request_id, actor, started_ms if now_ms is None else now_ms, cap)
    shard.commitlog.refresh()
    due = _plan(store, shard, request, host)
    if isinstance(due, DeliverReport):
        return due
    reached("1.planned")
    wish = Wish.of_whole(request_id, actor, "~deliver", group=SCHEDULE_GROUP)
    with claimed(shard, wish, host) as claim:
        reached("2.claimed")
        shard.commitlog.refresh()
        positions = shard.positions()
        # Another delivery may have committed before this one got the claim.
        due = _plan(store, shard, request, host, due)
        if isinstance(due, DeliverReport):
            claim.release()
            return due
        moving = [one for one in due if one.slices]
        commit_id = host.new_commit_id()
        rows, runs = _delivered(shard, moving, commit_id, request.now_ms)
        file = stage(shard.root, shard.commitlog.path, NewFile(kind="msg", name=f"{commit_id}-00000", rows=rows))
        produced = [moved_to(queue, count, row, file.path, due_ms) for queue, count, row, due_ms in runs]
        proposal = deliver_proposal(
            request,
            positions,
            due,
            commit_id=commit_id,
            produced=produced,
            files=[file],
            tally_of_range=tally_of_range,
        )
        reached("3.staged")
        claim.stop_renewing()
        committed = commit(shard, claim.taken.ended_by(proposal), host, started_ms=started_ms)
    warnings = follow_up(shard, host)
    reached("7.dispatched")
    return replace(committed_delivery(shard.name, committed.ctl, due), warnings=warnings)


def _plan(
    store: LakeStore, shard: Shard, request: DeliverRequest, host: Host, before: Sequence[Due] = ()
) -> Sequence[Due] | DeliverReport:
    """What is due, or the report that there is nothing to do for this request. ``before``: what an earlier plan chose; the
    answer while no other delivery has moved any of it."""
    if parts := shard.ctls_of_request(request.request_id, SCHEDULE_GROUP, Action.DELIVER):
        return already_delivered(shard.name, parts[0])
    positions = shard.positions()
    if before and still_due(positions, before):
        return before
    shard.consumequeue.refresh()
    clock_ms = host.now_ms()  # read after the positions, so that what they hold is not from the future
    due = select_due(
        positions,
        lambda ranges: waiting_segments(shard, ranges),
        shard.local_broker,
        store.levels,
        now_ms=request.now_ms,
        cap=request.cap,
        clock_ms=clock_ms,
    )
    return due if any(one.slices for one in due) else nothing_due(shard.name, request.request_id, due)


# --- the copies ------------------------------------------------------------------------------------------------------


def _delivered(
    shard: Shard, due: Sequence[Due], commit_id: str, now_ms: int
) -> tuple[pa.Table, list[tuple[MessageQueue, int, int, int]]]:
    """The copies, sorted by queue and due time, and their runs: (queue, count, first row, first due time in UTC ms)."""
    copies = pa.concat_tables(
        [copies for one in due for at, slice_ in one.slices for copies in _copies(shard, at, slice_, now_ms)]
    )
    copies = copies.sort_by([(name, "ascending") for name in _DELIVERED_ORDER])
    runs, row = [], 0
    grouped = copies.group_by(["topic", "broker_name", "queue_id"], use_threads=False).aggregate(
        [("deliver_at", "count"), ("deliver_at", "min")]
    )
    for group in grouped.to_pylist():
        count, queue = group["deliver_at_count"], MessageQueue(group["topic"], group["broker_name"], group["queue_id"])
        runs.append((queue, count, row, group["deliver_at_min"]))
        row += count
    constant = {"commit_id": commit_id, "part": 0}
    columns = {name: copies.column(name) for name in copies.column_names} | {"rel": pa.array(np.arange(row))}
    columns |= {name: pa.repeat(pa.scalar(value, tables.MSG.field(name).type), row) for name, value in constant.items()}
    columns["deliver_at"] = pa.nulls(row, pa.int64())
    return pa.table({name: columns[name] for name in tables.MSG.names}).cast(tables.MSG), runs


_DELIVERED_ORDER = (
    "topic", "broker_name", "queue_id", "deliver_at", "origin_topic", "origin_broker_name", "origin_queue_id",
    "origin_queue_offset",
)  # fmt: skip


def _copies(shard: Shard, due_at: int, slice_: Slice, now_ms: int) -> list[pa.Table]:
    """The copies of one slice: those for their real topics, and those for the timer's queue of their second."""
    offsets = np.arange(slice_.begin, slice_.end)
    rows = SliceReader(shard.root, shard.commitlog.path, slice_).rows(offsets, [*MESSAGE_COLUMNS, "epoch"])
    if not is_coarse(slice_.queue):
        only_step = step(slice_, due_at, None, now_ms)
        return [_moved(shard, slice_, rows, offsets, [only_step] * rows.num_rows)]
    timer_outs = _property(rows, MessageConst.TIMER_OUT_MS).to_pylist()
    step_of = {text: step(slice_, due_at, text, now_ms) for text in set(timer_outs)}
    steps = [step_of[text] for text in timer_outs]
    rolled = np.array([one.queue is not None for one in steps])
    parts = [np.flatnonzero(where) for where in (rolled, ~rolled) if where.any()]
    return [_moved(shard, slice_, rows.take(pa.array(p)), offsets[p], [steps[n] for n in p.tolist()]) for p in parts]


def _moved(
    shard: Shard, slice_: Slice, rows: pa.Table, offsets: npt.NDArray[np.int64], steps: Sequence[Step]
) -> pa.Table:
    """The copies of some rows of a slice, which all go to their real topics or all stay in the timer."""
    n = rows.num_rows
    if steps[0].queue is None:
        topics, queue_ids = _real_queues(slice_, rows)
        broker_name = shard.local_broker
    else:
        topics = pa.repeat(pa.scalar(slice_.queue.topic, pa.string()), n)
        queue_ids = pa.array([one.queue.queue_id if one.queue else None for one in steps], pa.int32())
        broker_name = slice_.queue.broker_name
    columns = {name: rows.column(name) for name in rows.column_names}
    columns |= {field.name: pa.nulls(n, field.type) for field in tables.MSG if field.name not in columns}
    new_in_store = ("queue_offset", "commit_log_offset", "offset_msg_id", "store_timestamp", "store_size", "store_host")
    columns |= {name: pa.nulls(n, tables.MSG.field(name).type) for name in new_in_store}
    constant = {
        "broker_name": broker_name,
        "group_name": SCHEDULE_GROUP,
        "pass": 0,
        "origin_topic": slice_.queue.topic,
        "origin_broker_name": slice_.queue.broker_name,
        "origin_queue_id": slice_.queue.queue_id,
        "cause": CAUSE,
    }
    columns |= {name: pa.repeat(pa.scalar(value, tables.MSG.field(name).type), n) for name, value in constant.items()}
    edits = steps[0].edits
    maps = rows.column("properties").combine_chunks()
    return pa.table(
        columns
        | {
            "topic": topics,
            "queue_id": queue_ids,
            "origin_queue_offset": pa.array(offsets),
            "attempt": rows.column("reconsume_times"),
            "deliver_at": pa.array([one.due_ms for one in steps], pa.int64()),
            "properties": edit_maps(maps, edits.put, edits.put_if_absent, edits.remove),
        }
    )


def _real_queues(slice_: Slice, rows: pa.Table) -> tuple[pa.Array, pa.Array]:
    """REAL_TOPIC and REAL_QID of each row."""
    topics, queue_ids = _property(rows, MessageConst.REAL_TOPIC), _property(rows, MessageConst.REAL_QUEUE_ID)
    if topics.null_count or queue_ids.null_count:
        raise BadData(
            f"{slice_.queue} [{slice_.begin}, {slice_.end}): a message does not say its REAL_TOPIC and REAL_QID"
        )
    return topics, queue_ids.cast(pa.int32())


def _property(rows: pa.Table, name: str) -> pa.Array:
    return pc.map_lookup(rows.column("properties").combine_chunks(), pa.scalar(name), "last")
