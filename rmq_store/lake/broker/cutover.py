"""Cut-over: the end of a broker's ownership (docs/architecture.md, "Import"), as one commit.

Its files cannot be imported any more, until it is handed back (``hand_back.py``). What it last reported about its groups is
adopted where the lake has no position of its own: offsets, retry topics, and how far its delay levels were delivered, so that
``deliver`` moves what still waits there. The log of a broker that was killed shows more than its ``delayOffset.json``: what it
shows as delivered is not delivered again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from shlex import quote
from typing import NamedTuple

from rmq_store.admin.offset_moves import first_offsets, next_epoch
from rmq_store.broker_files.delivered_levels import LevelProgress
from rmq_store.broker_files.pop_check_points import REVIVE_TOPIC_PREFIX
from rmq_store.commit.claim import Wish
from rmq_store.commit.ctl import SCHEDULE_GROUP, Action, Actor, Ctl, Moved, Observed, Proposal, canonical_json
from rmq_store.commit.positions import Positions, QueueRange, cutover_id, del_id, grp_id, import_id, off_id, pas_id
from rmq_store.commit.request import Status
from rmq_store.consumer.delay import delay_level_to_queue_id, queue_id_to_delay_level
from rmq_store.errors import WrongUse
from rmq_store.lake.broker.broker_levels import delivered_levels, passed_over, with_levels_to_end
from rmq_store.lake.broker.broker_timer import WaitingTimers, waiting_timers
from rmq_store.lake.broker.diverged_log import refuse_closed
from rmq_store.lake.broker.handed_offsets import handed_offsets
from rmq_store.lake.broker.popped_messages import NOTHING_POPPED, Popped, popped_messages, popped_of
from rmq_store.lake.commit.claim import claimed
from rmq_store.lake.commit.commit import commit
from rmq_store.lake.commit.dispatch import follow_up
from rmq_store.lake.table.imports import (
    END_NOTE,
    incomplete_imports,
    last_configs,
    last_import,
    names_of_log,
    salvage_gaps,
    salvaged_to,
)
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.store import LakeStore
from rmq_store.message.message import MessageQueue
from rmq_store.message.message_const import SCHEDULE_TOPIC, TIMER_TOPIC, MessageConst
from rmq_store.utils.host import Host
from rmq_store.utils.redaction import reason_in_sentence
from rmq_store.utils.suggestions import listed
from rmq_store.utils.times import format_time


@dataclass(frozen=True, slots=True, kw_only=True)
class CutoverReport:
    """What a cut-over did."""

    status: Status
    """COMMITTED, ALREADY_COMMITTED or DRY_RUN."""
    shard: str
    broker_name: str
    groups: int
    """How many groups were adopted."""
    waiting: int
    """Messages in the broker's delay levels, which ``deliver`` owns from now on."""
    notes: tuple[str, ...] = ()
    """What the operator should know of the levels and of the broker's timer."""
    commit_id: str | None = None
    left_out: tuple[str, ...] = ()
    """A sentence on each group that is not adopted in some queues."""
    levels: tuple[LevelProgress, ...] = ()
    """The levels that have messages after the broker's ``delayOffset.json``."""
    popped: Popped = NOTHING_POPPED
    """Messages that groups of the broker have popped and not acked: they stay unread here."""
    warnings: tuple[str, ...] = ()
    """What failed after the commit."""


class _Kept(NamedTuple):
    """An offset of a group at the broker that is another one here."""

    group: str
    topic: str
    queue: str
    """``broker_name:queue_id``."""
    own: int | None
    """The group's offset here; None: it was deleted here, and has none."""
    at_broker: int


class _Adoption(NamedTuple):
    """What a cut-over takes over from the broker."""

    moves: tuple[Moved, ...]
    levels: tuple[LevelProgress, ...]
    kept: tuple[_Kept, ...]
    """Where it does not take over the offset of a group."""


def cutover(
    store: LakeStore,
    shard: Shard,
    broker_name: str,
    host: Host,
    *,
    request_id: str,
    actor: Actor,
    reason: str,
    leave_popped: bool = False,
    dry_run: bool = False,
) -> CutoverReport:
    """End the broker's ownership; the same request again answers with the report of the first time.

    ``leave_popped``: also where groups of the broker have popped messages and not acked them. Raises WrongUse (no reason,
    nothing imported, cut over by another request, popped messages), HeldByAnother (an import runs), and the errors of
    ``commit``.
    """
    if not reason.strip():
        raise WrongUse("a cut-over needs a reason (--reason); it is recorded permanently")
    started_ms = host.now_ms()
    shard.commitlog.refresh()
    if earlier := _earlier(store, shard, broker_name, request_id):
        return earlier
    if dry_run:
        adoption = _adopted(store, shard, broker_name)
        return _report(Status.DRY_RUN, store, shard, broker_name, adoption, _popped(store, shard, broker_name))
    log = names_of_log(shard, broker_name).names
    with claimed(shard, Wish.of_whole(request_id, actor, "~import", log[0]), host) as claim:
        shard.commitlog.refresh()
        if earlier := _earlier(
            store, shard, broker_name, request_id
        ):  # by another attempt, before this one had the claim
            claim.release()
            return earlier
        positions = shard.positions()
        adoption = _adopted(store, shard, broker_name)
        moves, levels, kept = adoption
        popped = _popped(store, shard, broker_name)
        if not leave_popped:
            popped.refuse(broker_name)
        report = _report(Status.COMMITTED, store, shard, broker_name, adoption, popped)
        groups = sorted({move.group for move in moves})
        ctl = Ctl(
            host.new_commit_id(),
            Action.CUTOVER,
            actor,
            reason=reason,
            request_id=request_id,
            parameters=canonical_json(
                {
                    "broker_name": broker_name,
                    "groups": groups,
                    "levels": [asdict(level) for level in levels],
                    **({"popped": asdict(popped)} if popped else {}),
                    **({"kept": kept} if kept else {}),
                }
            ),
            moved=moves,
        )
        claim.stop_renewing()
        proposal = claim.taken.ended_by(cutover_proposal(ctl, positions, broker_name, log))
        committed = commit(shard, proposal, host, started_ms=started_ms)
    return replace(report, commit_id=committed.ctl.commit_id, warnings=follow_up(shard, host))


def _earlier(store: LakeStore, shard: Shard, broker_name: str, request_id: str) -> CutoverReport | None:
    """The report of an earlier attempt of this request, None when the broker owns its groups. Raises WrongUse when another
    request cut it over."""
    cutovers = shard.ctls_since(0, action=str(Action.CUTOVER))
    of_broker = {ctl.request_id: ctl for ctl in cutovers if ctl.parameter("broker_name") == broker_name}
    ctl = of_broker.get(request_id)
    if ctl is None:
        if not of_broker or not shard.positions().get(cutover_id(broker_name)):
            return None  # never cut over, or handed back since
        ctl = list(of_broker.values())[-1]
        raise WrongUse(
            f"broker {broker_name} was cut over by request {ctl.request_id} of {ctl.actor.name} "
            f"({ctl.actor.source}) at {format_time(ctl.store_timestamp)}: {reason_in_sentence(ctl.reason)}. There is nothing "
            "left to do."
        )
    levels = tuple(LevelProgress(**level) for level in ctl.parameter("levels") or ())
    adoption = _Adoption(ctl.moved, levels, tuple(_Kept(*one) for one in ctl.parameter("kept") or ()))
    report = _report(Status.ALREADY_COMMITTED, store, shard, broker_name, adoption, popped_of(ctl))
    return replace(report, commit_id=ctl.commit_id)


def _report(
    status: Status, store: LakeStore, shard: Shard, broker_name: str, adoption: _Adoption, popped: Popped
) -> CutoverReport:
    positions, names = shard.positions(), names_of_log(shard, broker_name).names
    moves, levels, kept = adoption
    return CutoverReport(
        status=status,
        shard=shard.name,
        broker_name=broker_name,
        groups=len({move.group for move in moves} - {SCHEDULE_GROUP}),
        waiting=_waiting(positions, names, moves, salvage_gaps(shard)),
        notes=(
            *_end_notes(shard, broker_name),
            *_kept_notes(kept),
            *_level_notes(shard, broker_name, levels),
            *_passed_over_notes(store, shard, broker_name, moves),
            *_timer_notes(store, shard, positions, names),
            *_popped_notes(status, popped),
        ),
        left_out=_left_out(shard, positions, broker_name),
        levels=levels,
        popped=popped,
    )


def _popped(store: LakeStore, shard: Shard, broker_name: str) -> Popped:
    newest = last_configs(shard, broker_name)
    if newest is None:
        return NOTHING_POPPED
    return popped_messages(store, shard.name, shard.positions(), names_of_log(shard, broker_name).names, newest)


def _popped_notes(status: Status, popped: Popped) -> tuple[str, ...]:
    if not popped:
        return ()
    end = (
        "the cut-over is refused without --leave-popped: let the broker's consumers read them, and import again"
        if status is Status.DRY_RUN
        else "they stay unread here, as --leave-popped says"
    )
    return (*popped.notes, f"no group reads messages here that wait for pop; {end}")


def _adopted(store: LakeStore, shard: Shard, broker_name: str) -> _Adoption:
    """What the handle's snapshot lets the lake adopt. Raises WrongUse when nothing of the broker was imported."""
    positions = shard.positions()
    newest = last_configs(shard, broker_name)
    refuse_closed(shard, broker_name)
    if imported := incomplete_imports(shard).get(broker_name):
        raise WrongUse(
            f"the import of broker {broker_name} is not at its end: its log was imported up to {imported}. Finish the import "
            "('rmq import-store') before the cut-over"
        )
    if newest is None:
        raise WrongUse(f"nothing of broker {broker_name} has been imported into shard {shard.name}")
    observed = [_raised(positions, seen) for seen in with_levels_to_end(positions, newest.observed)]
    recorded = {seen.queue: seen.offset for seen in observed if seen.group == SCHEDULE_GROUP}
    names = names_of_log(shard, broker_name).names
    levels: list[LevelProgress] = []
    further: dict[MessageQueue, int] = {}
    for number, name in enumerate(names):
        queues = positions.queues_of(SCHEDULE_TOPIC, name)
        begins = {queue: recorded.get(queue, positions.min_offset(queue)) for queue in queues}
        ranges = {queue.queue_id: (begin, positions.max_offset(queue)) for queue, begin in begins.items()}
        for level in delivered_levels(store, shard.name, names[number:], ranges, earlier_names=names[:number]):
            levels.append(level)
            if level.delivered:
                queue = MessageQueue(SCHEDULE_TOPIC, name, delay_level_to_queue_id(level.level))
                further[queue] = level.next_offset
    known = [seen for seen in observed if seen.group != SCHEDULE_GROUP or seen.queue not in further]
    known += [Observed(SCHEDULE_GROUP, queue, offset) for queue, offset in further.items()]
    return _Adoption(adopted_moves(positions, known), tuple(levels), tuple(_kept(positions, newest.observed)))


def _raised(positions: Positions, seen: Observed) -> Observed:
    """The broker trims its level queues whatever its ``delayOffset.json`` says, and corrects an offset before the first message
    when it starts: ``ScheduleMessageService#correctDelayOffset`` (rules 3.4)."""
    is_level = seen.group == SCHEDULE_GROUP
    return replace(seen, offset=max(seen.offset, positions.min_offset(seen.queue))) if is_level else seen


def adopted_moves(positions: Positions, observed: Iterable[Observed]) -> tuple[Moved, ...]:
    """The offsets of the broker with which its groups go on here."""
    return tuple(_moved(positions, seen) for seen in observed if _is_adopted(positions, seen))


def cutover_proposal(ctl: Ctl, positions: Positions, broker_name: str, log: Iterable[str]) -> Proposal:
    """The cut-over as a commit. ``ctl``: it has the ``adopted_moves``; ``log``: all broker names of the log. It expects that no
    retention has removed the messages after the adopted offsets."""
    imported, names = import_id(broker_name), tuple(log)
    expect = {imported: positions.get(imported)} | {cutover_id(name): None for name in names}
    advance = {imported: positions.get(imported) or 0} | {cutover_id(name): 1 for name in names}
    for group in sorted({move.group for move in ctl.moved}):
        expect[grp_id(group)] = positions.get(grp_id(group))
        advance[grp_id(group)] = next_epoch(positions, group)
    for move in ctl.moved:
        expect[off_id(move.group, move.queue)] = None
        advance |= {off_id(move.group, move.queue): move.to_offset, pas_id(move.group, move.queue): move.pass_}
    # The position keeps the time of the import that moved it last: by that time the import is found.
    updated_ms = {imported: positions.updated_ms(imported)}
    return Proposal(ctl, expect, advance, updated_ms=updated_ms, begins=first_offsets(positions, ctl.moved))


def _is_adopted(positions: Positions, seen: Observed) -> bool:
    """Only where the lake has no position: the offset of a group that has consumed here is newer, and a group that was
    deleted here has none. An offset beyond the queue is left out, so that the group's first window stops there."""
    if positions.get(del_id(seen.group)) is not None:
        return False
    return positions.get(off_id(seen.group, seen.queue)) is None and seen.offset <= positions.max_offset(seen.queue)


def _left_out(shard: Shard, positions: Positions, broker_name: str) -> tuple[str, ...]:
    """A note on every group whose offset is beyond the end of queues, where it is not adopted."""
    newest = last_configs(shard, broker_name)
    beyond: dict[tuple[str, str], list[MessageQueue]] = {}
    for seen in with_levels_to_end(positions, newest.observed) if newest else ():
        queue = seen.queue
        unknown = positions.get(off_id(seen.group, queue)) is None and positions.get(del_id(seen.group)) is None
        if unknown and seen.offset > positions.max_offset(queue):
            beyond.setdefault((seen.group, queue.topic), []).append(queue)
    return tuple(
        f"group {group} has offsets beyond the end of {len(queues)} queues of {topic} and is not adopted there; its first "
        f"window stops at them until they are reset: rmq reset --group {quote(group)} --topic {quote(topic)} "
        f"{' '.join(f'--queue {quote(q.broker_name)}:{q.queue_id}' for q in sorted(queues))} --to-max --reason ..."
        for (group, topic), queues in sorted(beyond.items())
    )


_MOST_NAMED = 3
"""Queues of a group and topic in a note."""


def _kept(positions: Positions, observed: Iterable[Observed]) -> Iterator[_Kept]:
    for seen in observed:
        own = positions.get(off_id(seen.group, seen.queue))
        is_deleted = own is None and positions.get(del_id(seen.group)) is not None
        if seen.group != SCHEDULE_GROUP and (is_deleted or own not in (None, seen.offset)):
            queue = f"{seen.queue.broker_name}:{seen.queue.queue_id}"
            yield _Kept(seen.group, seen.queue.topic, queue, own, seen.offset)


def _kept_notes(kept: Sequence[_Kept]) -> tuple[str, ...]:
    """On every group that goes on elsewhere than at the broker."""
    of_groups: dict[tuple[str, str, bool], list[str]] = {}
    for one in kept:
        here = "" if one.own is None else f"{one.own} here and "
        place = f"{one.queue} {here}{one.at_broker} at the broker"
        of_groups.setdefault((one.group, one.topic, one.own is None), []).append(place)
    notes = []
    for (group, topic, is_deleted), places in sorted(of_groups.items()):
        what = (
            f"group {group} was deleted here: its offsets at the broker do not count in {topic}, and it begins as a new group"
            if is_deleted
            else f"group {group} has offsets of its own here in {topic}, and keeps them"
        )
        notes.append(f"{what}: {listed(places, _MOST_NAMED)}; 'rmq reset' sets others")
    return tuple(notes)


def _moved(positions: Positions, seen: Observed) -> Moved:
    return Moved(seen.group, seen.queue, None, seen.offset, next_epoch(positions, seen.group))


def _waiting(
    positions: Positions,
    names: Sequence[str],
    moves: tuple[Moved, ...],
    gaps: Mapping[MessageQueue, Sequence[QueueRange]],
) -> int:
    """Messages in the level queues after their offsets. ``gaps``: the offsets that have none."""
    adopted = {move.queue: move.to_offset for move in moves if move.group == SCHEDULE_GROUP}
    queues = [queue for name in names for queue in positions.queues_of(SCHEDULE_TOPIC, name)]
    recorded = {queue: positions.get(off_id(SCHEDULE_GROUP, queue)) or adopted.get(queue, 0) for queue in queues}
    begins = {queue: max(offset, positions.min_offset(queue)) for queue, offset in recorded.items()}
    lost = sum(max(gap.end - max(gap.begin, begins[gap.queue]), 0) for queue in queues for gap in gaps.get(queue, ()))
    return sum(positions.max_offset(queue) - begin for queue, begin in begins.items()) - lost


def _end_notes(shard: Shard, broker_name: str) -> tuple[str, ...]:
    """What the broker's log has behind its last record that was imported."""
    newest = last_import(shard, broker_name)
    note = newest.parameter(END_NOTE) if newest else None
    return (f"at the last import {note}",) if note else ()


def _level_notes(shard: Shard, broker_name: str, levels: tuple[LevelProgress, ...]) -> tuple[str, ...]:
    """What the broker's log shows beyond its ``delayOffset.json``."""
    notes = []
    newest = last_configs(shard, broker_name)
    if newest and newest.parameter("abort"):
        notes.append(
            "the broker's file 'abort' was there at the last import: it was killed, or was still running. The offsets that it "
            "saved may be some seconds old, so that messages are consumed twice; if it is running, stop it and import again"
        )
    for level in levels:
        if level.delivered:
            notes.append(
                f"delay level {level.level}: the log shows {level.delivered:,} messages after offset {level.recorded:,} of "
                "delayOffset.json as delivered; they are not delivered again"
            )
        if level.uncertain:
            notes.append(
                f"delay level {level.level}: {level.uncertain:,} of the {level.waiting:,} waiting messages may have been "
                "delivered, but no message here proves it: 'rmq deliver' delivers them again"
            )
    return tuple(notes)


def _passed_over_notes(store: LakeStore, shard: Shard, broker_name: str, moves: Iterable[Moved]) -> tuple[str, ...]:
    """One for each level queue with messages that are not delivered: the level begins here behind them, as at the broker. What
    this store delivered before a hand-back has its copies in other queues."""
    positions, names = shard.positions(), names_of_log(shard, broker_name).names
    handed = handed_offsets(shard, broker_name)
    adopted = {move.queue: move.to_offset for move in moves if move.group == SCHEDULE_GROUP}
    begins = {queue: max(positions.min_offset(queue), handed.get((SCHEDULE_GROUP, queue), 0)) for queue in adopted}
    ranges = [QueueRange(queue, begin, max(begin, adopted[queue])) for queue, begin in begins.items()]
    return tuple(
        f"delay level {queue_id_to_delay_level(passed.queue.queue_id)}: the broker is past {passed.messages:,} messages of "
        "which its log has no delivered copy: most likely its retention removed them before they were due. Neither the broker "
        f"nor 'rmq deliver' delivers them. They are in queue {passed.queue.broker_name}:{passed.queue.queue_id} of "
        f"{SCHEDULE_TOPIC} from offset {passed.first} on ('rmq print'); send them again with 'rmq send', or have a group read "
        "again what failed, with 'rmq replay'"
        for passed in passed_over(store, shard.name, names, ranges, salvaged_to(shard, names))
    )


def _timer_notes(store: LakeStore, shard: Shard, positions: Positions, names: Sequence[str]) -> tuple[str, ...]:
    """One for each topic to which the broker's own timer has messages to deliver, and one for those that do not say their topic
    (docs/decisions/0003-timers.md)."""
    queues = [queue for name in names for queue in positions.queues_of(TIMER_TOPIC, name)]
    if all(positions.max_offset(queue) == positions.min_offset(queue) for queue in queues):
        return ()
    return tuple(
        _timer_note(timers)
        for timers in waiting_timers(store, shard.name, names)
        if timers.topic is None
        or not timers.topic.startswith(REVIVE_TOPIC_PREFIX)  # pop's own records: its messages are counted
    )


def _timer_note(timers: WaitingTimers) -> str:
    if timers.topic is None:
        return (
            f"{timers.messages:,} messages in the broker's own timer ({TIMER_TOPIC}) do not say their topic "
            f"({MessageConst.REAL_TOPIC}), due {_span(timers)}: their properties are damaged, and 'rmq deliver' does not "
            f"""deliver them. 'rmq sql "SELECT * FROM messages WHERE topic = '{TIMER_TOPIC}' AND """
            f"""properties['{MessageConst.REAL_TOPIC}'] IS NULL"' shows them; send them again with 'rmq send --deliver-at'"""
        )
    return (
        f"{timers.messages:,} messages for {timers.topic} wait in the broker's own timer ({TIMER_TOPIC}), due "
        f"{_span(timers)}. 'rmq deliver' does not deliver them: let the broker do so and import again before the cut-over, "
        f"or send them again with 'rmq send --deliver-at'{_ARRIVED if timers.may_have_arrived else ''}"
    )


_ARRIVED = ". Some of them may have been delivered: retention has removed messages of the topic here, maybe theirs"


def _span(timers: WaitingTimers) -> str:
    if timers.first_due_ms is None or timers.last_due_ms is None:
        return "at a time that cannot be read"
    return f"from {format_time(timers.first_due_ms)} to {format_time(timers.last_due_ms)}"
