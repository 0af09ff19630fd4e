"""What the checker reports."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tests.faults.independent.records import Queue


class Kind(StrEnum):
    """What is wrong."""

    LOST = "lost"
    DOUBLED = "doubled"
    HALF_WINDOW = "half window"
    RETRY_WITHOUT_COPY = "retry without a copy"
    COPY_WITHOUT_ORIGIN = "copy without origin"
    JUMP = "jump"


@dataclass(frozen=True, slots=True)
class Problem:
    """One finding: offsets ``[begin, end)`` of a queue, for a group where one is concerned."""

    kind: Kind
    what: str
    queue: Queue | None = None
    begin: int = 0
    end: int = 0
    group: str | None = None
    commit_id: str = ""

    def __str__(self) -> str:
        where = f" {self.queue} [{self.begin}, {self.end})" if self.queue else ""
        return f"{self.kind}: {self.what}:{where} group {self.group}, commit {self.commit_id}"
