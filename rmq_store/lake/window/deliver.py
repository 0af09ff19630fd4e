"""Delivery of due retries and delayed messages to their topics, in one commit per shard over all levels and the timer.

``rmq_store/window/due.py`` says what is due, ``rmq_store/window/deliver.py`` where it goes and what the commit records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from types import MappingProxyType

from rmq_store.commit.claim import Wish
from rmq_store.commit.ctl import SCHEDULE_GROUP, Action, Actor
from rmq_store.commit.positions import Outcome
from rmq_store.lake.commit.claim import claimed
from rmq_store.lake.commit.commit import commit, reached
from rmq_store.lake.commit.dispatch import follow_up
from rmq_store.lake.read.segments import waiting_segments
from rmq_store.lake.table.evidence import tally_of_range
from rmq_store.lake.table.imports import salvage_gaps
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.stage import NewFile, stage
from rmq_store.lake.table.store import LakeStore
from rmq_store.lake.window.delivered_rows import delivered_rows
from rmq_store.lake.window.outcome_ranges import NO_MESSAGE, outcome_ranges
from rmq_store.message.message import MessageQueue
from rmq_store.utils.host import Host
from rmq_store.window.deliver import (
    CAP,
    DeliverReport,
    DeliverRequest,
    already_delivered,
    committed_delivery,
    deliver_proposal,
    moved_to,
    nothing_due,
)
from rmq_store.window.due import Due, GapsOf, Undeliverable, first_due, select_due, still_due


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

    A message that does not say where it goes stops its own queue. Raises BadData, which names it, when nothing else is due;
    HeldByAnother when another delivery of the shard runs; and the errors of ``commit``.
    """
    started_ms = host.now_ms()
    request = DeliverRequest(request_id, actor, started_ms if now_ms is None else now_ms, cap)
    shard.refresh("commitlog", "consumequeue")
    due = _plan(store, shard, request, host)
    if isinstance(due, DeliverReport):
        return due
    reached("1.planned")
    wish = Wish.of_whole(request_id, actor, "~deliver", group=SCHEDULE_GROUP)
    with claimed(shard, wish, host) as claim:
        reached("2.claimed")
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
            copies = delivered_rows(shard, moving, commit_id, request.now_ms)
            if not isinstance(copies, dict):
                break
            waits |= copies
        rows, runs = copies
        file = stage(shard.root, shard.commitlog.path, NewFile(kind="msg", name=f"{commit_id}-00000", rows=rows))
        produced = [moved_to(run.queue, run.count, run.first_row, file.path, run.due_ms) for run in runs]
        files = [file]
        if lost := [(range_, Outcome.LOST, NO_MESSAGE) for one in moving for range_ in one.lost]:
            rows = outcome_ranges(commit_id, SCHEDULE_GROUP, {one.queue: 0 for one in moving}, None, lost)
            files.append(stage(shard.root, shard.commitlog.path, NewFile(kind="outcome", name=commit_id, rows=rows)))
        proposal = deliver_proposal(
            request,
            positions,
            due,
            commit_id=commit_id,
            produced=produced,
            files=files,
            tally_of_range=tally_of_range,
        )
        reached("3.staged")
        claim.stop_renewing()
        committed = commit(shard, claim.taken.ended_by(proposal), host, started_ms=started_ms)
    warnings = follow_up(shard, host)
    reached("7.dispatched")
    return replace(committed_delivery(shard.name, committed.ctl, due), warnings=warnings)


def first_due_ms(store: LakeStore, shard: Shard, host: Host) -> int | None:
    """When the first waiting message is due (UTC ms); None: nothing waits; 0: one has a due time that no delay reaches, and is
    due now. Reads only the first messages of the queues."""
    shard.refresh("commitlog", "consumequeue")
    return _first_due_ms(store, shard, host)


def _first_due_ms(store: LakeStore, shard: Shard, host: Host) -> int | None:
    return first_due(
        shard.positions(),
        lambda ranges: waiting_segments(shard, ranges),
        shard.local_broker,
        store.levels,
        host.now_ms(),
        _gaps_of(shard),
    )


def _gaps_of(shard: Shard) -> GapsOf:
    """Reads the records of salvages once, and only where a queue has a hole."""
    gaps = cache(partial(salvage_gaps, shard))
    return lambda queue: gaps().get(queue, ())


def _plan(
    store: LakeStore,
    shard: Shard,
    request: DeliverRequest,
    host: Host,
    before: Sequence[Due] = (),
    waits: Mapping[MessageQueue, Undeliverable] = MappingProxyType({}),
) -> Sequence[Due] | DeliverReport:
    """What is due, or the report that there is nothing to do for this request. ``before``: what an earlier plan chose; the
    answer while no other delivery has moved any of it. ``waits``: what was found in it that cannot be delivered. Raises the
    BadData of ``nothing_due``."""
    if parts := shard.ctls_of_request(request.request_id, SCHEDULE_GROUP, Action.DELIVER):
        return already_delivered(shard.name, parts[0], partial(_first_due_ms, store, shard, host))
    positions = shard.positions()
    if before and not waits and still_due(positions, before):
        return before
    clock_ms = host.now_ms()  # read after the positions, so that what they hold is not from the future
    due = select_due(
        positions,
        lambda ranges: waiting_segments(shard, ranges),
        shard.local_broker,
        store.levels,
        now_ms=request.now_ms,
        cap=request.cap,
        clock_ms=clock_ms,
        gaps_of=_gaps_of(shard),
        undeliverable=waits,
    )
    return due if any(one.slices for one in due) else nothing_due(shard.name, request.request_id, due)
