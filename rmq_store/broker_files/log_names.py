"""The broker names of one broker's log, and how the broker's offsets are divided among them.

A broker that lost the end of its log gives queue offsets out a second time. What it writes since then is imported under another
broker name, whose queues begin at the cut (``docs/decisions/0014-diverged-log.md``). The offsets of the broker's groups lie
in the queues of all these names.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from rmq_store.commit.ctl import Observed
from rmq_store.message.message import MessageQueue

QueueCuts = Mapping[tuple[str, int], int]
"""By topic and queue id, the first offset that a broker has given out a second time: there the next name continues."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Offsets ``[begin, end)`` that a broker's queue has now, and the queue of the lake that has them."""

    queue: MessageQueue
    begin: int
    end: int | None
    """None: it still grows."""

    def is_before(self, base: int) -> bool:
        """Whether the broker has deleted all of it: its newest generation begins at ``base``."""
        return self.end is not None and self.end <= base


@dataclass(frozen=True, slots=True)
class LogNames:
    """The broker names of a log, the oldest first; the last one is imported."""

    names: tuple[str, ...]
    cuts: tuple[QueueCuts, ...] = ()
    """Between each name and the next."""

    def continued_by(self, name: str, cuts: QueueCuts) -> LogNames:
        return LogNames((*self.names, name), (*self.cuts, cuts))

    def stretches(self, topic: str, queue_id: int) -> list[Stretch]:
        """The stretches of a queue in the order of their offsets. Where a name has no such queue, the next has all of it."""
        stretches: list[Stretch] = []
        end: int | None = None
        for number in range(len(self.names) - 1, -1, -1):
            cut = self.cuts[number - 1].get((topic, queue_id)) if number else None
            stretches.insert(0, Stretch(MessageQueue(topic, self.names[number], queue_id), cut or 0, end))
            if cut is None:
                break
            end = cut
        return stretches

    def queue_at(self, topic: str, queue_id: int, offset: int) -> MessageQueue:
        """The queue of the lake that has the broker's message at this offset."""
        first, *others = self.stretches(topic, queue_id)
        return next((one.queue for one in reversed(others) if one.begin <= offset), first.queue)


def observed_in_log(
    names: LogNames,
    earlier: Iterable[Observed],
    newest: Iterable[Observed],
    base_of: Callable[[MessageQueue], int] = lambda queue: 0,
) -> tuple[Observed, ...]:
    """What the broker's groups have consumed, in the queues of all names of its log.

    ``newest``: the offsets in the broker's files; ``earlier``: what the import before recorded; ``base_of``: where the newest
    generation of a queue of the newest name begins.

    An offset before a cut lies in the queue of the older name, and a group begins the queue of the next one at its cut. In a
    queue of an older name an offset never falls: what the broker lost may have been consumed there before. A group that is no
    longer in the files keeps its offsets, and so does one that has there what an export of them gives (``offset_at_broker``):
    it has consumed nothing since.
    """
    if not names.cuts:
        return tuple(newest)
    before: dict[tuple[str, str, int], dict[MessageQueue, int]] = defaultdict(dict)
    for one in earlier:
        before[one.group, one.queue.topic, one.queue.queue_id][one.queue] = one.offset
    at_broker = {(one.group, one.queue.topic, one.queue.queue_id): one.offset for one in newest}
    observed = []
    for pair in {*at_broker, *before}:
        group, topic, queue_id = pair
        stretches, recorded, offset = names.stretches(topic, queue_id), before.get(pair, {}), at_broker.get(pair)
        if offset == offset_at_broker(stretches, recorded, base_of(stretches[-1].queue)):
            offset = None
        observed += [Observed(group, one.queue, _offset_in(one, offset, recorded.get(one.queue))) for one in stretches]
    return tuple(sorted(observed, key=lambda one: (one.group, one.queue)))


def _offset_in(stretch: Stretch, offset: int | None, before: int | None) -> int:
    """``offset``: that of the broker's files, ``before``: that of the import before."""
    if offset is None:
        return stretch.begin if before is None else before
    offset = max(offset, stretch.begin)
    return offset if stretch.end is None else max(min(offset, stretch.end), before or 0)


def offsets_in_log(
    stretches: Sequence[Stretch], offset: int, before: Mapping[MessageQueue, int]
) -> dict[MessageQueue, int]:
    """The offsets with which a group goes on at ``offset`` of the broker's queue, in the queues of its stretches.

    ``before``: its offsets in them now. Beyond a cut the broker's offset says nothing of what the broker has lost there: the
    group keeps its offset in that queue, if it is not before the cut.
    """
    offsets = {}
    for stretch in stretches:
        offset_here = max(offset, stretch.begin)
        if stretch.end is not None and offset_here >= stretch.end:
            offset_here = max(stretch.end, before.get(stretch.queue, 0))
        offsets[stretch.queue] = offset_here
    return offsets


def offset_at_broker(stretches: Sequence[Stretch], offsets: Mapping[MessageQueue, int], base: int = 0) -> int | None:
    """The broker's offset of a queue for a group with these ``offsets`` in the queues of its stretches: the first message that
    it has not consumed and that the broker has. A group that is past a cut begins the queue of the next name there. ``base``:
    where the newest generation begins. None where no offset of the group says it."""
    begun: int | None = None
    for stretch in stretches:
        offset = offsets.get(stretch.queue, begun)
        is_in_stretch = offset is not None and (stretch.end is None or offset < stretch.end)
        if is_in_stretch and not stretch.is_before(base):
            return offset
        begun = None if offset is None or is_in_stretch else stretch.end
    return None


def given_again(stretches: Sequence[Stretch], offsets: Mapping[MessageQueue, int], base: int = 0) -> int:
    """How many messages from ``offset_at_broker`` on the group has consumed: the broker gives it these again."""
    count, is_behind = 0, False
    for stretch in [stretch for stretch in stretches if not stretch.is_before(base)]:
        offset = offsets.get(stretch.queue)
        if offset is not None:
            end = offset if stretch.end is None else min(offset, stretch.end)
            count += max(end - max(stretch.begin, base), 0) if is_behind else 0
            is_behind = is_behind or stretch.end is None or offset < stretch.end
    return count
