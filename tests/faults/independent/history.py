"""What was seen outside of the store: the calls of listeners, the messages that were sent, those that the broker wrote.

Each is a file of JSON lines, one file for each process, appended and synced before the program goes on (``append``). So
whatever the store says later, these lines say what happened.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from tests.faults.independent.records import Queue

SUCCESS, FAILURE = "success", "failure"


@dataclass(frozen=True, slots=True)
class Call:
    """One message of one call of a listener."""

    request: str
    """The request id of the command that called it."""
    attempt: str
    """The run of that command; a request that was cut has several."""
    process: int
    group: str
    topic: str
    broker: str
    queue: int
    offset: int
    key: str | None
    times: int
    """``reconsume_times``: 0 at the first delivery."""
    outcome: str
    """SUCCESS or FAILURE: what the listener answers for this message."""

    @property
    def place(self) -> tuple[Queue, int]:
        return Queue(self.topic, self.broker, self.queue), self.offset


@dataclass(frozen=True, slots=True)
class Sent:
    """A request to send messages, written before the first attempt. It is made again until it has an answer."""

    request: str
    topic: str
    keys: list[str]


@dataclass(frozen=True, slots=True)
class Written:
    """A message that the broker has written."""

    topic: str
    broker: str
    queue: int
    offset: int
    key: str


Line = Call | Sent | Written
OneLine = TypeVar("OneLine", Call, Sent, Written)


def append(path: Path, lines: Iterable[Line]) -> None:
    """Add lines to a file; they survive the process and the machine when this returns."""
    text = "".join(json.dumps(asdict(line), separators=(",", ":")) + "\n" for line in lines)
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, text.encode())
        os.fsync(file)
    finally:
        os.close(file)


def read(folder: Path, kind: type[OneLine]) -> list[OneLine]:
    """The lines of all files of a folder. A line that a killed process has begun and not ended is left out: what it would
    have said was not synced, so the program did not go on."""
    return [kind(**line) for path in sorted(folder.glob("*.jsonl")) for line in _whole_lines(path)]


def _whole_lines(path: Path) -> Iterator[Mapping[str, Any]]:
    for line in path.read_text(encoding="utf-8").split("\n")[:-1]:
        try:
            yield json.loads(line)
        except ValueError:
            continue
