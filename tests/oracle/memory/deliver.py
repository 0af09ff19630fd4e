"""Delivery of due retries and delayed messages, in one commit per shard; ``rmq_store/window/deliver.py`` has the rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from types import MappingProxyType

from rmq_store.commit.claim import Wish
from rmq_store.commit.ctl import SCHEDULE_GROUP, Action, Actor, Produced
from rmq_store.consumer.retry import PropertyEdits
from rmq_store.message.message import MessageQueue
from rmq_store.message.message_const import MessageConst
from rmq_store.utils.host import Host
from rmq_store.window.deliver import (
    CAP,
    CAUSE,
    DeliverReport,
    DeliverRequest,
    already_delivered,
    committed_delivery,
    deliver_proposal,
    moved_to,
    nothing_due,
    place_problem,
    real_queue,
    step,
    time_problem,
)
from rmq_store.window.due import Due, Undeliverable, first_due, select_due, still_due
from tests.oracle.memory.claim import claimed
from tests.oracle.memory.commit import commit, tally_of_range
from tests.oracle.memory.rows import MessageRow, Provenance, Stored
from tests.oracle.memory.shard import MemoryShard
from tests.oracle.memory.store import MemoryStore


def deliver(
    store: MemoryStore,
    shard: MemoryShard,
    request_id: str,
    actor: Actor,
    host: Host,
    *,
    now_ms: int | None = None,
    cap: int = CAP,
) -> DeliverReport:
    """Move what is due at ``now_ms`` (UTC ms; default: this host's clock) to its real topic, in one commit.

    Raises HeldByAnother when another delivery of the shard runs, and the errors of ``commit``.
    """
    started_ms = host.now_ms()
    request = DeliverRequest(request_id, actor, started_ms if now_ms is None else now_ms, cap)
    due = _plan(store, shard, request, host)
    if isinstance(due, DeliverReport):
        return due
    shard.on_step("1.planned")
    wish = Wish.of_whole(request_id, actor, "~deliver", group=SCHEDULE_GROUP)
    with claimed(shard, wish, host) as claim:
        shard.on_step("2.claimed")
        positions = shard.positions()
        waits: dict[MessageQueue, Undeliverable] = {}
        while True:
            # Another delivery may have committed before this one got the claim.
            due = _plan(store, shard, request, host, due, waits)
            if isinstance(due, DeliverReport):
                claim.release()
                return due
            moving = [one for one in due if one.slices]
            commit_id = host.new_commit_id()
            found = [one for of_queue in moving if (one := _undeliverable(shard, of_queue)) is not None]
            if not found:
                break
            waits |= {one.queue: one for one in found}
        copies = sorted(
            (copy for one in moving for copy in _copies(shard, one, request.now_ms)), key=lambda copy: copy[:4]
        )
        file = shard.stage(f"{commit_id}-00000", [row for *_, row in copies])
        produced: list[Produced] = []
        first_row = 0
        for queue, run in groupby(copies, key=lambda copy: copy[0]):
            of_queue = list(run)
            produced.append(moved_to(queue, len(of_queue), first_row, file.path, of_queue[0][1]))
            first_row += produced[-1].count
        proposal = deliver_proposal(
            request,
            positions,
            due,
            commit_id=commit_id,
            produced=produced,
            files=[file],
            tally_of_range=tally_of_range,
        )
        shard.on_step("3.staged")
        committed = commit(shard, claim.taken.ended_by(proposal), host, started_ms=started_ms)
    return committed_delivery(shard.name, committed.ctl, due)


def _plan(
    store: MemoryStore,
    shard: MemoryShard,
    request: DeliverRequest,
    host: Host,
    before: Sequence[Due] = (),
    waits: Mapping[MessageQueue, Undeliverable] = MappingProxyType({}),
) -> Sequence[Due] | DeliverReport:
    """What is due, or the report that there is nothing to do for this request. ``before``: what an earlier plan chose; the
    answer while no other delivery has moved any of it. ``waits``: what was found in it that cannot be delivered."""
    if parts := shard.ctls_of_request(request.request_id, SCHEDULE_GROUP, Action.DELIVER):
        waiting = partial(
            first_due, shard.positions(), shard.segments_of, shard.local_broker, store.levels, host.now_ms()
        )
        return already_delivered(shard.name, parts[0], waiting)
    positions = shard.positions()
    if before and not waits and still_due(positions, before):
        return before
    clock_ms = host.now_ms()  # read after the positions, so that what they hold is not from the future
    due = select_due(
        positions,
        shard.segments_of,
        shard.local_broker,
        store.levels,
        now_ms=request.now_ms,
        cap=request.cap,
        clock_ms=clock_ms,
        undeliverable=waits,
    )
    return due if any(one.slices for one in due) else nothing_due(shard.name, request.request_id, due)


def _copies(shard: MemoryShard, due: Due, now_ms: int) -> list[tuple[MessageQueue, int, MessageQueue, int, MessageRow]]:
    """The copies of what is due in one queue: (target, due time in UTC ms, queue, offset in it, copy)."""
    copies = []
    for due_at, slice_ in due.slices:
        for message in shard.read(slice_):
            move = step(slice_, due_at, _timer_out(message), now_ms)
            target = move.queue or real_queue(*_real_place(message), shard.local_broker)
            copies.append((target, move.due_ms, message.queue, message.queue_offset, _copy(message, move.edits)))
    return copies


def _undeliverable(shard: MemoryShard, due: Due) -> Undeliverable | None:
    """The first message in one queue that does not say where it goes."""
    for _, slice_ in due.slices:
        for message in shard.read(slice_):
            reason = place_problem(*_real_place(message)) or time_problem(message.queue, _timer_out(message))
            if reason is not None:
                return Undeliverable(message.queue, message.queue_offset, reason)
    return None


def _real_place(message: Stored) -> tuple[str | None, str | None]:
    properties = message.row.properties
    return properties.get(MessageConst.REAL_TOPIC), properties.get(MessageConst.REAL_QUEUE_ID)


def _timer_out(message: Stored) -> str | None:
    return message.row.properties.get(MessageConst.TIMER_OUT_MS)


def _copy(message: Stored, edits: PropertyEdits) -> MessageRow:
    row = message.row
    epoch = row.provenance.epoch if row.provenance else None
    return replace(
        row,
        properties=edits.apply(row.properties),
        store_timestamp=None,
        offset_msg_id=None,
        provenance=Provenance(
            group=SCHEDULE_GROUP,
            pass_=0,
            queue=message.queue,
            offset=message.queue_offset,
            cause=CAUSE,
            attempt=row.reconsume_times,
            epoch=epoch,
        ),
    )
