"""The broker names of one broker's log, and how the broker's offsets are divided among them.

A broker that lost the end of its log gives queue offsets out a second time. What it writes since then is imported under another
broker name, whose queues begin at the cut (``docs/decisions/0014-diverged-log.md``). The offsets of the broker's groups lie
in the queues of all these names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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


def observed_in_log(names: LogNames, earlier: Iterable[Observed], newest: Iterable[Observed]) -> tuple[Observed, ...]:
    """What the broker's groups have consumed, in the queues of all names of its log.

    ``newest``: the offsets in the broker's files; ``earlier``: what the import before recorded. An offset before a cut lies in
    the queue of the older name, and a group begins the queue of the next one at its cut. In a queue of an older name an offset
    never falls: what the broker lost may have been consumed there before. A group that is no longer in the files keeps its
    offsets.
    """
    if not names.cuts:
        return tuple(newest)
    before = {(one.group, one.queue): one.offset for one in earlier}
    at_broker = {(one.group, one.queue.topic, one.queue.queue_id): one.offset for one in newest}
    pairs = {*at_broker, *((group, queue.topic, queue.queue_id) for group, queue in before)}
    observed = [
        Observed(pair[0], stretch.queue, _offset_in(stretch, at_broker.get(pair), before.get((pair[0], stretch.queue))))
        for pair in pairs
        for stretch in names.stretches(*pair[1:])
    ]
    return tuple(sorted(observed, key=lambda one: (one.group, one.queue)))


def _offset_in(stretch: Stretch, offset: int | None, before: int | None) -> int:
    """``offset``: that of the broker's files, ``before``: that of the import before."""
    if offset is None:
        return stretch.begin if before is None else before
    offset = max(offset, stretch.begin)
    return offset if stretch.end is None else max(min(offset, stretch.end), before or 0)


def offset_at_broker(stretches: Sequence[Stretch], offsets: Mapping[MessageQueue, int]) -> int | None:
    """The broker's offset of a queue for a group with these ``offsets`` in the queues of its stretches: the first message that
    it has not consumed and that the broker has. None where the group has no offset that says it."""
    for stretch in stretches:
        offset = offsets.get(stretch.queue)
        if offset is not None and (stretch.end is None or offset < stretch.end):
            return offset
    return None
