"""A shard as a process has read it: the commits up to an entry, and what planning asks of them.

Nothing is stored: a segment names a file, and a file is a name.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rmq_store.commit.ctl import Action, Ctl, Observed, Produced, replaced_files
from rmq_store.commit.decide import Decided
from rmq_store.commit.positions import Positions, QueueRange, diverged_id
from rmq_store.message.message import MessageQueue
from rmq_store.utils.host import uuid7_ms
from rmq_store.window.consume_request import of_retries_only

SHARD, LOCAL = "s", "lake-s"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The log up to an entry. ``live``: the files that its version names."""

    ctls: tuple[Ctl, ...] = ()
    stored: Positions = field(default_factory=lambda: Positions(0, {}))
    live: frozenset[str] = frozenset()

    name = SHARD
    local_broker = LOCAL

    def after(self, decided: Decided, removed: Sequence[str]) -> Snapshot:
        files = {file.path for file in decided.ctl.files}
        positions = self.stored.advanced(len(self.ctls) + 1, decided.positions, decided.updated_ms)
        return Snapshot((*self.ctls, decided.ctl), positions, (self.live - set(removed)) | files)

    # --- what planning reads (``ShardView``) ---

    def positions(self) -> Positions:
        return self.stored

    def others(self) -> list[Snapshot]:
        return []

    def search_offsets(
        self, positions: Positions, queues: Sequence[MessageQueue], time_ms: int
    ) -> dict[MessageQueue, int]:
        """All messages are older."""
        return {queue: positions.max_offset(queue) if time_ms else positions.min_offset(queue) for queue in queues}

    def body_sizes(self, range_: QueueRange) -> Iterator[tuple[int, int]]:
        return ((offset, 1) for offset in range(range_.begin, range_.end))

    def observed(self) -> Iterator[Observed]:
        newest = {ctl.parameter("broker_name"): ctl for ctl in self.ctls if ctl.observed}
        return (
            seen for name, ctl in newest.items() if self.stored.get(diverged_id(name)) is None for seen in ctl.observed
        )

    def incomplete_imports(self) -> dict[str, int]:
        return {}

    def has_consumed(self, group: str, epoch: int, *, topics: bool = False) -> bool:
        windows = [ctl for ctl in self.ctls if (ctl.group, ctl.action) == (group, Action.CONSUME)]
        return any((ctl.epoch or 0) >= epoch and not (topics and of_retries_only(ctl)) for ctl in windows)

    def first_window(self, group: str, epoch: int) -> Ctl | None:
        windows = (ctl for ctl in self.ctls if (ctl.group, ctl.action) == (group, Action.CONSUME))
        return next((ctl for ctl in windows if (ctl.epoch or 0) >= epoch), None)

    def delete_epochs(self, group: str) -> list[int]:
        return [ctl.epoch or 0 for ctl in self.ctls if (ctl.group, ctl.action) == (group, Action.DELETE)]

    def windows_since(self, group: str | None, ms: int) -> list[Ctl]:
        windows = (ctl for ctl in self.ctls if ctl.action is Action.CONSUME and group in (None, ctl.group))
        return [ctl for ctl in windows if uuid7_ms(ctl.commit_id) >= ms]

    # --- what runs read ---

    def ctls_since(self, ms: int) -> list[Ctl]:
        return [ctl for ctl in self.ctls if uuid7_ms(ctl.commit_id) >= ms]

    def parts(self, request_id: str, *actions: Action) -> list[Ctl]:
        return [ctl for ctl in self.ctls if ctl.request_id == request_id and ctl.action in actions]

    def segments_of(self, ranges: Sequence[QueueRange]) -> Mapping[MessageQueue, list[Produced]]:
        """The segments of the queues of these ranges, in offset order."""
        segments: dict[MessageQueue, list[Produced]] = defaultdict(list)
        replaced, queues = replaced_files(self.ctls), {range_.queue for range_ in ranges}
        for ctl in self.ctls:
            for segment in ctl.produced:
                if segment.queue in queues and segment.file not in replaced:
                    segments[segment.queue].append(replace(segment, commit_id=ctl.commit_id))
        for of_queue in segments.values():
            of_queue.sort(key=lambda segment: segment.base or 0)
        return segments
