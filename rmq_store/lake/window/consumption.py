"""One request of a consumer group: the shards in which it consumes, all its windows in each of them, and its answer as JSON.

The command line, the job for spark-submit and the tasks of the DAGs run requests with this.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

from rmq_store.admin.replay import no_replay
from rmq_store.admin.sentences import blocked_warnings
from rmq_store.commit.claim import Held
from rmq_store.commit.ctl import Action
from rmq_store.commit.positions import Outcome, PositionKind, QueueRange, grp_id
from rmq_store.commit.request import Status, overall
from rmq_store.consumer.allocate import allocate_by_topic, sort_client_ids
from rmq_store.consumer.delay import queue_id_to_delay_level
from rmq_store.consumer.replay_name import replayed_group
from rmq_store.errors import NothingThere, WrongUse
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.store import LakeStore
from rmq_store.lake.window.plan import ShardLookup
from rmq_store.message.message import MessageQueue
from rmq_store.message.message_const import DLQ_GROUP_TOPIC_PREFIX, RETRY_GROUP_TOPIC_PREFIX
from rmq_store.message.validators import is_system_topic
from rmq_store.settings.settings import GroupSettings
from rmq_store.utils.host import Host
from rmq_store.utils.suggestions import did_you_mean, listed
from rmq_store.window.consume import WindowReport
from rmq_store.window.consume_request import LIVE, ConsumeRequest, Scope
from rmq_store.window.plan import Planner

_OF_GROUPS = (RETRY_GROUP_TOPIC_PREFIX, DLQ_GROUP_TOPIC_PREFIX)

# --- the shards ------------------------------------------------------------------------------------------------------


def shards_of(
    store: LakeStore,
    group: GroupSettings,
    scope: Scope = LIVE,
    *,
    chosen: str | None = None,
    opened: Sequence[Shard] | None = None,
) -> list[Shard]:
    """The shards in which a group consumes: the ``chosen`` one, else those of its settings, else all; of these the ones that
    have a topic of the group. The retries of a replay may be in any. ``opened``: all shards of the store, where they are open.

    Raises WrongUse for a shard that is not the group's or does not exist, and for a replay group without windows in these
    shards, whose name may be wrong; NothingThere for an empty store, and when no shard has a topic of the group.
    """
    if chosen is not None and group.shards is not None and chosen not in group.shards:
        raise WrongUse(
            f"shard {chosen} is not in the shards of group {group.name} ({', '.join(group.shards)}): choose one of them, or "
            "change the group's settings"
        )
    names = (chosen,) if chosen is not None else group.shards
    known = store.shards() if opened is None and names is None else opened or ()
    shards = list(known) if names is None else [shard for name in names for shard in shards_named(store, name, known)]
    if not shards:
        raise empty_store(store)
    if scope.retries_only:
        if replayed_group(group.name) is not None:
            shards_with_windows(shards, group.name)
        return shards
    return shards_with_topic(shards, [subscription.topic for subscription in group.subscriptions])


def has_windows(shard: Shard, name: str) -> bool:
    """Whether a replay group has had windows in a shard."""
    return shard.positions().get(grp_id(name)) is not None


def shards_with_windows(shards: Iterable[Shard], name: str) -> list[Shard]:
    """The shards in which a replay group has had windows. Raises WrongUse when there is none."""
    having = [shard for shard in shards if has_windows(shard, name)]
    if not having:
        raise no_replay(name)
    return having


def empty_store(store: LakeStore) -> NothingThere:
    """Of a store without shards."""
    return NothingThere(
        f"the store {store.root.location} is empty: import a broker's files with 'rmq import-store', or send to it with "
        "'rmq send'"
    )


def shards_named(store: LakeStore, name: str, opened: Sequence[Shard]) -> list[Shard]:
    """The one shard with this name, of those that are ``opened`` if it is among them. Raises WrongUse when there is none."""
    return [shard for shard in opened if shard.name == name] or store.shards(name)


def shards_with_topic(shards: Sequence[Shard], topics: Sequence[str], store: LakeStore | None = None) -> list[Shard]:
    """The shards that have one of the topics. Raises NothingThere when none does: with the shards of the ``store`` that have
    it, where only some were chosen, else with the known topics."""
    having = _having(shards, topics)
    if not having:
        if store is not None and (elsewhere := [shard.name for shard in _having(store.shards(), topics)]):
            raise NothingThere(
                f"shard {', '.join(shard.name for shard in shards)} has no topic {' or '.join(topics)}: it is in shard "
                f"{', '.join(elsewhere)}"
            )
        topics_there = {topic for shard in shards for topic in shard.positions().names(PositionKind.MAX)}
        known = sorted(topic for topic in topics_there if not (topic.startswith(_OF_GROUPS) or is_system_topic(topic)))
        missing = " or ".join(topics)
        raise NothingThere(f"there is no topic {missing}{did_you_mean(topics[0], known)}; known: {listed(known)}")
    return having


def _having(shards: Iterable[Shard], topics: Sequence[str]) -> list[Shard]:
    return [shard for shard in shards if any(shard.positions().queues_of(topic) for topic in topics)]


def shards_with_queues(
    shards: Sequence[Shard], topic: str, chosen: Sequence[MessageQueue], store: LakeStore | None = None
) -> list[tuple[Shard, tuple[MessageQueue, ...]]]:
    """The shards that have the chosen queues of a topic, each with its own of them: equal ones, as the shard has them. No
    queues chosen: all shards that have the topic, each without queues. ``store``: theirs, where they are not all of its shards.

    Raises NothingThere for a topic, and WrongUse for a queue, that no shard has.
    """
    having = shards_with_topic(shards, [topic], store)
    if not chosen:
        return [(shard, ()) for shard in having]
    known = [shard.positions().queues_of(topic) for shard in having]
    for queue in chosen:
        if not any(queue in queues for queues in known):
            named = [f"{q.broker_name}:{q.queue_id}" for queues in known for q in queues]
            raise WrongUse(f"topic {topic} has no queue {queue.broker_name}:{queue.queue_id}; known: {listed(named)}")
    of_shards = [tuple(queue for queue in queues if queue in chosen) for queues in known]
    return [(shard, queues) for shard, queues in zip(having, of_shards, strict=True) if queues]


def unowned_queues(store: LakeStore, group: GroupSettings, client_ids: Sequence[str], host: Host) -> list[MessageQueue]:
    """The queues that the group's strategy gives to no consumer, so that they are not consumed."""
    rule = group.allocate_strategy
    if not client_ids or not rule.may_leave_queues:
        return []
    planners = [Planner(ShardLookup(shard), group, host.now_ms()) for shard in shards_of(store, group)]
    queues = {queue for planner in planners for queue in planner.queues()}
    strategy = rule.among_clients()
    owned = {q for cid in client_ids for q in allocate_by_topic(strategy, group.name, cid, queues, client_ids)}
    return sorted(queues - owned)


def reason_for_nothing(
    shard: Shard, group: GroupSettings, request: ConsumeRequest, host: Host, scope: Scope = LIVE
) -> str | None:
    """Why the request has nothing to consume in the shard; None: it has, or it has committed windows to report. Reads only."""
    shard.commitlog.refresh()
    if shard.ctls_of_request(request.request_id, group.name, Action.CONSUME):
        return None
    plan = Planner(ShardLookup(shard), group, host.now_ms(), scope).plan(request, [])
    return None if plan.ranges else plan.idle or _consumed(group, request, scope)


def _consumed(group: GroupSettings, request: ConsumeRequest, scope: Scope) -> str:
    """What has been consumed where nothing is left for a request that has queues."""
    if scope.retries_only:
        return f"group {group.name} has consumed all its retries that were delivered"
    bound = "up to the window's upper bound"
    if request.client_id is None:
        return f"group {group.name} has consumed everything {bound}"
    others = [client for client in sort_client_ids(set(request.client_ids)) if client != request.client_id]
    rest = f"; the other queues are those of {', '.join(others)}" if others else ""
    return f"client {request.client_id} has consumed everything in its queues {bound}{rest}"


# --- its windows -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Consumption:
    """The windows of a request in one shard: at least one, which may be empty."""

    windows: tuple[WindowReport, ...]

    @classmethod
    def of(
        cls, window: Callable[[], WindowReport], finished: Callable[[WindowReport], None] | None = None
    ) -> Consumption:
        """Run window after window until the request is complete. ``window`` runs the next one, and its errors are raised
        here; ``finished`` is called with each report."""
        reports = []
        while True:
            report = window()
            reports.append(report)
            if finished is not None:
                finished(report)
            if report.is_last:
                return cls(tuple(reports))

    @property
    def status(self) -> Status:
        return overall(window.status for window in self.windows)

    @property
    def outcomes(self) -> dict[Outcome, int]:
        """Messages per outcome, without outcomes of no message."""
        counts = [window.counts() for window in self._counted]
        sums = {outcome: sum(count[outcome] for count in counts) for outcome in Outcome}
        return {outcome: count for outcome, count in sums.items() if count}

    @property
    def messages(self) -> int:
        return sum(self.outcomes.values())

    @property
    def _counted(self) -> tuple[WindowReport, ...]:
        """The windows committed now, else the last one. A window that was committed before reports the whole request, and
        would count those committed now twice."""
        return tuple(window for window in self.windows if window.status == Status.COMMITTED) or self.windows[-1:]

    @property
    def unread(self) -> tuple[QueueRange, ...]:
        """What the request has left unread in blocked queues, by offset, also in windows before these."""
        return self.windows[-1].unread

    @property
    def warnings(self) -> list[str]:
        """What failed after the commits, and that queues are blocked."""
        after = [warning for window in self.windows for warning in window.warnings]
        return after + blocked_warnings(self.windows[-1].group, self.unread)

    def summary(self) -> dict[str, Any]:
        """A small JSON value. ``offsets``: "topic broker:queue" to the next offset to read. ``ranges``: likewise to the first
        offset and the end of what was read. ``retry_levels``: retried messages by delay level. ``next_retry_ms``: when the
        first of them is due (UTC ms). ``blocked_queues``: queues that wait at a failed message; ``not_consumed``: how many
        messages the request has left in them."""
        ranges = [consumed.range for window in self._counted for consumed in window.consumed]
        begins = {range_.queue: range_.begin for range_ in reversed(ranges)}
        delayed = [segment for window in self._counted for segment in window.delayed]
        levels = Counter[int]()
        for segment in delayed:
            levels[queue_id_to_delay_level(segment.queue.queue_id)] += segment.count
        last = self.windows[-1]
        return {
            "status": self.status,
            "shard": last.shard,
            "group": last.group,
            "request_id": last.request_id,
            "engine": self.windows[0].engine,
            "windows": len(self.windows),
            "complete": last.complete,
            "messages": self.messages,
            "outcomes": {str(outcome): count for outcome, count in self.outcomes.items()},
            "offsets": {r.queue.label: r.end for r in ranges},
            "ranges": {r.queue.label: [begins[r.queue], r.end] for r in ranges},
            "retry_levels": {str(level): count for level, count in sorted(levels.items())},
            "next_retry_ms": min((one.deliver_at for one in delayed if one.deliver_at is not None), default=None),
            "blocked_queues": len(self.unread),
            "not_consumed": sum(map(len, self.unread)),
            "commit_id": last.commit_id,
            "warnings": self.warnings,
        }

    def rows(self) -> list[dict[str, Any]]:
        """A row per queue that was read: its offsets ``[begin_offset, end_offset)`` and the messages per outcome."""
        rows: dict[MessageQueue, dict[str, Any]] = {}
        for window in self._counted:
            for consumed in window.consumed:
                queue, begin = consumed.range.queue, consumed.range.begin
                place = {"shard": window.shard, "topic": queue.topic, "broker_name": queue.broker_name}
                first = (
                    place | {"queue_id": queue.queue_id, "begin_offset": begin} | dict.fromkeys(map(str, Outcome), 0)
                )
                row = rows.setdefault(queue, first)
                row["end_offset"] = consumed.range.end
                for outcome in Outcome:
                    row[str(outcome)] += consumed.tally(outcome).count
        return [rows[queue] for queue in sorted(rows)]


def queue_rows(shards: Sequence[Consumption]) -> tuple[list[dict[str, Any]], list[str]]:
    """The rows of a request's queues and the columns to show: those of outcomes only where there are such messages."""
    rows = [row for shard in shards for row in shard.rows()]
    outcomes = [str(outcome) for outcome in Outcome if any(row[outcome] for row in rows)]
    return rows, ["shard", "topic", "broker_name", "queue_id", "begin_offset", "end_offset", *outcomes]


def outcomes_of(shards: Sequence[Consumption]) -> dict[Outcome, int]:
    """Messages per outcome in all these shards, without outcomes of no message."""
    sums = {outcome: sum(shard.outcomes.get(outcome, 0) for shard in shards) for outcome in Outcome}
    return {outcome: count for outcome, count in sums.items() if count}


# --- its answer ------------------------------------------------------------------------------------------------------


def answer(group: str, request_id: str, shards: Sequence[Consumption]) -> dict[str, Any]:
    """What a request did, as a JSON value: in all, per shard, and per window."""
    return {
        "status": overall(shard.status for shard in shards),
        "group": group,
        "request_id": request_id,
        "messages": sum(shard.messages for shard in shards),
        "shards": [shard.summary() for shard in shards],
        "windows": [_window(window) for shard in shards for window in shard.windows],
        "warnings": [warning for shard in shards for warning in shard.warnings],
    }


def answer_so_far(group: str, request_id: str, windows: Sequence[WindowReport]) -> dict[str, Any]:
    """The ``answer`` of a request that an error ended after some windows, in their order; empty if there was none."""
    shards = by_shard(windows)
    return answer(group, request_id, shards) if shards else {}


def by_shard(windows: Sequence[WindowReport]) -> tuple[Consumption, ...]:
    """The windows of a request, in their order, as those of each shard."""
    return tuple(Consumption(tuple(of_shard)) for _, of_shard in groupby(windows, key=lambda window: window.shard))


def _window(report: WindowReport) -> dict[str, Any]:
    return {
        "status": report.status,
        "shard": report.shard,
        "engine": report.engine,
        "window_id": report.window_id,
        "commit_id": report.commit_id,
        "version": report.version,
        "complete": report.complete,
        "counts": {str(outcome): count for outcome, count in report.counts().items()},
        "ranges": [
            {
                "topic": consumed.range.queue.topic,
                "broker_name": consumed.range.queue.broker_name,
                "queue_id": consumed.range.queue.queue_id,
                "begin_offset": consumed.range.begin,
                "end_offset": consumed.range.end,
                "start_rule": consumed.start_rule,
            }
            for consumed in report.consumed
        ],
        "blocked": [
            {
                "topic": blocked.range.queue.topic,
                "broker_name": blocked.range.queue.broker_name,
                "queue_id": blocked.range.queue.queue_id,
                "begin_offset": blocked.range.begin,
                "end_offset": blocked.range.end,
                "attempts": blocked.attempts,
                "status": blocked.status,
                "error_type": blocked.error_type,
                "error_text": blocked.error_text,
            }
            for blocked in report.blocked
        ],
        "held": [_held(held, held.queue) for held in report.held if held.queue is not None],
        "idle": report.idle or None,
        "waiting": asdict(report.waiting) if report.waiting else None,
    }


def _held(held: Held, queue: MessageQueue) -> dict[str, Any]:
    holder = held.holder
    return {
        "topic": queue.topic,
        "broker_name": queue.broker_name,
        "queue_id": queue.queue_id,
        "request_id": holder.request_id if holder else None,
        "actor": holder.actor if holder else None,
        "client_id": holder.client_id if holder else None,
        "seconds_left": held.remaining_s,
    }
