"""The course of one group of ``consume_all.py`` through its shards, and its report."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rmq_store.commit.positions import Outcome, QueueRange
from rmq_store.commit.request import Status, overall
from rmq_store.errors import NothingThere
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.window.consumption import Consumption, by_shard, outcomes_of
from rmq_store.settings.settings import GroupSettings
from rmq_store.window.consume import WindowReport


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupReport:
    """What became of one group."""

    group: str
    shards: tuple[Consumption, ...]
    """The shards in which it has finished a window, or found none; the last may be incomplete if there is an error."""
    error: Exception | None = None
    """Why the group's work ended early; what was committed before stays."""
    idle: str = ""
    """Why no shard has anything for the group; empty when one has."""

    @property
    def status(self) -> Status:
        """Of what was committed, also if there is an error: committed, already_committed or empty."""
        return overall(shard.status for shard in self.shards)

    @property
    def outcomes(self) -> dict[Outcome, int]:
        """The number of messages per outcome; outcomes without messages are left out."""
        return outcomes_of(self.shards)

    @property
    def messages(self) -> int:
        return sum(shard.messages for shard in self.shards)

    @property
    def unread(self) -> tuple[QueueRange, ...]:
        """What the request has left unread in blocked queues, by offset."""
        return tuple(range_ for shard in self.shards for range_ in shard.unread)


@dataclass(slots=True)
class Course:
    """The way of a group through its shards."""

    group: GroupSettings
    shards: deque[Shard] = field(default_factory=deque)
    """Those that it has not finished, the current one first."""
    windows: list[WindowReport] = field(default_factory=list)
    error: Exception | None = None

    @property
    def is_over(self) -> bool:
        return self.error is not None or not self.shards

    def add(self, report: WindowReport) -> None:
        self.windows.append(report)
        if report.is_last:
            self.shards.popleft()

    @contextmanager
    def own_errors(self) -> Iterator[None]:
        """An error of the block is that of the group."""
        try:
            yield
        except Exception as error:
            self.error = error

    def report(self) -> GroupReport:
        name, shards = self.group.name, by_shard(self.windows)
        if isinstance(self.error, NothingThere):
            return GroupReport(group=name, shards=shards, idle=str(self.error))
        return GroupReport(group=name, shards=shards, error=self.error)
