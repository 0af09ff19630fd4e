"""Redrives in the lake: one commit per part. ``rmq_store/admin/redrive.py`` has the rules."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np
import pyarrow as pa

from rmq_store.admin.redrive import (
    CAUSE,
    FAILED,
    LISTED,
    Failure,
    RedrivePlan,
    RedriveReport,
    RedriveRequest,
    check_redrive,
    redrive_edits,
    redrive_proposal,
    redriven,
    refuse_failures,
    refuse_other,
    wait_ms,
    waiting_line,
    would_send,
)
from rmq_store.commit.claim import Wish
from rmq_store.commit.ctl import Action, Ctl, Produced
from rmq_store.commit.request import Status
from rmq_store.consumer.pull import Slice
from rmq_store.errors import WrongUse
from rmq_store.lake.admin.redrive_choice import (
    Chosen,
    Matches,
    Offsets,
    chosen_of,
    count_of,
    dead_letters_at,
    first_of,
    plan_of,
    previews_of,
)
from rmq_store.lake.commit.claim import claimed
from rmq_store.lake.commit.commit import commit, reached
from rmq_store.lake.commit.dispatch import follow_up
from rmq_store.lake.read.slice_reader import SliceReader
from rmq_store.lake.table import tables
from rmq_store.lake.table.arrow_maps import edit_maps
from rmq_store.lake.table.edited_rows import with_edits
from rmq_store.lake.table.evidence import tally_of_range
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.stage import NewFile, stage
from rmq_store.lake.window.consumption import shards_with_topic
from rmq_store.message.message import MessageQueue
from rmq_store.message.message_const import dlq_topic
from rmq_store.utils.host import Host
from rmq_store.utils.suggestions import listed


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
        refuse_failures(shard.name, chosen_of(shard, request, plan_of(shard, request, parts), whole=True).failures)


Show = Callable[[str], object]
"""Gets a line for people."""


def _unseen(line: str) -> None:
    """Show nothing."""


def redrive_all(shard: Shard, request: RedriveRequest, host: Host, show: Show = _unseen) -> RedriveReport:
    """All parts of a redrive; the report of the last one covers all. ``show``: is called before each wait, with its end. Raises
    the errors of ``redrive``."""
    report, committed = redrive(shard, request, host, show), False
    warnings, failures = report.warnings, report.failures
    while not report.complete:
        report, committed = redrive(shard, request, host, show), True
        warnings += report.warnings
        failures += report.failures
    report = replace(report, failures=failures[:LISTED])
    return replace(report, status=Status.COMMITTED, warnings=warnings) if committed else report


def redrive(shard: Shard, request: RedriveRequest, host: Host, show: Show = _unseen) -> RedriveReport:
    """The next part of a redrive. Call it until the report is ``complete``. With a rate it waits until its turn, and says
    so with ``show`` before.

    Raises WrongUse (a dead letter or a topic that does not exist; edits that do not apply, of all or nothing), HeldByAnother
    when another redrive of the group runs, and the errors of ``commit``.
    """
    shard.commitlog.refresh()
    parts = _parts(shard, request)
    planned = _planned(shard, request, parts)
    if isinstance(planned, RedriveReport):
        return planned
    now_ms = host.now_ms()
    if early_ms := wait_ms(request, parts, now_ms):
        show(waiting_line(shard.name, planned[0].sent_before, now_ms + early_ms))
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


# --- the plan -------------------------------------------------------------------------------------------------------


def _parts(shard: Shard, request: RedriveRequest) -> list[Ctl]:
    return shard.ctls_of_request(request.request_id, request.group, Action.REDRIVE)


def _planned(shard: Shard, request: RedriveRequest, parts: Sequence[Ctl]) -> tuple[RedrivePlan, Chosen] | RedriveReport:
    """The dead letters to send; or the report, when there is nothing to do or this is a dry run."""
    refuse_other(request, parts)
    already = redriven(Status.ALREADY_COMMITTED, shard.name, request, shard.positions(), parts)
    if any(part.request_complete for part in parts):
        return already
    plan = plan_of(shard, request, parts)
    if request.dry_run:
        chosen = chosen_of(shard, request, plan, whole=True)
        first = first_of(chosen.matches, LISTED)
        listed = [letter for slice_, offsets in first for letter in dead_letters_at(shard, slice_, offsets)]
        previews = list(previews_of(shard, request, chosen.matches))
        return would_send(shard.name, request, plan, count_of(chosen.matches), listed, chosen.failures, previews)
    if request.all_or_nothing and request.edits and not parts:
        refuse_failures(shard.name, chosen_of(shard, request, plan, whole=True).failures)
    chosen = chosen_of(shard, request, plan, whole=False)
    return (plan, chosen) if chosen.matches or chosen.failures else already


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
