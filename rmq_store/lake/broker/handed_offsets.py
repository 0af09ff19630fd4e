"""The offsets that a hand-back gave a broker, and that its files may lack (docs/decisions/0017-hand-back.md)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from rmq_store.commit.ctl import SCHEDULE_GROUP, Observed
from rmq_store.lake.table.imports import last_hand_back, names_of_log
from rmq_store.lake.table.shard import Shard
from rmq_store.message.message import MessageQueue
from rmq_store.utils.suggestions import listed

Handed = Mapping[tuple[str, MessageQueue], int]
"""The offsets by group and queue."""


def handed_offsets(shard: Shard, broker_name: str) -> Handed:
    """Those of the last hand-back of the broker's log, under this name or one that it continues; none where there was none."""
    by_name = (last_hand_back(shard, name) for name in reversed(names_of_log(shard, broker_name).names))
    ctl = next(filter(None, by_name), None)
    moves = ctl.moved if ctl else ()
    return {(move.group, move.queue): move.from_offset for move in moves if move.from_offset is not None}


def not_seen_since(handed: Handed, earlier: Iterable[Observed]) -> Handed:
    """Those that no import has seen in the broker's files, as far as that is known: an offset beyond the one that was handed
    back is the broker's own, and one that is not recorded any more was found to be gone there. How far a delay level is
    delivered never falls, so those stay. ``earlier``: what the newest import, or the hand-back, recorded."""
    recorded = {(one.group, one.queue): one.offset for one in earlier}
    return {
        (group, queue): offset
        for (group, queue), offset in handed.items()
        if group == SCHEDULE_GROUP or recorded.get((group, queue), offset + 1) <= offset
    }


def queues_at_broker(pairs: Iterable[tuple[str, MessageQueue]]) -> set[tuple[str, str, int]]:
    """Group, topic and queue id of each: a broker has one queue where the names of its log have one each."""
    return {(group, queue.topic, queue.queue_id) for group, queue in pairs}


def not_installed(handed: Handed, at_broker: Sequence[Observed], here: Sequence[Observed]) -> Iterator[str]:
    """Notes on the groups of which the broker's files lack an offset that was handed back, or have an older one, and on
    delay levels of which they have an older one. ``here``: the same offsets as those in the queues of the lake."""
    lacking = queues_at_broker(handed) - queues_at_broker((one.group, one.queue) for one in at_broker)
    if groups := {group for group, *_ in lacking} - {SCHEDULE_GROUP}:
        yield (
            f"the broker's file of offsets lacks those of groups that were handed back: {listed(sorted(groups))}. Here they go "
            "on from the hand-back; for the broker install the file of 'rmq offsets export'"
        )
    again: Counter[str] = Counter()
    for one in here:
        if one.group != SCHEDULE_GROUP:
            again[one.group] += max(handed.get((one.group, one.queue), 0) - one.offset, 0)
    if older := [f"{group} ({count:,} to consume again)" for group, count in sorted(again.items()) if count]:
        yield (
            f"the broker's file has older offsets of groups than it was given back: {listed(older)}. If they were "
            "not reset there on purpose, install the file of 'rmq offsets export' at the broker, which must be stopped for it, "
            "before a group starts there or here"
        )
    # An import never lowers a level here, so that the file has to be asked.
    levels = {one.queue: one.offset for one in (at_broker if here else ()) if one.group == SCHEDULE_GROUP}
    delivered = {
        queue: offset for (group, queue), offset in handed.items() if group == SCHEDULE_GROUP and queue in levels
    }
    behind = {queue: offset - levels[queue] for queue, offset in sorted(delivered.items()) if offset > levels[queue]}
    if behind:
        counts = [f"{queue.queue_id + 1} ({count:,} to deliver again)" for queue, count in behind.items()]
        yield (
            f"the broker's delayOffset.json is older than what was delivered here before the hand-back, of delay levels "
            f"{listed(counts)}. Install that of 'rmq offsets export' at the broker, which must be stopped for it"
        )
