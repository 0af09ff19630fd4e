"""What planning looks up in a shard of the lake (``ShardView`` of ``rmq_store/window/shard_view.py``)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow.compute as pc

from rmq_store.commit.ctl import Action, Ctl, Observed
from rmq_store.commit.positions import Positions, QueueRange
from rmq_store.consumer.pull import cover
from rmq_store.lake.read.segments import segments_of
from rmq_store.lake.read.slice_reader import SliceReader
from rmq_store.lake.read.time_search import search_offsets
from rmq_store.lake.table.imports import incomplete_imports, observed
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.store import LakeStore
from rmq_store.message.message import MessageQueue
from rmq_store.window.consume_request import of_retries_only


@dataclass(frozen=True, slots=True)
class ShardLookup:
    """A shard of the lake as the rules see it: a ``ShardView`` over the snapshot to which its tables were refreshed last."""

    shard: Shard

    @property
    def name(self) -> str:
        return self.shard.name

    @property
    def local_broker(self) -> str:
        return self.shard.local_broker

    def positions(self) -> Positions:
        return self.shard.positions()

    def others(self) -> list[ShardLookup]:
        shards = LakeStore.open(self.shard.root).shards()
        return [ShardLookup(shard) for shard in shards if shard.name != self.name]

    def search_offsets(
        self, positions: Positions, queues: Sequence[MessageQueue], time_ms: int
    ) -> dict[MessageQueue, int]:
        return search_offsets(self.shard, positions, queues, time_ms)

    def body_sizes(self, range_: QueueRange) -> Iterator[tuple[int, int]]:
        slices, _ = cover(range_, segments_of(self.shard, [range_]).get(range_.queue, ()))
        for slice_ in slices:
            for offsets, batch in SliceReader(self.shard.root, self.shard.commitlog.path, slice_).batches(["body"]):
                sizes = pc.fill_null(pc.binary_length(batch.column("body")), 0)
                yield from zip(offsets.tolist(), sizes.to_pylist(), strict=True)

    def observed(self) -> list[Observed]:
        return observed(self.shard)

    def incomplete_imports(self) -> dict[str, int]:
        return incomplete_imports(self.shard)

    def has_consumed(self, group: str, epoch: int, *, topics: bool = False) -> bool:
        return self.shard.has_ctl(group, Action.CONSUME, epoch, lambda ctl: not (topics and of_retries_only(ctl)))

    def first_window(self, group: str, epoch: int) -> Ctl | None:
        return self.shard.first_ctl(group, Action.CONSUME, epoch)

    def delete_epochs(self, group: str) -> list[int]:
        return [ctl.epoch or 0 for ctl in self.shard.ctls_since(0, group=group, action=Action.DELETE)]

    def windows_since(self, group: str | None, ms: int) -> list[Ctl]:
        return self.shard.ctls_since(ms, group=group, action=Action.CONSUME)
