"""Comparison of two attempts of a replay in memory. ``rmq_store/admin/diff.py`` has the rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rmq_store.admin.diff import (
    LISTED,
    DiffReport,
    FailedCopy,
    Failures,
    Named,
    Place,
    WithoutCopy,
    attempts_of,
    chosen,
    compare,
)
from rmq_store.commit.ctl import SCHEDULE_GROUP
from rmq_store.commit.positions import QueueRange
from rmq_store.filter.subscription import SubscriptionData
from rmq_store.message.message_const import MessageConst, retry_topic
from tests.oracle.memory.rows import Provenance
from tests.oracle.memory.shard import MemoryShard


def diff(shard: MemoryShard, name: str, numbers: tuple[int, int] | None = None, limit: int = LISTED) -> DiffReport:
    """Two attempts of a replay; default: the last two.

    Raises WrongUse for a group without a replay, or an attempt that does not exist.
    """
    commits = [ctl for ctl in shard.ctls() if ctl.group == name]
    attempts = attempts_of(name, commits)
    first, second = (attempts[number - 1] for number in chosen(name, numbers, len(attempts)))
    return compare(shard.name, name, commits, _Rows(shard), first=first, second=second, limit=limit)


class _Rows:
    """The rows of a shard that a comparison reads."""

    def __init__(self, shard: MemoryShard) -> None:
        self._shard = shard

    def failures(self, group: str) -> Failures:
        copies, deliveries = [], {}
        for queue in self._shard.positions().all_queues():
            for message in self._shard.stored(queue):
                at, origin = Place(queue, message.queue_offset), message.row.provenance
                if origin is None:
                    continue
                if origin.group == group:
                    copies.append(_copy(at, origin))
                elif origin.group == SCHEDULE_GROUP and queue.topic in (retry_topic(group), origin.queue.topic):
                    deliveries[Place(origin.queue, origin.offset)] = at
        ranges = [WithoutCopy(r.range, r.pass_, r.outcome, r.reason) for r in self._shard.outcomes(group)]
        return Failures(copies, ranges, deliveries)

    def filtered(self, range_: QueueRange, subscription: SubscriptionData) -> Iterable[tuple[int, int]]:
        for message in self._shard.stored(range_.queue):
            unwanted = not subscription.matches(message.row.tags_code, message.row.properties)
            if unwanted and range_.begin <= message.queue_offset < range_.end:
                yield message.queue_offset, message.queue_offset + 1

    def named(self, ranges: Sequence[QueueRange]) -> Mapping[Place, Named]:
        least = self._shard.positions().min_offset
        return {
            Place(message.queue, message.queue_offset): Named(
                message.offset_msg_id,
                message.row.properties.get(MessageConst.UNIQ_CLIENT_MESSAGE_ID_KEYIDX),
                message.row.properties.get(MessageConst.KEYS),
            )
            for range_ in ranges
            for message in self._shard.stored(range_.queue)
            if max(range_.begin, least(range_.queue)) <= message.queue_offset < range_.end
        }


def _copy(at: Place, origin: Provenance) -> FailedCopy:
    return FailedCopy(Place(origin.queue, origin.offset), origin.pass_, at, origin.error_type, origin.error_text)
