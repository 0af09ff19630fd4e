"""Redrives in the lake: one commit per part. ``rmq_store/admin/redrive.py`` has the rules."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmq_store.admin.dead_letters import DeadLetter, DeadLetterFilter, column_of
from rmq_store.admin.redrive import (
    CAUSE,
    FAILED,
    LISTED,
    PREVIEWED,
    Failure,
    RedrivePlan,
    RedriveReport,
    RedriveRequest,
    check_redrive,
    next_part_ms,
    plan_redrive,
    redrive_edits,
    redrive_proposal,
    redriven,
    refuse_failures,
    refuse_other,
    would_send,
)
from rmq_store.admin.redrive_edits import Content, Preview, changes
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
from rmq_store.lake.table.edited_rows import after_edits, columns_of, contents, with_edits
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
    if len(requests) > 1:
        for shard, request in requests:
            _check_all_or_nothing(shard, request)
    return requests


def _check_all_or_nothing(shard: Shard, request: RedriveRequest) -> None:
    """Raise WrongUse, before another shard has sent anything, when the edits do not apply to a dead letter of this one."""
    if request.all_or_nothing and request.edits and not request.dry_run and not (parts := _parts(shard, request)):
        refuse_failures(shard.name, _chosen(shard, request, _plan(shard, request, parts), whole=True).failures)


def redrive_all(shard: Shard, request: RedriveRequest, host: Host) -> RedriveReport:
    """All parts of a redrive; the report of the last one covers all. Raises the errors of ``redrive``."""
    report, committed = redrive(shard, request, host), False
    warnings, failures = report.warnings, report.failures
    while not report.complete:
        report, committed = redrive(shard, request, host), True
        warnings += report.warnings
        failures += report.failures
    report = replace(report, failures=failures[:LISTED])
    return replace(report, status=Status.COMMITTED, warnings=warnings) if committed else report


def redrive(shard: Shard, request: RedriveRequest, host: Host) -> RedriveReport:
    """The next part of a redrive. Call it until the report is ``complete``. With a rate it waits until its turn.

    Raises WrongUse (a dead letter or a topic that does not exist; edits that do not apply, of all or nothing), HeldByAnother
    when another redrive of the group runs, and the errors of ``commit``.
    """
    shard.commitlog.refresh()
    parts = _parts(shard, request)
    planned = _planned(shard, request, parts)
    if isinstance(planned, RedriveReport):
        return planned
    if (early_ms := next_part_ms(request, parts) - host.now_ms()) > 0:
        host.sleep(early_ms / 1000)
    started_ms = host.now_ms()
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
        plan, chosen = planned
        commit_id = host.new_commit_id()
        files, produced = [], []
        if chosen.matches:
            rows, runs = _copies(shard, request, plan, chosen.matches, commit_id)
            new_file = NewFile(kind="msg", name=f"{commit_id}-00000", rows=rows)
            files.append(stage(shard.root, shard.commitlog.path, new_file))
            produced = [Produced(queue, 0, count, row, files[0].path) for queue, row, count in runs]
        if chosen.failures:
            failed = _failed_rows(request, chosen.failures, commit_id)
            new_file = NewFile(kind="outcome", name=f"{commit_id}-00001", rows=failed)
            files.append(stage(shard.root, shard.commitlog.path, new_file))
        sent: dict[MessageQueue, list[int]] = defaultdict(list)
        for slice_, offsets in chosen.matches:
            sent[slice_.queue] += offsets.tolist()
        proposal = redrive_proposal(
            commit_id,
            request,
            plan,
            sent=sent,
            failures=chosen.failures,
            complete=chosen.complete,
            produced=produced,
            files=files,
            tally_of_range=tally_of_range,
        )
        reached("3.staged")
        claim.stop_renewing()
        committed = commit(shard, claim.taken.ended_by(proposal), host, started_ms=started_ms)
    warnings = follow_up(shard, host)
    reached("7.dispatched")
    ctls = [*parts, committed.ctl]
    report = redriven(Status.COMMITTED, shard.name, request, plan.positions, ctls, chosen.failures)
    return replace(report, warnings=warnings)


# --- which dead letters ----------------------------------------------------------------------------------------------


def _parts(shard: Shard, request: RedriveRequest) -> list[Ctl]:
    return shard.ctls_of_request(request.request_id, request.group, Action.REDRIVE)


@dataclass(slots=True)
class _Chosen:
    """What a part sends, and the dead letters that it read and does not send."""

    matches: Matches
    failures: list[Failure]
    complete: bool
    """Whether no dead letter of the request is behind them."""


def _plan(shard: Shard, request: RedriveRequest, parts: Sequence[Ctl]) -> RedrivePlan:
    redrives = shard.ctls_since(0, group=request.group, action=Action.REDRIVE)
    return plan_redrive(ShardLookup(shard), request, parts, redrives)


def _planned(
    shard: Shard, request: RedriveRequest, parts: Sequence[Ctl]
) -> tuple[RedrivePlan, _Chosen] | RedriveReport:
    """The dead letters to send; or the report, when there is nothing to do or this is a dry run."""
    refuse_other(request, parts)
    already = redriven(Status.ALREADY_COMMITTED, shard.name, request, shard.positions(), parts)
    if any(part.request_complete for part in parts):
        return already
    plan = _plan(shard, request, parts)
    if request.dry_run:
        chosen = _chosen(shard, request, plan, whole=True)
        first = _first(chosen.matches, LISTED)
        listed = [letter for slice_, offsets in first for letter in _dead_letters(shard, slice_, offsets)]
        previews = list(_previews(shard, request, chosen.matches))
        return would_send(shard.name, request, plan, _count(chosen.matches), listed, chosen.failures, previews)
    if request.all_or_nothing and request.edits and not parts:
        refuse_failures(shard.name, _chosen(shard, request, plan, whole=True).failures)
    chosen = _chosen(shard, request, plan, whole=False)
    return (plan, chosen) if chosen.matches or chosen.failures else already


def _chosen(shard: Shard, request: RedriveRequest, plan: RedrivePlan, *, whole: bool) -> _Chosen:
    """The dead letters that match, divided by whether the edits apply, up to the request's limit of those that do. ``whole``:
    not only those of the next part."""
    most = plan.most(request) if not whole else None if request.edits else plan.allowed
    matches: Matches = []
    for slice_, offsets in _matches(shard, plan, request.dead_letters):
        matches.append((slice_, offsets))
        if most is not None and _count(matches) >= most:
            matches = _first(matches, most)
            break
    complete = whole or _count(matches) <= plan.cap
    if not complete:
        matches = _first(matches, plan.cap)
    if not request.edits:
        return _Chosen(matches, [], complete)
    chosen = _Chosen([], [], complete)
    for slice_, offsets in matches:
        room = None if plan.allowed is None else plan.allowed - _count(chosen.matches)
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
        Failure(slice_.queue, offset, key, str(result))
        for offset, key, result in results
        if not isinstance(result, Content)
    ]
    failed = np.array([failure.offset for failure in failures], dtype=np.int64)
    return offsets[~np.isin(offsets, failed)], failures


def _previews(shard: Shard, request: RedriveRequest, matches: Matches) -> Iterator[Preview]:
    """What the edits change in the first ones."""
    for slice_, offsets in _first(matches, PREVIEWED) if request.edits else ():
        rows = SliceReader(shard.root, shard.commitlog.path, slice_).rows(offsets, ["properties", "body"])
        pairs = zip(offsets.tolist(), contents(rows), after_edits(rows, request.edits), strict=True)
        for offset, before, after in pairs:
            if isinstance(after, Content):
                yield Preview(slice_.queue, offset, changes(before, after))


def _failed_rows(request: RedriveRequest, failures: Sequence[Failure], commit_id: str) -> pa.Table:
    """Rows (schema OUTCOME) that say why dead letters were not sent."""
    rows = [
        {
            "commit_id": commit_id,
            "topic": failure.queue.topic,
            "broker_name": failure.queue.broker_name,
            "queue_id": failure.queue.queue_id,
            "group_name": request.group,
            "pass": 0,
            "begin_offset": failure.offset,
            "end_offset": failure.offset + 1,
            "outcome": FAILED,
            "reason": "edits",
            "error_text": failure.reason,
            "unique_key": failure.unique_key,
        }
        for failure in failures
    ]
    return pa.Table.from_pylist(rows, schema=tables.OUTCOME)


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
    if request.edits:
        rows = with_edits(rows, request.edits)
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
