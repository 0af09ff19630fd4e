"""Dead letters sent again, in one commit a part; ``rmq_store/admin/redrive.py`` says which, and what they carry."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmq_store.admin.dead_letters import Letter, Letters
from rmq_store.admin.redrive import (
    CAP,
    CAUSE,
    LISTED,
    RedrivePlan,
    RedriveReport,
    RedriveRequest,
    check_redrive,
    letter_edits,
    plan_redrive,
    redrive_proposal,
    redriven,
    refuse_other,
    would_send,
)
from rmq_store.commit.claim import Wish
from rmq_store.commit.ctl import Action, Ctl, Produced
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
from rmq_store.message.message import MessageConst, MessageQueue, dlq_topic
from rmq_store.utils.host import Host
from rmq_store.utils.known_names import listed

Offsets = npt.NDArray[np.int64]
Found = list[tuple[Slice, Offsets]]
"""Letters, slice by slice: the slice they lie in and their offsets, which ascend."""


def shards_with_letters(shards: Sequence[Shard], request: RedriveRequest) -> list[tuple[Shard, RedriveRequest]]:
    """The shards that have a dead-letter queue of the group, each with what is asked of it.

    None at all has nothing to do, whether or not there is such a group. Raises WrongUse when none has the queue of a letter
    that is named, or the topic that letters are to go to, and when one of them cannot do its part: before any does.
    """
    topic = dlq_topic(request.group)
    held = [(shard, shard.positions().queues_of(topic)) for shard in shards]
    if request.to_topic is not None and not any(queues for _, queues in held):
        shards_with_topic(shards, [request.to_topic])
    if not request.letters.places:
        return _checked([(shard, request) for shard, queues in held if queues])
    known = [queue for _, queues in held for queue in queues]
    found = []
    for place in request.letters.places:
        if MessageQueue(topic, place.broker_name, place.queue_id) not in known:
            named = listed([f"{queue.broker_name}:{queue.queue_id}" for queue in known])
            raise WrongUse(f"{topic} has no queue {place.broker_name}:{place.queue_id}; known: {named}")
    for shard, queues in held:
        here = [p for p in request.letters.places if MessageQueue(topic, p.broker_name, p.queue_id) in queues]
        if here:
            found.append((shard, replace(request, letters=replace(request.letters, places=tuple(here)))))
    return _checked(found)


def _checked(found: list[tuple[Shard, RedriveRequest]]) -> list[tuple[Shard, RedriveRequest]]:
    for shard, request in found:
        check_redrive(shard.name, shard.positions(), request)
    return found


def redrive_all(shard: Shard, request: RedriveRequest, host: Host) -> RedriveReport:
    """All parts of a redrive; the report of the last one tells of all. Raises the errors of ``redrive``."""
    report, committed = redrive(shard, request, host), False
    warnings = report.warnings
    while not report.complete:
        report, committed = redrive(shard, request, host), True
        warnings += report.warnings
    return replace(report, status="committed", warnings=warnings) if committed else report


def redrive(shard: Shard, request: RedriveRequest, host: Host) -> RedriveReport:
    """The next part of a redrive; again while the report is not ``complete``.

    Raises WrongUse (a letter or a topic that is not there), HeldByAnother when another redrive of the group runs, and
    the errors of ``commit``.
    """
    started_ms = host.now_ms()
    shard.commitlog.refresh()
    parts = _parts(shard, request)
    found = _found(shard, request, parts)
    if isinstance(found, RedriveReport):
        return found
    reached("1.planned")
    wish = Wish.of_whole(request.request_id, request.actor, "~redrive", request.group, group=request.group)
    with claimed(shard, wish, host) as claim:
        reached("2.claimed")
        shard.commitlog.refresh()
        parts = _parts(shard, request)  # what was sent until the claim was ours counts
        found = _found(shard, request, parts)
        if isinstance(found, RedriveReport):
            claim.release()
            return found
        plan, letters = found
        sending, commit_id = _first(letters, CAP), host.new_commit_id()
        rows, runs = _copies(shard, request, plan, sending, commit_id)
        file = stage(shard.root, shard.commitlog.path, NewFile(kind="msg", name=f"{commit_id}-00000", rows=rows))
        produced = [Produced(queue, 0, count, row, file.path) for queue, row, count in runs]
        sent: dict[MessageQueue, list[int]] = defaultdict(list)
        for slice_, offsets in sending:
            sent[slice_.queue] += offsets.tolist()
        proposal = redrive_proposal(
            commit_id, request, plan, sent, _count(letters) <= CAP, produced, [file], tally_of_range
        )
        reached("3.staged")
        claim.stop_renewing()
        committed = commit(shard, claim.taken.ended_by(proposal), host, started_ms=started_ms)
    warnings = follow_up(shard, host)
    reached("7.dispatched")
    report = redriven("committed", shard.name, request, plan.positions, [*parts, committed.ctl])
    return replace(report, warnings=warnings)


# --- which letters ---------------------------------------------------------------------------------------------------


def _parts(shard: Shard, request: RedriveRequest) -> list[Ctl]:
    return shard.ctls_of_request(request.request_id, request.group, Action.REDRIVE)


def _found(shard: Shard, request: RedriveRequest, parts: Sequence[Ctl]) -> tuple[RedrivePlan, Found] | RedriveReport:
    """The letters to send, or the report that there is nothing to do, or that this is a dry run."""
    refuse_other(request, parts)
    already = redriven("already_committed", shard.name, request, shard.positions(), parts)
    if any(part.request_complete for part in parts):
        return already
    redrives = shard.ctls_since(0, group=request.group, action=Action.REDRIVE)
    plan = plan_redrive(ShardLookup(shard), request, parts, redrives)
    most = plan.most(request.dry_run)
    letters: Found = []
    for slice_, offsets in _letters(shard, plan, request.letters):
        letters.append((slice_, offsets))
        if most is not None and _count(letters) >= most:
            letters = _first(letters, most)
            break
    if request.dry_run:
        told = [letter for slice_, offsets in _first(letters, LISTED) for letter in _told(shard, slice_, offsets)]
        return would_send(shard.name, request, plan, _count(letters), told)
    return (plan, letters) if letters else already


def _letters(shard: Shard, plan: RedrivePlan, letters: Letters) -> Iterator[tuple[Slice, Offsets]]:
    """The letters that wait and are meant, in queue order. Only what has to be looked at is read."""
    segments = segments_of(shard, plan.hulls())
    for hull in plan.hulls():
        begins, ends = np.array(plan.waiting[hull.queue], dtype=np.int64).T
        for slice_ in cover(hull, segments.get(hull.queue, ()))[0]:
            offsets = np.arange(slice_.begin, slice_.end)
            piece = np.searchsorted(begins, offsets, side="right") - 1
            waits = offsets[(piece >= 0) & (offsets < ends[piece])]
            if len(waits) and letters.look_inside:
                waits = waits[_meant(shard, slice_, waits, letters)]
            if len(waits):
                yield slice_, waits


_LOOKED_AT = ["keys", "unique_key", "properties"]


def _meant(shard: Shard, slice_: Slice, offsets: Offsets, letters: Letters) -> npt.NDArray[np.bool_]:
    rows = SliceReader(shard.root, shard.commitlog.path, slice_).rows(offsets, _LOOKED_AT)
    told = zip(
        _original_topics(rows), rows.column("keys").to_pylist(), rows.column("unique_key").to_pylist(), strict=True
    )
    return np.fromiter((letters.include(*said) for said in told), dtype=np.bool_, count=len(offsets))


def _original_topics(rows: pa.Table) -> list[str | None]:
    maps = rows.column("properties").combine_chunks()
    found: list[str | None] = pc.map_lookup(maps, pa.scalar(MessageConst.RETRY_TOPIC), "last").to_pylist()
    return found


def _told(shard: Shard, slice_: Slice, offsets: Offsets) -> list[Letter]:
    columns = [*_LOOKED_AT, "store_timestamp", "reconsume_times"]
    rows = SliceReader(shard.root, shard.commitlog.path, slice_).rows(offsets, columns)
    topics = _original_topics(rows)
    return [
        Letter(
            slice_.queue,
            offset,
            (row["store_timestamp"] if slice_.store_timestamp is None else slice_.store_timestamp) or 0,
            topic,
            row["keys"],
            row["unique_key"],
            row["reconsume_times"],
        )
        for offset, topic, row in zip(
            offsets.tolist(), topics, rows.drop_columns(["properties"]).to_pylist(), strict=True
        )
    ]


def _count(letters: Found) -> int:
    return sum(len(offsets) for _, offsets in letters)


def _first(letters: Found, most: int) -> Found:
    found: Found = []
    for slice_, offsets in letters:
        if most > 0:
            found.append((slice_, offsets[:most]))
            most -= len(offsets)
    return found


# --- their copies ----------------------------------------------------------------------------------------------------


def _copies(
    shard: Shard, request: RedriveRequest, plan: RedrivePlan, letters: Found, commit_id: str
) -> tuple[pa.Table, list[tuple[MessageQueue, int, int]]]:
    """The copies as one table of schema MSG, by the queue they go to, and their runs: queue, first row, count."""
    copies = pa.concat_tables([_of_slice(shard, request, plan, *letter) for letter in letters])
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
    edits = letter_edits(request, "")
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
