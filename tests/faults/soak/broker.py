"""A broker's store directory that grows while it is imported."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from rmq_store.log.record import BLANK_MAGIC
from rmq_store.log.record_encoder import encode, new_record
from tests.faults.independent.history import Written, append

BROKER = "broker-a"
FILE_BYTES = 128 << 10
_BLANK_BYTES = 8
_QUEUES = {"Orders": 3, "Trimmed": 1}
FIRST_STORED_MS = 1_750_000_000_000
"""Long ago, so that the age limits of retention apply."""
_LARGEST_RECORD = 512


@dataclass(slots=True)
class GrowingBroker:
    """``journal``: the file of the history to which each message is written after it is in the log."""

    folder: Path
    journal: Path
    end: int = 0
    """Physical offset of the next record."""
    messages: int = 0
    _next: dict[tuple[str, int], int] = field(default_factory=dict)

    def grow(self, rng: Random, count: int) -> None:
        """Append ``count`` messages."""
        written = []
        for _ in range(count):
            topic = "Trimmed" if rng.random() < 0.1 else "Orders"
            queue = rng.randrange(_QUEUES[topic])
            if self.end % FILE_BYTES + _LARGEST_RECORD + _BLANK_BYTES > FILE_BYTES:
                self._end_file()
            offset = self._next.get((topic, queue), 0)
            key = f"broker-{self.messages}"
            record = encode(
                new_record(
                    topic=topic,
                    queue_id=queue,
                    queue_offset=offset,
                    commit_log_offset=self.end,
                    stored_body=f"order {self.messages}".encode(),
                    properties={
                        "TAGS": rng.choice("ABC"),
                        "KEYS": key,
                        "UNIQ_KEY": f"{self.messages:032X}",
                        "region": rng.choice(("eu", "us")),
                        "amount": str(rng.randrange(100)),
                    },
                    born_timestamp=FIRST_STORED_MS + self.messages,
                    store_timestamp=FIRST_STORED_MS + self.messages,
                )
            )
            self._write(record)
            self.end += len(record)
            self.messages += 1
            self._next[topic, queue] = offset + 1
            written.append(Written(topic, BROKER, queue, offset, key))
        append(self.journal, written)

    def _write(self, data: bytes) -> None:
        begin = self.end // FILE_BYTES * FILE_BYTES
        path = self.folder / "commitlog" / f"{begin:020}"
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.write_bytes(bytes(FILE_BYTES))
        with path.open("r+b") as file:
            file.seek(self.end - begin)
            file.write(data)

    def _end_file(self) -> None:
        blank = FILE_BYTES - self.end % FILE_BYTES
        self._write(blank.to_bytes(4, "big") + BLANK_MAGIC.to_bytes(4, "big", signed=True))
        self.end += blank
