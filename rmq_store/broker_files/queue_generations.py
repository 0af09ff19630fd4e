"""The generations of a broker's queues: when a topic is deleted and made again, the broker's queue begins at offset 0 again.

In the lake the queue goes on (``docs/decisions/0016-queue-generations.md``). The base of a generation is the lake's offset of
its first message: a lake offset is the base plus the broker's offset.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rmq_store.broker_files.log_names import LogNames, QueueCuts, observed_in_log, offset_at_broker
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


class WithoutEntries(NamedTuple):
    """A queue with messages in the lake of which an import found no entry of a message: its topic was deleted, or made again
    and has no message yet, or the copy of the broker's store is not whole."""

    topic: str
    queue_id: int
    end: int
    """Its next offset in the lake then: as long as it has this end, no message came since."""
    place: int | None
    """Commit log offset of its last message; None: not known."""
    is_gone: bool
    """Whether it is proved that the broker has no message: its topics lack the topic, or its log begins behind the place."""

    @property
    def key(self) -> QueueKey:
        return self.topic, self.queue_id

    def with_log_from(self, begin: int) -> WithoutEntries:
        """As it is where the broker's log has nothing before ``begin``."""
        return self._replace(is_gone=self.is_gone or (self.place is not None and self.place < begin))


def without_entries(
    has_entries: Callable[[MessageQueue], bool | None],
    topics: Collection[str],
    log_begin: int,
    ends: Mapping[MessageQueue, int],
    places_of: Callable[[Mapping[MessageQueue, int]], Mapping[MessageQueue, int]],
    earlier: Iterable[WithoutEntries] = (),
) -> tuple[WithoutEntries, ...]:
    """Those of the queues. One that ``earlier`` has, the import before, stays until it has entries, or a message more here.

    ``has_entries``: whether the broker has an entry of the queue's newest generation, None: the copy has no consume queues.
    ``topics``: those of the broker; empty: not known. ``log_begin``: the broker's log has nothing before it. ``ends``: the next
    offset of each queue of the broker in the lake. ``places_of``: the commit log offsets of the messages at these offsets,
    as far as they are kept here.
    """
    recorded = {(one.key, one.end): one for one in earlier}
    empty: dict[MessageQueue, WithoutEntries] = {}
    for queue, end in ends.items():
        key, is_written = (queue.topic, queue.queue_id), has_entries(queue)
        is_deleted = bool(topics) and queue.topic not in topics
        before = recorded.get((key, end))
        # No broker deletes the queues of the delay levels, and an old one does not list their topic.
        if queue.topic != SCHEDULE_TOPIC and not is_written and (before or is_deleted or is_written is False):
            is_gone = is_deleted or (before is not None and before.is_gone)
            empty[queue] = WithoutEntries(*key, end, before.place if before else None, is_gone)
    unknown = {queue: one.end - 1 for queue, one in empty.items() if one.place is None and not one.is_gone}
    places = places_of(unknown) if unknown else {}
    placed = (one._replace(place=places.get(queue, one.place)) for queue, one in empty.items())
    return tuple(sorted(one.with_log_from(log_begin) for one in placed))


@dataclass(frozen=True, slots=True)
class AtBroker:
    """What a broker's files say of its groups' offsets, in its own numbers."""

    newest: Collection[Observed]
    """The offsets."""
    topics: Collection[str] = ()
    """Those that it has; empty: not known."""
    without_entries: Collection[WithoutEntries] = ()
    has_queues: bool = True
    """Whether the copy has consume queues."""
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
    consumed a message of the newest generation it keeps what was recorded, so that here it continues there and goes on to the
    newest generation. How far a delay level is delivered never falls. ``handed``: the group and queue of each offset that the
    last hand-back gave the broker. It counts until the broker's files have one there: they have none of a group that only the
    lake had, if the exported file was not installed, and the group would begin as a new one. Where a file is missing, as in a
    copy without it, nothing says that an offset is gone.
    """
    before = {(one.group, one.queue): one for one in earlier}
    in_files = {(one.group, one.queue.topic, one.queue.queue_id): one.offset for one in broker.newest}
    at_broker, left_over = [], set()
    for one in broker.newest:
        stretches = names.stretches(one.queue.topic, one.queue.queue_id)
        recorded = [known for stretch in stretches if (known := before.get((one.group, stretch.queue)))]
        last_offset = offset_at_broker(stretches, {known.queue: known.offset for known in recorded})
        offset = _offset_here(generations, ends, last_offset, one)
        if offset is None:
            left_over |= {(one.group, known.queue) for known in recorded}
        else:
            at_broker.append(Observed(one.group, one.queue, offset))
    observed = {
        (one.group, one.queue): one for one in observed_in_log(names, before.values(), at_broker, generations.base)
    }
    empty = {one.key: one for one in broker.without_entries}
    for key, one in before.items():
        now, queue = observed.get(key), empty.get((one.queue.topic, one.queue.queue_id))
        if now is None:
            has_file = broker.has_levels if one.group == SCHEDULE_GROUP else broker.has_groups
            is_known = key in handed or key in left_over
            is_kept = not has_file or is_known or queue is not None or _is_older(generations, broker, one)
        elif one.group == SCHEDULE_GROUP:
            is_kept = one.offset > now.offset
        else:
            # A queue without messages has no reset. Where the copy may not be whole, only offset 0 in the file is one of such a
            # queue. Here it may be the cut, with which the queue of a newer name begins.
            is_empty = queue is not None and (queue.is_gone or in_files.get((one.group, *queue.key)) == 0)
            is_kept = one.offset > now.offset and is_empty
        if is_kept:
            observed[key] = one
    return tuple(sorted(observed.values(), key=lambda one: (one.group, one.queue)))


def _offset_here(
    generations: Generations, ends: Mapping[MessageQueue, int], recorded: int | None, one: Observed
) -> int | None:
    """The lake's offset of one in the broker's file. None: it is left over, and says nothing of the newest generation.

    ``recorded``: what the group had before, as a lake offset. Beyond the end it is that of an older generation: where the group
    was there, and where that one had as many messages. A group that had none before has consumed so many of the generation
    before the newest one, or all of them: if the log has lost its end instead, it reads messages again and passes over none.
    An offset 0 is what an export has for a group that is still in an older generation.
    """
    *older, base = (0, *generations.bases.get((one.queue.topic, one.queue.queue_id), ()))
    here = base + one.offset
    if not older:
        return here
    is_beyond = here > ends.get(one.queue, here)
    if recorded is None:
        return min(older[-1] + one.offset, base) if is_beyond else here
    is_in_older = recorded <= base
    if is_beyond:
        is_left_over = is_in_older or one.offset <= base - older[-1]
    else:
        is_left_over = is_in_older and one.offset == 0
    return None if is_left_over else here


def _is_older(generations: Generations, broker: AtBroker, seen: Observed) -> bool:
    """Whether an offset that is gone may be one of a topic, or of a generation, that the broker has deleted."""
    if broker.topics and seen.queue.topic not in broker.topics:
        return True
    return 0 < generations.base(seen.queue) >= seen.offset or not broker.has_queues
