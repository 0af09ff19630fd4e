"""The generations of a broker's queues: when a topic is deleted and made again, the broker's queue begins at offset 0 again.

In the lake the queue goes on (``docs/decisions/0016-queue-generations.md``). The base of a generation is the lake's offset of
its first message: a lake offset is the base plus the broker's offset.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rmq_store.broker_files.log_names import LogNames, QueueCuts, observed_in_log
from rmq_store.commit.ctl import SCHEDULE_GROUP, Observed
from rmq_store.message.message import MessageQueue
from rmq_store.message.message_const import SCHEDULE_TOPIC

QueueKey = tuple[str, int]
"""Topic and queue id."""


@dataclass(frozen=True, slots=True)
class Generations:
    """Of the queues of one broker. A queue that is not in it has one generation, with base 0."""

    bases: Mapping[QueueKey, tuple[int, ...]] = field(default_factory=dict)
    """By queue those of all generations but the first, ascending."""

    @property
    def newest(self) -> dict[QueueKey, int]:
        """By queue the base of its newest generation."""
        return {key: bases[-1] for key, bases in self.bases.items()}

    def base(self, queue: MessageQueue) -> int:
        """That of the queue's newest generation."""
        return self.bases.get((queue.topic, queue.queue_id), (0,))[-1]

    def broker_offset(self, topic: str, queue_id: int, offset: int) -> int:
        """The broker's offset of the message at this lake offset, in the generation that has it."""
        bases = self.bases.get((topic, queue_id), ())
        number = bisect_right(bases, offset)
        return offset - (bases[number - 1] if number else 0)

    def with_new(self, begun: Mapping[QueueKey, int]) -> Generations:
        """``begun``: the bases of new generations."""
        newer = {key: (*self.bases.get(key, ()), base) for key, base in begun.items()}
        return Generations({**self.bases, **newer})

    def before(self, cuts: QueueCuts) -> Generations:
        """Those that a broker still has which has lost its queues from these lake offsets on."""
        kept = {key: tuple(base for base in bases if base < cuts.get(key, 0)) for key, bases in self.bases.items()}
        return Generations({key: bases for key, bases in kept.items() if bases})

    def rows(self) -> list[list[Any]]:
        """[topic, queue id, bases] of each queue, for a ctl row."""
        return [[*key, list(bases)] for key, bases in sorted(self.bases.items())]

    @classmethod
    def of_rows(cls, rows: Iterable[Sequence[Any]]) -> Generations:
        return cls({(topic, queue_id): tuple(bases) for topic, queue_id, bases in rows})


@dataclass(frozen=True, slots=True)
class AtBroker:
    """What a broker's files say of its groups' offsets, in its own numbers."""

    newest: Collection[Observed]
    """The offsets."""
    topics: Collection[str]
    """Those that it has; empty: not known."""
    is_emptied: Callable[[MessageQueue], bool | None]
    """Whether a queue that has messages in the lake has none there, in the newest generation; None: not known."""
    has_groups: bool = True
    """Whether a file of the groups' offsets is there."""
    has_levels: bool = True
    """Whether a file of how far the delay levels are delivered is there."""


def observed_here(
    names: LogNames,
    generations: Generations,
    broker: AtBroker,
    ends: Mapping[MessageQueue, int],
    earlier: Iterable[Observed],
    handed: Collection[tuple[str, MessageQueue]] = (),
) -> tuple[Observed, ...]:
    """What the broker's groups have consumed, as lake offsets in the queues of all names of its log (``observed_in_log``).

    ``earlier``: what the import before recorded, in lake offsets; ``ends``: the next offset of each queue in the lake. A broker
    of version 5 removes the offsets of a deleted topic from its files, one of version 4 leaves them there. Until the group has
    one in the newest generation it keeps what was recorded, so that here it continues there and goes on to the newest
    generation. How far a delay level is delivered never falls. ``handed``: the group and queue of each offset that the last
    hand-back gave the broker. It counts until the broker's files have one there: they have none of a group that only the lake
    had, if the exported file was not installed, and the group would begin as a new one. Where a file is missing, as in a copy
    without it, nothing says that an offset is gone.
    """
    before = {(one.group, one.queue): one for one in earlier}
    at_broker = []
    for one in broker.newest:
        here = Observed(one.group, one.queue, generations.base(one.queue) + one.offset)
        if not _is_left_over(generations, ends, before.get((one.group, one.queue)), here):
            at_broker.append(here)
    observed = {(one.group, one.queue): one for one in observed_in_log(names, before.values(), at_broker)}
    for key, one in before.items():
        now = observed.get(key)
        if now is None:
            has_file = broker.has_levels if one.group == SCHEDULE_GROUP else broker.has_groups
            is_kept = not has_file or key in handed or _is_older(generations, broker, one)
        else:
            is_kept = one.offset > now.offset and (one.group == SCHEDULE_GROUP or broker.is_emptied(one.queue) is True)
        if is_kept:
            observed[key] = one
    return tuple(sorted(observed.values(), key=lambda one: (one.group, one.queue)))


def emptied(broker: AtBroker, queues: Iterable[MessageQueue]) -> tuple[QueueKey, ...]:
    """Those of the queues with messages in the lake of which the broker has none: their topic is deleted, or made again and has
    no message yet. Without consume queues, its topics tell which are deleted. ``queues``: of the broker, in any order."""

    def is_gone(queue: MessageQueue) -> bool:
        is_emptied = broker.is_emptied(queue)
        if is_emptied is None:  # no broker deletes the topic of the delay levels, and an old one does not list it
            return bool(broker.topics) and queue.topic not in broker.topics and queue.topic != SCHEDULE_TOPIC
        return is_emptied

    return tuple(sorted((queue.topic, queue.queue_id) for queue in queues if is_gone(queue)))


def _is_left_over(
    generations: Generations, ends: Mapping[MessageQueue, int], recorded: Observed | None, here: Observed
) -> bool:
    """Whether an offset in the broker's file is beyond the end of the newest generation, and one of an older generation was
    recorded."""
    is_beyond = here.offset > ends.get(here.queue, here.offset)
    return recorded is not None and is_beyond and 0 < generations.base(here.queue) >= recorded.offset


def _is_older(generations: Generations, broker: AtBroker, seen: Observed) -> bool:
    """Whether the offset is one of a topic, or of a generation, that the broker has deleted. A queue that was made again has no
    base until it has a message: that the broker has none in it says so. Where that is not known the offset may be one."""
    if broker.topics and seen.queue.topic not in broker.topics:
        return True
    return 0 < generations.base(seen.queue) >= seen.offset or broker.is_emptied(seen.queue) is not False
