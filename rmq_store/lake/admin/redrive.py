"""Redrives in the lake: one commit per part. ``rmq_store/admin/redrive.py`` has the rules."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmq_store.admin.dead_letters import DeadLetter, DeadLetterFilter, column_of
from rmq_store.admin.redrive import (
    CAP,
    CAUSE,
    LISTED,
    RedrivePlan,
    RedriveReport,
    RedriveRequest,
    check_redrive,
    plan_redrive,
    redrive_edits,
    redrive_proposal,
    redriven,
    refuse_other,
    would_send,
)
from rmq_store.commit.claim import Wish
from rmq_store.commit.ctl import Action, Ctl, Produced
from rmq_store.commit.request import Status
from rmq_store.consumer.pull import Slice, cover
from rmq_store.errors import WrongUse
from rmq_store.lake.commit.claim import claimed
from rmq_store.lake.commit.commit import commit, reached
from rmq_store.lake.commit.dispatch import follow_up
from rmq_store.lake.read.segments import segments_of
from rmq_store.lake.read.slice_reader import SliceReader
from rmq_store.lake.table import tables
from rmq_store.lake.table.arrow_maps import edit_maps
from rmq_store.lake.table.evidence import tally_of_range
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.stage import NewFile, stage
from rmq_store.lake.window.consumption import shards_with_topic
from rmq_store.lake.window.plan import ShardLookup
from rmq_store.message.message import MessageQueue
from rmq_store.message.message_const import MessageConst, dlq_topic
from rmq_store.utils.host import Host
from rmq_store.utils.suggestions import listed

Offsets = npt.NDArray[np.int64]
Matches = list[tuple[Slice, Offsets]]
"""Dead letters by slice: the slice, and their offsets in it, ascending."""


def shards_with_dead_letters(shards: Sequence[Shard], request: RedriveRequest) -> list[tuple[Shard, RedriveRequest]]:
    """The shards that have a dead-letter queue of the group, each with its part of the request.

    Empty when there is none, whether or not the group exists. Raises WrongUse when no shard has the queue of a named dead
    letter, or the target topic, and when one shard cannot do its part: no shard has sent anything then.
    """
    topic = dlq_topic(request.group)
    queues_by_shard = [(shard, shard.positions().queues_of(topic)) for shard in shards]
    if request.to_topic is not None and not any(queues for _, queues in queues_by_shard):
        shards_with_topic(shards, [request.to_topic])
    places = request.dead_letters.places
    if not places:
        return _checked([(shard, request) for shard, queues in queues_by_shard if queues])
    known = [queue for _, queues in queues_by_shard for queue in queues]
    requests = []
    for place in places:
        if MessageQueue(topic, place.broker_name, place.queue_id) not in known:
            named = listed([f"{queue.broker_name}:{queue.queue_id}" for queue in known])
            raise WrongUse(f"{topic} has no queue {place.broker_name}:{place.queue_id}; known: {named}")
    for shard, queues in queues_by_shard:
        of_shard = tuple(p for p in places if MessageQueue(topic, p.broker_name, p.queue_id) in queues)
        if of_shard:
            requests.append((shard, replace(request, dead_letters=replace(request.dead_letters, places=of_shard))))
    return _checked(requests)


def _checked(requests: list[tuple[Shard, RedriveRequest]]) -> list[tuple[Shard, RedriveRequest]]:
    for shard, request in requests:
        check_redrive(shard.name, shard.positions(), request)
    return requests


def redrive_all(shard: Shard, request: RedriveRequest, host: Host) -> RedriveReport:
    """All parts of a redrive; the report of the last one covers all. Raises the errors of ``redrive``."""
    report, committed = redrive(shard, request, host), False
    warnings = report.warnings
    while not report.complete:
        report, committed = redrive(shard, request, host), True
        warnings += report.warnings
    return replace(report, status=Status.COMMITTED, warnings=warnings) if committed else report


def redrive(shard: Shard, request: RedriveRequest, host: Host) -> RedriveReport:
    """The next part of a redrive. Call it until the report is ``complete``.

    Raises WrongUse (a dead letter or a topic that does not exist), HeldByAnother when another redrive of the group runs, and
    the errors of ``commit``.
    """
    started_ms = host.now_ms()
    shard.commitlog.refresh()
    parts = _parts(shard, request)
    planned = _planned(shard, request, parts)
    if isinstance(planned, RedriveReport):
        return planned
    reached("1.planned")
    wish = Wish.of_whole(request.request_id, request.actor, "~redrive", request.group, group=request.group)
    with claimed(shard, wish, host) as claim:
        reached("2.claimed")
        shard.commitlog.refresh()
        parts = _parts(shard, request)  # another attempt may have sent some before this run got the claim
        planned = _planned(shard, request, parts)
        if isinstance(planned, RedriveReport):
            claim.release()
            return planned
        plan, matches = planned
        sending, commit_id = _first(matches, CAP), host.new_commit_id()
        rows, runs = _copies(shard, request, plan, sending, commit_id)
        file = stage(shard.root, shard.commitlog.path, NewFile(kind="msg", name=f"{commit_id}-00000", rows=rows))
        produced = [Produced(queue, 0, count, row, file.path) for queue, row, count in runs]
        sent: dict[MessageQueue, list[int]] = defaultdict(list)
        for slice_, offsets in sending:
            sent[slice_.queue] += offsets.tolist()
        proposal = redrive_proposal(
            commit_id,
            request,
            plan,
            sent=sent,
            complete=_count(matches) <= CAP,
            produced=produced,
            files=[file],
            tally_of_range=tally_of_range,
        )
        reached("3.staged")
        claim.stop_renewing()
        committed = commit(shard, claim.taken.ended_by(proposal), host, started_ms=started_ms)
    warnings = follow_up(shard, host)
    reached("7.dispatched")
    report = redriven(Status.COMMITTED, shard.name, request, plan.positions, [*parts, committed.ctl])
    return replace(report, warnings=warnings)


# --- which dead letters ----------------------------------------------------------------------------------------------


def _parts(shard: Shard, request: RedriveRequest) -> list[Ctl]:
    return shard.ctls_of_request(request.request_id, request.group, Action.REDRIVE)


def _planned(
    shard: Shard, request: RedriveRequest, parts: Sequence[Ctl]
) -> tuple[RedrivePlan, Matches] | RedriveReport:
    """The dead letters to send; or the report, when there is nothing to do or this is a dry run."""
    refuse_other(request, parts)
    already = redriven(Status.ALREADY_COMMITTED, shard.name, request, shard.positions(), parts)
    if any(part.request_complete for part in parts):
        return already
    redrives = shard.ctls_since(0, group=request.group, action=Action.REDRIVE)
    plan = plan_redrive(ShardLookup(shard), request, parts, redrives)
    most = plan.most(request.dry_run)
    matches: Matches = []
    for slice_, offsets in _matches(shard, plan, request.dead_letters):
        matches.append((slice_, offsets))
        if most is not None and _count(matches) >= most:
            matches = _first(matches, most)
            break
    if request.dry_run:
        first = _first(matches, LISTED)
        listed = [letter for slice_, offsets in first for letter in _dead_letters(shard, slice_, offsets)]
        return would_send(shard.name, request, plan, _count(matches), listed)
    return (plan, matches) if matches else already


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


def _dead_letters(shard: Shard, slice_: Slice, offsets: Offsets) -> list[DeadLetter]:
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


def _count(matches: Matches) -> int:
    return sum(len(offsets) for _, offsets in matches)


def _first(matches: Matches, most: int) -> Matches:
    """The first of them, at most so many."""
    first: Matches = []
    for slice_, offsets in matches:
        if most > 0:
            first.append((slice_, offsets[:most]))
            most -= len(offsets)
    return first


# --- their copies ----------------------------------------------------------------------------------------------------


def _copies(
    shard: Shard, request: RedriveRequest, plan: RedrivePlan, matches: Matches, commit_id: str
) -> tuple[pa.Table, list[tuple[MessageQueue, int, int]]]:
    """The copies as one table of schema MSG, by the queue they go to, and their runs: queue, first row, count."""
    copies = pa.concat_tables([_of_slice(shard, request, plan, *of_slice) for of_slice in matches])
    queue_ids = copies.column("queue_id").to_numpy()
    order = np.argsort(queue_ids, kind="stable")
    copies = copies.take(pa.array(order))
    rel = pa.array(np.arange(copies.num_rows), pa.int64())
    columns = {name: copies.column(name) for name in copies.column_names} | {"rel": rel}
    constant = {"commit_id": commit_id, "part": 0}
    columns |= {name: _repeat(value, copies.num_rows, name) for name, value in constant.items()}
    runs, row = [], 0
    for queue_id, run in groupby(queue_ids[order].tolist()):
        runs.append((MessageQueue(request.target_topic, shard.local_broker, queue_id), row, len(list(run))))
        row += runs[-1][2]
    return pa.table({name: columns[name] for name in tables.MSG.names}).cast(tables.MSG), runs


_OF_THE_STORE = (
    "queue_offset", "commit_log_offset", "offset_msg_id", "store_timestamp", "store_size", "store_host",
    "prepared_transaction_offset", "deliver_at",
)  # fmt: skip


def _of_slice(shard: Shard, request: RedriveRequest, plan: RedrivePlan, slice_: Slice, offsets: Offsets) -> pa.Table:
    rows = SliceReader(shard.root, shard.commitlog.path, slice_).rows(offsets)
    n, queue = rows.num_rows, slice_.queue
    edits = redrive_edits(request, "")
    own_ids = dict.fromkeys(edits.put_if_absent, rows.column("offset_msg_id").combine_chunks())
    columns = {name: rows.column(name) for name in rows.column_names}
    columns |= {name: pa.nulls(n, tables.MSG.field(name).type) for name in tables.MSG.names if name not in columns}
    columns |= {name: pa.nulls(n, tables.MSG.field(name).type) for name in _OF_THE_STORE}
    constant = {
        "topic": request.target_topic,
        "broker_name": shard.local_broker,
        "reconsume_times": 0,
        "group_name": request.group,
        "pass": 0,
        "origin_topic": queue.topic,
        "origin_broker_name": queue.broker_name,
        "origin_queue_id": queue.queue_id,
        "cause": CAUSE,
        "attempt": 0,
        "epoch": plan.epoch,
    }
    columns |= {name: _repeat(value, n, name) for name, value in constant.items()}
    targets = (plan.target_queue_id(queue, offset) for offset in offsets.tolist())
    columns["queue_id"] = pa.array(np.fromiter(targets, dtype=np.int32, count=n))
    columns["origin_queue_offset"] = pa.array(offsets)
    columns["properties"] = edit_maps(rows.column("properties").combine_chunks(), edits.put, own_ids, edits.remove)
    return pa.table({name: columns[name] for name in tables.MSG.names}).cast(tables.MSG)


def _repeat(value: object, n: int, name: str) -> pa.Array:
    return pa.repeat(pa.scalar(value, tables.MSG.field(name).type), n)
