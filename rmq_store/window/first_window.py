"""A group's first window chooses where its queues start, also in the other shards of the store.

A group is one group in all shards, as it is one at all brokers. Its first window in a shard records the queues that the other
shards have when it is planned, and the starts that the group has chosen for them (``docs/decisions/0006-claim-per-queue.md``).
A queue that one of these windows did not know appeared later. So no clock decides what was there first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from rmq_store.commit.ctl import Ctl
from rmq_store.commit.positions import del_id, grp_id
from rmq_store.consumer.start import Start, StartRule
from rmq_store.message.message import MessageQueue
from rmq_store.window.shard_view import ShardView

STARTS_ELSEWHERE = "starts_elsewhere"
"""The parameter of a group's first window in a shard: by shard ``deleted``, ``importing``, and ``queues``, a list of
``[topic, broker_name, queue_id, offset, rule]``."""

LEFT_TO_BROKERS = "left_to_brokers"
"""The parameter of a group's first window in a shard, where it is one of retries only: the brokers that have their groups. In
their queues it chooses nothing: there the group may go on meanwhile, and the cut-over takes over its offsets."""


@dataclass(frozen=True, slots=True)
class ShardStarts:
    """What a first window in another shard knew of a shard."""

    deleted: int | None = None
    """The group's epoch at its last delete in the shard. A later delete makes all of this void."""
    importing: frozenset[str] = frozenset()
    """The brokers whose import was not at its end: any of their queues may have been there already."""
    starts: Mapping[MessageQueue, Start | None] = field(default_factory=dict)
    """Of the queues that were there; None: the group chooses it at its first window in the shard, or has chosen it there.
    Earlier versions wrote None also where the group had an offset."""

    def knows(self, queue: MessageQueue) -> bool:
        return queue in self.starts or queue.broker_name in self.importing


@dataclass(frozen=True, slots=True)
class ChosenStarts:
    """What the first windows in other shards say of a shard: at least one."""

    windows: tuple[ShardStarts, ...]

    def is_later(self, queue: MessageQueue) -> bool:
        """Whether the queue appeared after one of them was planned."""
        return not all(window.knows(queue) for window in self.windows)

    def start_of(self, queue: MessageQueue) -> Start | None:
        """The earliest start that one of them chose."""
        starts = [start for window in self.windows if (start := window.starts.get(queue)) is not None]
        return min(starts, key=lambda start: start.offset, default=None)


@dataclass(frozen=True, slots=True)
class FirstWindows:
    """A group's first windows in all shards of a store, of each of its lives: a delete of the group in a shard ends its life
    there. What a window chose for a shard holds until the group is deleted in that shard."""

    windows: Mapping[str, tuple[Ctl, ...]]
    """By name of their shard, the newest first: those of which something still holds."""
    deleted: Mapping[str, int | None]
    """By name of every shard the group's epoch at its last delete there."""

    def has_begun(self, shard: str) -> bool:
        """Whether the group has had a window in the shard since its last delete there."""
        return any(_is_of_this_life(window, self.deleted[shard]) for window in self.windows.get(shard, ()))

    def chosen_for(self, shard: str) -> ChosenStarts | None:
        """What those in other shards say of a shard; None: nothing that counts. A window that does not name the shard did not
        know its queues."""
        known = [ShardStarts() if record is None else _shard_starts(record) for record in self._records_of(shard)]
        counting = tuple(one for one in known if one.deleted == self.deleted.get(shard))
        return ChosenStarts(counting) if counting else None

    def holds_for(self, shard: str) -> bool:
        """Whether one in another shard names the shard, and it counts: only a delete in the shard ends that. What one says of a
        shard that it does not name ends when nothing else of it holds."""
        deleted = self.deleted.get(shard)
        return any(record is not None and record["deleted"] == deleted for record in self._records_of(shard))

    def _records_of(self, shard: str) -> list[Mapping[str, Any] | None]:
        """What each of those in other shards recorded of a shard."""
        return [
            (window.parameter(STARTS_ELSEWHERE) or {}).get(shard)
            for name, windows in self.windows.items()
            if name != shard
            for window in windows
        ]


def first_windows(shards: Iterable[ShardView], group: str) -> FirstWindows:
    """Of all these shards. Reads a commit for each life of the group of which something holds, and for one more."""
    positions = [(shard, shard.positions()) for shard in shards]
    deleted = {shard.name: of_shard.get(del_id(group)) for shard, of_shard in positions}
    windows = {
        shard.name: tuple(_of_lives(shard, group, deleted))
        for shard, of_shard in positions
        if of_shard.get(grp_id(group)) is not None
    }
    return FirstWindows({name: several for name, several in windows.items() if several}, deleted)


def _of_lives(shard: ShardView, group: str, deleted: Mapping[str, int | None]) -> Iterator[Ctl]:
    """The group's first windows in a shard, the newest life first, up to one of which nothing holds: then nothing holds of an
    earlier one, since the epochs of deletes only grow."""
    lives = [0] if deleted[shard.name] is None else [*sorted(shard.delete_epochs(group), reverse=True), 0]
    seen: str | None = None
    for epoch in lives:
        window = shard.first_window(group, epoch)
        if window is None or window.commit_id == seen:  # the life had no window
            continue
        if not _holds(window, shard.name, deleted):
            return
        seen = window.commit_id
        yield window


def _holds(window: Ctl, shard: str, deleted: Mapping[str, int | None]) -> bool:
    """Whether something holds of a first window in a shard: its life there, or what it chose for another shard."""
    records = (window.parameter(STARTS_ELSEWHERE) or {}).items()
    return _is_of_this_life(window, deleted[shard]) or any(
        name in deleted and record["deleted"] == deleted[name] for name, record in records
    )


def _is_of_this_life(window: Ctl, deleted: int | None) -> bool:
    return (window.epoch or 0) >= (deleted or 0)


def starts_parameter(elsewhere: Mapping[str, ShardStarts]) -> dict[str, Any]:
    """What a first window records of the other shards, by their names."""
    return {
        name: {
            "deleted": shard.deleted,
            "importing": sorted(shard.importing),
            "queues": [
                [queue.topic, queue.broker_name, queue.queue_id, start and start.offset, start and str(start.rule)]
                for queue, start in sorted(shard.starts.items(), key=lambda item: item[0])
            ],
        }
        for name, shard in elsewhere.items()
    }


def _shard_starts(record: Mapping[str, Any]) -> ShardStarts:
    starts = {
        MessageQueue(topic, broker, queue_id): None if offset is None else Start(offset, StartRule(rule))
        for topic, broker, queue_id, offset, rule in record["queues"]
    }
    return ShardStarts(record["deleted"], frozenset(record["importing"]), starts)
