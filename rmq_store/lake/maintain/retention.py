"""Retention of a shard: one commit moves the min offsets of its queues (``rmq_store/maintain/retention.py`` says how far).

From then on no consumer reads the messages before them. Their rows leave the tables when files are joined
(``compact.py``), and the storage with a later vacuum. A window that read them before still commits: nothing was lost for it.
The commit is decided again when a group has begun in one of the queues or was reset meanwhile (``Proposal.behind``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow.compute as pc

from rmq_store.commit.ctl import SCHEDULE_GROUP, Action, Actor, Ctl, Produced, Proposal, canonical_json
from rmq_store.commit.positions import (
    ABSENT,
    PositionKind,
    Positions,
    QueueRange,
    arc_id,
    del_id,
    group_of,
    min_id,
    off_id,
    queue_of,
)
from rmq_store.consumer.replay_name import is_of_a_replay, replayed_group
from rmq_store.errors import StaleAttempt, StoreUnusable
from rmq_store.lake.commit.commit import commit
from rmq_store.lake.commit.dispatch import follow_up
from rmq_store.lake.read.segments import segments_of
from rmq_store.lake.read.time_search import dated
from rmq_store.lake.table.shard import Shard
from rmq_store.maintain.retention import (
    Limit,
    Removal,
    RetainedQueue,
    SizedSegment,
    removable_by_age,
    removable_by_size,
    removal,
)
from rmq_store.message.message import MessageQueue
from rmq_store.message.message_const import RETRY_GROUP_TOPIC_PREFIX
from rmq_store.settings.retention_settings import WAITING_TOPICS, RetentionRule, rule_of
from rmq_store.utils.host import Host

_TRIES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionRequest:
    """Who removes messages, and by which rules."""

    request_id: str
    actor: Actor
    rules: Sequence[RetentionRule]
    reason: str = "maintenance"
    dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionReport:
    """What retention removed from a shard, or would."""

    shard: str
    removals: Sequence[Removal] = ()
    """The queues with messages that exceed a limit, also where groups hold all of them back."""
    warnings: tuple[str, ...] = ()


def retain(shard: Shard, request: RetentionRequest, host: Host) -> RetentionReport:
    """Move the min offsets of the shard's queues. Safe beside everything else, and any number of times.

    Raises DerivedTableDamaged, BadData and MissingFile when the age or size of messages cannot be read, StoreUnusable when
    groups began or were reset at each try, and the errors of ``commit``.
    """
    answer: StaleAttempt | None = None
    for _ in range(_TRIES):
        shard.commitlog.refresh()
        positions, started_ms = shard.positions(), host.now_ms()
        queues = _retained(shard, positions, request.rules, shard.root.server_time_ms(host))
        removals = [one for one in map(removal, queues) if one]
        report = RetentionReport(shard=shard.name, removals=removals)
        if request.dry_run or not any(len(one.range) for one in removals):
            return report
        proposal = retention_proposal(request, removals, positions, host.new_commit_id())
        try:
            commit(shard, proposal, host, started_ms=started_ms)
        except StaleAttempt as error:
            answer = error
            continue
        return RetentionReport(shard=shard.name, removals=removals, warnings=follow_up(shard, host))
    raise StoreUnusable(f"shard {shard.name}: {answer}, {_TRIES} times. No message was removed; try again")


# --- what exceeds a limit ---------------------------------------------------------------------------------------------


def _retained(shard: Shard, positions: Positions, rules: Sequence[RetentionRule], now_ms: int) -> list[RetainedQueue]:
    """The queues that a rule covers and that hold messages, by topic."""
    by_topic: dict[str, list[MessageQueue]] = defaultdict(list)
    for queue in positions.all_queues():
        if positions.min_offset(queue) < positions.max_offset(queue):
            by_topic[queue.topic].append(queue)
    covered = {topic: rule for topic in by_topic if (rule := rule_of(topic, rules))}
    offsets = offsets_of_groups(positions, {topic: by_topic[topic] for topic in covered}) if covered else {}
    retained = []
    for topic, rule in covered.items():
        queues = by_topic[topic]
        limits = _removable(shard, positions, queues, rule, now_ms)
        retained += [
            RetainedQueue(
                queue=queue,
                min_offset=positions.min_offset(queue),
                max_offset=positions.max_offset(queue),
                removable={limit: of_limit[queue] for limit, of_limit in limits.items() if queue in of_limit},
                offsets=offsets.get(queue, {}),
                archive=rule.archive,
            )
            for queue in queues
        ]
    return retained


def _removable(
    shard: Shard, positions: Positions, queues: Sequence[MessageQueue], rule: RetentionRule, now_ms: int
) -> dict[Limit, dict[MessageQueue, int]]:
    """By limit and queue the first offset that stays. ``queues``: all of the rule's topic."""
    segments = _sized(shard, positions, queues)
    ages = {Limit.MAX_AGE: rule.max_age_ms, Limit.MAX_UNCONSUMED_AGE: rule.max_unconsumed_age_ms}
    removable = {
        limit: removable_by_age(segments, now_ms - age_ms) for limit, age_ms in ages.items() if age_ms is not None
    }
    if rule.max_bytes is not None:
        removable[Limit.MAX_BYTES] = removable_by_size(segments, rule.max_bytes)
    return removable


def _sized(shard: Shard, positions: Positions, queues: Sequence[MessageQueue]) -> list[SizedSegment]:
    """The segments of the queues. A message has its share of its file."""
    ranges = [QueueRange(queue, positions.min_offset(queue), positions.max_offset(queue)) for queue in queues]
    segments = segments_of(shard, ranges)
    files = shard.commitlog.described().filter(pc.field("partition.kind") == "msg")
    columns = ("path", "size_bytes", "num_records")
    row_bytes = {
        path: size / rows
        for path, size, rows in zip(*(files.column(name).to_pylist() for name in columns), strict=True)
    }
    return [
        _sized_segment(range_, segment, row_bytes.get(segment.file, 0))
        for range_ in ranges
        for segment in dated(range_, segments.get(range_.queue, ()))
    ]


def _sized_segment(range_: QueueRange, segment: Produced, row_bytes: float) -> SizedSegment:
    base = segment.base or 0
    begin, end = max(base, range_.begin), min(base + segment.count, range_.end)
    return SizedSegment(range_.queue, begin, end, round((end - begin) * row_bytes), segment.max_store_timestamp or 0)


# --- who needs it -----------------------------------------------------------------------------------------------------


def offsets_of_groups(
    positions: Positions, queues: Mapping[str, Iterable[MessageQueue]]
) -> dict[MessageQueue, dict[str, int]]:
    """The next offsets of the groups that consume these queues, which are all of their topics that hold messages.

    A group that has read one queue of a topic begins at the first message of the others. A replay holds nothing back: its
    offsets stay where it ended.
    """
    stored: dict[str, dict[str, dict[MessageQueue, int]]] = defaultdict(lambda: defaultdict(dict))
    for app_id, offset in positions.of_kind(PositionKind.OFFSET):
        queue, group = queue_of(app_id), group_of(app_id)
        if queue.topic in queues and not is_of_a_replay(group):
            stored[queue.topic][group][queue] = offset
    offsets: dict[MessageQueue, dict[str, int]] = {}
    for topic, of_topic in queues.items():
        groups = stored[topic]
        for group in _owners(topic):
            if positions.get(del_id(group)) is None:
                groups.setdefault(group, {})
        for queue in of_topic:
            first = positions.min_offset(queue)
            offsets[queue] = {group: of_group.get(queue, first) for group, of_group in groups.items()}
    return offsets


def _owners(topic: str) -> list[str]:
    """The groups that will read a topic even if they have read nothing of it yet."""
    if topic in WAITING_TOPICS:
        return [SCHEDULE_GROUP]
    if topic.startswith(RETRY_GROUP_TOPIC_PREFIX) and not replayed_group(topic):
        return [topic.removeprefix(RETRY_GROUP_TOPIC_PREFIX)]
    return []


# --- the commit -------------------------------------------------------------------------------------------------------


def retention_proposal(
    request: RetentionRequest,
    removals: Sequence[Removal],
    positions: Positions,
    commit_id: str,
) -> Proposal:
    """The removals as a commit. It is refused when an offset that ``removals`` have seen has moved, or a group has one before
    the new first message that they have not seen."""
    ranges = [one.range for one in removals if len(one.range)]
    expect = {min_id(range_.queue): positions.get(min_id(range_.queue)) for range_ in ranges}
    archived = {arc_id(one.range.queue): one.range.end for one in removals if one.archive and len(one.range)}
    advance = {min_id(range_.queue): range_.end for range_ in ranges} | archived
    lost: dict[str, dict[str, list[int]]] = defaultdict(dict)
    offsets: set[str] = set()
    for one in removals:
        for group, range_ in one.lost.items():
            lost[group][min_id(range_.queue)] = [range_.begin, range_.end]
            offsets.add(off_id(group, range_.queue))
    expect |= {app_id: positions.get(app_id) for app_id in offsets}  # else more or less is lost than is recorded
    advance |= {app_id: offset for app_id in offsets if (offset := positions.get(app_id)) is not None}
    advance |= dict.fromkeys(offsets - advance.keys(), ABSENT)
    behind = {
        app_id
        for app_id, _ in positions.of_kind(PositionKind.OFFSET)
        if app_id in offsets or is_of_a_replay(group_of(app_id))
    }
    parameters = {
        "removed": {min_id(range_.queue): [range_.begin, range_.end] for range_ in ranges},
        "lost": lost,
        "archived": sorted(archived),
    }
    ctl = Ctl(
        commit_id,
        Action.RETENTION,
        request.actor,
        reason=request.reason,
        request_id=request.request_id,
        parameters=canonical_json(parameters),
    )
    return Proposal(ctl, expect, advance, behind=frozenset(behind))
