"""Redrives in memory: one commit per part. ``rmq_store/admin/redrive.py`` has the rules."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from rmq_store.admin.dead_letters import COLUMNS, DeadLetter, DeadLetterFilter, column_of
from rmq_store.admin.json_edits import DoesNotApply
from rmq_store.admin.redrive import (
    CAUSE,
    FAILED,
    LISTED,
    PREVIEWED,
    Failure,
    RedrivePlan,
    RedriveReport,
    RedriveRequest,
    plan_redrive,
    redrive_edits,
    redrive_proposal,
    redriven,
    refuse_failures,
    refuse_other,
    wait_ms,
    would_send,
)
from rmq_store.admin.redrive_edits import Content, Preview, changes, edited
from rmq_store.commit.claim import Wish
from rmq_store.commit.ctl import Action, Ctl, Produced
from rmq_store.commit.positions import QueueRange
from rmq_store.commit.request import Status
from rmq_store.consumer.pull import cover
from rmq_store.message.message import MessageQueue
from rmq_store.message.message_const import MessageConst
from rmq_store.utils.host import Host
from tests.oracle.memory.claim import claimed
from tests.oracle.memory.commit import commit, tally_of_range
from tests.oracle.memory.rows import MessageRow, OutcomeRow, Provenance, Stored
from tests.oracle.memory.shard import MemoryShard


def redrive(shard: MemoryShard, request: RedriveRequest, host: Host) -> RedriveReport:
    """The next part of a redrive. Call it until the report is ``complete``.

    Raises WrongUse (a dead letter or a topic that does not exist), HeldByAnother when another redrive of the group runs, and
    the errors of ``commit``.
    """
    parts = _parts(shard, request)
    planned = _planned(shard, request, parts)
    if isinstance(planned, RedriveReport):
        return planned
    if early_ms := wait_ms(request, parts, host.now_ms()):
        host.sleep(early_ms / 1000)
    started_ms = host.now_ms()
    shard.on_step("1.planned")
    wish = Wish.of_whole(request.request_id, request.actor, "~redrive", request.group, group=request.group)
    with claimed(shard, wish, host) as claim:
        shard.on_step("2.claimed")
        parts = _parts(shard, request)  # another attempt may have sent some before this run got the claim
        planned = _planned(shard, request, parts)
        if isinstance(planned, RedriveReport):
            claim.release()
            return planned
        plan, chosen, commit_id = planned[0], planned[1], host.new_commit_id()
        copies = sorted(
            ((plan.target_queue_id(m.queue, m.queue_offset), _copy(request, plan, m)) for m in chosen.sent),
            key=lambda c: c[0],
        )
        files = [shard.stage(f"{commit_id}-00000", [row for _, row in copies])] if copies else []
        produced, first_row = [], 0
        for queue_id, run in groupby(copies, key=lambda copy: copy[0]):
            queue = MessageQueue(request.target_topic, shard.local_broker, queue_id)
            produced.append(Produced(queue, 0, len(list(run)), first_row, files[0].path))
            first_row += produced[-1].count
        if chosen.failures:
            rows = [
                OutcomeRow(QueueRange(f.queue, f.offset, f.offset + 1), request.group, 0, FAILED, f.reason, "")
                for f in chosen.failures
            ]
            files.append(shard.stage_outcomes(f"{commit_id}-00001", rows))
        sent: dict[MessageQueue, list[int]] = defaultdict(list)
        for message in chosen.sent:
            sent[message.queue].append(message.queue_offset)
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
        shard.on_step("3.staged")
        committed = commit(shard, claim.taken.ended_by(proposal), host, started_ms=started_ms)
    return redriven(Status.COMMITTED, shard.name, request, plan.positions, [*parts, committed.ctl], chosen.failures)


def _parts(shard: MemoryShard, request: RedriveRequest) -> list[Ctl]:
    return shard.ctls_of_request(request.request_id, request.group, Action.REDRIVE)


@dataclass(slots=True)
class Chosen:
    """What a part sends, and what it read and does not send."""

    sent: list[Stored]
    failures: list[Failure]
    complete: bool


def _planned(
    shard: MemoryShard, request: RedriveRequest, parts: list[Ctl]
) -> tuple[RedrivePlan, Chosen] | RedriveReport:
    """The dead letters to send; or the report, when there is nothing to do or this is a dry run."""
    refuse_other(request, parts)
    already = redriven(Status.ALREADY_COMMITTED, shard.name, request, shard.positions(), parts)
    if any(part.request_complete for part in parts):
        return already
    redrives = [ctl for ctl in shard.ctls() if (ctl.group, ctl.action) == (request.group, Action.REDRIVE)]
    plan = plan_redrive(shard, request, parts, redrives)
    matches = list(_matches(shard, plan, request.dead_letters))
    if request.dry_run:
        chosen = _chosen(request, plan, matches)
        listed = [_dead_letter(m) for m in chosen.sent[:LISTED]]
        previews = [_preview(request, m) for m in chosen.sent[:PREVIEWED]] if request.edits else []
        return would_send(shard.name, request, plan, len(chosen.sent), listed, chosen.failures, previews)
    if request.all_or_nothing and not parts:
        refuse_failures(shard.name, _chosen(request, plan, matches).failures)
    chosen = _chosen(request, plan, matches[: plan.cap])
    limited = plan.allowed is not None and len(chosen.sent) >= plan.allowed
    chosen.complete = limited or len(matches) <= plan.cap
    return (plan, chosen) if chosen.sent or chosen.failures else already


def _chosen(request: RedriveRequest, plan: RedrivePlan, matches: list[Stored]) -> Chosen:
    chosen = Chosen([], [], True)
    for message in matches:
        if len(chosen.sent) == plan.allowed:
            break
        try:
            edited(_content(message), request.edits)
            chosen.sent.append(message)
        except DoesNotApply as error:
            key = message.row.properties.get(MessageConst.UNIQ_CLIENT_MESSAGE_ID_KEYIDX)
            chosen.failures.append(Failure.of(message.queue, message.queue_offset, key, error))
    return chosen


def _content(message: Stored) -> Content:
    return Content(message.row.properties, message.row.body)


def _preview(request: RedriveRequest, message: Stored) -> Preview:
    before = _content(message)
    return Preview(message.queue, message.queue_offset, changes(before, edited(before, request.edits)))


def _matches(shard: MemoryShard, plan: RedrivePlan, conditions: DeadLetterFilter) -> Iterator[Stored]:
    """The waiting dead letters that match, in queue order."""
    segments = shard.segments_of(plan.hulls())
    for hull in plan.hulls():
        waiting = plan.waiting[hull.queue]
        for slice_ in cover(hull, segments.get(hull.queue, ()))[0]:
            for message in shard.read(slice_):
                letter = _dead_letter(message)
                if any(begin <= message.queue_offset < end for begin, end in waiting) and conditions.matches(
                    letter.original_topic, letter.keys, letter.unique_key, _values(message, conditions.names)
                ):
                    yield message


def _values(message: Stored, names: Sequence[str]) -> dict[str, str | None]:
    """What an expression over these names gets."""
    row, origin = message.row, message.row.provenance
    queue = None if origin is None else origin.queue
    properties = row.properties
    columns: dict[str, object] = {
        "topic": message.queue.topic,
        "broker_name": message.queue.broker_name,
        "queue_id": message.queue.queue_id,
        "queue_offset": message.queue_offset,
        "cause": origin and origin.cause,
        "attempt": row.reconsume_times,
        "original_topic": properties.get(MessageConst.RETRY_TOPIC) or (queue and queue.topic),
        "origin_topic": queue and queue.topic,
        "origin_broker_name": queue and queue.broker_name,
        "origin_queue_id": queue and queue.queue_id,
        "origin_queue_offset": origin and origin.offset,
        "unique_key": properties.get(MessageConst.UNIQ_CLIENT_MESSAGE_ID_KEYIDX),
        "keys": properties.get(MessageConst.KEYS),
        "tags": row.tags,
        "error_type": origin and origin.error_type,
        "error_text": origin and origin.error_text,
        "born_timestamp": row.born_timestamp,
        "store_timestamp": message.store_timestamp,
    }
    assert tuple(columns) == COLUMNS
    values = {name: properties.get(name) if (of := column_of(name)) is None else columns[of] for name in names}
    return {name: None if value is None else str(value) for name, value in values.items()}


def _dead_letter(message: Stored) -> DeadLetter:
    properties = message.row.properties
    return DeadLetter(
        queue=message.queue,
        offset=message.queue_offset,
        store_timestamp=message.store_timestamp,
        original_topic=properties.get(MessageConst.RETRY_TOPIC),
        keys=properties.get(MessageConst.KEYS),
        unique_key=properties.get(MessageConst.UNIQ_CLIENT_MESSAGE_ID_KEYIDX),
        reconsume_times=message.row.reconsume_times,
    )


def _copy(request: RedriveRequest, plan: RedrivePlan, message: Stored) -> MessageRow:
    edits = redrive_edits(request, message.offset_msg_id)
    content = edited(_content(message), request.edits)
    return replace(
        message.row,
        properties=edits.apply(content.properties),
        body=content.body,
        reconsume_times=0,
        store_timestamp=None,
        offset_msg_id=None,
        provenance=Provenance(
            group=request.group,
            pass_=0,
            queue=message.queue,
            offset=message.queue_offset,
            cause=CAUSE,
            attempt=0,
            epoch=plan.epoch,
        ),
    )
