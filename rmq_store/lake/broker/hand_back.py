"""Hand-back: a broker that was cut over owns its groups and delay levels again, as one commit.

Everything is as before the cut-over, with the lake's offsets in place of the broker's: they are recorded as what the broker
has, which the next import observes again, and the groups have none of their own in the broker's queues. So imports continue at
their position, and the next cut-over takes over what the broker has done by then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from rmq_store.admin.offset_moves import need_reason, next_epoch
from rmq_store.commit.claim import Wish
from rmq_store.commit.ctl import SCHEDULE_GROUP, Action, Actor, Ctl, Moved, Observed, Proposal, canonical_json
from rmq_store.commit.positions import (
    ABSENT,
    PositionKind,
    Positions,
    cutover_id,
    del_id,
    group_of,
    grp_id,
    ids_of,
    import_id,
    off_id,
    pas_id,
    queue_of,
)
from rmq_store.commit.request import Status
from rmq_store.errors import WrongUse
from rmq_store.lake.broker.popped_messages import pop_topics as pop_topics_of
from rmq_store.lake.commit.claim import claimed
from rmq_store.lake.commit.commit import commit
from rmq_store.lake.commit.dispatch import follow_up
from rmq_store.lake.table.imports import (
    handed_back,
    last_configs,
    names_of_log,
    parameters_of_next,
    refuse_continued,
)
from rmq_store.lake.table.shard import Shard
from rmq_store.message.message_const import SCHEDULE_TOPIC, group_of_retry_topic
from rmq_store.message.validators import is_broadcasting_client
from rmq_store.utils.host import Host


@dataclass(frozen=True, slots=True, kw_only=True)
class HandBackReport:
    """What a hand-back did."""

    status: Status
    """COMMITTED, ALREADY_COMMITTED or DRY_RUN."""
    shard: str
    broker_name: str
    groups: int
    """How many groups the broker owns again."""
    kept: tuple[str, ...] = ()
    """Groups that were deleted in the lake, of which it or the broker has offsets: what they have consumed since stays theirs,
    and the broker's offsets do not count for them."""
    commit_id: str | None = None
    warnings: tuple[str, ...] = ()
    """What failed after the commit."""


def hand_back(
    shard: Shard, broker_name: str, host: Host, *, request_id: str, actor: Actor, reason: str, dry_run: bool = False
) -> HandBackReport:
    """Give a broker's groups and delay levels back to it; the same request again answers with the report of the first time.

    Raises WrongUse (no reason, not cut over, a name that another one continues), HeldByAnother, and the errors of ``commit``.
    """
    if not dry_run:
        need_reason("a hand-back", reason)
    started_ms = host.now_ms()
    shard.commitlog.refresh()
    if earlier := _earlier(shard, broker_name, request_id):
        return earlier
    log = names_of_log(shard, broker_name).names
    _refuse_not_cut_over(shard, broker_name)
    if dry_run:
        moves = handed_moves(shard.positions(), log, _pop_topics(shard, broker_name))
        return _report(Status.DRY_RUN, shard, broker_name, moves)
    with claimed(shard, Wish.of_whole(request_id, actor, "~import", log[0]), host) as claim:
        shard.commitlog.refresh()
        if earlier := _earlier(shard, broker_name, request_id):  # by another attempt, before this one had the claim
            claim.release()
            return earlier
        _refuse_not_cut_over(shard, broker_name)
        positions = shard.positions()
        pop_topics = _pop_topics(shard, broker_name)
        moves = handed_moves(positions, log, pop_topics)
        ctl = Ctl(
            host.new_commit_id(),
            Action.HAND_BACK,
            actor,
            reason=reason,
            request_id=request_id,
            parameters=canonical_json(parameters_of_next(shard, broker_name)),
            moved=moves,
            observed=_observed(shard, broker_name, moves),
        )
        claim.stop_renewing()
        committed = commit(
            shard,
            claim.taken.ended_by(hand_back_proposal(ctl, positions, broker_name, log, pop_topics)),
            host,
            started_ms=started_ms,
        )
    report = _report(Status.COMMITTED, shard, broker_name, moves)
    return replace(report, commit_id=committed.ctl.commit_id, warnings=follow_up(shard, host))


def _pop_topics(shard: Shard, broker_name: str) -> dict[str, str]:
    newest = last_configs(shard, broker_name)
    names = names_of_log(shard, broker_name).names
    queues = [queue for queue in shard.positions().all_queues() if queue.broker_name in names]
    return pop_topics_of(newest, queues) if newest else {}


def _earlier(shard: Shard, broker_name: str, request_id: str) -> HandBackReport | None:
    """The report of an earlier attempt of this request."""
    ctl = next((ctl for ctl in handed_back(shard, broker_name) if ctl.request_id == request_id), None)
    if ctl is None:
        return None
    report = _report(Status.ALREADY_COMMITTED, shard, broker_name, ctl.moved)
    return replace(report, commit_id=ctl.commit_id)


def _refuse_not_cut_over(shard: Shard, broker_name: str) -> None:
    refuse_continued(shard, broker_name)
    if not shard.positions().get(cutover_id(broker_name)):
        raise WrongUse(f"broker {broker_name} is not cut over to shard {shard.name}: it owns its groups")


def _report(status: Status, shard: Shard, broker_name: str, moves: tuple[Moved, ...]) -> HandBackReport:
    positions = shard.positions()
    names = names_of_log(shard, broker_name).names
    queues = {queue for queue in positions.all_queues() if queue.broker_name in names}
    deleted, newest = positions.names(PositionKind.DELETED), last_configs(shard, broker_name)
    at_broker = {one.group for one in (newest.observed if newest else ())}
    return HandBackReport(
        status=status,
        shard=shard.name,
        broker_name=broker_name,
        groups=len({move.group for move in moves if move.from_offset is not None} - {SCHEDULE_GROUP}),
        kept=tuple(
            group for group in sorted(deleted) if group in at_broker or queues & positions.offsets_of(group).keys()
        ),
    )


def handed_moves(
    positions: Positions, log: tuple[str, ...], pop_topics: Mapping[str, str] = MappingProxyType({})
) -> tuple[Moved, ...]:
    """Every offset in the broker's queues is deleted. Those of a group that was deleted here stay: from then on the
    broker's offsets do not count for it. So do those of broadcasting clients, which no broker has. The delay levels are
    named also where nothing was delivered yet, and the retries of a group also where it has consumed none: a delivery of
    them, or the group's first window, may be running, and the higher epoch refuses its commit. ``pop_topics``: the group of
    each pop retry topic."""
    queues = [queue for queue in positions.all_queues() if queue.broker_name in log]
    owned = [(owner, queue) for queue in queues if (owner := _owner(queue.topic, pop_topics)) is not None]
    places = [(group_of(app_id), queue_of(app_id)) for app_id, _ in positions.of_kind(PositionKind.OFFSET)]
    return tuple(
        Moved(group, queue, positions.get(off_id(group, queue)), ABSENT, next_epoch(positions, group))
        for group, queue in sorted({*places, *owned})
        if queue.broker_name in log and positions.get(del_id(group)) is None and not is_broadcasting_client(group)
    )


def _owner(topic: str, pop_topics: Mapping[str, str]) -> str | None:
    """The only group that reads the topic; None: any group may."""
    if topic == SCHEDULE_TOPIC:
        return SCHEDULE_GROUP
    if topic in pop_topics:
        return pop_topics[topic]
    return group_of_retry_topic(topic)


def _observed(shard: Shard, broker_name: str, moves: tuple[Moved, ...]) -> tuple[Observed, ...]:
    """What the broker has with the exported files: the offsets that are handed back, else what was observed before."""
    newest = last_configs(shard, broker_name)
    before = {(one.group, one.queue): one for one in (newest.observed if newest else ())}
    handed = {
        (move.group, move.queue): Observed(move.group, move.queue, move.from_offset)
        for move in moves
        if move.from_offset is not None
    }
    return tuple(one for _, one in sorted((before | handed).items()))


def hand_back_proposal(
    ctl: Ctl,
    positions: Positions,
    broker_name: str,
    log: tuple[str, ...],
    pop_topics: Mapping[str, str] = MappingProxyType({}),
) -> Proposal:
    """The hand-back as a commit. ``ctl``: it has the ``handed_moves``; ``log``: all broker names of the log.

    ``closed`` refuses it when one of the groups got an offset in another queue of the broker in between: the group would keep
    that offset, and the next cut-over would not adopt the broker's.
    """
    imported = import_id(broker_name)
    closed = [cutover_id(name) for name in log]
    groups = {move.group for move in ctl.moved}
    expect = {app_id: positions.get(app_id) for app_id in (imported, *closed, *map(grp_id, groups))}
    advance = {imported: positions.get(imported) or 0} | dict.fromkeys(closed, ABSENT)
    advance |= {grp_id(group): next_epoch(positions, group) for group in groups}
    for move in ctl.moved:
        expect[off_id(move.group, move.queue)] = move.from_offset
        advance |= {off_id(move.group, move.queue): ABSENT, pas_id(move.group, move.queue): move.pass_}
    topics = {(queue.topic, queue.broker_name) for queue in positions.all_queues() if queue.broker_name in log}
    prefixes = [
        ids_of(PositionKind.OFFSET, group, topic, name)
        for group in sorted(groups - {SCHEDULE_GROUP})
        for topic, name in sorted(topics)
        if _owner(topic, pop_topics) in (None, group)
    ]
    return Proposal(ctl, expect, advance, closed=tuple(prefixes))
