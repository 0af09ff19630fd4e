"""The consumer groups of a store: those with an epoch or an offset, and those of imported brokers."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from rmq_store.commit.ctl import SCHEDULE_GROUP
from rmq_store.commit.positions import PositionKind
from rmq_store.errors import WrongUse
from rmq_store.lake.table.store import LakeStore
from rmq_store.lake.window.plan import ShardLookup
from rmq_store.utils.suggestions import did_you_mean, listed


def need_group(store: LakeStore, name: str, others: Collection[str] = ()) -> None:
    """Raise WrongUse for a group that is neither in the store nor in ``others``, as a broker does (SUBSCRIPTION_GROUP_NOT_EXIST
    26): no consumer would read at its offsets. The system group of deliveries does not count: moved back, it would deliver
    messages twice. A reset that ``passes_delayed`` does not ask here."""
    known: set[str] = set()
    for names in (others, _of_positions(store), _observed(store)):  # the slowest look-up comes last
        known |= set(names)
        if name in known - {SCHEDULE_GROUP}:
            return
    known.discard(SCHEDULE_GROUP)
    names = sorted(known)
    raise WrongUse(
        f"there is no group {name!r}{did_you_mean(name, names)}; known: {listed(names)}. "
        "Add a new group to the settings first."
    )


def _of_positions(store: LakeStore) -> Iterator[str]:
    for shard in store.shards():
        positions = shard.positions()
        for kind in (PositionKind.EPOCH, PositionKind.OFFSET):
            yield from positions.names(kind)


def _observed(store: LakeStore) -> Iterator[str]:
    """The groups that imports observed."""
    for shard in store.shards():
        yield from (seen.group for seen in ShardLookup(shard).observed())
