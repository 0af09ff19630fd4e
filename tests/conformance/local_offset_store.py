"""``vectors/local-offset-store``: sequences on a broadcasting client's offset store (rules 4).

Checks: every read of a sequence; at its end what memory holds, the text of the file byte for byte, and what another
store reads from that file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rmq_store.broker_files.local_offsets import local_offsets_text, usable_local_offsets
from rmq_store.message.message import MessageQueue
from tests.conformance.checks import Line, Outcomes, per_line, same
from tests.oracle.local_offset_store import LocalFileOffsetStore
from tests.oracle.offset_store import ReadOffsetType


class FileInMemory:
    """The two texts of an offsets file."""

    def __init__(self) -> None:
        self.text: str | None = None
        self.bak: str | None = None

    def read(self) -> Mapping[MessageQueue, int]:
        return usable_local_offsets(self.text, self.bak)

    def write(self, offsets: Mapping[MessageQueue, int]) -> None:
        self.bak, self.text = self.text, local_offsets_text(offsets)


def play(store: LocalFileOffsetStore, queues: Sequence[MessageQueue], step: Sequence[Any]) -> int | None:
    """One step of a sequence; the answer of a read."""
    match step:
        case ["update", at, offset, increase_only]:
            store.update_offset(queues[at], offset, increase_only)
        case ["freeze", at, offset]:
            store.update_and_freeze_offset(queues[at], offset)
        case ["remove", at]:
            store.remove_offset(queues[at])
        case ["persist", at]:
            store.persist(queues[at])
        case ["persistAll", several]:
            store.persist_all([queues[at] for at in several])
        case ["read", at, kind, _]:
            return store.read_offset(queues[at], ReadOffsetType(kind))
        case _:
            raise ValueError(f"unknown step {step}")
    return None


@per_line
def check(line: Line) -> Outcomes:
    queues = [MessageQueue(*queue) for queue in line["queues"]]
    file = FileInMemory()
    store = LocalFileOffsetStore(file)
    for number, step in enumerate(line["steps"], 1):
        answer = play(store, queues, step)
        if step[0] == "read":
            yield same(f"step {number}, {step[:3]}", answer, step[-1])
    again = LocalFileOffsetStore(file)
    again.load()
    from_memory = ReadOffsetType.READ_FROM_MEMORY
    yield same("memory", [store.read_offset(queue, from_memory) for queue in queues], line["memory"])
    yield same("reloaded", [again.read_offset(queue, from_memory) for queue in queues], line["reloaded"])
    yield same("file", file.text, line["file"])
