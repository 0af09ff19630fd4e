"""What planning and the operators' actions read of a shard, in the lake or in memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from rmq_store.commit.ctl import Ctl, Observed
from rmq_store.commit.positions import Positions, QueueRange, del_id
from rmq_store.message.message import MessageQueue


class ShardView(Protocol):
    """What planning and the operators' actions read of a shard."""

    @property
    def name(self) -> str: ...

    @property
    def local_broker(self) -> str:
        """The broker name of the shard's lake-born queues."""
        ...

    def positions(self) -> Positions: ...

    def others(self) -> Iterable[ShardView]:
        """The other shards of the store."""
        ...

    def search_offsets(
        self, positions: Positions, queues: Sequence[MessageQueue], time_ms: int
    ) -> dict[MessageQueue, int]:
        """Per queue the first offset stored at or after a moment (UTC ms), its end if there is none
        (ConsumeQueueStore#getOffsetInQueueByTime, rules 2.3)."""
        ...

    def body_sizes(self, range_: QueueRange) -> Iterable[tuple[int, int]]:
        """The messages of a range in order: (offset, bytes of the body). Read lazily."""
        ...

    def observed(self) -> Iterable[Observed]:
        """The offsets that each broker's files had at its newest import."""
        ...

    def incomplete_imports(self) -> Mapping[str, int]:
        """The brokers whose newest import is not at its end, and the physical offset up to which it came."""
        ...

    def has_consumed(self, group: str, epoch: int, *, topics: bool = False) -> bool:
        """Whether a window of the group was committed in this epoch or a later one. ``topics``: one that was not of retries
        only."""
        ...

    def first_window(self, group: str, epoch: int) -> Ctl | None:
        """The group's first window in this epoch or a later one; None: it had none."""
        ...

    def delete_epochs(self, group: str) -> Iterable[int]:
        """The epochs that deletes of the group began in the shard, in any order."""
        ...

    def windows_since(self, group: str | None, ms: int) -> Iterable[Ctl]:
        """The windows of the group (None: of all) made at this time (UTC ms) or later, oldest first."""
        ...


def observed_offsets(shard: ShardView, positions: Positions, group: str) -> dict[MessageQueue, int]:
    """The group's offsets that the newest import of each broker recorded; none for a group that was deleted here."""
    if positions.get(del_id(group)) is not None:
        return {}
    return {observed.queue: observed.offset for observed in shard.observed() if observed.group == group}
