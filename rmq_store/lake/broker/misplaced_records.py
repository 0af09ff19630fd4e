"""Records of a broker's log that say a wrong place in the queues, which no entry contradicts.

No checksum covers the topic, QUEUEID and QUEUEOFFSET of a record, nor the flags that say whether it has an entry. A record
that takes the place of another one is found when it is read (``import_entries.misplaced``). One that takes a free place leaves
its own one empty: the broker's entry of that place points to it. So these entries are read where messages have none of their
own: what the broker had not written yet is the same, and then no entry of another place points to them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rmq_store.broker_files.consume_queue_file import ConsumeQueueFiles
from rmq_store.broker_files.queue_generations import QueueKey
from rmq_store.commit.positions import Positions, import_id
from rmq_store.consumer.delay import queue_id_to_delay_level
from rmq_store.errors import BadData
from rmq_store.lake.broker.entry_reader import Entries, EntryReader, Place, Slots
from rmq_store.lake.broker.import_commit import broker_offset, skipped_bytes
from rmq_store.lake.broker.import_entries import MOST_MISPLACED
from rmq_store.lake.broker.import_job import ImportJob, WithoutEntry
from rmq_store.lake.broker.import_part import LogRead
from rmq_store.lake.broker.salvage import Skipped
from rmq_store.log.consume_queue import UNIT_BYTES
from rmq_store.log.record import Record, parse_level
from rmq_store.message.message import MessageQueue
from rmq_store.message.message_const import LMQ_PREFIX, SCHEDULE_TOPIC, MessageConst
from rmq_store.message.properties import tags_code

_PIECE_ENTRIES = 1 << 18
_MOST_GAP = 1 << 32
"""Offsets of one queue: no broker loses so many messages of it, and a window could not count them."""
_DISPATCH_SEPARATOR = ","
"""Of the queues that INNER_MULTI_DISPATCH names."""


def misplaced_records(job: ImportJob, read: LogRead, positions: Positions) -> list[Skipped]:
    """Those of the part, by place. ``positions``: before it."""
    if not read.without_entry:
        return []
    queues = _Queues(job, read, positions)
    by_place = {skip.begin: skip for skip in queues.far_ahead()}
    by_place |= {skip.begin: skip for skip in queues.of_other_entries(by_place)}
    return [by_place[place] for place in sorted(by_place)]


class _Doubtful(NamedTuple):
    """A record to which the entry of a place points that no message has."""

    place: Place
    own: Place
    """The one that it says."""
    begin: int
    """Commit log offset; so is ``end``."""
    end: int

    @classmethod
    def of(cls, record: Record, place: Place) -> _Doubtful:
        begin = record.commit_log_offset
        return cls(place, Place.said_by(record), begin, begin + record.store_size)


class _Queues:
    """The queues of the broker, with the places that have messages after this part."""

    def __init__(self, job: ImportJob, read: LogRead, positions: Positions) -> None:
        self._job = job
        self._read = read
        self._positions = positions
        self._reader = EntryReader(job.source, job.queues, job.file_bytes)
        skipped = skipped_bytes(read, positions.get(import_id(job.broker_name)))
        self._skipped_begins = np.array([skip.begin for skip in skipped], np.int64)
        self._skipped_ends = np.array([skip.end for skip in skipped], np.int64)
        self._ranges: dict[QueueKey, list[range]] = defaultdict(list)
        for segment in sorted(read.produced, key=lambda segment: segment.base or 0):
            begin = broker_offset(job, segment)
            key = (segment.queue.topic, segment.queue.queue_id)
            self._ranges[key].append(range(begin, begin + segment.count))

    def of_other_entries(self, damaged: Collection[int]) -> Iterator[Skipped]:
        """Those, but the ``damaged`` ones, to which the entry of another place points. Raises BadData where nothing tells which
        of the two is wrong."""
        queues = {key: files for key, files in self._job.queues.items() if not key[0].startswith(LMQ_PREFIX)}
        holes = [(key, hole) for key, files in queues.items() for hole in self._holes(key, files)]
        slots = [Slots(self._queue(key), hole.stop - 1, 1) for key, hole in holes]
        ends = [(key, self._end(key, files)) for key, files in queues.items()]
        slots += [Slots(self._queue(key), end, 1) for key, end in ends]
        entries = [entry for (entry,) in self._reader.read(slots)]
        chosen: dict[QueueKey, list[range]] = defaultdict(list)
        of_holes, of_ends = entries[: len(holes)], entries[len(holes) :]
        for (key, hole), entry in zip(holes, of_holes, strict=True):
            # Retention has removed the messages of a hole whose last entry is of one before the part.
            if not entry["size"] or entry["commit_log_offset"] >= self._read.begin:
                chosen[key].append(hole)
        for (key, end), entry in zip(ends, of_ends, strict=True):
            if entry["size"] and self._read.begin <= entry["commit_log_offset"] < self._read.end:
                chosen[key].append(range(end, queues[key].files[-1].end_offset // UNIT_BYTES))
        records = [one for key, of_queue in chosen.items() for one in self._in_holes(key, queues[key], of_queue)]
        without_own = [one.own for one in records if one.own != one.place and self._is_free(one.own)]
        for one in records:
            is_sound = one.own != one.place and one.own not in without_own
            if not is_sound and one.begin not in damaged and self._is_misplaced(one, without_own):
                yield Skipped(one.begin, one.end, one.place.reason)

    def far_ahead(self) -> Iterator[Skipped]:
        """Those without an entry behind more offsets than a queue can have lost."""
        newest: dict[QueueKey, WithoutEntry] = {}
        for key, record in (item for result in self._read.results for item in result.last_without.items()):
            newest[key] = max(record, newest.get(key, record))
        for key, record in newest.items():
            *before, own = self._ranges.get(key, [range(0)])
            known = before[-1].stop if before else self._known(key)
            if own == range(record.queue_offset, record.queue_offset + 1) and own.start > known + _MOST_GAP:
                reason = f"its QUEUEOFFSET is {own.start}, but {self._queue(key)} ends at {known} before it"
                yield Skipped(record.commit_log_offset, record.commit_log_offset + record.store_size, reason)

    def _queue(self, key: QueueKey) -> MessageQueue:
        return MessageQueue(key[0], self._job.broker_name, key[1])

    def _known(self, key: QueueKey) -> int:
        """The broker's offset up to which the queue was imported before the part; 0: it was not."""
        queue = self._queue(key)
        return max(self._positions.max_offset(queue) - self._job.base(queue), 0)

    def _end(self, key: QueueKey, files: ConsumeQueueFiles) -> int:
        ranges = self._ranges.get(key)
        return max(ranges[-1].stop if ranges else self._known(key), files.files[0].start_offset // UNIT_BYTES)

    def _holes(self, key: QueueKey, files: ConsumeQueueFiles) -> list[range]:
        """The offsets before the end that have no message in this part or before it, as far as the files reach."""
        at = max(self._known(key), files.files[0].start_offset // UNIT_BYTES)
        holes = []
        for offsets in self._ranges.get(key, ()):
            if at < offsets.start:
                holes.append(range(at, min(offsets.start, files.files[-1].end_offset // UNIT_BYTES)))
            at = max(at, offsets.stop)
        return [hole for hole in holes if hole]

    def _in_holes(self, key: QueueKey, files: ConsumeQueueFiles, holes: Sequence[range]) -> list[_Doubtful]:
        in_part = files.offsets_in(self._read.begin, self._read.end)
        candidates: list[tuple[Place, np.void]] = []
        for hole in holes:
            begin, stop = max(hole.start, in_part.start), min(hole.stop, in_part.stop)
            for at in range(begin, stop, _PIECE_ENTRIES):
                (entries,) = self._reader.read([Slots(self._queue(key), at, min(_PIECE_ENTRIES, stop - at))])
                numbers = np.flatnonzero(self._is_read(entries)).tolist()
                if len(candidates) + len(numbers) > MOST_MISPLACED:
                    return []
                candidates += [(Place(*key, at + number), entries[number]) for number in numbers]
        records = ((place, entry, self._reader.record(entry)) for place, entry in candidates)
        return [
            _Doubtful.of(record, place)
            for place, entry, record in records
            if record and _is_entry_of(record, place, entry)
        ]

    def _is_read(self, entries: Entries) -> npt.NDArray[np.bool_]:
        """Mask of the entries that point to what was read of the log, and not left out."""
        places = entries["commit_log_offset"]
        is_read: npt.NDArray[np.bool_] = entries["size"] > 0
        is_read &= (places >= self._read.begin) & (places < self._read.end)
        if len(self._skipped_begins):
            number = np.searchsorted(self._skipped_begins, places, side="right") - 1
            is_read &= (number < 0) | (places >= self._skipped_ends[number])
        return is_read

    def _is_free(self, place: Place) -> bool:
        """Whether the broker has no entry of the place: of the record that says it, or of a message of a newer generation."""
        return not self._reader.entry(self._queue(place[:2]), place.queue_offset)["size"]

    def _is_misplaced(self, record: _Doubtful, without_own: Sequence[Place]) -> bool:
        """Whether the record is wrong. The entry that points to it may be left over from a message that the broker has lost,
        and then the record's own entry may only be missing yet. ``without_own``: the places that such records say, one for each
        record; they do not prove one another. Raises BadData where it cannot be told."""
        own, place = record.own, record.place
        if own == place:
            return True
        own_key, is_same_queue = own[:2], own[:2] == place[:2]
        own_queue = self._queue(own_key)
        if self._reader.goes_on_behind(own_queue, record.begin):
            # Its own entry would have been written, too.
            return is_same_queue or not self._reader.begins_behind(own_queue, record.begin)
        if own.queue_offset and not is_same_queue:
            if self._has_message_beside(own, without_own):
                return False
            if not self._is_known(own_key, without_own):
                return True
        raise BadData(
            f"the record at commit log offset {record.begin} says that it is {own}, of which there is no entry, "
            f"but {place.reason}. Nothing after byte {self._read.begin} of the log was imported. If the broker is running, "
            "import a newer copy, which has all entries. Else the record is damaged, or the entry is one of a message that the "
            "broker has lost: restore the log file, or, to take the record at its word, import a copy without consumequeue/"
            f"{place.topic}/{place.queue_id}"
        )

    def _is_known(self, key: QueueKey, without_own: Sequence[Place]) -> bool:
        """Whether anything but the messages of the part at these places says that the queue exists."""
        if key in self._job.queues or self._known(key) > 0:
            return True
        doubtful = [place for place in without_own if place[:2] == key and self._has_message(place)]
        return sum(map(len, self._ranges.get(key, ()))) > len(doubtful)

    def _has_message_beside(self, own: Place, without_own: Sequence[Place]) -> bool:
        """Whether another message is before or behind this place in its queue, right there or with such records between."""
        for step in (-1, 1):
            beside = own
            while beside in without_own:
                beside = beside._replace(queue_offset=beside.queue_offset + step)
            if self._has_message(beside):
                return True
        return False

    def _has_message(self, place: Place) -> bool:
        """Whether a message with this offset is in the queue, or was."""
        key, queue_offset = place[:2], place.queue_offset
        is_known = 0 <= queue_offset < self._known(key)
        return is_known or any(queue_offset in offsets for offsets in self._ranges.get(key, ()))


def _is_entry_of(record: Record, place: Place, entry: np.void) -> bool:
    """Whether the entry of the place has the size and the tags code of the record to which it points: else it is another
    message's. So it is where the record has entries in several queues. That of a delayed message in the queue of its level has
    the delivery time, by the broker's level table, which is in none of its files. The place tells it: the topic that the record
    says may be what is damaged."""
    if place.topic in record.properties.get(MessageConst.INNER_MULTI_DISPATCH, "").split(_DISPATCH_SEPARATOR):
        return False
    level = parse_level(record.properties.get(MessageConst.DELAY_TIME_LEVEL, ""))
    is_delayed = place.topic == SCHEDULE_TOPIC and level == queue_id_to_delay_level(place.queue_id)
    code = tags_code(record.properties.get(MessageConst.TAGS))
    return bool(entry["size"] == record.store_size and (is_delayed or entry["tags_code"] == code))
