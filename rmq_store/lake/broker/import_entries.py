"""The broker's own entries next to the messages of a chunk of its log: what was written must agree with the log.

What was not written is made from the log, as the broker's recovery does (rules 19.1). Messages of a topic that was deleted
and made again have no entry. Where a queue has no entries at all, the order of the log tells its generations.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from operator import itemgetter

import numpy as np
import numpy.typing as npt

from rmq_store.broker_files.queue_generations import QueueKey
from rmq_store.errors import BadData
from rmq_store.lake.broker.entry_reader import NO_ENTRY, Entries, EntryReader, Place, Slots
from rmq_store.message.message import MessageQueue

MOST_MISPLACED = 16
"""Messages of a run, or entries of a queue: where more disagree, no record is damaged, but the entries are not its log's."""


@dataclass(frozen=True, slots=True)
class Run:
    """Messages of a queue whose queue offsets follow one another, from ``begin`` on, with one or more rows."""

    queue: MessageQueue
    begin: int
    physical: npt.NDArray[np.int64]
    """Commit log offsets."""
    sizes: npt.NDArray[np.int32]
    codes: npt.NDArray[np.int64]
    """Tags codes."""

    @property
    def slots(self) -> Slots:
        return Slots(self.queue, self.begin, len(self.physical))


def of_a_deleted_topic(reader: EntryReader, run: Run, entries: Entries, salvage: bool) -> npt.NDArray[np.bool_]:
    """Mask of the messages of a run that belong to a topic which was deleted and made again: the broker's entry at their
    offset, or the last one where the queue ends before it, points further on in the log, and so does the queue's first entry,
    which in a queue that was never deleted points to an earlier message. An entry that is missing in front of others was lost:
    its message is that of the log. An entry that points further on, to where the log has nothing yet, is of a message that is
    still to come, and is set to zeros.

    One record of these entries in the log shows that they are this queue's. Where all that were looked at are damaged, the
    order of the entries counts, unless the first one points into a record: it is left over from an end that the log lost. No
    other entry confirms the queue's first one: it counts with its record, and where that is damaged only with ``salvage``, if
    the next entry follows it.
    """
    offsets = np.arange(run.begin, run.slots.end)
    is_later: npt.NDArray[np.bool_] = entries["commit_log_offset"] > run.physical
    if reader.files(run.queue) is None or (entries["size"].all() and not is_later.any()):
        return np.zeros(len(offsets), np.bool_)
    newest = reader.newest(run.queue)
    entries[is_later & (entries["commit_log_offset"] >= newest.log_end)] = NO_ENTRY
    is_behind = (entries["size"] == 0) & (offsets >= newest.written.stop)
    seen = np.where(is_behind, newest.last, entries)
    slots = np.where(is_behind, newest.written.stop - 1, offsets)
    is_later = seen["commit_log_offset"] > run.physical
    if not is_later.any():
        return is_later
    known = list(zip(slots[is_later].tolist(), seen[is_later], strict=True))
    first, entry = known[0] if newest.first is None else min(known[0], newest.first, key=itemgetter(0))
    shown = (reader.has_record(run.queue, *one) for one in (known[0], (first, entry), known[-1]))
    is_shown = next((has_record for has_record in shown if has_record is not None), None)
    if is_shown is False:  # the entries are wrong, not the messages: compare raises
        return np.zeros(len(offsets), np.bool_)
    if is_shown is None and reader.is_inside_a_record(entry):  # the one by which a message is older is left over
        return np.zeros(len(offsets), np.bool_)
    is_older: npt.NDArray[np.bool_] = is_later & (offsets > first) & (run.physical < entry["commit_log_offset"])
    if is_shown is None:
        is_older &= seen["commit_log_offset"] >= entry["commit_log_offset"]
    for at in np.flatnonzero(is_later & (offsets == first)):
        has_record = reader.has_record(run.queue, first, entry)
        is_before = run.physical[at] + run.sizes[at] <= entry["commit_log_offset"]
        is_damaged = has_record is None and salvage and is_before and reader.is_followed(run.queue, first)
        is_damaged = is_damaged and not reader.is_inside_a_record(entry)
        is_older[at] = has_record or is_damaged
    return is_older


@dataclass(frozen=True, slots=True)
class LogOrder:
    """What a piece of the log shows of a queue that has no entries."""

    first: int
    """Commit log offset of the queue's first message."""
    begin: int
    """That of its last message with queue offset 0, at which its newest generation begins; -1: no message has it."""

    @classmethod
    def of(cls, physical: npt.NDArray[np.int64], offsets: npt.NDArray[np.int64]) -> LogOrder:
        """``physical``, ``offsets``: commit log offset and the broker's queue offset of each message, at least one."""
        return cls(int(physical.min()), int(physical[offsets == 0].max(initial=-1)))

    def with_piece(self, other: LogOrder) -> LogOrder:
        return LogOrder(min(self.first, other.first), max(self.begin, other.begin))


def newest_begins(pieces: Iterable[Mapping[QueueKey, LogOrder]]) -> dict[QueueKey, int]:
    """The commit log offsets at which the newest generation of queues begins, where messages of an older one are before it.

    Only a later message with offset 0 proves that a topic was deleted. That a queue has no entries proves nothing: the broker
    may not have written them yet, or a power failure took them and left those of other queues.
    """
    orders: dict[QueueKey, LogOrder] = {}
    for key, order in (item for piece in pieces for item in piece.items()):
        orders[key] = orders.get(key, order).with_piece(order)
    return {key: order.begin for key, order in orders.items() if order.first < order.begin}


def take_delivery_times(codes: npt.NDArray[np.int64], entries: Entries) -> bool:
    """The tags code of a schedule entry is its delivery time, by the broker's level table, which is in none of its files.
    So the entry counts, and the store's level table only where there is no entry. Returns whether the last entry says
    another time than the store's table."""
    written = np.flatnonzero(entries["size"] > 0)
    differs = bool(len(written) and codes[written[-1]] != entries["tags_code"][written[-1]])
    codes[written] = entries["tags_code"][written]
    return differs


def misplaced(reader: EntryReader, run: Run, entries: Entries) -> dict[int, Place]:
    """The messages of a run whose own entries are at other places, by index. What a record says of its place is covered by no
    checksum: where the entry of this place is another record's, and the entry of another place points to this one, the record
    is damaged. So may be the other one, and hide that its entry is true: then the entries around it tell. Empty where an entry
    of the run differs for another reason, or so many that the entries are those of another queue: ``compare`` raises."""
    places: dict[int, Place] = {}
    wrong = np.flatnonzero((entries["size"] > 0) & (entries["commit_log_offset"] != run.physical)).tolist()
    if len(wrong) > MOST_MISPLACED:
        return {}
    for at in wrong:
        is_taken = _is_taken(reader, run.queue, run.begin + at, entries[at])
        place = reader.place_of(run.queue.topic, int(run.physical[at])) if is_taken else None
        if place is None:
            return {}
        places[at] = place
    return places


def _is_taken(reader: EntryReader, queue: MessageQueue, queue_offset: int, entry: np.void) -> bool:
    """Whether the entry of a place is true: its record says this place, is damaged, or says one that cannot be its own."""
    record = reader.record(entry)
    if record is None or Place.said_by(record) == (queue.topic, queue.queue_id, queue_offset):
        return True
    own = MessageQueue(record.topic, queue.broker_name, record.queue_id)
    own_entry = reader.entry(own, record.queue_offset)
    at = record.commit_log_offset
    if own_entry["size"]:
        if own_entry["commit_log_offset"] == at:
            return False
        if reader.has_record(own, record.queue_offset, own_entry):
            return True
    elif reader.goes_on_behind(own, at) and (own == queue or not reader.begins_behind(own, at)):
        return True  # its own entry would have been written
    # The record at its place is damaged itself, or nothing is known of its queue. Where the folders of queues were exchanged,
    # no entry has its record, or the broker wrote on and none before this one has it; but then the records name other queues.
    return reader.is_between_true_ones(queue, queue_offset, or_first=own == queue)


def out_of_order(
    physical: npt.NDArray[np.int64], offsets: npt.NDArray[np.int64], *, has_damage: bool
) -> npt.NDArray[np.bool_]:
    """Mask of the messages of a queue with an offset that cannot be theirs: the ones before and after them in the log leave
    room for one offset, and it is another one. ``physical``, ``offsets``: commit log offset and queue offset of each message.

    ``has_damage``: whether records of the log may be missing. Then a generation that begins (offset 0) behind one of a single
    message looks the same, if its second message is lost.
    """
    order = np.argsort(physical, kind="stable")
    before, own, after = (offsets[order][begin : len(offsets) - 2 + begin] for begin in range(3))
    is_wrong = (after == before + 2) & (own != before + 1)
    if has_damage:
        is_wrong &= (own != 0) | (before > 0)
    mask = np.zeros(len(offsets), np.bool_)
    mask[order[1:-1][is_wrong]] = True
    return mask


def compare(run: Run, entries: Entries) -> None:
    """Raises BadData when a written entry differs from the log."""
    same_place = entries["commit_log_offset"] == run.physical
    same = same_place & (entries["size"] == run.sizes) & (entries["tags_code"] == run.codes)
    wrong = np.flatnonzero((entries["size"] > 0) & ~same)
    if len(wrong):
        at = int(wrong[0])
        entry = tuple(int(value) for value in entries[at])
        without = f"import a copy of the store without consumequeue/{run.queue.topic}/{run.queue.queue_id}"
        problem = (
            f"{run.queue} offset {run.begin + at}: the broker's entry has (offset, size, tags code) {entry}, its log has "
            f"{(int(run.physical[at]), int(run.sizes[at]), int(run.codes[at]))}."
        )
        if same_place[at]:
            raise BadData(f"{problem} To have the entries made from the log, {without}.")
        raise BadData(
            f"{problem} The entry is wrong, or the record says a place that is not its own, and then the log file is to be "
            f"restored. Else, to take the record at its word and have the entries made from the log, {without}: a record that "
            "says a wrong place is stored at the wrong place then, and a message that has that place may be refused later."
        )
