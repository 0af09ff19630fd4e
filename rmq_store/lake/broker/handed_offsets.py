"""The offsets that a hand-back gave a broker, and that its files may lack (docs/decisions/0017-hand-back.md)."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from rmq_store.commit.ctl import SCHEDULE_GROUP, Observed
from rmq_store.lake.table.imports import last_hand_back
from rmq_store.lake.table.shard import Shard
from rmq_store.message.message import MessageQueue
from rmq_store.utils.suggestions import listed

Handed = Collection[tuple[str, MessageQueue]]
"""The group and the queue of each."""


def handed_offsets(shard: Shard, broker_name: str) -> Handed:
    """Those of the last hand-back; none where there was none."""
    ctl = last_hand_back(shard, broker_name)
    return frozenset((move.group, move.queue) for move in (ctl.moved if ctl else ()) if move.from_offset is not None)


def not_installed(handed: Handed, at_broker: Iterable[Observed]) -> tuple[str, ...]:
    """A note on the groups of which the broker's files lack an offset that was handed back."""
    groups = {group for group, _ in set(handed) - {(one.group, one.queue) for one in at_broker}} - {SCHEDULE_GROUP}
    if not groups:
        return ()
    note = (
        f"the broker's file of offsets lacks those of groups that were handed back: {listed(sorted(groups))}. Here they go on "
        "from the hand-back; for the broker install the file of 'rmq offsets export'"
    )
    return (note,)
