"""A shard in lists and dicts: a list of commits, each with the positions that it set, and files that are lists of rows.

A commit conflicts exactly when delta-rs would refuse it: when one after the handle's version touched one of its
application ids. Everything derived (consume queues, the history of offsets) is computed from the commits when needed.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from rmq_store.commit.ctl import Action, Ctl, Observed, Produced, StagedFile, lane, local_broker
from rmq_store.commit.decide import Decided
from rmq_store.commit.positions import Positions, QueueRange
from rmq_store.consumer.pull import Slice, cover
from rmq_store.errors import StagedFileGone
from rmq_store.log.consume_queue import BoundaryType, earliest_from_here, latest_so_far, offset_by_time
from rmq_store.message.message import MessageQueue
from rmq_store.utils.host import uuid7_ms
from tests.oracle.memory.rows import KeyRow, MessageRow, OutcomeRow, Stored, stored_rows


class Conflict(Exception):
    """A commit after the handle's version touched one of the ids."""


@dataclass(frozen=True, slots=True)
class OffsetMove:
    """One step in the history of an offset: by a window (from: begin, to: end) or by an operator."""

    group: str | None
    queue: MessageQueue
    from_offset: int | None
    to_offset: int
    pass_: int
    ctl: Ctl


def _nothing(step: str) -> None:
    """Outside of tests a step is not reported."""


class MemoryShard:
    """A shard. ``clock``: the store's own, UTC ms. ``of_store``: all shards of the store. ``on_step`` is called with every step
    of the commit protocol that is reached."""

    def __init__(self, name: str, clock: Callable[[], int], of_store: Mapping[str, MemoryShard] | None = None) -> None:
        self.name = name
        self._of_store = {} if of_store is None else of_store
        self.server_time_ms = clock
        self.on_step: Callable[[str], None] = _nothing
        self._lock = threading.Lock()
        self._commits: list[tuple[Ctl, frozenset[str], tuple[str, ...]]] = []
        self._positions = Positions(0, {})
        self._messages: dict[str, list[MessageRow]] = {}
        self._outcomes: dict[str, list[OutcomeRow]] = {}
        self._keys: dict[str, list[KeyRow]] = {}

    @property
    def local_broker(self) -> str:
        """The broker name of queues born in the lake."""
        return local_broker(self.name)

    def lane(self, group: str) -> str:
        """The broker name of a group's own schedule queues."""
        return lane(self.local_broker, group)

    def positions(self) -> Positions:
        """All positions of the newest version."""
        return self._positions

    def others(self) -> list[MemoryShard]:
        """The other shards of the store."""
        return [shard for shard in self._of_store.values() if shard is not self]

    # --- writing ---

    def stage(self, name: str, rows: list[MessageRow]) -> StagedFile:
        """Stage messages under a new name. They are not stored until the segments of a commit name the file."""
        return _staged(self._messages, name, "msg", rows)

    def stage_outcomes(self, name: str, rows: list[OutcomeRow]) -> StagedFile:
        """Stage ranges with an outcome. They are not stored until a commit lists the file."""
        return _staged(self._outcomes, name, "outcome", rows)

    def stage_keys(self, name: str, rows: list[KeyRow]) -> StagedFile:
        """Stage keys of acked messages."""
        return _staged(self._keys, name, "key", rows)

    def put(self, decided: Decided, files: Sequence[StagedFile]) -> None:
        """One atomic change of ctl row, files and positions, on exactly the version that was decided on.

        Raises Conflict, StagedFileGone; nothing was written then.
        """
        staged = self._messages.keys() | self._outcomes.keys() | self._keys.keys()
        missing = [file.path for file in files if file.path not in staged]
        if missing:
            raise StagedFileGone(f"staged file {missing[0]} is not there")
        with self._lock:
            for _, touched, _ in self._commits[decided.ctl.read_version :]:
                if touched & decided.positions.keys():
                    raise Conflict(", ".join(sorted(touched & decided.positions.keys())))
            paths = tuple(file.path for file in files)
            self._commits.append((decided.ctl, frozenset(decided.positions), paths))
            self._positions = self._positions.advanced(len(self._commits), decided.positions, decided.updated_ms)

    # --- ctl rows ---

    def ctls(self) -> list[Ctl]:
        """All commits, oldest first."""
        return [ctl for ctl, _, _ in self._commits]

    def ctl_of(self, commit_id: str) -> Ctl | None:
        return next((ctl for ctl in self.ctls() if ctl.commit_id == commit_id), None)

    def ctls_of_request(self, request_id: str, group: str | None, action: Action) -> list[Ctl]:
        """The parts of a request, in order."""
        return [c for c in self.ctls() if (c.request_id, c.group, c.action) == (request_id, group, action)]

    def observed(self) -> Iterator[Observed]:
        """The offsets that each broker's files had at its newest import."""
        newest = {ctl.parameter("broker_name"): ctl for ctl in self.ctls() if ctl.parameter("broker_name")}
        return (seen for ctl in newest.values() for seen in ctl.observed)

    def incomplete_imports(self) -> dict[str, int]:
        """None: imports in memory have one part."""
        return {}

    def has_consumed(self, group: str, epoch: int, *, topics: bool = False) -> bool:
        """Whether a window of the group was committed in this epoch or a later one. ``topics``: not of retries only."""
        windows = [ctl for ctl in self.ctls() if (ctl.group, ctl.action) == (group, Action.CONSUME)]
        return any((ctl.epoch or 0) >= epoch and not (topics and ctl.parameter("retries_only")) for ctl in windows)

    def first_window(self, group: str, epoch: int) -> Ctl | None:
        """The group's first window in this epoch or a later one; None: it had none."""
        windows = (ctl for ctl in self.ctls() if (ctl.group, ctl.action) == (group, Action.CONSUME))
        return next((ctl for ctl in windows if (ctl.epoch or 0) >= epoch), None)

    def delete_epochs(self, group: str) -> list[int]:
        """The epochs that deletes of the group began in the shard."""
        return [ctl.epoch or 0 for ctl in self.ctls() if (ctl.group, ctl.action) == (group, Action.DELETE)]

    def windows_since(self, group: str | None, ms: int) -> list[Ctl]:
        """The windows of the group (None: of all) that were made at a moment (UTC ms) or later, oldest first."""
        windows = (c for c in self.ctls() if c.action is Action.CONSUME and group in (None, c.group))
        return [ctl for ctl in windows if uuid7_ms(ctl.commit_id) >= ms]

    # --- messages ---

    def segments_of(self, ranges: Sequence[QueueRange]) -> Mapping[MessageQueue, list[Produced]]:
        """The segments of the queues of these ranges, in offset order: the consume queue."""
        segments_of: dict[MessageQueue, list[Produced]] = defaultdict(list)
        queues = {range_.queue for range_ in ranges}
        for ctl in self.ctls():
            for segment in ctl.produced:
                if segment.queue in queues:
                    segments_of[segment.queue].append(replace(segment, commit_id=ctl.commit_id))
        for segments in segments_of.values():
            segments.sort(key=lambda segment: segment.base or 0)
        return segments_of

    def read(self, slice_: Slice) -> list[Stored]:
        """The messages of a slice."""
        return stored_rows(slice_, self._messages[slice_.file])

    def body_sizes(self, range_: QueueRange) -> Iterator[tuple[int, int]]:
        """The messages of a range in order: (offset, bytes of the body)."""
        slices, _ = cover(range_, self.segments_of([range_]).get(range_.queue, ()))
        return (
            (message.queue_offset, len(message.row.body or b"")) for slice_ in slices for message in self.read(slice_)
        )

    def stored(self, queue: MessageQueue) -> list[Stored]:
        """Every message of a queue, from its first one on, whether still readable or not."""
        whole = QueueRange(queue, 0, self._positions.max_offset(queue))
        slices, _ = cover(whole, self.segments_of([whole]).get(queue, ()))
        return [message for slice_ in slices for message in self.read(slice_)]

    def search_offsets(
        self, positions: Positions, queues: Sequence[MessageQueue], time_ms: int, *, upper: bool = False
    ) -> dict[MessageQueue, int]:
        """LOWER or UPPER offset at a time (``ConsumeQueueStore#getOffsetInQueueByTime``, rules 2.3); both lie in [min, max]."""
        return {queue: self._offset_at(positions, queue, time_ms, upper) for queue in queues}

    def _offset_at(self, positions: Positions, queue: MessageQueue, time_ms: int, upper: bool) -> int:
        readable = range(positions.min_offset(queue), positions.max_offset(queue))
        there = {message.queue_offset: message.store_timestamp for message in self.stored(queue)}
        known, boundary = latest_so_far([there.get(offset, 0) for offset in readable]), BoundaryType.LOWER
        if upper:  # an offset without a message counts as stored when the one before it was
            filled = [there.get(offset, time) for offset, time in zip(readable, known, strict=True)]
            known, boundary = earliest_from_here(filled), BoundaryType.UPPER
        return offset_by_time(readable, lambda offset: known[offset - readable.start], time_ms, boundary)

    # --- what happened ---

    def offset_history(self, group: str) -> list[OffsetMove]:
        """Every move of the group's offsets, oldest first."""
        history = []
        for ctl in self.ctls():
            moves: list[tuple[str | None, MessageQueue, int | None, int, int]]
            moves = [
                (ctl.group, c.range.queue, c.range.begin, c.range.end, c.pass_)
                for c in ctl.consumed
                if ctl.moves_offsets
            ]
            moves += [(m.group, m.queue, m.from_offset, m.to_offset, m.pass_) for m in ctl.moved]
            history += [OffsetMove(*move, ctl) for move in moves if move[0] == group]
        return history

    def outcomes(self, group: str) -> list[OutcomeRow]:
        """The ranges with an exceptional outcome and no message, oldest first."""
        rows = (row for _, _, paths in self._commits for path in paths for row in self._outcomes.get(path, ()))
        return [row for row in rows if row.group == group]

    def keys(self, group: str, since_ms: int = 0) -> list[KeyRow]:
        """The keys that the group acked in windows that were made at a moment (UTC ms) or later, oldest first."""
        rows = (row for _, _, paths in self._commits for path in paths for row in self._keys.get(path, ()))
        return [row for row in rows if row.group == group and uuid7_ms(row.commit_id) >= since_ms]


Row = TypeVar("Row")


def _staged(files: dict[str, list[Row]], name: str, kind: str, rows: list[Row]) -> StagedFile:
    if name in files or not rows:
        raise ValueError(f"a file needs a new name and at least one row: {name}, {len(rows)} rows")
    files[name] = rows
    return StagedFile(name, kind, 0, len(rows), "")
